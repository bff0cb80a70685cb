"""Fixed buffers that each batch of a pass is copied into: on a GPU, a recorded step always reads the same memory
(`encoder/recording.py`). Padding in a buffer has no weight in the loss."""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from bertvision.encoder.recording import round_up, spare_bytes
from bertvision.encoder.states import POOLED, HiddenStates, Packing
from bertvision.sources.base import StateBatch, Targets

# Recording does not pay off for larger states: computing on them takes longer than launching the kernels.
MOST_VALUES = 500_000_000


class BatchBuffers:
    """One buffer for each size of batch."""

    def __init__(self, device: torch.device) -> None:
        self.batches: dict[Hashable, StateBatch] = {}
        self.left = spare_bytes(device, 16)

    def put(self, batch: StateBatch) -> tuple[Hashable, StateBatch] | None:
        """Copy a batch into its buffer. Return the buffer's size and the padded batch, or None if the batch is too
        large to benefit, holds two towers, or the memory for buffers is used up."""
        states, windows = batch.states, len(batch.windows)
        assert isinstance(batch.total, int), "the batch is padded already"
        if states.second is not None:
            return None
        if any(part.numel() > MOST_VALUES for part in (states.tokens, states.cls, states.mean) if part is not None):
            return None
        tokens = longest = slots = 0
        if states.tokens is not None:
            tokens, longest = len(states.tokens), round_up(int(states.lengths.max()), parts=4)
            slots = round_up(tokens)
        padding = (slots - tokens) // longest + 2 if slots else 0  # sequences made up of padding tokens
        rows = round_up(windows + padding, parts=4)
        key = slots, rows, longest
        if key not in self.batches:
            if self.left < 0:
                return None
            self.batches[key] = _make(batch, slots, rows, longest)
            self.left -= sum(part.nbytes for part in self.batches[key].states.parts().values())
        _copy(batch, self.batches[key])
        return key, self.batches[key]


def _make(batch: StateBatch, slots: int, rows: int, longest: int) -> StateBatch:
    states = batch.states

    def make(part: Tensor | None, size: int) -> Tensor | None:
        return None if part is None else part.new_zeros(size, *part.shape[1:])

    parts = vars(batch.targets).values()
    start, end, value = (part.new_zeros(rows, *part.shape[1:]) for part in parts)  # each (row, …)
    packing = None
    if slots:
        device = states.device
        numbers = torch.zeros(2, slots, dtype=torch.int64, device=device)  # (owner or position, slot)
        starts = torch.zeros(rows, dtype=torch.int64, device=device)  # (row)
        packing = Packing(starts, torch.zeros(rows + 1, dtype=torch.int32, device=device), *numbers)
    pooled: dict[str, Any] = {name: make(getattr(states, name), rows) for name in POOLED}
    filled = HiddenStates(
        torch.full((rows,), longest),
        tokens=make(states.tokens, slots),
        **pooled,
        pooled=states.pooled,
        packing=packing,
        real=batch.targets.value.new_zeros(slots or rows),
    )
    weights = batch.targets.value.new_zeros(rows)  # (row)
    return StateBatch(batch.windows, filled, Targets(start, end, value), weights)


def _copy(batch: StateBatch, filled: StateBatch) -> None:
    """Copy a batch into its buffer. The padding keeps its old values: they have no weight in the loss."""
    windows, states, targets = len(batch.windows), filled.states, filled.targets
    for name in ("tokens", *POOLED):
        part, buffer = getattr(batch.states, name), getattr(states, name)
        if part is not None:
            buffer[: len(part)].copy_(part)
    for part, buffer in zip(vars(batch.targets).values(), vars(targets).values(), strict=True):
        buffer[:windows].copy_(part)
        buffer[windows:].zero_()
    assert isinstance(filled.total, Tensor) and isinstance(batch.total, int)
    filled.total[:windows].fill_(1 / batch.total)
    filled.total[windows:].zero_()
    count = windows if batch.states.tokens is None else len(batch.states.tokens)
    assert states.real is not None
    states.real[:count].fill_(1)
    states.real[count:].zero_()
    if states.tokens is not None:
        _copy_packing(batch.states, states, windows)


def _copy_packing(states: HiddenStates, filled: HiddenStates, windows: int) -> None:
    """Copy the positions of the windows. Padding slots become extra windows no longer than `longest`."""
    assert states.tokens is not None and filled.tokens is not None and filled.packing is not None
    tokens, slots, longest = len(states.tokens), len(filled.tokens), int(filled.lengths[0])
    packing, buffer = states.packing or Packing.of(states.lengths, states.device), filled.packing
    buffer.starts[:windows].copy_(packing.starts)
    buffer.starts[windows:].fill_(tokens if tokens < slots else 0)
    buffer.bounds[: windows + 1].copy_(packing.bounds)
    padding = torch.arange(1, len(buffer.starts) - windows + 1, dtype=torch.int32, device=buffer.bounds.device)  # (row)
    buffer.bounds[windows + 1 :].copy_((padding * longest + tokens).clamp(max=slots))
    buffer.owners[:tokens].copy_(packing.owners)
    buffer.owners[tokens:].fill_(len(buffer.starts) - 1)  # the last row, which is always padding
    buffer.positions[:tokens].copy_(packing.positions)
    buffer.positions[tokens:].zero_()
