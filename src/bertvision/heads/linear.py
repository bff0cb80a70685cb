"""linear: a linear layer on the pooled states of all layers, side by side. Convex, so it is solved to convergence.

Logistic or ridge regression on standardised states, for labels and scores; the scaling is part of the weights. Of pairs
of texts it can also read each text alone, and compare them. 51,202 parameters with BERT-large for two labels.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import AS_MADE, HEADS, Head, HeadConfig, Target
from bertvision.heads.towers import compare, compared_size, cosines, pairs_setting
from bertvision.settings import MOST_LAYERS, setting

READINGS = ("mean", "cls", "max", "deviation", "mean+max", "mean+deviation", "mean+max+deviation")


@dataclass(frozen=True)
class LinearConfig(HeadConfig):
    read: str = setting(
        "mean",
        "states to read: [CLS] and the pooled output ('cls'), or the mean, maximum or standard deviation over tokens; "
        f"{AS_MADE}",
        choices=READINGS,
    )
    pairs: str = pairs_setting()
    compare: str = setting(
        "all",
        "two towers: compare the states by all values, |u - v|, u · v and cosine ('all'), or by the cosine alone",
        choices=("all", "cosine"),
    )
    layer: int | None = setting(
        None, "read this layer only, 0 = embeddings, -1 = the last; default: all layers", at_least=-MOST_LAYERS,
        at_most=MOST_LAYERS,
    )  # fmt: skip
    strength: float | None = setting(
        None,
        "strength of the L2 penalty; default: chosen on held-out data from a path of strengths",
        above=0,
        below=1e30,
    )

    def mistakes(self) -> list[str]:
        found = super().mistakes()
        if self.layer is not None and "+" in self.read:
            found.append("`layer` needs a single reading, such as `read` = 'mean'")
        if self.compare != "all" and self.pairs != "towers":
            found.append("`compare` needs `pairs` = 'towers'")
        return found


@HEADS.register("linear")
class LinearHead(Head):
    Config: ClassVar[type[HeadConfig]] = LinearConfig
    positions = frozenset({"sequence"})
    convex = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "linear_mean": {"read": "mean"},
        "linear_deviation": {"read": "mean+deviation"},
        "linear_towers": {"read": "mean", "pairs": "towers"},
        "linear_towers_deviation": {"read": "mean+deviation", "pairs": "towers"},
        "linear_cosines": {"read": "mean", "pairs": "towers", "compare": "cosine"},
        "cosine_lr": {"read": "mean", "pairs": "towers", "compare": "cosine", "layer": -1},
    }

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        self.output = nn.Linear((self.layers if self.layer is None else 1) * self._layer_size, target.outputs)

    @property
    def layer(self) -> int | None:
        """The layer that the head reads; None: all of them."""
        found: int | None = self.config.layer
        return found

    @property
    def _layer_size(self) -> int:
        """Values that the linear layer reads of each layer."""
        if not self.towers:
            return self.shape.hidden
        return 1 if self._reads_cosine else compared_size(self.shape.hidden)

    @property
    def _reads_cosine(self) -> bool:
        return getattr(self.config, "compare", "all") == "cosine"

    def inputs(self, states: HiddenStates) -> Tensor:
        """What the linear layer reads: all layers side by side, or one."""
        found = self._chosen(states)  # (sequence, layer, hidden)
        if self.towers:
            assert states.second is not None, "a head that reads two towers needs the second texts"
            second = self._chosen(states.second)  # (sequence, layer, hidden)
            found = (cosines if self._reads_cosine else compare)(found, second)  # (sequence, layer, value)
        return found.flatten(1)  # (sequence, layer · value)

    def _chosen(self, states: HiddenStates) -> Tensor:
        found = self.states(states)  # (sequence, layer, hidden)
        if self.layer is None:
            return found
        # Counted from the last encoder layer: [CLS] states may end with the pooled output.
        return found[:, self.layer + (self.shape.layers if self.layer < 0 else 0)].unsqueeze(1)

    def forward(self, states: HiddenStates) -> Tensor:
        return self.output(self.inputs(states))  # (sequence, output)
