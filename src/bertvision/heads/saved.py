"""A member's head: built from its seed, written to a folder, read back. Nothing that can run code."""

import dataclasses
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from bertvision.encoder.states import StateShape
from bertvision.errors import UserError
from bertvision.heads.base import HEADS, Head, Target, count_parameters
from bertvision.heads.members import MemberConfig
from bertvision.machine import drawing_from
from bertvision.rundir import read_json, write_json
from bertvision.tasks.base import TargetKind


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
