"""Run a published experiment and show the papers' scores beside ours.

    reproduction = Reproduction(find_paper("2020-spans"), encoder="embedded", data=[Path("data/squad")], quick=True)
    reproduction.run()
    page = reproduction.write_report()

Every run is resumed where it was stopped; finished ones are read.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bertvision.config import RunConfig, build_config
from bertvision.encoder.loading import shape_of
from bertvision.errors import NoDataError, UserError, suggest
from bertvision.kinds import SPAN
from bertvision.papers.beside import Measured, build_report, build_table, describe, measure
from bertvision.papers.fragments import Settings, follow_rate, merge
from bertvision.papers.published import PaperExperiment, PaperRun, PaperTable
from bertvision.pipeline.check import estimate_costs
from bertvision.pipeline.finished import FinishedRun
from bertvision.pipeline.folder import ENCODER, HELD_OUT
from bertvision.pipeline.job import Job, find_mistakes
from bertvision.pipeline.run import run_job
from bertvision.progress import Reporter
from bertvision.report.build import make_report, writing_report
from bertvision.report.summary import EMBEDDED
from bertvision.report.wording import spell_time
from bertvision.report.writing import write_report
from bertvision.tables import Table
from bertvision.tasks import TaskConfig
from bertvision.tasks.config import locate_files, target_kind

QUICK = {"data": {"limit_train": 40, "limit_dev": 20, "hold_out": 0.2}}
"""Settings of a quick run: a few examples of each set, everything else as published."""
QUICK_ENCODER = "embedded"
QUICK_NOTE = "A quick run on a few examples: everything works, but the scores mean nothing."
PLACES = ("task.", "encoder.name", "encoder.device")
"""Overrides that choose where things are, not what is run."""
SCORES = "scores.json"
ENOUGH = 0.99
"""Releases of a data set differ by a few rows."""


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
    wait: bool = False
    """If another process is writing to a folder, wait until it ends."""
    expected: dict[str, float] = field(default_factory=dict, init=False)
    """Run → the seconds it will take, once `cost` has measured them; finished ones are taken out."""

    @cached_property
    def encoder_name(self) -> str:
        named = [word.partition("=")[2] for word in self.overrides if word.startswith("encoder.name=")]
        return self.encoder or next(iter(named), None) or (QUICK_ENCODER if self.quick else self.experiment.encoders[0])

    def describe_sources(self) -> str:
        """Where data and encoder come from, and how to use local ones."""
        parts = [f"data: {', '.join(map(str, self.data))}"] if self.data else []
        if not parts and not any(word.startswith("task.") for word in self.overrides):
            parts = ["data: from the hub (--data FOLDER reads local files)"]
        parts.append(f"encoder: {self._encoder_title}")
        if self.encoder_name != QUICK_ENCODER and not Path(self.encoder_name).is_dir():
            parts[-1] += " from the hub (--encoder FOLDER reads a local one)"
        return "; ".join(parts)

    @cached_property
    def folder(self) -> Path:
        if self.to is not None:
            return self.to
        name = f"{self.experiment.name}_{Path(self.encoder_name).name}{'_quick' if self.quick else ''}"
        return Path("runs") / "reproduce" / name

    def __post_init__(self) -> None:
        if any(word.startswith("run=") for word in self.overrides):
            raise UserError("each run of an experiment has its own folder: choose the folder of them all with --to.")

    @cached_property
    def _of_size(self) -> tuple[list[PaperRun], list[PaperTable]]:
        """The runs and tables for the encoder."""
        return self.experiment.of_size(shape_of(self.encoder_name).shape.hidden)

    @cached_property
    def _chosen(self) -> list[PaperRun]:
        """The runs that were asked for."""
        runs, sizes = self._of_size[0], {run.name: run.size for run in self.experiment.runs}
        names = [run.name for run in runs]
        for name in self.only:
            if name in names:
                continue
            if name in sizes:
                raise UserError(f"'{name}' (--only) is for BERT-{sizes[name]}, not for {self._encoder_title}.")
            raise UserError(f"{self.experiment.name} has no run '{name}' (--only): {suggest(name, names)}")
        return [run for run in runs if not self.only or run.name in self.only]

    @cached_property
    def jobs(self) -> dict[str, Job]:
        """The runs whose data are there, by name."""
        found, missing = {}, []
        for run in self._chosen:
            task = self._task_of(run)
            if task is None:
                missing.append(run.name)
            else:
                found[run.name] = Job(self._config_of(run, task), self.reporter, self.wait)
        places = ", ".join(str(folder) for folder in self.data)
        if not found:
            files = {"GLUE": "the folder of GLUE (RTE/train.tsv, RTE/dev.tsv …)"}
            wanted = files.get(self.experiment.data, "a folder with train-v2.0.json and dev-v2.0.json")
            raise UserError(f"no train and dev files for {self.experiment.name} in {places} (--data): give {wanted}.")
        if missing:
            self.reporter.say(f"left out, since {places} has no train and dev files for them: {', '.join(missing)}.")
        return found

    def _task_of(self, run: PaperRun) -> Settings | None:
        """The section [task] with the folder of the data; None if there are folders, but none has them."""
        task = dict(run.settings["task"])
        words = (word.removeprefix("task.").partition("=") for word in self.overrides if word.startswith("task."))
        given: Settings = {key: value for key, _, value in words if key in ("data", "train", "dev", "hub")}
        if not self.data or {"data", "hub"} & given.keys():
            return task
        for folder in self.data:
            if not folder.is_dir():
                raise UserError(f"there is no folder '{folder}' (--data).")
            try:
                splits = locate_files(TaskConfig(**task, **given, data=str(folder)))
            except NoDataError:
                continue
            if "train" in splits and any(split.startswith("dev") for split in splits):
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
            if _is_done(job):
                rows.append([name, None, None, None, None])
                continue
            self.reporter.say(f"measuring what '{name}' costs …")
            found = estimate_costs(job)
            cost = found["cost"]
            self.expected[name] = cost["seconds in total"]
            rows.append(
                [name, found["data"]["train windows"], spell_time(self.expected[name]), cost["disk MB at the end"],
                 cost["memory MB of this process"]]
            )  # fmt: skip
        known = [row for row in rows if row[1] is not None]
        if len(known) > 1:
            windows, disk = (sum(row[at] for row in known) for at in (1, 3))
            rows.append(["all", windows, spell_time(sum(self.expected.values())), disk, max(row[4] for row in known)])
        columns = ["run", "train windows", "time", "disk MB", "memory MB"]
        note = "Runs without figures are finished." if len(known) < len(self.jobs) else ""
        return Table(columns, rows, "What it will cost on this machine", note)

    # ------------------------------------------------------------------ running

    def run(self) -> None:
        for number, (name, job) in enumerate(self.jobs.items(), start=1):
            self.reporter.say(f"[{number}/{len(self.jobs)}] {name}{self._time_left(name)}")
            run_job(job)
            self.expected.pop(name, None)

    def _time_left(self, name: str) -> str:
        """What the run and all that are left will take, if the cost was measured."""
        if name not in self.expected:
            return ""
        own, left = spell_time(self.expected[name]), spell_time(sum(self.expected.values()))
        return f": about {own}" + (f", {left} with those after it" if len(self.expected) > 1 else "")

    @cached_property
    def runs(self) -> dict[str, FinishedRun]:
        """All runs in the folder that were scored, also those of earlier calls."""
        folders = {run.name: self.folder / run.name for run in self._of_size[0]}
        return {name: FinishedRun(folder) for name, folder in folders.items() if (folder / SCORES).is_file()}

    @cached_property
    def measured(self) -> list[tuple[PaperTable, list[Measured]]]:
        """The papers' tables with our scores: of all runs or, if some were chosen (`only`), of these and of those that
        were scored before."""
        names = {run.name for run in self._chosen} | self.runs.keys()
        tables = [
            replace(table, lines=[line for line in table.lines if line.run in names]) for table in self._of_size[1]
        ]
        return [(table, measure(table, self.runs)) for table in tables if table.lines]

    def tables(self) -> list[Table]:
        return [build_table(table, found) for table, found in self.measured]

    def finding(self) -> str:
        """The result in one sentence."""
        return QUICK_NOTE if self.quick else describe(self.measured)

    def notes(self) -> list[str]:
        """What a reader of the tables must know."""
        notes = []
        theirs = self.experiment.encoders
        if self._encoder_title not in theirs:
            notes.append(
                f"The encoder is {self._encoder_title}, not {' or '.join(theirs)}, which alone changes the scores."
            )
        changed = [word for word in self.overrides if not word.startswith(PLACES)]
        if changed:
            notes.append(f"Settings that differ from the papers': {', '.join(changed)}.")
        fewer = [] if self.quick else [*self._smaller_sets()]
        if fewer:
            notes.append(f"Fewer training examples than the papers': {', '.join(fewer)}.")
        held_out = next(iter(self.jobs.values())).config.data.hold_out
        share = "some" if held_out is None else f"{100 * held_out:g} %"
        return [*notes, *(note.replace("{hold_out}", share) for note in self.experiment.notes)]

    def _smaller_sets(self) -> Iterator[str]:
        """Runs on a part of the official training set, or on a sample of it."""
        for run in self._of_size[0]:
            if run.name in self.runs:
                job = self.jobs.get(run.name) or self.runs[run.name].job
                there = sum(len(job.examples(split)) for split in ("train", HELD_OUT))
                if there < ENOUGH * run.examples:
                    yield f"{run.name} {there:,} of {run.examples:,}"

    @property
    def page(self) -> Path:
        return self.folder / "report.html"

    def write_report(self) -> Path:
        """Write the page with the tables, and the report of every run in its folder."""
        self.reporter.say("writing the report …")
        for run in self.runs.values():
            make_report([run.folder.path], reporter=self.reporter, with_encoder=False, wait=self.wait)
        title, job = f"{self.experiment.name} with {self._encoder_title}", next(iter(self.jobs.values()))
        report = build_report(title, [job.machine.describe()], self.measured, self.runs, self.finding(), self.notes())
        with writing_report(self.folder, self.wait, self.reporter):
            return write_report(report, self.folder)

    @property
    def _encoder_title(self) -> str:
        return EMBEDDED if self.encoder_name == QUICK_ENCODER else Path(self.encoder_name).name


def _is_done(job: Job) -> bool:
    """Whether the run was scored, with these settings."""
    folder, stamps = job.folder, job.stamps
    if not (job.folder.path / SCORES).is_file():
        return False
    last = job.snapshots[-1]
    encoder = f"{stamps.finetune}@{last:g}"
    return (
        all(
            folder.is_done(folder.predictions(last, split, ENCODER), stamps.predictions(encoder, split))
            for split in job.scored_splits
        )
        and all(folder.is_done(folder.encoder(epochs), stamps.finetune) for epochs in job.snapshots)
        and all(
            folder.is_done(folder.head(epochs, member.name), stamps.member(epochs, member))
            for epochs in job.head_snapshots
            for member in job.members
        )
    )
