"""The run folder: everything is written atomically, and a finished stage carries the stamp of what made it.

config.json task.json environment.json metrics.jsonl    what was asked, where it ran, what happened
snapshots/epoch_1/encoder/                              the encoder, in Hugging Face form, and its output layer
snapshots/epoch_1/heads/<name>/                         head.safetensors, config.json
snapshots/epoch_1/predictions/<split>/<name>/           predictions.jsonl, outputs.safetensors, results.safetensors
states/train_epoch_1_tokens/                            a store of hidden states, where storing them pays
sources.json                                            where the states came from, and why
scores.json summary.md lengths.json ensembles.json      all figures, the tables, what they are about
report.html report.md report.json report/ analyses/     the report, and what it is made of
"""

import json
import shutil
import time
from pathlib import Path
from typing import Any

from bertvision.disk import TEMPORARY, clear_disk_errors, read_json, write_json
from bertvision.kinds import KINDS
from bertvision.tasks.base import Task

BASELINE, ENCODER = "baseline", "encoder"
"""Models of every snapshot that are no heads: the trivial baseline, and the encoder with its own output layer."""
ADDED_ENSEMBLES = "ensembles.json"
"""What the command added to the config's ensembles."""
HELD_OUT = "held_out"
"""The split of training examples that nothing is trained on: choices are made there."""


def snapshot_name(epochs: float) -> str:
    return f"epoch_{epochs:g}"


class RunFolder:
    """Paths and stamps of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def snapshot(self, epochs: float) -> Path:
        return self.path / "snapshots" / snapshot_name(epochs)

    def encoder(self, epochs: float) -> Path:
        return self.snapshot(epochs) / "encoder"

    def head(self, epochs: float, name: str) -> Path:
        return self.snapshot(epochs) / "heads" / name

    def predictions(self, epochs: float, split: str) -> Path:
        return self.snapshot(epochs) / "predictions" / split

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def states(self) -> Path:
        """Where stores go unless `store.path` says otherwise."""
        return self.path / "states"

    def is_done(self, folder: Path, stamp: str) -> bool:
        """Whether `folder` was finished by the very settings and inputs that `stamp` stands for."""
        found = read_json(folder / "stamp.json")
        return found is not None and found.get("stamp") == stamp

    def sweep(self) -> None:
        """Removes what a kill left half written and nothing else: the user may keep other things in the folder, and
        other processes may be writing states just now (a store sees to its own)."""
        for left in [left for left in self.path.rglob(f"{TEMPORARY}*") if self.states not in left.parents]:
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)

    def log(self, event: str, **values: Any) -> None:
        """One JSON line in metrics.jsonl, while it runs."""
        line = json.dumps({"time": round(time.time(), 3), "event": event, **values}, ensure_ascii=False)
        with clear_disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(line + "\n")


def mark_done(folder: Path, stamp: str, **facts: Any) -> None:
    """Written last into a folder: its presence means that all the rest is there."""
    write_json(folder / "stamp.json", {"stamp": stamp, **facts})


def describe_task(task: Task) -> dict[str, Any]:
    """What the run folder keeps of a task, enough to predict without the data."""
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
    """The task that `describe_task` described, without splits. Descriptions older than `takes_pairs` lack it: whoever
    reads one adds it."""
    lists = {"metrics": tuple(facts["metrics"]), "labels": tuple(facts["labels"])}
    return Task(**{**facts, **lists, "kind": KINDS[facts["kind"]]}, readers={})
