"""two_adapters: an adapter on every layer and a second one on the pooled layers, concatenated into a linear layer.

From the 2020 paper, which publishes only its size (0.242 % of the encoder). This layout has that size. Parameters with
BERT-large for spans and size 386: 811,400; the skip adds 2,048.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Head, ReadConfig, Target
from bertvision.heads.blocks import LearnedPooling, SharedAdapter, alignment_of, linear_of_parts
from bertvision.settings import MOST_WIDTH, setting


@dataclass(frozen=True)
class TwoAdaptersConfig(ReadConfig):
    size: int = setting(386, "output size of each adapter", at_least=1, at_most=MOST_WIDTH)
    skip: bool = setting(False, "also feed the last layer's state to the output layer")


@HEADS.register("two_adapters")
class TwoAdapters(Head):
    Config = TwoAdaptersConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {"two_adapters_386": {"size": 386}}

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        self.adapter = SharedAdapter(shape.hidden, config.size)
        self.pooling = LearnedPooling(self.layers)
        self.pooled_adapter = SharedAdapter(shape.hidden, config.size)
        self.output = nn.Linear((self.layers + 1) * config.size + config.skip * shape.hidden, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        read = self.states(states)  # (position, layer, hidden)
        size, align = self.config.size, alignment_of(read)
        parts = [(self.adapter(read, align), size)]  # (position, layer, width)
        parts.append((self.pooled_adapter(self.pooling(read), align), size))  # (position, width)
        if self.config.skip:
            parts.append((self.last(states), self.shape.hidden))  # (position, hidden)
        return linear_of_parts(self.output, parts)  # (position, output)
