"""pooled_adapter_cnn_nxn: the layers pooled into one state, then an adapter, then kernels N = 1 … 7 along tokens.

The 2020 paper publishes only this head's name, size and scores. The layout of the CNN is ours and has the published
size: two layers that keep one state per token. Parameters with BERT-large for spans and size 386: 1,112,807 (published:
0.332 % of the encoder).
"""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Target
from bertvision.heads.blocks import alignment_of, linear_of_parts
from bertvision.heads.convolutions import Kernels, Neighbours, TokenCnnHead


@HEADS.register("pooled_adapter_cnn_nxn")
class PooledAdapterCnnNxn(TokenCnnHead):
    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        self.first = Kernels(config.size, 48)
        self.second = Kernels(self.first.outputs, 21)
        self.output = nn.Linear(self.second.outputs, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        pooled = self.pooling(self.states(states))  # (token, hidden)
        values = self.adapter(pooled, alignment_of(pooled))  # (token, size)
        neighbours = Neighbours(states, len(values), self.first.reach)
        for kernels in (self.first, self.second):
            values = functional.gelu(kernels.along_tokens(values, neighbours))  # (token, channel)
        return linear_of_parts(self.output, [(values, self.second.outputs)])  # (token, output)
