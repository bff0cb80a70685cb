"""Build a report from finished runs: `bertvision report RUN…`."""

import dataclasses
import os
from contextlib import AbstractContextManager
from pathlib import Path

from bertvision.disk import REPORT_LOCK, lock_in, sweep_below, writing_in
from bertvision.errors import UserError
from bertvision.network import no_downloads
from bertvision.pipeline.finished import FinishedRun
from bertvision.pipeline.log import LOG
from bertvision.progress import Reporter
from bertvision.report.analyses.comparisons import comparisons
from bertvision.report.analyses.layer_map import layer_map_section
from bertvision.report.analyses.scores_table import scores_table
from bertvision.report.analysis import build_sections
from bertvision.report.block import Report, Section
from bertvision.report.cards import write_cards
from bertvision.report.certainty import Certainty
from bertvision.report.finding import build_finding
from bertvision.report.side_by_side import compare_runs, name_runs
from bertvision.report.summary import build_facts, build_summary, encoder_name
from bertvision.report.toml import to_toml
from bertvision.report.writing import write_report
from bertvision.tables import counted


@no_downloads()
def make_report(
    folders: list[Path],
    to: Path | None = None,
    reporter: Reporter | None = None,
    with_encoder: bool = True,
    wait: bool = False,
) -> Path:
    """Write the report of one run, or of several side by side, and a model card for each head; return the page."""
    if not folders:
        raise UserError("a report needs at least one run: give its folder.")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("a run is named twice: name each run once.")
    runs, reporter = [FinishedRun(folder) for folder in folders], reporter or Reporter()
    place = to or _place(folders)
    with writing_report(place, wait, reporter):
        for run in runs:
            sweep_below(run.folder.path)  # before its files are measured
        report = build_report(runs[0], reporter, with_encoder) if len(runs) == 1 else _build_several(runs)
        for run in runs:
            if run.log.lost:
                lines = counted(run.log.lost, "line")
                reporter.say(f"{run.folder.path / LOG}: {lines} are damaged or were cut off, and are left out.")
        page = write_report(report, place)
        for run in runs:
            try:
                write_cards(run)
            except UserError as error:  # the run may belong to somebody else
                reporter.say(f"without model cards: {error}")
    return page


def writing_report(place: Path, wait: bool, reporter: Reporter) -> AbstractContextManager[bool]:
    """The lock for a report. It is not that of the run: a report of a run that is training is useful."""
    return writing_in(lock_in(place, REPORT_LOCK, "--to"), wait, reporter.say)


def _place(folders: list[Path]) -> Path:
    """The folder of the run, or the one that contains all runs, which must not be a run itself."""
    if len(folders) == 1:
        return folders[0]
    place = Path(os.path.commonpath([folder.absolute() for folder in folders]))
    if place == Path(place.anchor) or (place / "scores.json").is_file():
        raise UserError(f"the runs share no folder apart from '{place}': choose one with --to.")
    return place


def build_report(run: FinishedRun, reporter: Reporter, with_encoder: bool = True) -> Report:
    certainties = [Certainty(run, run.last, split) for split in run.splits]
    maps = layer_map_section(run, run.splits[0], reporter, with_encoder)
    return Report(
        f"{run.task.name} with {encoder_name(run)}",
        build_facts(run),
        build_summary(certainties[0]),
        [*([maps] if maps else []), *build_sections(run, certainties, reporter, with_encoder)],
        to_toml(run.config),
        build_finding(certainties[0]),
    )


def _build_several(runs: list[FinishedRun]) -> Report:
    certainties = [Certainty(run, run.last, run.splits[0]) for run in runs]
    sections, summary = compare_runs(certainties)
    names, settings = name_runs(runs), []
    for number, (certainty, name) in enumerate(zip(certainties, names, strict=True), start=1):
        some = [scores_table(certainty), comparisons(certainty)]
        blocks = [dataclasses.replace(block, key=f"run{number}_{block.key}") for block in some if block is not None]
        sections.append(Section(name, blocks))
        settings.append(f"# {name}\n{to_toml(certainty.run.config)}")
    facts = [f"{name}: {run.task.name} with {encoder_name(run)}" for name, run in zip(names, runs, strict=True)]
    finding, *more = summary
    return Report(f"{len(runs)} runs side by side", facts, more, sections, "\n".join(settings), finding)
