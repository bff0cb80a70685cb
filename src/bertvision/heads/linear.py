"""linear: a linear layer on the pooled states of all layers, side by side. Convex, so it is solved to convergence.

Logistic or ridge regression on standardised states, for labels and scores; the scaling is part of the weights.
51,202 parameters with BERT-large for two labels.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import AS_MADE, HEADS, Head, HeadConfig, Target
from bertvision.settings import setting

READINGS = ("mean", "cls", "max", "deviation", "mean+max", "mean+deviation", "mean+max+deviation")


@dataclass(frozen=True)
class LinearConfig(HeadConfig):
    read: str = setting(
        "mean",
        "states to read: [CLS] and the pooled output ('cls'), or the mean, maximum or standard deviation over tokens; "
        f"{AS_MADE}",
        choices=READINGS,
    )
    layer: int | None = setting(None, "read this layer only, 0 = embeddings, -1 = the last; default: all layers")
    strength: float | None = setting(
        None, "strength of the L2 penalty; default: chosen on held-out data from a path of strengths", above=0
    )

    def mistakes(self) -> list[str]:
        found = super().mistakes()
        if self.layer is not None and "+" in self.read:
            found.append("`layer` needs a single reading, such as `read` = 'mean'")
        return found


@HEADS.register("linear")
class LinearHead(Head):
    Config: ClassVar[type[HeadConfig]] = LinearConfig
    positions = frozenset({"sequence"})
    convex = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "linear_mean": {"read": "mean"},
        "linear_deviation": {"read": "mean+deviation"},
    }

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        self.output = nn.Linear((self.layers if self.layer is None else 1) * shape.hidden, target.outputs)

    @property
    def layer(self) -> int | None:
        """The layer that the head reads; None: all of them."""
        found: int | None = self.config.layer
        return found

    def inputs(self, states: Tensor) -> Tensor:
        """What the linear layer reads, given states (sequence, layer, hidden)."""
        if self.layer is None:
            return states.flatten(1)  # (sequence, layer · hidden)
        return states[:, self.layer]  # (sequence, hidden)

    def forward(self, states: HiddenStates) -> Tensor:
        return self.output(self.inputs(self.states(states)))  # (sequence, output)
