"""mlp: one hidden layer on the pooled states of all layers, side by side. For labels and scores.

9,830,978 parameters with BERT-large for two labels.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import AS_MADE, HEADS, Head, HeadConfig, Target
from bertvision.heads.linear import READINGS
from bertvision.heads.towers import compare, compared_size, pairs_setting
from bertvision.settings import MOST_WIDTH, setting


@dataclass(frozen=True)
class MLPConfig(HeadConfig):
    read: str = setting(
        "mean+deviation",
        "states to read: [CLS] and the pooled output ('cls'), or the mean, maximum or standard deviation over tokens; "
        f"{AS_MADE}; the mean comes with the deviation",
        choices=READINGS,
    )
    pairs: str = pairs_setting()
    size: int = setting(192, "width of the hidden layer", at_least=1, at_most=MOST_WIDTH)
    dropout: float = setting(0.0, "fraction of the hidden units to drop in training", at_least=0, below=1)


@HEADS.register("mlp")
class MLP(Head):
    Config = MLPConfig
    positions = frozenset({"sequence"})
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "mlp_mean": {"read": "mean"},
        "mlp_deviation": {"read": "mean+deviation"},
        "mlp_towers": {"read": "mean", "pairs": "towers"},
    }

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        size = compared_size(shape.hidden) if self.towers else shape.hidden
        self.hidden = nn.Linear(self.layers * size, config.size)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.size, target.outputs)

    def inputs(self, states: HiddenStates) -> Tensor:
        """What the hidden layer reads: all layers side by side."""
        found = self.states(states)  # (sequence, layer, hidden)
        if self.towers:
            assert states.second is not None, "a head that reads two towers needs the second texts"
            found = compare(found, self.states(states.second))  # (sequence, layer, value)
        return found.flatten(1)  # (sequence, layer · value)

    def forward(self, states: HiddenStates) -> Tensor:
        hidden = self.hidden(self.inputs(states))  # (sequence, size)
        return self.output(self.dropout(functional.gelu(hidden)))  # (sequence, output)
