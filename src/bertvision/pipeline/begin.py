"""A head that begins with the weights of a trained one (`begin` of a member): which folder of a run or a kit they are
in, whether they fit, and which of them are taken."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from bertvision.disk import file_fingerprint, fingerprint, read_json
from bertvision.errors import UserError
from bertvision.heads import Head, MemberConfig, Target
from bertvision.heads.base import CONFIG, WEIGHTS
from bertvision.tasks.base import Task

OUTPUT = "output."  # how the names of every head's output layer begin
SHIPPED = Path(__file__).parents[1] / "kits" / "shipped"
"""The folder of the kits that ship."""


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
        """Hash of everything the new head depends on: the weights, and what decides if their output layer is taken."""
        return fingerprint(self.weights, self.target, self.task)

    def __str__(self) -> str:
        task = f" of {self.task['name']}" if self.task else ""
        return f"{self.shape['layers']} layers of {self.shape['hidden']} and a {self.target['kind']}{task}"


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


def name_begin(begin: str | None, others: list[Any]) -> str | None:
    """What distinguishes a folder from the others of a grid: of the shortest ends of their paths that differ, the parts
    that not all of them have. runs/mnli/heads/adapter beside runs/qnli/heads/adapter → begin_mnli."""
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


# ---------------------------------------------------------------------- which weights are taken


def begin_head(head: Head, member: MemberConfig, task: Task) -> None:
    """Puts the weights that a member begins with over those that were drawn for its head."""
    assert member.begin is not None, "the member begins with random weights"
    taken = check_begin(head, member, task)
    weights = load_file(Path(member.begin) / WEIGHTS)
    head.load_state_dict({name: weights[name] for name in taken}, strict=False)


def check_begin(head: Head, member: MemberConfig, task: Task) -> list[str]:
    """The names of the weights that a member's head, or its outline, takes from the folder it begins with; raises
    UserError where they do not fit."""
    assert member.begin is not None, "the member begins with random weights"
    found = read_begin(Path(member.begin))
    if found.stamp != member.begin_stamp:
        raise UserError(f"'{member.begin}' has become another head since this run was started: start it again.")
    here, there = {name: tuple(t.shape) for name, t in head.state_dict().items()}, _read_shapes(member.begin)
    if not _predicts_the_same(found, head.target, task):
        here, there = (
            {name: shape for name, shape in shapes.items() if not name.startswith(OUTPUT)} for shapes in (here, there)
        )
    if not here:
        raise UserError(
            f"head '{member.name}' would take nothing from '{member.begin}': it is an output layer and nothing else, "
            f"and the one there is for another target ({found}). Leave `begin` out."
        )
    if here != there:
        names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
        shown = [f"{name} {here.get(name, 'nothing')}, there {there.get(name, 'nothing')}" for name in names[:3]]
        shown += [f"and {len(names) - 3} more"] if len(names) > 3 else []
        raise UserError(
            f"head '{member.name}' can't begin with '{member.begin}': expected {'; '.join(shown)}. Here states are "
            f"{head.shape.layers} layers of {head.shape.hidden} and the target is a {head.target.kind}, there {found}. "
            "Give it the settings of that head, and an encoder with such states, or leave `begin` out."
        )
    return list(here)


def _predicts_the_same(found: Begin, target: Target, task: Task) -> bool:
    """Whether outputs mean the same: never the two of a span and those of two labels. All tasks of a user's own files
    have one name, so of two such tasks nothing is known."""
    same = found.target == {"kind": str(target.kind), "labels": target.labels}
    own = {"name": task.name, "labels": list(task.labels)}
    return same and (found.task is None or (found.task == own and task.name != "files"))


def _read_shapes(folder: str) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(Path(folder) / WEIGHTS, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise UserError(f"{WEIGHTS} in '{folder}' is damaged ({error}): train that head again.") from None
