"""average_pooling: the mean of the layers, then a linear layer. 2,050 parameters with BERT-large for spans."""

from typing import Any

from torch import Tensor, nn

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Head, Target
from bertvision.heads.blocks import AveragePooling


@HEADS.register("average_pooling")
class AveragePoolingHead(Head):
    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        self.pooling = AveragePooling()
        self.output = nn.Linear(shape.hidden, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        pooled = self.pooling(self.states(states))  # (position, hidden)
        return self.output(pooled)  # (position, output)
