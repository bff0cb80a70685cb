"""pooled_cnn: the layers pooled into one state, then the 1×N CNN along its hidden dimension.

The 2020 paper publishes only this head's name, size and scores. The layout is ours and has the published size: that of
`cnn` with one channel. Parameters with BERT-large for spans: 310,128, with average pooling 310,102 (published: 0.093 %
of the encoder).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Head, Target
from bertvision.heads.blocks import POOLINGS, build_pooling
from bertvision.heads.convolutions import WidthCnn, WidthCnnConfig, linear_of_places
from bertvision.settings import setting


@dataclass(frozen=True)
class PooledCnnConfig(WidthCnnConfig):
    pooling: str = setting("learned", "how to pool the layers: 'learned' weights or 'average'", choices=POOLINGS)


@HEADS.register("pooled_cnn")
class PooledCnn(Head):
    Config = PooledCnnConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "pooled_cnn_1xn": {},
        "pooled_cnn_1xn_average": {"pooling": "average"},
    }

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        self.pooling = build_pooling(config.pooling, self.layers)
        self.cnn = WidthCnn(1, shape.hidden, (30, 50), (7, 7), config.dropout)
        self.output = nn.Linear(self.cnn.features, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        pooled = self.pooling(self.states(states))  # (position, hidden)
        features = self.cnn(pooled.unsqueeze(1))  # (position, place, channel)
        return linear_of_places(self.output, features, self.cnn.channels)  # (position, output)
