"""The run folder. Everything is written atomically, and a finished stage holds the fingerprint of its inputs.

config.json task.json environment.json metrics.jsonl    settings, task, environment, and a log
snapshots/epoch_1/encoder/                              the encoder, in Hugging Face format, and its output layer
snapshots/epoch_1/heads/<name>/                         head.safetensors, config.json
snapshots/epoch_1/predictions/<split>/<name>/           predictions.jsonl, outputs.safetensors, results.safetensors
states/train_epoch_1_tokens/                            a store of hidden states, if storing them pays off
sources.json                                            where the states came from, and why
scores.json summary.md                                  all scores, and the tables
lengths.json                                            lengths in tokens of windows, and of texts before they are cut
ensembles.json                                          ensembles added after the run
report.html report.md report.json report/ analyses/     the report, and the analyses behind it
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

from bertvision.disk import (
    TEMPORARY,
    DamagedError,
    check_files,
    damaged,
    inside,
    read_json,
    read_stamp,
    sweep,
    write_sealed,
)
from bertvision.disk.forms import Name, Tokens
from bertvision.disk.reading import Form
from bertvision.errors import UserError
from bertvision.kinds import KINDS, kind_in
from bertvision.pipeline.log import append_line
from bertvision.tasks.base import Task

BASELINE, ENCODER = "baseline", "encoder"
"""Models of every snapshot that are not heads: the baseline, and the encoder with its own output layer."""
ADDED_ENSEMBLES = "ensembles.json"
"""Ensembles added with `bertvision ensemble`, in addition to those in the config."""
HELD_OUT = "held_out"
"""The part of the training set kept out of all training. Every choice is made on it."""
HELD_OUT_ROWS = "held_out.json"
"""Folders of fitted models: which rows were held out. In a cross-validation, these rows were trained on as well."""

TASK, FORMAT = "task.json", 1
"""The task, and the format of the run folder, which task.json states. Raise it if earlier versions of BERTVision would
misread the folder, and migrate folders in the former format where they are read."""
FITTED = "model.json"
"""In folders of fitted models only: what `fit` chose, and why."""

SHIPPED = Path(__file__).parents[1] / "kits" / "shipped"
"""The shipped kits. A run can begin with their heads."""


def snapshot_name(epochs: float) -> str:
    return f"epoch_{epochs:g}"


class RunFolder:
    """Paths and stamps of one run."""

    def __init__(self, path: Path | str, say: Callable[[str], None] = lambda _: None) -> None:
        """`say` is called with what is damaged and made again."""
        self.path, self.say = Path(path), say
        self.is_locked = False
        """Whether this object has the lock of the folder (`Job.writing`)."""

    @property
    def repair(self) -> str:
        """How to bring the folder up to date, for error messages."""
        fitted = (self.path / FITTED).is_file()
        return "fit the model again" if fitted else f"run `bertvision run {self.path}`"

    def file(self, *names: str) -> Path:
        """The path of a file in the folder, by its plain names."""
        return inside(self.path, *names)

    def read(self, name: str, form: type[Form]) -> Form | None:
        """The value in a JSON file that is made again where it is missing or damaged."""
        try:
            return read_json(self.file(name), form)
        except DamagedError as error:
            self.say(f"{error} It is made again.")
            return None

    def snapshot(self, epochs: float) -> Path:
        return inside(self.path, "snapshots", snapshot_name(epochs))

    def encoder(self, epochs: float) -> Path:
        return inside(self.path, "snapshots", snapshot_name(epochs), "encoder")

    def head(self, epochs: float, name: str) -> Path:
        return inside(self.path, "snapshots", snapshot_name(epochs), "heads", name)

    def predictions(self, epochs: float, split: str, name: str) -> Path:
        """The folder of a model's predictions on a split."""
        return inside(self.path, "snapshots", snapshot_name(epochs), "predictions", split, name)

    @property
    def checkpoints(self) -> Path:
        return inside(self.path, "checkpoints")

    @property
    def states(self) -> Path:
        """The folder for stores, unless `store.path` is set."""
        return inside(self.path, "states")

    def is_done(self, folder: Path, stamp: str) -> bool:
        """Whether `folder` is complete and undamaged, and was made with exactly the settings and inputs behind `stamp`.
        What is damaged is made again."""
        try:
            found = read_stamp(folder)
            if found is None or found.get("stamp") != stamp:
                return False
            check_files(folder)
        except DamagedError as error:
            self.say(f"{error} It is made again.")
            return False
        return True

    def sweep(self, locked: bool = True) -> None:
        """Remove temporary files left by a kill, and nothing else: users may have files of their own in the folder, and
        other processes may be writing states or a report right now. `locked`: whether nobody else, on any machine, can
        be writing the run."""
        for parent in {left.parent for left in self.path.rglob(f"{TEMPORARY}*")}:
            sweep(parent, locked=locked and self.states not in (parent, *parent.parents))
        self.tidy()

    def tidy(self) -> None:
        """Remove empty folders of checkpoints."""
        for folder in (*self.checkpoints.glob("*/*"), *self.checkpoints.glob("*"), self.checkpoints):
            with contextlib.suppress(OSError):  # it is not empty, or a file
                folder.rmdir()

    def log(self, event: str, **values: Any) -> None:
        """Append a line to metrics.jsonl."""
        append_line(self.path, event, **values)


class TaskFacts(TypedDict):
    """A task as task.json and kit.json describe it: enough to predict without the data."""

    name: Name
    kind: Name
    metrics: Annotated[list[Name], Meta(min_length=1)]
    labels: list[str]
    windowed: bool
    max_length: Tokens
    source: str
    takes_pairs: NotRequired[bool]
    """kit.json stores it as `pairs`; earlier versions lack it."""


class TaskFile(TaskFacts):
    """task.json."""

    format: NotRequired[int]
    """Of the run folder; 1 where it is missing."""


def describe_task(task: Task) -> TaskFacts:
    return {
        "name": task.name,
        "kind": str(task.kind),
        "metrics": list(task.metrics),
        "labels": list(task.labels),
        "windowed": task.windowed,
        "max_length": task.max_length,
        "source": task.source,
        "takes_pairs": task.takes_pairs,
    }


def restore_task(facts: TaskFacts, takes_pairs: bool) -> Task:
    """Rebuild the task from the output of `describe_task`, without splits."""
    return Task(
        name=facts["name"],
        kind=KINDS[facts["kind"]],
        metrics=tuple(facts["metrics"]),
        readers={},
        labels=tuple(facts["labels"]),
        windowed=facts["windowed"],
        max_length=facts["max_length"],
        source=facts["source"],
        takes_pairs=takes_pairs,
    )


def write_task_file(folder: Path, task: Task) -> None:
    write_sealed(folder / TASK, {"format": FORMAT, **describe_task(task)})


def read_task_file(folder: Path) -> TaskFile | None:
    """The contents of a run's task.json; None if there is none. Raise UserError for a run of a newer version."""
    found = read_json(inside(folder, TASK), TaskFile)
    if found is not None:
        check_format(folder, found.get("format", FORMAT), FORMAT, RunFolder(folder).repair)
        kind = kind_in(folder / TASK, found["kind"])
        if unknown := [metric for metric in found["metrics"] if kind.title(metric) is None]:
            raise damaged(folder / TASK, f"a {kind} has no metric '{unknown[0]}'")
        if kind.has_labels and len(set(found["labels"])) != max(2, len(found["labels"])):
            raise damaged(folder / TASK, "labels: expected two or more different names")
    return found


def check_format(folder: Path, found: int, newest: int, repair: str) -> None:
    """Refuse a folder in a format that this version can't read."""
    if not 1 <= found <= newest:
        raise UserError(
            f"'{folder}' was written in format {found:.4g}, but this version of BERTVision reads formats up to "
            f"{newest}: update BERTVision, or {repair} with this version."
        )
