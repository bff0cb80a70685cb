"""pooled_adapter_inception: the layers pooled into one state, an adapter on it, then Inception blocks along tokens.

From the 2020 paper, of which name, share and scores survive; the layout is ours inside the published share: six blocks
like those of Szegedy et al. 2015 (1024 channels, as their last), with batch norm. Each token keeps its place, which
shrinking blocks would lose. At BERT-large for spans with size 386: 6,681,950 parameters (published: 6.68 million,
1.994 %), 6,665,822 of them trainable.
"""

from typing import Any

import torch
from torch import Tensor, nn

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Head, Target
from bertvision.heads.blocks import LearnedPooling, SharedAdapter
from bertvision.heads.convolutions import Neighbours, TokenCnnConfig, TokenConvolution
from bertvision.tasks.base import TargetKind

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

    def forward(self, values: Tensor, neighbours: Neighbours) -> Tensor:
        ways = [
            self.one(values, neighbours),
            self.three(self.before_three(values, neighbours), neighbours),
            self.five(self.before_five(values, neighbours), neighbours),
            self.pooled(neighbours.around(values, 1).amax(dim=1), neighbours),
        ]
        return torch.cat(ways, dim=1)  # (token, channel)


@HEADS.register("pooled_adapter_inception")
class PooledAdapterInception(Head):
    Config = TokenCnnConfig
    kinds = frozenset({TargetKind.SPAN})
    mixes_tokens = True

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        self.pooling = LearnedPooling(self.layers)
        self.adapter = SharedAdapter(shape.hidden, config.size)
        self.blocks = nn.ModuleList(InceptionBlock(CHANNELS if i else config.size) for i in range(BLOCKS))
        self.output = nn.Linear(CHANNELS, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        values = self.adapter(self.pooling(self.states(states)))  # (token, size)
        neighbours = Neighbours(states, len(values), reach=2)
        for block in self.blocks:
            values = block(values, neighbours)  # (token, channel)
        return self.output(values)  # (token, output)
