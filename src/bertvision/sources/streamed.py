"""Streamed source: the frozen encoder runs on demand, on the windows of several steps at a time."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.recording import MOST_WORK, Graphs, TokenBuffers, fill_up, round_up, spare_bytes
from bertvision.encoder.states import HiddenStates, PackedTokens, Packing, Part, pack_tokens
from bertvision.sources.base import StateBatch, Targets, make_ahead, pack_targets


class _Group(NamedTuple):
    """Prepared steps that are encoded together."""

    steps: range
    parts: list[np.ndarray]
    """The windows of each step."""
    tokens: PackedTokens | None
    """None if this process has no windows in these steps."""
    packings: list[Packing] | None
    """The packing of each step if heads read tokens; None: built on demand."""
    targets: list[Targets]
    filled: bool = False
    """Whether sequences of padding were added to the tokens."""


class StreamedSource:
    def __init__(
        self,
        encoder: Encoder,
        features: Features,
        plan: list[np.ndarray],
        keep: Iterable[Part],
        encode_tokens: int = 8192,
        share: tuple[int, int] = (0, 1),
        starts: Iterable[int] = (),
        recorded: bool = False,
    ) -> None:
        """`plan` holds the windows of each step, `keep` the parts of the states to return, `share` = (rank, processes),
        `starts` the steps that are never encoded together with the step before. With `recorded`, encoding is recorded
        as CUDA graphs on a GPU; the states of a batch are then overwritten by the next batch."""
        self.encoder, self.features, self.plan = encoder.eval(), features, plan
        self.keep, self.encode_tokens = tuple(keep), encode_tokens
        self.rank, self.processes = share
        self.starts = frozenset(starts)
        self.recorded = recorded and encoder.device.type == "cuda" and encoder.route == "varlen" and encoder.work > 0
        self.sizes: dict[int, int] = {}  # tokens of a recorded batch → bytes of its states, which stay allocated

    @cached_property
    def graphs(self) -> Graphs:
        return Graphs()

    @cached_property
    def buffers(self) -> TokenBuffers:
        return TokenBuffers(self.encoder.device)

    @cached_property
    def most_bytes(self) -> int:
        return spare_bytes(self.encoder.device, 32)

    @property
    def steps(self) -> int:
        return len(self.plan)

    def batches(self, first: int = 0) -> Iterator[StateBatch]:
        left = (found for found in self._groups() if found.stop > first)
        # On a CPU, preparing ahead would compete with the encoder for cores.
        on_gpu = self.encoder.device.type == "cuda"
        for group in make_ahead(self._prepare, left) if on_gpu else map(self._prepare, left):
            yield from self._batches_of(group, first)  # frees its states before the next group is encoded

    def _prepare(self, steps: range) -> _Group:
        parts = [self.plan[step][self.rank :: self.processes] for step in steps]
        whole = np.concatenate(parts)
        tokens = pack_tokens(self.features, whole) if len(whole) else None
        targets = [pack_targets(self.features, windows) for windows in parts]
        filled = tokens is not None and self.recorded and self._is_small(len(tokens.input_ids))
        if tokens is not None and filled:
            tokens = fill_up(tokens, self.encoder.pad_id, self.encoder.max_length)
        if self.encoder.device.type != "cuda" or tokens is None:
            return _Group(steps, parts, tokens, None, targets, filled)
        packings = None
        if "tokens" in self.keep and all(len(windows) for windows in parts):
            lengths = torch.from_numpy(self.features.lengths[whole].astype(np.int64))  # (sequence)
            packings = [Packing.of(some).pin() for some in lengths.split([len(windows) for windows in parts])]
        return _Group(steps, parts, tokens.pin(), packings, [target.pin() for target in targets], filled)

    def _is_small(self, tokens: int) -> bool:
        """Whether a GPU encodes this many tokens faster than the kernels are launched, and the states of all recorded
        sizes fit in the memory set aside for them."""
        shape, slots = self.encoder.shape, round_up(tokens)
        size = slots * shape.layers * shape.hidden * self.encoder.model.dtype.itemsize if "tokens" in self.keep else 0
        if self.encoder.work * tokens >= MOST_WORK or sum(({**self.sizes, slots: size}).values()) >= self.most_bytes:
            return False
        self.sizes[slots] = size
        return True

    def _batches_of(self, group: _Group, first: int) -> Iterator[StateBatch]:
        device = self.encoder.device
        packings = [packing.to(device) for packing in group.packings] if group.packings else None
        # Steps are small and the encoder is faster on large batches, so a group is encoded at once and then split.
        cuts = self._encode(group).split([len(windows) for windows in group.parts], packings)
        for step, windows, cut, targets in zip(group.steps, group.parts, cuts, group.targets, strict=True):
            if step >= first:
                yield StateBatch(windows, cut, targets.to(device), len(self.plan[step]))

    def _encode(self, group: _Group) -> HiddenStates:
        if group.tokens is None:  # a last batch with fewer windows than processes
            return HiddenStates(torch.zeros(0, dtype=torch.int64))
        with torch.no_grad():
            if not group.filled:
                return self.encoder(group.tokens, keep=self.keep)
            key, buffered, _ = self.buffers.put(group.tokens)
            states: HiddenStates = self.graphs.run(key, lambda: self.encoder(buffered, keep=self.keep))
        lengths = torch.from_numpy(self.features.lengths[np.concatenate(group.parts)].astype(np.int64))  # (sequence)
        return states.first(lengths)

    def _groups(self) -> Iterator[range]:
        """Yield groups of consecutive steps with about `encode_tokens` tokens.

        Groups are formed from the first step, wherever a pass resumes, and end at `starts`. Rounding depends on the
        windows that are encoded together, so other groups would give a resumed or longer pass different weights.
        """
        start = 0
        while start < self.steps:
            stop, tokens = start, 0
            while stop < self.steps and (stop == start or (tokens < self.encode_tokens and stop not in self.starts)):
                tokens += int(self.features.lengths[self.plan[stop]].sum())
                stop += 1
            yield range(start, stop)
            start = stop
