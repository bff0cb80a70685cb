"""Run a published experiment and show the papers' scores beside ours.

    reproduction = Reproduction(find_paper("2020-spans"), encoder="embedded", data=[Path("data/squad")], quick=True)
    reproduction.run()
    page = reproduction.write_report()

Every run is resumed where it was stopped; finished ones are read.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bertvision.config import RunConfig, build_config
from bertvision.encoder.loading import shape_of
from bertvision.errors import UserError, suggest
from bertvision.kinds import SPAN
from bertvision.papers.beside import Measured, build_report, build_table, measure
from bertvision.papers.fragments import Settings, follow_rate, merge
from bertvision.papers.published import PaperExperiment, PaperRun, PaperTable
from bertvision.pipeline.check import estimate_costs
from bertvision.pipeline.finished import FinishedRun
from bertvision.pipeline.job import Job, find_mistakes
from bertvision.pipeline.run import run_job
from bertvision.progress import Reporter
from bertvision.report.build import make_report
from bertvision.report.writing import write_report
from bertvision.tables import Table
from bertvision.tasks import TaskConfig
from bertvision.tasks.config import locate_files, target_kind

QUICK = {"data": {"limit_train": 120, "limit_dev": 60, "hold_out": 0.2}}
"""Settings of a quick run: a few examples of each set, everything else as published."""
QUICK_ENCODER = "embedded"


@dataclass
class Reproduction:
    experiment: PaperExperiment
    encoder: str | None = None
    """Default: the papers' encoder; of a quick run, the embedded one."""
    data: list[Path] = field(default_factory=list)
    """Folders with the data; default: the hub."""
    quick: bool = False
    only: list[str] = field(default_factory=list)
    """Names of the runs; default: all."""
    overrides: list[str] = field(default_factory=list)
    to: Path | None = None
    reporter: Reporter = field(default_factory=Reporter)

    @cached_property
    def encoder_name(self) -> str:
        return self.encoder or (QUICK_ENCODER if self.quick else self.experiment.encoder)

    @cached_property
    def folder(self) -> Path:
        if self.to is not None:
            return self.to
        name = f"{self.experiment.name}_{Path(self.encoder_name).name}{'_quick' if self.quick else ''}"
        return Path("runs") / "reproduce" / name

    @cached_property
    def _of_size(self) -> tuple[list[PaperRun], list[PaperTable]]:
        """The runs and tables for the encoder."""
        hidden = shape_of(self.encoder_name).shape.hidden
        runs, tables = self.experiment.of_size(hidden)
        names = [run.name for run in runs]
        for name in self.only:
            if name not in names:
                raise UserError(f"{self.experiment.name} has no run '{name}' (--only): {suggest(name, names)}")
        return [run for run in runs if not self.only or run.name in self.only], tables

    @cached_property
    def jobs(self) -> dict[str, Job]:
        """The runs whose data are there, by name."""
        found, missing = {}, []
        for run in self._of_size[0]:
            task = self._task_of(run)
            if task is None:
                missing.append(run.name)
            else:
                found[run.name] = Job(self._config_of(run, task), self.reporter)
        places = ", ".join(str(folder) for folder in self.data)
        if not found:
            raise UserError(
                f"no data of {self.experiment.name} in {places} (--data): give a folder with train-v2.0.json and "
                "dev-v2.0.json for SQuAD, or the folder of GLUE for its tasks."
            )
        if missing:
            self.reporter.say(f"left out, since {places} has no data for them: {', '.join(missing)}.")
        return found

    def _task_of(self, run: PaperRun) -> Settings | None:
        """The section [task] with the folder of the data; None if there are folders, but none has them."""
        task = dict(run.settings["task"])
        given = dict(re.findall(r"^task\.(data|train|dev|hub)=(.*)", "\n".join(self.overrides), re.MULTILINE))
        if not self.data or {*given} & {"data", "hub"}:
            return task
        for folder in self.data:
            if not folder.is_dir():
                raise UserError(f"there is no folder '{folder}' (--data).")
            try:
                files = locate_files(TaskConfig(**task, **given, data=str(folder)))
            except UserError as error:
                if "several" in str(error):
                    raise
                continue
            if "train" in files:
                return {**task, "data": str(folder)}
        return None

    def _config_of(self, run: PaperRun, task: Settings) -> RunConfig:
        settings = merge(run.settings, QUICK) if self.quick else run.settings
        own = {"task": task, "encoder": {"name": self.encoder_name}, "run": str(self.folder / run.name)}
        words = follow_rate(self.overrides) if target_kind(TaskConfig(**task)) is not SPAN else self.overrides
        return build_config(merge(settings, own), words, find_mistakes)

    # ------------------------------------------------------------------ what it costs

    def cost(self) -> Table:
        """What each run would cost on this machine, from speeds measured on a few batches."""
        rows: list[list[Any]] = []
        for name, job in self.jobs.items():
            if (job.folder.path / "scores.json").is_file():
                rows.append([name, None, None, None, None])
                continue
            self.reporter.say(f"measuring what '{name}' costs …")
            found = estimate_costs(job)
            cost = found["cost"]
            rows.append(
                [name, found["data"]["train windows"], cost["seconds in total"], cost["disk MB at the end"],
                 cost["memory MB of this process"]]
            )  # fmt: skip
        known = [row for row in rows if row[1] is not None]
        if len(known) > 1:
            rows.append(["all", *(sum(row[at] for row in known) for at in (1, 2, 3)), max(row[4] for row in known)])
        for row in rows:
            row[2] = None if row[2] is None else spell_time(row[2])
        columns = ["run", "train windows", "time", "disk MB", "memory MB"]
        return Table(columns, rows, "What it will cost", "Runs without figures were scored before.")

    # ------------------------------------------------------------------ running

    def run(self, on_scored: Callable[[str, dict[str, Any]], None] = lambda name, scores: None) -> None:
        for number, (name, job) in enumerate(self.jobs.items(), start=1):
            self.reporter.say(f"[{number}/{len(self.jobs)}] {name}")
            on_scored(name, run_job(job))

    @cached_property
    def runs(self) -> dict[str, FinishedRun]:
        """The runs that were scored."""
        there = {name: job.folder.path for name, job in self.jobs.items()}
        return {name: FinishedRun(path) for name, path in there.items() if (path / "scores.json").is_file()}

    @cached_property
    def measured(self) -> list[tuple[PaperTable, list[Measured]]]:
        """The papers' tables with our scores. A table none of whose runs is there is left out."""
        tables = [table for table in self._of_size[1] if any(line.run in self.runs for line in table.lines)]
        return [(table, measure(table, self.runs)) for table in tables]

    def tables(self) -> Iterator[Table]:
        for table, found in self.measured:
            yield build_table(table, found)

    def notes(self) -> list[str]:
        """What a reader of the tables must know."""
        notes = []
        if self.quick:
            notes.append("A quick run on a few examples: it shows that everything works. Its scores mean nothing.")
        if Path(self.encoder_name).name != self.experiment.encoder:
            notes.append(
                f"The encoder is {Path(self.encoder_name).name}, the papers' is {self.experiment.encoder}: differences "
                "are those of the encoders, not of a repetition."
            )
        changed = [word for word in self.overrides if not word.startswith(("task.", "encoder.device", "run="))]
        if changed:
            notes.append(f"Settings that differ from the papers': {', '.join(changed)}.")
        return [*notes, *self.experiment.notes]

    def write_report(self) -> Path:
        """Write the page with the tables, and the report of every run in its folder."""
        for run in self.runs.values():
            make_report([run.folder.path], reporter=self.reporter, with_encoder=False)
        title = f"{self.experiment.name} with {Path(self.encoder_name).name}"
        return write_report(build_report(title, self.measured, self.runs, self.notes()), self.folder)


def spell_time(seconds: float) -> str:
    """45 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"
