"""cnn: the 1×N CNN, which convolves along the hidden dimension of each position, with the layers as channels.

The 2020 paper publishes only this head's name, size and scores. The layout is ours and has the published size: two
layers of kernels N = 1 … 7 with stride 7, then a linear layer. Parameters with BERT-large for spans: 330,262
(published: 0.099 % of the encoder), dilated 405,912 (0.121 %); about 16 million multiply-adds per token.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Head, Target
from bertvision.heads.convolutions import WidthCnn, WidthCnnConfig, linear_of_places
from bertvision.settings import setting


@dataclass(frozen=True)
class CnnConfig(WidthCnnConfig):
    dilation: bool = setting(False, "dilate the kernels of the second layer, so that they read every other value")


@HEADS.register("cnn")
class Cnn(Head):
    Config = CnnConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cnn_1xn": {},
        "cnn_1xn_dilated": {"dilation": True},
        "cnn_1xn_no_dropout": {"dropout": 0.0},
    }

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        self.cnn = WidthCnn(self.layers, shape.hidden, (30, 50), (7, 7), config.dropout, config.dilation)
        self.output = nn.Linear(self.cnn.features, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        features = self.cnn(self.states(states))  # (position, place, channel)
        return linear_of_places(self.output, features, self.cnn.channels)  # (position, output)
