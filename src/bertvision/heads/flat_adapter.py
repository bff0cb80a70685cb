"""flat_adapter: an adapter on every token and layer, concatenated and followed by one linear layer.

The GLUE head of 2021. Parameters for two labels with 128 tokens and size 128: 524,418 with BERT-base, 950,402 with
BERT-large.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Head, HeadConfig, Target
from bertvision.heads.blocks import SharedAdapter
from bertvision.settings import MOST_WIDTH, setting


@dataclass(frozen=True)
class FlatAdapterConfig(HeadConfig):
    tokens: int = setting(128, "number of tokens to read at the start of each sequence", at_least=1, at_most=MOST_WIDTH)
    size: int = setting(128, "output size of the adapter, per token and layer", at_least=1, at_most=MOST_WIDTH)


@HEADS.register("flat_adapter")
class FlatAdapter(Head):
    Config = FlatAdapterConfig
    positions = frozenset({"sequence"})
    presets: ClassVar[dict[str, dict[str, Any]]] = {"flat_adapter_128": {"tokens": 128, "size": 128}}

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        self.adapter = SharedAdapter(shape.hidden, config.size)
        self.output = nn.Linear(config.tokens * self.layers * config.size, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        adapted = self.adapter(self.states(states)).flatten(1)  # (token, layer * size)
        padded, _ = states.pad(adapted)  # (sequence, longest, layer * size)
        flat = padded[:, : self.config.tokens].flatten(1)  # (sequence, token * layer * size)
        # Beyond the longest sequence all values are zeros: skip their weights.
        return functional.linear(flat, self.output.weight[:, : flat.shape[1]], self.output.bias)  # (sequence, output)
