"""States of padded rows, with the interface of HiddenStates: every head reads them with its own code. A graph of torch
operations has no packed batches, so this is what `bertvision export` traces.

Every slot of a row counts as a token. What heads compute at padding is dropped; nothing else reads it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import HiddenStates, ReadPart


class PaddedStates(HiddenStates):
    """Nothing here depends on the values of a tensor, or takes its length as a number: a trace would keep them."""

    is_padded = True

    def __init__(self, layers: Sequence[Tensor], mask: Tensor, pooler: nn.Module | None = None) -> None:
        """`layers` are the layers' states, each (row, slot, hidden), and `mask` (row, slot) is true for tokens."""
        super().__init__(mask.sum(1), pooled=pooler is not None)
        self.layers, self.mask, self.pooler = layers, mask, pooler

    def read(self, *parts: ReadPart) -> Tensor:
        return torch.cat([self._part(part) for part in parts], dim=1)  # (slot or row, layer, hidden)

    def _part(self, part: str) -> Tensor:
        if part == "tokens":
            return torch.stack([layer.flatten(0, 1) for layer in self.layers], dim=1)  # (slot, layer, hidden)
        pooled = [getattr(self, f"_{part}")(layer) for layer in self.layers]  # each (row, hidden)
        if part == "cls" and self.pooler is not None:
            pooled.append(self.pooler(self.layers[-1]))
        return torch.stack(pooled, dim=1)  # (row, layer [+ pooled], hidden)

    def _cls(self, layer: Tensor) -> Tensor:
        return layer[:, 0]  # (row, hidden)

    def _mean(self, layer: Tensor) -> Tensor:
        weights = self.mask.unsqueeze(2).to(layer.dtype)  # (row, slot, 1)
        return (layer * weights).sum(1) / weights.sum(1)  # (row, hidden)

    def _max(self, layer: Tensor) -> Tensor:
        return layer.masked_fill(~self.mask.unsqueeze(2), torch.finfo(layer.dtype).min).amax(1)  # (row, hidden)

    def _deviation(self, layer: Tensor) -> Tensor:
        return self._mean((layer - self._mean(layer).unsqueeze(1)).square()).sqrt()  # (row, hidden)

    @property
    def device(self) -> torch.device:
        return self.mask.device

    @property
    def starts(self) -> Tensor:
        rows, slots = self.mask.shape
        return torch.arange(rows, device=self.device) * slots  # (row,)

    @property
    def last_tokens(self) -> Tensor:
        return self.layers[-1].flatten(0, 1)  # (slot, hidden)

    def owners(self, tokens: int) -> Tensor:
        rows = torch.arange(1, self.mask.shape[0] + 1, device=self.device)  # (row,)
        return (self.mask * rows.unsqueeze(1)).flatten()  # (slot,)

    def mean_over_tokens(self, values: Tensor) -> Tensor:
        return self._mean(values.unflatten(0, self.mask.shape))  # (row, value)

    def softmax_over_tokens(self, values: Tensor) -> Tensor:
        padded, mask = self.pad(values, torch.finfo(values.dtype).min)  # (row, slot, value), (row, slot)
        return padded.softmax(1).flatten(0, 1)  # (slot, value)

    def pad(self, values: Tensor, fill: float = 0.0) -> tuple[Tensor, Tensor]:
        padded = values.unflatten(0, self.mask.shape)  # (row, slot, …)
        mask = self.mask.reshape(*self.mask.shape, *[1] * (padded.ndim - 2))  # (row, slot, 1 …)
        return padded.masked_fill(~mask, fill), self.mask

    def unpad(self, padded: Tensor) -> Tensor:
        return padded.flatten(0, 1)  # (slot, …)

    def rows(self, rows: Tensor) -> "PaddedStates":
        """The states of some rows, in this order."""
        return PaddedStates([layer[rows] for layer in self.layers], self.mask[rows], self.pooler)


class PaddedEncoder(nn.Module):
    """An encoder that takes padded rows. Dropout and routes are off: it is for prediction."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.model: Any = encoder.model
        self.chosen, self.has_types = encoder.layers, encoder.has_types
        self.has_pooler = encoder.shape.pooled

    def forward(self, input_ids: Tensor, mask: Tensor, type_ids: Tensor | None = None) -> PaddedStates:
        """`mask` (row, slot) is 1 for tokens."""
        types = {"token_type_ids": type_ids} if self.has_types else {}
        output = self.model(input_ids=input_ids, attention_mask=mask, output_hidden_states=True, **types)
        layers = [output.hidden_states[layer] for layer in self.chosen[:-1]]  # each (row, slot, hidden)
        return PaddedStates(
            [*layers, output.last_hidden_state], mask > 0, self.model.pooler if self.has_pooler else None
        )
