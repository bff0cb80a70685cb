"""The trained head whose weights another one begins with: where it lies, and what is known of it without torch."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.disk import file_fingerprint, fingerprint, read_json
from bertvision.errors import UserError

CONFIG, WEIGHTS = "config.json", "head.safetensors"
SHIPPED = Path(__file__).parents[1] / "kits" / "shipped"
"""Where the kits lie that ship."""


def find_folder(begin: str) -> Path:
    """The folder that a setting names; default/squad2 is a head of a kit that ships, where there is no head here."""
    folder, shipped = Path(os.path.expanduser(begin)).absolute(), SHIPPED / begin  # which leaves ~nobody as it is
    return shipped if (shipped / CONFIG).is_file() and not (folder / CONFIG).is_file() else folder


@dataclass(frozen=True)
class Begin:
    """What is known of a trained head that another one begins with."""

    head: str
    shape: dict[str, Any]
    target: dict[str, Any]
    task: dict[str, Any] | None
    """Name and labels of its task; None where the folder lies in no run and no kit."""
    weights: str
    """A hash of them."""

    @property
    def stamp(self) -> str:
        """All that hangs on it: the weights, and what tells whether their output layer is taken."""
        return fingerprint(self.weights, self.target, self.task)


def read_begin(folder: Path) -> Begin:
    """What lies in a folder of `save_head`, in a run, a kit or anywhere; raises UserError where no head does."""
    folder = folder.resolve()
    facts = read_json(folder / CONFIG)
    if not isinstance(facts, dict) or not {"member", "shape", "target"} <= set(facts) or "head" not in facts["member"]:
        raise UserError(f"no head in '{folder}': expected {CONFIG} and {WEIGHTS} there.")
    if not (folder / WEIGHTS).is_file():
        raise UserError(f"no weights in '{folder}': expected {WEIGHTS} beside {CONFIG}.")
    weights = file_fingerprint([folder / WEIGHTS])
    return Begin(facts["member"]["head"], facts["shape"], facts["target"], _find_task(folder), weights)


def _find_task(folder: Path) -> dict[str, Any] | None:
    """The task of a head in RUN/snapshots/epoch_1/heads/NAME or KIT/TASK: name and labels."""
    task = None
    if folder.parts[-4:-3] == ("snapshots",):
        task = read_json(folder.parents[3] / "task.json")
    elif (kit := read_json(folder.parent / "kit.json")) is not None:
        task = kit.get("tasks", {}).get(folder.name, {}).get("task")
    return task and {"name": task["name"], "labels": task["labels"]}


def tell_apart(begin: str | None, others: list[Any]) -> str | None:
    """What tells a folder from the others of a grid: of the shortest ends of their paths that differ, the parts that
    not all of them have. runs/mnli/heads/adapter beside runs/qnli/heads/adapter → begin_mnli."""
    if begin is None:
        return None
    folders = {other for other in others if isinstance(other, str) and other != "none"}
    paths = {folder: find_folder(folder).parts for folder in folders}
    length = 1
    while len(ends := {path[-length:] for path in paths.values()}) < len(set(paths.values())):
        length += 1
    own = paths[begin][-length:]
    parts = [part for part in own if not all(part in end for end in ends)] or own[-1:]
    return "begin_" + re.sub(r"[^\w.-]+", "-", "-".join(parts))
