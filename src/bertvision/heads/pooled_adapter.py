"""pooled_adapter: the layers pooled into one state, then an adapter, concatenated with the last layer's state.

The "adapter pooler" of the 2020 paper. Parameters with BERT-large and size 386: 398,498 for spans; for two labels
398,499, with average pooling 398,472.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Head, ReadConfig, Target
from bertvision.heads.blocks import POOLINGS, SharedAdapter, build_pooling
from bertvision.settings import MOST_WIDTH, setting


@dataclass(frozen=True)
class PooledAdapterConfig(ReadConfig):
    size: int = setting(386, "output size of the adapter", at_least=1, at_most=MOST_WIDTH)
    pooling: str = setting("learned", "how to pool the layers: 'learned' weights or 'average'", choices=POOLINGS)
    skip: bool = setting(True, "also feed the last layer's state to the output layer")


@HEADS.register("pooled_adapter")
class PooledAdapter(Head):
    Config = PooledAdapterConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "pooled_adapter_386": {"size": 386},
        "pooled_adapter_386_average": {"size": 386, "pooling": "average"},
    }

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        self.pooling = build_pooling(config.pooling, self.layers)
        self.adapter = SharedAdapter(shape.hidden, config.size)
        self.output = nn.Linear(config.size + config.skip * shape.hidden, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        adapted = self.adapter(self.pooling(self.states(states)))  # (position, size)
        if self.config.skip:
            adapted = torch.cat([adapted, self.last(states).to(adapted.dtype)], dim=1)
        return self.output(adapted)  # (position, output)
