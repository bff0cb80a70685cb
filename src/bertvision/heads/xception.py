"""xception: the full Xception along the hidden dimension of [CLS], with the layers as channels.

From the 2020 paper: the network of Chollet 2017 in one dimension, with ReLU before every separable convolution.
Parameters with BERT-large for two labels: 20,716,634, of which 20,662,106 are trainable.
"""

from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Head, Target
from bertvision.heads.convolutions import Convolution, HalvingBlock, PositionMask, Separable, check_width


class MiddleBlock(nn.Module):
    """Three separable convolutions, each after a ReLU, with a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.separables = nn.ModuleList(Separable(channels, channels) for _ in range(3))

    def forward(self, values: Tensor, real: PositionMask | None) -> Tensor:
        mixed = values  # (sequence, channel, width)
        for separable in self.separables:
            mixed = separable(functional.relu(mixed), real)  # (sequence, channel, width)
        return mixed + values  # (sequence, channel, width)


@HEADS.register("xception")
class Xception(Head):
    positions = frozenset({"sequence"})
    presets: ClassVar[dict[str, dict[str, Any]]] = {"xception_full": {}}

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        check_width("xception", shape.hidden, 7)
        pool = nn.MaxPool1d(3, stride=2, padding=1)
        self.first = Convolution(self.layers, 32, size=3, stride=2)
        self.second = Convolution(32, 64, size=3)
        blocks = [
            HalvingBlock(64, 128, 128, pool),
            HalvingBlock(128, 256, 256, pool),
            HalvingBlock(256, 728, 728, pool),
            *(MiddleBlock(728) for _ in range(8)),
            HalvingBlock(728, 728, 1024, pool),
        ]
        self.blocks = nn.ModuleList(blocks)
        self.exit = nn.Sequential(nn.ReLU(), Separable(1024, 1536), nn.ReLU(), Separable(1536, 2048), nn.ReLU())
        self.output = nn.Linear(2048, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        real = PositionMask.of(states)
        values = functional.relu(self.first(self.states(states), real))  # (sequence, channel, width)
        values = functional.relu(self.second(values, real))  # (sequence, channel, width)
        for block in self.blocks:
            values = block(values, real)  # (sequence, channel, width)
        for layer in self.exit:
            values = layer(values, real) if isinstance(layer, Separable) else layer(values)
        return self.output(values.mean(dim=2))  # (sequence, output)
