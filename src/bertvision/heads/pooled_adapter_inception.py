"""pooled_adapter_inception: the layers pooled into one state, then an adapter, then Inception blocks along tokens.

The 2020 paper publishes only this head's name, size and scores. The layout is ours and has the published size: six
blocks like those of Szegedy et al. 2015 (1024 channels, as in their last block), with batch norm. No block shrinks the
sequence, so each token keeps its position. Parameters with BERT-large for spans and size 386: 6,681,950 (published:
6.68 million, 1.994 % of the encoder), 6,665,822 of them trainable.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Target
from bertvision.heads.convolutions import (
    Neighbours,
    PositionMask,
    TokenCnnHead,
    TokenConvolution,
    normalise,
    padded_linear,
)

BLOCKS, CHANNELS = 6, 1024


class InceptionBlock(nn.Module):
    """Four parallel branches: kernels over one, three and five tokens, and max pooling over three."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.one = TokenConvolution(inputs, 288, size=1)
        self.before_three = TokenConvolution(inputs, 192, size=1)
        self.three = TokenConvolution(192, 352, size=3)
        self.before_five = TokenConvolution(inputs, 128, size=1)
        self.five = TokenConvolution(128, 256, size=5)
        self.pooled = TokenConvolution(inputs, 128, size=1)

    def forward(self, values: Tensor, neighbours: Neighbours, real: PositionMask | None) -> Tensor:
        # The kernels of size 1 run as one product, and adjacent norms as one norm.
        near, far = (self.one, self.before_three, self.before_five), (self.three, self.five, self.pooled)
        found = padded_linear(values, torch.cat([layer.weight.flatten(1) for layer in near]))  # (token, channel)
        found = functional.relu(normalise([layer.norm for layer in near], found, real))
        one, *before = found.split([len(layer.weight) for layer in near], dim=1)
        before.append(neighbours.around(values, 1).amax(dim=1))
        ways = [layer.convolve(own, neighbours) for layer, own in zip(far, before, strict=True)]
        others = functional.relu(normalise([layer.norm for layer in far], torch.cat(ways, dim=1), real))
        return torch.cat([one, others], dim=1)  # (token, channel)


@HEADS.register("pooled_adapter_inception")
class PooledAdapterInception(TokenCnnHead):
    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        self.blocks = nn.ModuleList(InceptionBlock(CHANNELS if i else config.size) for i in range(BLOCKS))
        self.output = nn.Linear(CHANNELS, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        values = self.adapter(self.pooling(self.states(states)))  # (token, size)
        neighbours, real = Neighbours(states, len(values), reach=2), PositionMask.of(states)
        for block in self.blocks:
            values = block(values, neighbours, real)  # (token, channel)
        return self.output(values)  # (token, output)
