"""attentive: learned queries attend to the tokens; each query has its own mixture of the layers. For labels and scores.

Attentive probing over tokens and layers. 24,978 parameters with BERT-large for two labels.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Head, HeadConfig, Target
from bertvision.settings import MOST_WIDTH, setting


@dataclass(frozen=True)
class AttentiveConfig(HeadConfig):
    queries: int = setting(8, "number of queries", at_least=1, at_most=MOST_WIDTH)
    dropout: float = setting(0.0, "fraction of the pooled values to drop in training", at_least=0, below=1)


@HEADS.register("attentive")
class Attentive(Head):
    Config = AttentiveConfig
    positions = frozenset({"sequence"})
    mixes_tokens = True

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        self.key_mix = nn.Parameter(torch.randn(config.queries, self.layers) * 0.5)  # (query, layer)
        self.value_mix = nn.Parameter(torch.randn(config.queries, self.layers) * 0.5)  # (query, layer)
        self.query = nn.Parameter(torch.randn(config.queries, shape.hidden) * shape.hidden**-0.5)  # (query, hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.queries * shape.hidden, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        tokens = self.states(states)  # (token, layer, hidden)
        # A few dimensions of an encoder's states are far larger than the rest.
        tokens = functional.layer_norm(tokens, tokens.shape[2:])
        found = functional.linear(tokens, self.query)  # (token, layer, query)
        scores = (found * self.key_mix.softmax(1).T).sum(1)  # (token, query)
        shares = states.softmax_over_tokens(scores)  # (token, query)
        # Padded, so that the weighted sums over tokens are one product per sequence.
        weights, _ = states.pad(shares)  # (sequence, longest, query)
        padded, _ = states.pad(tokens.flatten(1))  # (sequence, longest, layer · hidden)
        pooled = torch.bmm(weights.transpose(1, 2), padded)  # (sequence, query, layer · hidden)
        pooled = pooled.unflatten(2, (self.layers, -1))  # (sequence, query, layer, hidden)
        mixed = torch.einsum("ql,sqlh->sqh", self.value_mix.softmax(1).to(pooled.dtype), pooled)
        return self.output(self.dropout(mixed.flatten(1)))  # (sequence, output)
