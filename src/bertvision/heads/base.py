"""What a head is: a small module from the hidden states of all layers to the task's outputs.

Spans: two logits a token. Labels: one logit a label. Scores: one number. A head is built from its own `Config`, the
encoder's `StateShape` and the `Target`; the decorator in its file is its only registration. A member of a set of heads
is a head's name and settings, with those of its training.
"""

import dataclasses
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bertvision.disk import read_json, write_json
from bertvision.encoder.states import HiddenStates, ReadPart, StateShape
from bertvision.errors import UserError
from bertvision.kinds import KINDS, Kind
from bertvision.machine import drawing_from
from bertvision.registry import Registry
from bertvision.settings import out_of_range, setting

HEADS: Registry[type["Head"]] = Registry("head")
CONTROL = "last_linear"
CONFIG, WEIGHTS = "config.json", "head.safetensors"


@dataclass(frozen=True)
class Target:
    """What is predicted: its kind and, for labels, how many there are."""

    kind: Kind
    labels: int = 0

    @property
    def outputs(self) -> int:
        return self.kind.output_count(self.labels)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True)
class HeadConfig:
    """What a head's own `Config` extends; on its own it is that of a head which reads all tokens for any target."""

    def mistakes(self) -> list[str]:
        """What is wrong with the values, in the user's words."""
        items = dataclasses.fields(self)
        lines = [line for item in items for line in out_of_range(item, f"`{item.name}`", getattr(self, item.name))]
        return [line.removesuffix(".") for line in lines]


@dataclass(frozen=True)
class ReadConfig(HeadConfig):
    """Settings of a head that takes one position at a time: a token for spans, a sequence otherwise."""

    read: str = setting(
        "cls",
        "labels and scores: 'cls' = [CLS] states and pooled output, 'mean' = mean over tokens",
        choices=("cls", "mean"),
    )


def list_presets() -> dict[str, tuple[str, dict[str, Any]]]:
    """Every named row: its head and the settings it stands for. A head without presets is a row of its own."""
    rows: dict[str, tuple[str, dict[str, Any]]] = {}
    for head in HEADS:
        for name, settings in (HEADS[head].presets or {head: {}}).items():
            assert name not in rows and (name == head or name not in HEADS), f"two rows are called '{name}'"
            rows[name] = head, settings
    return rows


def find_preset(name: str) -> tuple[str, dict[str, Any]]:
    """The head that a name stands for, and the settings that come with it: none where it is the head's own name."""
    return (name, {}) if name in HEADS else list_presets()[name]


def setting_types(head: str) -> dict[str, Any]:
    """The settings a head takes, by name, and the type of each."""
    hints = typing.get_type_hints(HEADS[head].Config)
    return {item.name: hints[item.name] for item in dataclasses.fields(HEADS[head].Config)}


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
    data_fraction: float = 1.0
    group: str = ""
    """The name without the seed: members of one group differ in nothing else."""
    begin: str | None = None
    """The folder of a trained head whose weights it begins with. Its output layer is taken too where that head predicts
    the same: the same kind, as many outputs and, where the folder's run or kit has it, the same task."""
    begin_stamp: str | None = None
    """What it begins with, wherever that lies."""

    def head_config(self) -> HeadConfig:
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in self.settings.items()}
        return HEADS[self.head].Config(**values)

    def to_dict(self) -> dict[str, Any]:
        """What its folder keeps: with which weights it began, not in which place of some machine they lay, and nothing
        of that where it began with random ones, as of members made before there was a choice."""
        left_out = ("begin",) if self.begin_stamp else ("begin", "begin_stamp")
        return {key: value for key, value in dataclasses.asdict(self).items() if key not in left_out}

    def identity(self) -> dict[str, Any]:
        """Everything that its weights depend on."""
        return {key: value for key, value in self.to_dict().items() if key not in ("name", "group")}


# ---------------------------------------------------------------------- the module


class Head(nn.Module):
    Config: ClassVar[type[HeadConfig]] = ReadConfig
    positions: ClassVar[frozenset[str]] = frozenset({"token", "sequence"})
    """What its outputs can belong to: each token (spans), the whole sequence (labels, scores), or either."""
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Names that stand for settings: the papers' rows. A head without any is its own row, with its defaults."""
    mixes_tokens: ClassVar[bool] = False
    """Whether a token's output depends on its neighbours'."""

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__()
        assert self.takes(target.kind), f"{type(self).__name__} does not take {target.kind}"
        self.config, self.shape, self.target = config, shape, target

    @classmethod
    def takes(cls, kind: Kind) -> bool:
        """Whether it can predict such targets."""
        return kind.position in cls.positions

    @property
    def reads(self) -> ReadPart:
        """Which states the head needs: "tokens", "cls" or "mean"."""
        if self.target.kind.position == "token" or not hasattr(self.config, "read"):
            return "tokens"
        return "mean" if self.config.read == "mean" else "cls"

    @property
    def stackable(self) -> bool:
        """Whether members can run as one (`vmap`): nothing is drawn while training, nothing kept but weights, and
        nothing along tokens, whose kernels know no further dimension."""
        return not self.draws and not self.mixes_tokens and next(self.buffers(), None) is None

    @property
    def draws(self) -> bool:
        """Whether random numbers are drawn in training."""
        return any(isinstance(module, nn.Dropout) and module.p > 0 for module in self.modules())

    @property
    def layers(self) -> int:
        """How many states a position has; the pooled output is one more beside the [CLS] states."""
        return self.shape.read_layers(self.reads)

    def states(self, states: HiddenStates) -> Tensor:
        """All layers at each position, in the head's own precision."""
        return self._cast(states.read(self.reads))  # (position, layer, hidden)

    def last(self, states: HiddenStates) -> Tensor:
        """The last encoder layer at each position, never the pooled output."""
        return self._cast(states.read(self.reads)[:, self.shape.layers - 1])  # (position, hidden)

    def _cast(self, values: Tensor) -> Tensor:
        # Under autocast the products choose their precision; otherwise states in half precision meet float32 weights.
        if torch.is_autocast_enabled(values.device.type):
            return values
        return values.to(next(self.parameters()).dtype)

    def forward(self, states: HiddenStates) -> Tensor:
        """(token, 2) for spans, (sequence, labels) or (sequence, 1) otherwise."""
        raise NotImplementedError


def count_parameters(module: nn.Module) -> int:
    """Weights plus batch-norm means and variances (not their step counters)."""
    buffers = (buffer for name, buffer in module.named_buffers() if not name.endswith("num_batches_tracked"))
    return sum(tensor.numel() for tensor in (*module.parameters(), *buffers))


# ---------------------------------------------------------------------- building, saving, loading


def build_head(member: MemberConfig, shape: StateShape, target: Target) -> Head:
    """The member's head with initial weights from the member's own seed, whatever was drawn before."""
    with drawing_from(torch.device("cpu"), member.seed):
        return HEADS[member.head](member.head_config(), shape, target)


def outline_head(member: MemberConfig, shape: StateShape, target: Target) -> Head:
    """The member's head without its weights: to find out what it reads, to count it, or to refuse it."""
    with torch.device("meta"):
        return HEADS[member.head](member.head_config(), shape, target)


def save_head(folder: Path, head: Head, member: MemberConfig) -> None:
    """head.safetensors and config.json: enough to build it again. Nothing in them can run code."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in head.state_dict().items()}, folder / WEIGHTS)
    facts = {
        "member": member.to_dict(),
        "shape": dataclasses.asdict(head.shape),
        "target": {"kind": str(head.target.kind), "labels": head.target.labels},
        "parameters": count_parameters(head),
    }
    write_json(folder / CONFIG, facts)


def load_head(folder: Path) -> tuple[Head, MemberConfig]:
    """A head saved by `save_head`, ready to predict."""
    facts = read_json(folder / CONFIG)
    if facts is None or not (folder / WEIGHTS).is_file():
        raise UserError(f"no head in '{folder}': expected {CONFIG} and {WEIGHTS} there.")
    member = MemberConfig(**facts["member"])
    target = Target(KINDS[facts["target"]["kind"]], facts["target"]["labels"])
    head = build_head(member, StateShape(**facts["shape"]), target)
    head.load_state_dict(load_file(folder / WEIGHTS))
    return head.eval(), member
