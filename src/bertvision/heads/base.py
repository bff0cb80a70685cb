"""What a head is: a small module from the hidden states of all layers to the task's outputs.

Spans: two logits a token. Labels: one logit a label. Scores: one number. A head is built from its own `Config`, the
encoder's `StateShape` and the `Target`; the decorator in its file is its only registration.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bertvision.encoder.states import HiddenStates, Reading, StateShape
from bertvision.kinds import Kind
from bertvision.registry import Registry

HEADS: Registry[type["Head"]] = Registry("head")
READS = ("cls", "mean")


@dataclass(frozen=True)
class Target:
    """What is predicted: its kind and, for labels, how many there are."""

    kind: Kind
    labels: int = 0

    @property
    def outputs(self) -> int:
        return self.kind.outputs(self.labels)


@dataclass(frozen=True)
class HeadConfig:
    """What a head's own `Config` extends; on its own it is that of a head which reads all tokens for any target."""

    def mistakes(self) -> list[str]:
        """What is wrong with the values, in the user's words."""
        return []


@dataclass(frozen=True)
class ReadConfig(HeadConfig):
    """Settings of a head that takes one position at a time: a token for spans, a sequence otherwise."""

    read: str = field(
        default="cls",
        metadata={"help": "labels and scores: 'cls' = [CLS] states and pooled output, 'mean' = mean over tokens"},
    )

    def mistakes(self) -> list[str]:
        return [] if self.read in READS else [f"`read` is '{self.read}': it can be {' or '.join(READS)}"]


class Head(nn.Module):
    Config: ClassVar[type[HeadConfig]] = ReadConfig
    positions: ClassVar[frozenset[str]] = frozenset({"token", "sequence"})
    """What its outputs can belong to: each token (spans), the whole sequence (labels, scores), or either."""
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Names that stand for settings: the papers' rows. A head without any is its own row, with its defaults."""
    mixes_tokens: ClassVar[bool] = False
    """Whether a token's output hangs on its neighbours'."""

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__()
        assert self.takes(target.kind), f"{type(self).__name__} does not take {target.kind}"
        self.config, self.shape, self.target = config, shape, target

    @classmethod
    def takes(cls, kind: Kind) -> bool:
        """Whether it can predict such targets."""
        return kind.position in cls.positions

    @property
    def reads(self) -> Reading:
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
