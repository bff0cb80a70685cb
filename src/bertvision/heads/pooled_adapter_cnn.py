"""pooled_adapter_cnn: the layers pooled into one state, then an adapter, then the 1×N CNN along the adapter's values.

The 2020 paper publishes only this head's name, size and scores. The layout of the CNN is ours and has the published
size. Parameters with BERT-large for spans and size 386: 692,744 (published: 0.207 % of the encoder).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Head, Target
from bertvision.heads.blocks import LearnedPooling, SharedAdapter
from bertvision.heads.convolutions import WidthCnn, WidthCnnConfig, linear_of_places
from bertvision.settings import MOST_WIDTH, setting


@dataclass(frozen=True)
class PooledAdapterCnnConfig(WidthCnnConfig):
    size: int = setting(386, "output size of the adapter", at_least=1, at_most=MOST_WIDTH)


@HEADS.register("pooled_adapter_cnn")
class PooledAdapterCnn(Head):
    Config = PooledAdapterCnnConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {"pooled_adapter_cnn_1xn": {"size": 386}}

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        self.pooling = LearnedPooling(self.layers)
        self.adapter = SharedAdapter(shape.hidden, config.size)
        self.cnn = WidthCnn(1, config.size, (30, 48), (4, 5), config.dropout)
        self.output = nn.Linear(self.cnn.features, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        adapted = self.adapter(self.pooling(self.states(states)))  # (position, size)
        features = self.cnn(adapted.unsqueeze(1))  # (position, place, channel)
        return linear_of_places(self.output, features, self.cnn.channels)  # (position, output)
