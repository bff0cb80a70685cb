"""From finished runs to a report: which blocks it has, in which order."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from bertvision.errors import UserError
from bertvision.pipeline.finished import FinishedRun
from bertvision.progress import Reporter
from bertvision.report.analyses import answering as answers
from bertvision.report.analyses import confusion as labels
from bertvision.report.analyses import spending
from bertvision.report.analyses.choices import choices
from bertvision.report.analyses.comparisons import across_snapshots, comparisons, every_pair
from bertvision.report.analyses.data_share import data_share
from bertvision.report.analyses.disagreements import disagreements
from bertvision.report.analyses.finetuning_curve import finetuning_curve
from bertvision.report.analyses.head_epochs import epochs_of_heads
from bertvision.report.analyses.layer_importance import layer_importance
from bertvision.report.analyses.layer_map import layer_map
from bertvision.report.analyses.layer_weights import layer_weights
from bertvision.report.analyses.passage_lengths import passage_lengths
from bertvision.report.analyses.predicted_scores import predicted_against_true
from bertvision.report.analyses.scores_table import scores_table
from bertvision.report.analyses.thresholds import threshold_curve
from bertvision.report.analyses.token_lengths import length_histogram
from bertvision.report.block import Block, Report, Section
from bertvision.report.cards import write_cards
from bertvision.report.certainty import Certainty
from bertvision.report.side_by_side import compare_runs, name_runs
from bertvision.report.summary import build_facts, build_summary, encoder_name
from bertvision.report.toml import to_toml
from bertvision.report.writing import write_report

Analysis = Callable[[FinishedRun, str], Block | None]
ANALYSES: dict[str, list[Analysis]] = {
    "What it cost": [spending.score_against_compute, spending.costs_table],
    "How it came about": [finetuning_curve, data_share, epochs_of_heads, length_histogram],
    "What the models say": [
        answers.has_and_no_answer,
        answers.wrong_predictions,
        answers.second_answer,
        threshold_curve,
        passage_lengths,
        labels.confusion_matrix,
        labels.reliability_curve,
        predicted_against_true,
        disagreements,
    ],
}


def make_report(
    runs: list[Path], to: Path | None = None, reporter: Reporter | None = None, with_encoder: bool = True
) -> Path:
    """Writes the report of one run, or of several side by side, and a model card for each head; gives the page."""
    if not runs:
        raise UserError("a report is of one run or more: give their folders.")
    if len({run.resolve() for run in runs}) < len(runs):
        raise UserError("a run is named twice: give each once.")
    found, reporter = [FinishedRun(run) for run in runs], reporter or Reporter()
    report = build_report(found[0], reporter, with_encoder) if len(found) == 1 else _build_several(found)
    page = write_report(report, to or _place(runs))
    for evidence in found:
        try:
            write_cards(evidence)
        except UserError as error:  # a run of somebody else's, perhaps
            reporter.say(f"without model cards: {error}")
    return page


def _place(runs: list[Path]) -> Path:
    """The run's own folder, or the one that holds all of them, which is never a run's own."""
    if len(runs) == 1:
        return runs[0]
    place = Path(os.path.commonpath([run.absolute() for run in runs]))
    if place == Path(place.anchor) or (place / "scores.json").is_file():
        raise UserError(f"the runs have no folder of their own in common ('{place}'): give one with --to.")
    return place


def build_report(evidence: FinishedRun, reporter: Reporter, with_encoder: bool = True) -> Report:
    first = evidence.splits[0]
    certainties = [Certainty(evidence, evidence.last, split) for split in evidence.splits]
    earlier = [Certainty(evidence, epochs, first) for epochs in reversed(evidence.head_snapshots[:-1])]
    sections = [Section("Scores", _score_blocks(evidence, certainties, earlier))]
    for title, analyses in ANALYSES.items():
        blocks = [analysis(evidence, first) for analysis in analyses]
        sections.append(Section(title, [block for block in blocks if block is not None]))
    sections.insert(3, Section("What each layer holds", _layer_blocks(evidence, first, reporter, with_encoder)))
    return Report(
        f"{evidence.task.name} with {encoder_name(evidence)}",
        build_facts(evidence),
        build_summary(certainties[0]),
        [section for section in sections if section.blocks],
        to_toml(evidence.config),
    )


def _score_blocks(evidence: FinishedRun, certainties: list[Certainty], earlier: list[Certainty]) -> list[Block]:
    blocks: list[Block | None] = []
    for certainty in certainties:
        blocks += [scores_table(certainty), comparisons(certainty), across_snapshots(certainty), every_pair(certainty)]
    for certainty in earlier:
        blocks += [scores_table(certainty), comparisons(certainty)]
    blocks.append(choices(evidence))
    return [block for block in blocks if block is not None]


def _layer_blocks(evidence: FinishedRun, split: str, reporter: Reporter, with_encoder: bool) -> list[Block]:
    blocks = [layer_weights(evidence, split)]
    if with_encoder:
        try:
            blocks.append(layer_importance(evidence, split, reporter))
            blocks.insert(0, layer_map(evidence, split, reporter))
        except UserError as error:  # the data or the encoder may be gone: the rest of the report does not need them
            reporter.say(f"without what needs the encoder: {error}")
    return [block for block in blocks if block is not None]


def _build_several(found: list[FinishedRun]) -> Report:
    certainties = [Certainty(evidence, evidence.last, evidence.splits[0]) for evidence in found]
    sections, summary = compare_runs(certainties)
    names, settings = name_runs(found), []
    for number, (certainty, name) in enumerate(zip(certainties, names, strict=True), start=1):
        some = [scores_table(certainty), comparisons(certainty)]
        blocks = [dataclasses.replace(block, key=f"run{number}_{block.key}") for block in some if block is not None]
        sections.append(Section(name, blocks))
        settings.append(f"# {name}\n{to_toml(certainty.evidence.config)}")
    facts = [f"{name}: {one.task.name} with {encoder_name(one)}" for name, one in zip(names, found, strict=True)]
    return Report(f"{len(found)} runs side by side", facts, summary, sections, "\n".join(settings))
