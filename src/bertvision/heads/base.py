"""The base class of heads: small modules that map the hidden states of all layers to the task's outputs.

Spans: two logits per token. Labels: one logit per label. Scores: one number. A head is built from its own `Config`, the
encoder's `StateShape` and the `Target`; the decorator in its file registers it. A member of a set of heads is a head's
name with its settings and its training settings.
"""

import dataclasses
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypedDict

import torch
from msgspec import Meta
from torch import Tensor, nn

from bertvision.disk import check_files, damaged, load_shapes, load_tensors, read_json, save_tensors, write_json
from bertvision.disk.forms import Layers, Name, Width
from bertvision.encoder.states import HiddenStates, ReadPart, StateShape
from bertvision.errors import UserError
from bertvision.kinds import KINDS, Kind, kind_in
from bertvision.machine import drawing_from
from bertvision.registry import Registry
from bertvision.settings import MOST_ITEMS, convert, describe_type, out_of_range, setting

HEADS: Registry[type["Head"]] = Registry("head")
CONTROL = "last_linear"
CONVEX_CONTROL = "last_lr"
CONTROLS = (CONTROL, CONVEX_CONTROL)
"""Heads that read only the last layer: trained in steps, and solved to convergence."""
MOST_PARAMETERS = 2_000_000_000
CONFIG, WEIGHTS = "config.json", "head.safetensors"


@dataclass(frozen=True)
class Target:
    """The kind of target and, for labels, their number."""

    kind: Kind
    labels: int = 0

    @property
    def outputs(self) -> int:
        return self.kind.output_count(self.labels)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True)
class HeadConfig:
    """Base class of a head's `Config`. Use it directly for a head that reads all tokens, whatever the target."""

    def mistakes(self) -> list[str]:
        """Return a message for each invalid setting."""
        items = dataclasses.fields(self)
        lines = [line for item in items for line in out_of_range(item, f"`{item.name}`", getattr(self, item.name))]
        return [line.removesuffix(".") for line in lines]


AS_MADE = "default: as the encoder was made, or both 'cls' and 'mean' if it does not say"
"""What `read` is in a run whose config leaves it out. A saved head without `read` has its class's default."""


@dataclass(frozen=True)
class ReadConfig(HeadConfig):
    """Settings of a head that treats positions independently: tokens for spans, sequences otherwise."""

    read: str = setting(
        "cls",
        "labels and scores: read the [CLS] states and the pooled output ('cls'), or the mean or maximum over tokens; "
        f"{AS_MADE}",
        choices=("cls", "mean", "max"),
    )


def list_presets() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return head and settings of every preset, by name. A head without presets is listed under its own name."""
    rows: dict[str, tuple[str, dict[str, Any]]] = {}
    for head in HEADS:
        for name, settings in (HEADS[head].presets or {head: {}}).items():
            assert name not in rows and (name == head or name not in HEADS), f"two presets are named '{name}'"
            rows[name] = head, settings
    return rows


def find_preset(name: str) -> tuple[str, dict[str, Any]]:
    """Return the head and the settings that a name stands for; a head's own name has no settings."""
    return (name, {}) if name in HEADS else list_presets()[name]


def find_read(head: str, made: str) -> str | None:
    """What a head reads of sequences by default if the encoder was made to be read as `made`: its own default where
    that includes `made` (such as mean and deviation), else `made` itself, or the mean if it can't read that. None if
    the head has no such setting."""
    items = {item.name: item for item in dataclasses.fields(HEADS[head].Config)}
    if "read" not in items:
        return None
    own = str(items["read"].default)
    if made in own.split("+"):
        return own
    return made if made in items["read"].metadata["choices"] else "mean"


def default_reads(name: str, ways: Iterable[str]) -> list[str]:
    """What a head or preset reads of sequences if nobody says, for the ways in which the encoder is read: one value of
    `read` or several. Empty if its own default holds.

    The mean of a preset for two towers is only the usual reading: the preset is not named for it."""
    head, preset = find_preset(name)
    usual = preset.get("pairs") == "towers" and preset.get("read") == "mean"
    if "read" in preset and not usual:
        return []
    reads = [way if usual else find_read(head, way) for way in ways]
    return [read for read in dict.fromkeys(reads) if read is not None]


def setting_types(head: str) -> dict[str, Any]:
    """Return the type of each of a head's settings, by name."""
    config: Any = HEADS[head].Config
    return _types_of(config)


@cache
def _types_of(config: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(config)
    return {item.name: hints[item.name] for item in dataclasses.fields(config)}


@dataclass(frozen=True)
class MemberConfig:
    """One member of a set of heads, with all settings resolved."""

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
    """The name without the seed: members of one group differ only in their seed."""
    begin: str | None = None
    """Folder of a trained head to initialise from. The output layer is included only if both heads predict the same:
    the same kind, the same number of outputs and, if the folder's run or kit states it, the same task."""
    begin_stamp: str | None = None
    """Fingerprint of those initial weights, independent of their location."""

    def head_config(self) -> HeadConfig:
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in self.settings.items()}
        return HEADS[self.head].Config(**values)

    def to_dict(self) -> dict[str, Any]:
        """The fields saved in the member's folder. `begin` is a local path and left out; `begin_stamp` is saved only if
        the member did not start from random weights."""
        left_out = ("begin",) if self.begin_stamp else ("begin", "begin_stamp")
        return {key: value for key, value in dataclasses.asdict(self).items() if key not in left_out}

    def identity(self) -> dict[str, Any]:
        """Everything that the member's weights depend on."""
        return {key: value for key, value in self.to_dict().items() if key not in ("name", "group")}


# ---------------------------------------------------------------------- the module


class Head(nn.Module):
    Config: ClassVar[type[HeadConfig]] = ReadConfig
    positions: ClassVar[frozenset[str]] = frozenset({"token", "sequence"})
    """Where it can predict: at each token (spans), for the whole sequence (labels, scores), or both."""
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Named settings, as in the papers' tables. A head without presets is listed under its own name."""
    mixes_tokens: ClassVar[bool] = False
    """Whether a token's output depends on other tokens."""
    convex: ClassVar[bool] = False
    """Whether its optimum is unique, so that it is solved to convergence instead of trained in steps."""

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__()
        assert self.takes(target.kind), f"{type(self).__name__} does not support {target.kind}"
        self.config, self.shape, self.target = config, shape, target

    @classmethod
    def takes(cls, kind: Kind) -> bool:
        """Whether the head can predict this kind of target."""
        return kind.position in cls.positions

    @property
    def reads(self) -> tuple[ReadPart, ...]:
        """The parts of the states that the head reads: ("tokens",), or pooled ones such as ("mean", "deviation")."""
        if self.target.kind.position == "token" or not hasattr(self.config, "read"):
            return ("tokens",)
        return tuple(self.config.read.split("+"))

    @property
    def towers(self) -> bool:
        """Whether the head compares the texts of a pair, each read alone (`pairs = "towers"`)."""
        return self.target.kind.position == "sequence" and getattr(self.config, "pairs", "joined") == "towers"

    @property
    def stackable(self) -> bool:
        """Whether members can run as a stack (`vmap`). This rules out random numbers in training, buffers, and mixing
        of tokens, whose kernels have no member dimension."""
        return not self.draws and not self.mixes_tokens and next(self.buffers(), None) is None

    @property
    def draws(self) -> bool:
        """Whether the head draws random numbers in training."""
        return any(isinstance(module, nn.Dropout) and module.p > 0 for module in self.modules())

    @property
    def layers(self) -> int:
        """Number of states per position, including the pooled output for [CLS]."""
        return self.shape.read_layers(*self.reads)

    def states(self, states: HiddenStates) -> Tensor:
        """Return all layers at each position, in the head's dtype."""
        return self._cast(states.read(*self.reads))  # (position, layer, hidden)

    def last(self, states: HiddenStates) -> Tensor:
        """Return the last encoder layer at each position, never the pooled output."""
        return self._cast(states.read(*self.reads)[:, self.shape.layers - 1])  # (position, hidden)

    def _cast(self, values: Tensor) -> Tensor:
        # Under autocast, torch casts. Otherwise states in half precision would meet float32 weights.
        if torch.is_autocast_enabled(values.device.type):
            return values
        return values.to(next(self.parameters()).dtype)

    def forward(self, states: HiddenStates) -> Tensor:
        """Return (token, 2) for spans, (sequence, labels) for labels, (sequence, 1) for scores."""
        raise NotImplementedError


def count_parameters(module: nn.Module) -> int:
    """Count weights and the running means and variances of batch norm, without its step counters."""
    buffers = (buffer for name, buffer in module.named_buffers() if not name.endswith("num_batches_tracked"))
    return sum(tensor.numel() for tensor in (*module.parameters(), *buffers))


# ---------------------------------------------------------------------- building, saving, loading


def build_head(member: MemberConfig, shape: StateShape, target: Target) -> Head:
    """Build the member's head. Its initial weights depend only on the member's seed."""
    with drawing_from(torch.device("cpu"), member.seed):
        return HEADS[member.head](member.head_config(), shape, target)


def outline_head(member: MemberConfig, shape: StateShape, target: Target) -> Head:
    """Build the member's head on the meta device, to inspect it or to count its parameters. Raise UserError if it has
    too many."""
    with torch.device("meta"):
        head = HEADS[member.head](member.head_config(), shape, target)
    if (count := count_parameters(head)) > MOST_PARAMETERS:
        raise UserError(
            f"head '{member.name}' would have {count:,} parameters; a head can have at most {MOST_PARAMETERS:,}. Make "
            "it smaller."
        )
    return head


class SavedShape(TypedDict):
    layers: Layers
    hidden: Width
    pooled: bool


class SavedTarget(TypedDict):
    kind: Name
    labels: Annotated[int, Meta(ge=0, le=1_000_000)]


class HeadFile(TypedDict):
    """config.json of a saved head."""

    member: MemberConfig
    shape: SavedShape
    target: SavedTarget


def save_head(folder: Path, head: Head, member: MemberConfig) -> None:
    """Save a head as head.safetensors and config.json. Neither file can run code."""
    save_tensors(folder / WEIGHTS, {name: tensor.contiguous() for name, tensor in head.state_dict().items()})
    facts = {
        "member": member.to_dict(),
        "shape": dataclasses.asdict(head.shape),
        "target": {"kind": str(head.target.kind), "labels": head.target.labels},
        "parameters": count_parameters(head),
    }
    write_json(folder / CONFIG, facts)


def read_head_file(folder: Path) -> HeadFile | None:
    """The config.json of a saved head; None if there is none."""
    found = read_json(folder / CONFIG, HeadFile)
    if found is not None and (mistakes := _mistakes_in(folder / CONFIG, found)):
        raise damaged(folder / CONFIG, mistakes[0])
    return found


def load_head(folder: Path) -> tuple[Head, MemberConfig]:
    """Load a head saved by `save_head`, ready to predict."""
    check_files(folder, CONFIG, WEIGHTS)
    facts, path = read_head_file(folder), folder / WEIGHTS
    if facts is None or not path.is_file():
        raise UserError(f"no head in '{folder}': expected {CONFIG} and {WEIGHTS}.")
    member, shape = facts["member"], StateShape(**facts["shape"])
    target = Target(KINDS[facts["target"]["kind"]], facts["target"]["labels"])
    there = load_shapes(path)
    try:
        # Without memory first: the sizes may be anything.
        wanted = {name: tuple(one.shape) for name, one in outline_head(member, shape, target).state_dict().items()}
        if wanted != there:
            raise damaged(path, f"its weights are not those of the head in {CONFIG}")
        head = build_head(member, shape, target)
        head.load_state_dict(load_tensors(path))
    except (KeyError, TypeError, RuntimeError, AssertionError, OverflowError, ZeroDivisionError) as error:
        raise damaged(folder / CONFIG, str(error)[:200] or "it makes no head") from None
    return head.eval(), member


def _mistakes_in(path: Path, file: HeadFile) -> list[str]:
    """What is wrong with a saved head, beyond the form of its file."""
    member, kind = file["member"], kind_in(path, file["target"]["kind"])
    if member.head not in HEADS:
        return [f"there is no head '{member.head[:60]}'"]
    if not HEADS[member.head].takes(kind):
        return [f"{member.head} can't predict a {kind}"]
    types = setting_types(member.head)
    mistakes = [f"{member.head} has no setting '{key[:60]}'" for key in member.settings if key not in types]
    for key, value in member.settings.items():
        if key in types and not convert(value, types[key])[1]:
            mistakes.append(f"`{key}` must be {describe_type(types[key])}")
        elif isinstance(value, list) and len(value) > MOST_ITEMS:
            mistakes.append(f"`{key}` has {len(value):,} items")
    return mistakes or member.head_config().mistakes()
