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
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from bertvision.disk import TEMPORARY, DamagedError, check_files, clear_disk_errors, inside, read_stamp, sweep
from bertvision.kinds import KINDS
from bertvision.tasks.base import Task

BASELINE, ENCODER = "baseline", "encoder"
"""Models of every snapshot that are not heads: the baseline, and the encoder with its own output layer."""
ADDED_ENSEMBLES = "ensembles.json"
"""Ensembles added with `bertvision ensemble`, in addition to those in the config."""
HELD_OUT = "held_out"
"""The part of the training set kept out of all training. Every choice is made on it."""
HELD_OUT_ROWS = "held_out.json"
"""Folders of fitted models: which rows were held out. In a cross-validation, these rows were trained on as well."""

FITTED = "model.json"
"""In folders of fitted models only: what `fit` chose, and why."""


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
        return self.path / "checkpoints"

    @property
    def states(self) -> Path:
        """The folder for stores, unless `store.path` is set."""
        return self.path / "states"

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

    def sweep(self) -> None:
        """Remove temporary files left by a kill, and nothing else: users may have files of their own in the folder, and
        other processes may be writing states or a report right now. The folder must be locked."""
        for parent in {left.parent for left in self.path.rglob(f"{TEMPORARY}*")}:
            sweep(parent, locked=self.states not in (parent, *parent.parents))
        self.tidy()

    def tidy(self) -> None:
        """Remove empty folders of checkpoints."""
        for folder in (*self.checkpoints.glob("*/*"), *self.checkpoints.glob("*"), self.checkpoints):
            with contextlib.suppress(OSError):  # it is not empty, or a file
                folder.rmdir()

    def log(self, event: str, **values: Any) -> None:
        """Append one JSON line to metrics.jsonl."""
        line = json.dumps({"time": round(time.time(), 3), "event": event, **values}, ensure_ascii=False)
        with clear_disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            with (self.path / "metrics.jsonl").open("ab+") as file:
                if file.tell() and not _ends_a_line(file):  # cut off by a kill
                    file.write(b"\n")
                file.write(f"{line}\n".encode())


def _ends_a_line(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def describe_task(task: Task) -> dict[str, Any]:
    """The contents of task.json: enough to predict without the data."""
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


def restore_task(facts: dict[str, Any]) -> Task:
    """Rebuild the task from the output of `describe_task`, without splits. Older descriptions lack `takes_pairs`; the
    caller must add it."""
    lists = {"metrics": tuple(facts["metrics"]), "labels": tuple(facts["labels"])}
    return Task(**{**facts, **lists, "kind": KINDS[facts["kind"]]}, readers={})
