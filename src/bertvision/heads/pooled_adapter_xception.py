"""pooled_adapter_xception: the layers pooled into one state, then an adapter, then a small Xception along tokens.

The 2020 paper publishes only this head's name ("modified Xception"), size and scores. The layout is ours and has the
published size, with the blocks and the 728 channels of Chollet 2017: an entry block, three middle blocks and an exit.
Each token keeps its position. Parameters with BERT-large for spans and size 386: 6,602,528 (published: 6.60 million,
1.970 % of the encoder), 6,583,512 of them trainable.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Target
from bertvision.heads.convolutions import (
    BatchNorm,
    Neighbours,
    PositionMask,
    TokenCnnHead,
    TokenSeparable,
    padded_linear,
)

BLOCKS, CHANNELS = 3, 728


class Widening(nn.ModuleList):
    """A linear map to more channels, then batch norm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__([nn.Linear(inputs, outputs, bias=False), BatchNorm(outputs)])

    def forward(self, values: Tensor, real: PositionMask | None) -> Tensor:
        linear, norm = self
        return norm(padded_linear(values, linear.get_parameter("weight")), real)  # (token, channel)


class ResidualBlock(nn.Module):
    """Separable convolutions with the given channels, each after a ReLU, and a residual connection, which may widen."""

    def __init__(self, channels: Sequence[int], around: Widening | None = None) -> None:
        super().__init__()
        pairs = zip(channels, channels[1:], strict=False)
        self.separables = nn.ModuleList(TokenSeparable(inputs, outputs) for inputs, outputs in pairs)
        self.around = around

    def forward(self, values: Tensor, neighbours: Neighbours, real: PositionMask | None) -> Tensor:
        mixed = values  # (token, channel)
        for separable in self.separables:
            mixed = separable(functional.relu(mixed), neighbours, real)  # (token, channel)
        return mixed + (values if self.around is None else self.around(values, real))  # (token, channel)


@HEADS.register("pooled_adapter_xception")
class PooledAdapterXception(TokenCnnHead):
    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        # The adapter's initial outputs are tiny: normalise them.
        self.norm = BatchNorm(config.size)
        entry = ResidualBlock([config.size, CHANNELS, CHANNELS], around=Widening(config.size, CHANNELS))
        middle = [ResidualBlock([CHANNELS] * 4) for _ in range(BLOCKS)]
        self.blocks = nn.ModuleList([entry, *middle])
        self.exit = TokenSeparable(CHANNELS, config.size)
        self.output = nn.Linear(config.size, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        real = PositionMask.of(states)
        values = self.norm(self.adapter(self.pooling(self.states(states))), real)  # (token, size)
        neighbours = Neighbours(states, len(values), reach=1)
        for block in self.blocks:
            values = block(values, neighbours, real)  # (token, channel)
        values = functional.relu(self.exit(functional.relu(values), neighbours, real))  # (token, size)
        return self.output(values)  # (token, output)
