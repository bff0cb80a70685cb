"""A set of heads: each member is one head with its own settings, optimiser, schedule and seed.

heads = ["learned_pooling", {head = "adapter", size = 386, skip = true, lr = 5e-4, seed = 1}]
"""

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from bertvision.config import RunConfig, TrainConfig, target_kind
from bertvision.encoder.states import StateShape
from bertvision.errors import ConfigError, UserError, suggest
from bertvision.heads.base import HEADS, Head, HeadConfig, Target, count_parameters, head_settings
from bertvision.machine import drawing_from
from bertvision.rundir import read_json, write_json
from bertvision.tasks.base import TargetKind

CONTROL = "last_linear"
TRAINING = {"lr": float, "epochs": int, "schedule": str, "warmup": float, "decay": float, "clip": float, "seed": int}
RESERVED = ("encoder", "baseline")
NAME = re.compile(r"[^\W\d_][\w.-]*")


@dataclass(frozen=True)
class MemberConfig:
    """One member of a set of heads, everything filled in."""

    name: str
    head: str
    settings: dict[str, Any]
    lr: float
    epochs: int
    schedule: str
    warmup: float
    decay: float
    clip: float | None
    seed: int

    def head_config(self) -> HeadConfig:
        return HEADS[self.head].Config(**self.settings)


def build_members(entries: list[Any], train: TrainConfig, seed: int, kind: TargetKind) -> list[MemberConfig]:
    """The members a config asks for, with the last-layer control first; raises ConfigError with every mistake."""
    mistakes: list[str] = []
    tables = [{"head": entry} if isinstance(entry, str) else dict(entry) for entry in entries]
    if not any(table["head"] == CONTROL for table in tables):
        tables.insert(0, {"head": CONTROL})
    members = [_build_member(table, train, seed, kind, mistakes) for table in tables]
    names = [member.name for member in members if member is not None]
    for name in sorted({name for name in names if names.count(name) > 1}):
        mistakes.append(f"two heads are called '{name}': give one of them another `name`.")
    if mistakes:
        raise ConfigError(mistakes)
    return [member for member in members if member is not None]


def find_mistakes(config: RunConfig) -> list[str]:
    """What is wrong with a config's heads, for `config.build_config`; entries that are no heads at all are its own."""
    entries = [
        e for e in config.heads if isinstance(e, str) or (isinstance(e, dict) and isinstance(e.get("head"), str))
    ]
    try:
        # What is wrong in [train] itself is told once, not again by every head.
        build_members(entries, TrainConfig(), 0, target_kind(config) or TargetKind.LABEL)
    except ConfigError as error:
        return error.mistakes
    return []


def _build_member(
    table: dict[str, Any], train: TrainConfig, seed: int, kind: TargetKind, mistakes: list[str]
) -> MemberConfig | None:
    head, given = table.pop("head"), table.pop("name", None)
    if head not in HEADS:
        mistakes.append(f"there is no head '{head}': {suggest(head, HEADS)}")
        return None
    fields, found = head_settings(head), len(mistakes)
    training = {key: getattr(train, key) for key in TRAINING if key != "seed"} | {"seed": seed}
    settings: dict[str, Any] = {}
    for key, value in table.items():
        wanted = TRAINING.get(key) or (type(fields[key].default) if key in fields else None)
        if wanted is None:
            mistakes.append(f"head '{head}' has no setting '{key}': {suggest(key, [*fields, *TRAINING, 'name'])}")
        elif key == "clip" and value == "none":
            training[key] = None
        elif not _is_a(value, wanted):
            mistakes.append(f"`{key}` of head '{head}' must be {_WORDS[wanted]}, not {value!r}.")
        elif key in TRAINING:
            training[key] = value
        else:
            settings[key] = value
    if len(mistakes) == found:
        mistakes += [f"head '{head}': {mistake}." for mistake in HEADS[head].Config(**settings).mistakes()]
        mistakes += [f"head '{head}': {mistake}." for mistake in _check_training(training)]
    if kind not in HEADS[head].kinds:
        mistakes.append(f"head '{head}' does not predict a {kind}: it predicts {', '.join(sorted(HEADS[head].kinds))}.")
    if given is not None and not _is_name(given):
        mistakes.append(
            f"`name` = {given!r} of head '{head}' can't be used: a letter, then letters, digits, '_', '-', '.'; "
            f"not {' or '.join(RESERVED)}."
        )
    if len(mistakes) > found:
        return None
    return MemberConfig(given if given is not None else _name(head, table), head, settings, **training)


def _is_name(value: Any) -> bool:
    """Names become folders, so nothing that could lead out of one or be hidden."""
    return isinstance(value, str) and NAME.fullmatch(value) is not None and value not in RESERVED


_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _is_a(value: Any, wanted: type) -> bool:
    if isinstance(value, bool):
        return wanted is bool
    return isinstance(value, int | float) if wanted is float else isinstance(value, wanted)


def _check_training(training: dict[str, Any]) -> list[str]:
    mistakes = [
        f"`{key}` must be above 0, not {training[key]}"
        for key in ("lr", "epochs", "clip")
        if training[key] is not None and not training[key] > 0
    ]
    if math.isinf(training["lr"]):
        mistakes.append("`lr` must be finite")
    mistakes += [
        f"`{key}` must be at least 0, not {training[key]}" for key in ("decay", "seed") if not training[key] >= 0
    ]
    if not 0 <= training["warmup"] < 1:
        mistakes.append(f"`warmup` must be from 0 to less than 1, not {training['warmup']}")
    if training["schedule"] not in ("linear", "constant"):
        mistakes.append(f"`schedule` is '{training['schedule']}': it can be linear or constant")
    return mistakes


def _name(head: str, given: dict[str, Any]) -> str:
    """adapter with size = 386, shared = false, skip = true → adapter_386_separate_skip."""
    words = [head]
    for key, value in given.items():
        off = head_settings(head)[key].metadata.get("off", f"no_{key}") if key in head_settings(head) else f"no_{key}"
        if isinstance(value, bool):
            words.append(key if value else off)
        else:
            words.append(
                f"{value:g}" if key == "size" else f"{key}{value:g}" if isinstance(value, int | float) else str(value)
            )
    return "_".join(words)


def build_head(member: MemberConfig, shape: StateShape, target: Target) -> Head:
    """The member's head with initial weights from the member's own seed, whatever was drawn before."""
    with drawing_from(torch.device("cpu"), member.seed):
        return HEADS[member.head](member.head_config(), shape, target)


def save_head(folder: Path, head: Head, member: MemberConfig) -> None:
    """head.safetensors and config.json: enough to build it again, nothing that can run code."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in head.state_dict().items()}, folder / "head.safetensors")
    facts = {
        "member": dataclasses.asdict(member),
        "shape": dataclasses.asdict(head.shape),
        "target": {"kind": str(head.target.kind), "labels": head.target.labels},
        "parameters": count_parameters(head),
    }
    write_json(folder / "config.json", facts)


def load_head(folder: Path) -> tuple[Head, MemberConfig]:
    """A head saved by `save_head`, ready to predict."""
    facts = read_json(folder / "config.json")
    if facts is None or not (folder / "head.safetensors").is_file():
        raise UserError(f"no head in '{folder}': expected config.json and head.safetensors there.")
    member = MemberConfig(**facts["member"])
    target = Target(TargetKind(facts["target"]["kind"]), facts["target"]["labels"])
    head = build_head(member, StateShape(**facts["shape"]), target)
    head.load_state_dict(load_file(folder / "head.safetensors"))
    return head.eval(), member
