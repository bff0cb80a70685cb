"""A member's head: built from its seed, written to a folder, read back. Nothing that can run code."""

import dataclasses
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from bertvision.disk import read_json, write_json
from bertvision.encoder.states import StateShape
from bertvision.errors import UserError
from bertvision.heads.base import HEADS, Head, Target, count_parameters
from bertvision.heads.begin import WEIGHTS, Begin, read_begin
from bertvision.heads.members import MemberConfig
from bertvision.kinds import KINDS
from bertvision.machine import drawing_from
from bertvision.tasks.base import Task

OUTPUT = "output."  # how the names of every head's output layer begin


def build_head(member: MemberConfig, shape: StateShape, target: Target) -> Head:
    """The member's head with initial weights from the member's own seed, whatever was drawn before."""
    with drawing_from(torch.device("cpu"), member.seed):
        return HEADS[member.head](member.head_config(), shape, target)


def outline_head(member: MemberConfig, shape: StateShape, target: Target) -> Head:
    """The member's head without its weights: to be asked what it reads, counted, or refused."""
    with torch.device("meta"):
        return HEADS[member.head](member.head_config(), shape, target)


def save_head(folder: Path, head: Head, member: MemberConfig) -> None:
    """head.safetensors and config.json: enough to build it again."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in head.state_dict().items()}, folder / WEIGHTS)
    facts = {
        "member": member.to_dict(),
        "shape": dataclasses.asdict(head.shape),
        "target": {"kind": str(head.target.kind), "labels": head.target.labels},
        "parameters": count_parameters(head),
    }
    write_json(folder / "config.json", facts)


def load_head(folder: Path) -> tuple[Head, MemberConfig]:
    """A head saved by `save_head`, ready to predict."""
    facts = read_json(folder / "config.json")
    if facts is None or not (folder / WEIGHTS).is_file():
        raise UserError(f"no head in '{folder}': expected config.json and {WEIGHTS} there.")
    member = MemberConfig(**facts["member"])
    target = Target(KINDS[facts["target"]["kind"]], facts["target"]["labels"])
    head = build_head(member, StateShape(**facts["shape"]), target)
    head.load_state_dict(load_file(folder / WEIGHTS))
    return head.eval(), member


# ---------------------------------------------------------------------- a head that begins with another one's weights


def begin_head(head: Head, member: MemberConfig, task: Task) -> None:
    """Puts the weights that a member begins with over those that were drawn for its head."""
    taken = check_begin(head, member, task)
    if member.begin is not None:
        weights = load_file(Path(member.begin) / WEIGHTS)
        head.load_state_dict({name: weights[name] for name in taken}, strict=False)


def check_begin(head: Head, member: MemberConfig, task: Task) -> list[str]:
    """The names of the weights that a member's head, or its outline, takes from the folder it begins with; raises
    UserError where they do not fit."""
    if member.begin is None:
        return []
    found = read_begin(Path(member.begin))
    if found.stamp != member.begin_stamp:
        raise UserError(f"'{member.begin}' has become another head since this run was started: start it again.")
    whole = _predicts_the_same(found, head.target, task)
    here, there = (
        {name: shape for name, shape in shapes.items() if whole or not name.startswith(OUTPUT)}
        for shapes in ({name: tuple(t.shape) for name, t in head.state_dict().items()}, _read_shapes(member.begin))
    )
    if not here:
        raise UserError(
            f"head '{member.name}' would take nothing from '{member.begin}': it is an output layer and nothing else, "
            f"and the one there is for another target ({_describe(found)}). Leave `begin` out."
        )
    if here != there:
        _refuse_misfit(head, member, found, here, there)
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


def _refuse_misfit(
    head: Head,
    member: MemberConfig,
    found: Begin,
    here: dict[str, tuple[int, ...]],
    there: dict[str, tuple[int, ...]],
) -> None:
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    told = "; ".join(f"{name} {here.get(name, 'nothing')}, there {there.get(name, 'nothing')}" for name in names[:3])
    more = f"; and {len(names) - 3} more" if len(names) > 3 else ""
    raise UserError(
        f"head '{member.name}' can't begin with '{member.begin}': expected {told}{more}. Here states are "
        f"{head.shape.layers} layers of {head.shape.hidden} and the target is a {head.target.kind}, there "
        f"{_describe(found)}. Give it the settings of that head, and an encoder with such states, or leave `begin` out."
    )


def _describe(found: Begin) -> str:
    task = f" of {found.task['name']}" if found.task else ""
    return f"{found.shape['layers']} layers of {found.shape['hidden']} and a {found.target['kind']}{task}"
