"""learned_pooling: a learned weighted mean of the layers, then a linear layer ("Tenney small" for labels).

The pooling is from Tenney et al. 2019. Parameters with BERT-large: 2,076 for spans, 2,077 for two labels.
"""

from typing import Any

from torch import Tensor, nn

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Head, Target
from bertvision.heads.blocks import LearnedPooling


@HEADS.register("learned_pooling")
class LearnedPoolingHead(Head):
    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        self.pooling = LearnedPooling(self.layers)
        self.output = nn.Linear(shape.hidden, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        pooled = self.pooling(self.states(states))  # (position, hidden)
        return self.output(pooled)  # (position, output)
