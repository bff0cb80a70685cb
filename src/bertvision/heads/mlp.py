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
from bertvision.settings import setting


@dataclass(frozen=True)
class MLPConfig(HeadConfig):
    read: str = setting(
        "mean+deviation",
        "states to read: [CLS] and the pooled output ('cls'), or the mean, maximum or standard deviation over tokens; "
        f"{AS_MADE}; the mean comes with the deviation",
        choices=READINGS,
    )
    size: int = setting(192, "width of the hidden layer", at_least=1)
    dropout: float = setting(0.0, "fraction of the hidden units to drop in training", at_least=0, below=1)


@HEADS.register("mlp")
class MLP(Head):
    Config = MLPConfig
    positions = frozenset({"sequence"})
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "mlp_mean": {"read": "mean"},
        "mlp_deviation": {"read": "mean+deviation"},
    }

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        self.hidden = nn.Linear(self.layers * shape.hidden, config.size)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.size, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        hidden = self.hidden(self.states(states).flatten(1))  # (sequence, size)
        return self.output(self.dropout(functional.gelu(hidden)))  # (sequence, output)
