"""Start a head from the weights of a trained head (a member's `begin` setting): find their folder in a run or a kit,
check that they fit, and decide which of them to load."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from bertvision.disk import (
    check_files,
    file_fingerprint,
    fingerprint,
    load_shapes,
    load_tensors,
    read_json,
    why_not_plain,
)
from bertvision.errors import UserError
from bertvision.heads import HEADS, Head, MemberConfig, Target, read_head_file
from bertvision.heads.base import CONFIG, WEIGHTS
from bertvision.kinds import KINDS
from bertvision.pipeline.folder import SHIPPED, TaskFacts, read_task_file
from bertvision.tasks.base import Task

OUTPUT = "output."  # prefix of the weights of every head's output layer
"""The folder of the kits that ship with the package."""


def find_folder(begin: str) -> Path:
    """Return the folder a `begin` setting names. A path such as default/squad2 falls back to a head of a shipped kit if
    no head exists at that path."""
    # os.path.expanduser, unlike Path.expanduser, does not raise for an unknown user.
    folder, parts = Path(os.path.expanduser(begin)).absolute(), begin.split("/")
    if (folder / CONFIG).is_file() or any(map(why_not_plain, parts)):
        return folder
    shipped = SHIPPED.joinpath(*parts)
    return shipped if (shipped / CONFIG).is_file() else folder


class KitTask(TypedDict):
    task: TaskFacts


class KitTasks(TypedDict):
    """The part of a kit's kit.json (kits/kit.py) that is read here."""

    tasks: dict[str, KitTask]


@dataclass(frozen=True)
class Begin:
    """A trained head whose weights another head starts from."""

    head: str
    shape: dict[str, Any]
    target: dict[str, Any]
    task: dict[str, Any] | None
    """Name and labels of its task; None if the folder is neither in a run nor in a kit."""
    weights: str
    """Hash of the weights."""

    @property
    def stamp(self) -> str:
        """Hash of everything the new head depends on: the weights, and the target and task, which decide whether their
        output layer is used."""
        return fingerprint(self.weights, self.target, self.task)

    def __str__(self) -> str:
        task = f" ({self.task['name']})" if self.task else ""
        return (
            f"{self.shape['layers']} layers of size {self.shape['hidden']} and predicts a {self.target['kind']}{task}"
        )


def read_begin(folder: Path) -> Begin:
    """Describe the head that `save_head` wrote to a folder, in a run, a kit or anywhere else. Raise UserError if the
    folder holds no head."""
    folder = folder.resolve()
    check_files(folder, CONFIG, WEIGHTS)
    facts = read_head_file(folder)
    if facts is None:
        raise UserError(f"no head in '{folder}': expected {CONFIG} and {WEIGHTS}.")
    if not (folder / WEIGHTS).is_file():
        raise UserError(f"no weights in '{folder}': expected {WEIGHTS} next to {CONFIG}.")
    weights = file_fingerprint([folder / WEIGHTS])
    shape, target = dict(facts["shape"]), dict(facts["target"])
    return Begin(facts["member"].head, shape, target, _find_task(folder), weights)


def find_begun_read(begin: str) -> str | None:
    """What the head in a `begin` folder reads of sequences. None if it predicts per token, has no such setting, or is
    no head at all (which `read_begin` reports)."""
    check_files(find_folder(begin), CONFIG)
    try:
        facts = read_head_file(find_folder(begin))
    except UserError:
        return None
    if facts is None or KINDS[facts["target"]["kind"]].position == "token":
        return None
    member = facts["member"]
    found = member.settings.get("read", getattr(HEADS[member.head].Config(), "read", None))
    return found if isinstance(found, str) else None


def _find_task(folder: Path) -> dict[str, Any] | None:
    """Return name and labels of the task of a head in RUN/snapshots/epoch_1/heads/NAME or KIT/TASK."""
    task: TaskFacts | None
    if folder.parts[-4:-3] == ("snapshots",):
        task = read_task_file(folder.parents[3])
    else:
        kit = read_json(folder.parent / "kit.json", KitTasks)
        task = kit["tasks"][folder.name]["task"] if kit and folder.name in kit["tasks"] else None
    return None if task is None else {"name": task["name"], "labels": task["labels"]}


def name_begin(begin: str | None, others: Iterable[Any]) -> str | None:
    """Return a short name that distinguishes this folder from the others in a grid. Take the shortest path endings
    that differ, and keep the parts that are not common to all: given runs/mnli/heads/adapter and
    runs/qnli/heads/adapter, the first becomes begin_mnli."""
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


# ---------------------------------------------------------------------- which weights are loaded


def begin_head(head: Head, member: MemberConfig, task: Task) -> None:
    """Overwrite a head's random weights with those its member starts from."""
    assert member.begin is not None, "the member starts from random weights"
    taken = check_begin(head, member, task)
    check_files(Path(member.begin), WEIGHTS)
    weights = load_tensors(Path(member.begin) / WEIGHTS)
    head.load_state_dict({name: weights[name] for name in taken}, strict=False)


def check_begin(head: Head, member: MemberConfig, task: Task) -> list[str]:
    """Return the names of the weights that a member's head (or its outline) loads from its `begin` folder. Raise
    UserError if they do not fit."""
    assert member.begin is not None, "the member starts from random weights"
    found = read_begin(Path(member.begin))
    if found.stamp != member.begin_stamp:
        raise UserError(f"the head in '{member.begin}' has changed since this run was started: start the run again.")
    here, there = (
        {name: tuple(t.shape) for name, t in head.state_dict().items()},
        load_shapes(Path(member.begin) / WEIGHTS),
    )
    if not _predicts_the_same(found, head.target, task):
        here, there = (
            {name: shape for name, shape in shapes.items() if not name.startswith(OUTPUT)} for shapes in (here, there)
        )
    if not here:
        raise UserError(
            f"head '{member.name}' can't use any weights from '{member.begin}': it consists of an output layer only, "
            f"and the one in that folder is for another target (it reads {found}). Remove `begin`."
        )
    if here != there:
        names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
        shown = [f"{name} {here.get(name, 'missing')} vs. {there.get(name, 'missing')}" for name in names[:3]]
        shown += [f"and {len(names) - 3} more"] if len(names) > 3 else []
        raise UserError(
            f"head '{member.name}' can't begin with the weights in '{member.begin}': the shapes differ "
            f"({'; '.join(shown)}). This head reads {head.shape.layers} layers of size {head.shape.hidden} and "
            f"predicts a {head.target.kind}; the saved one reads {found}. Use the saved head's settings and an encoder "
            "with the same number and size of layers, or remove `begin`."
        )
    return list(here)


def _predicts_the_same(found: Begin, target: Target, task: Task) -> bool:
    """Whether both heads' outputs mean the same thing. The start and end of a span never match two labels. Tasks on a
    user's own files all share one name, so two of them are never assumed to match."""
    same = found.target == {"kind": str(target.kind), "labels": target.labels}
    own = {"name": task.name, "labels": list(task.labels)}
    return same and (found.task is None or (found.task == own and task.name != "files"))
