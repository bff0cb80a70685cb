"""last_linear: a linear layer on the last layer's state. The control: head minus control is what the other layers add.

2,050 parameters with BERT-large for spans. Not in the papers.
"""

from typing import Any

from torch import Tensor, nn

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Head, Target


@HEADS.register("last_linear")
class LastLinear(Head):
    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        self.output = nn.Linear(shape.hidden, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        return self.output(self.last(states))  # (position, output)
