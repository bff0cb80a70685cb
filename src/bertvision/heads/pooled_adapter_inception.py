"""pooled_adapter_inception: the layers pooled into one state, an adapter on it, then Inception blocks along tokens.

From the 2020 paper, of which name, share and scores survive; the layout is ours inside the published share: six blocks
like those of Szegedy et al. 2015 (1024 channels, as their last), with batch norm. Each token keeps its place, which
shrinking blocks would lose. At BERT-large for spans with size 386: 6,681,950 parameters (published: 6.68 million,
1.994 %), 6,665,822 of them trainable.
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
    """Four ways side by side: one token, three, five, and the largest of three."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.one = TokenConvolution(inputs, 288, size=1)
        self.before_three = TokenConvolution(inputs, 192, size=1)
        self.three = TokenConvolution(192, 352, size=3)
        self.before_five = TokenConvolution(inputs, 128, size=1)
        self.five = TokenConvolution(128, 256, size=5)
        self.pooled = TokenConvolution(inputs, 128, size=1)

    def forward(self, values: Tensor, neighbours: Neighbours, real: PositionMask | None) -> Tensor:
        # What reads the same token is one product; norms side by side are one.
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
