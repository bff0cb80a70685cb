"""Steps that are recorded as a CUDA graph and played again: one start for hundreds of kernels, each of which takes the
program longer to start than it runs, where encoder or head is small.

    key, placed = places.put(batch)               the batch, filled up, where batches of its size always lie
    graphs.run(key, lambda: learn(placed))        by itself the first time, recorded the second, played from then on

A recorded step reads and writes the same memory each time. So batches are filled up to one of a few sizes, and what
fills them up has no weight in the loss.
"""

import contextlib
import gc
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor

from bertvision.encoder.states import HiddenStates, PackedTokens, Packing
from bertvision.sources.base import StateBatch, Targets

# Steps with more states, or more arithmetic, than this keep a GPU busy longer than the program takes to start them.
MOST_VALUES = 500_000_000
MOST_WORK = 6e12


def round_up(count: int, parts: int = 8) -> int:
    """The next of a few sizes, of which there are `parts` between a power of two and its double."""
    step = max(1, (1 << (count - 1).bit_length()) // (2 * parts))
    return -(-count // step) * step


class Graphs:
    """Recorded steps, by the size of their batch. What a step does must hang on nothing but memory."""

    def __init__(self) -> None:
        self.seen: set[Hashable] = set()
        self.played: dict[Hashable, tuple[torch.cuda.CUDAGraph, Any]] = {}

    def run(self, key: Hashable, step: Callable[[], Any]) -> Any:
        """Takes the step; gives what it gave when it was recorded: the same tensors, with new values."""
        if key not in self.seen:  # the first time finds the kernels and makes what is made once
            self.seen.add(key)
            return step()
        if key not in self.played:
            graph = torch.cuda.CUDAGraph()
            with _recording(graph):
                result = step()
            self.played[key] = graph, result
        graph, result = self.played[key]
        graph.replay()
        return result

    def forget(self) -> None:
        """What was recorded reads memory that is no longer in use."""
        self.seen.clear()
        self.played.clear()


@contextlib.contextmanager
def _recording(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """What is started inside is recorded and not run. `torch.cuda.graph` would also collect garbage and give memory
    back, which takes longer than all the rest."""
    pool, stream = _pool(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    collecting = gc.isenabled()
    gc.disable()  # what is collected meanwhile may free memory of the device, which can't be recorded
    try:
        with torch.cuda.stream(stream):
            # Other threads go on with what they do: they prepare batches.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                yield
            finally:
                graph.capture_end()
    finally:
        if collecting:
            gc.enable()
    torch.cuda.current_stream().wait_stream(stream)


_FIRST: dict[int, torch.cuda.CUDAGraph] = {}


def _pool() -> Any:
    """One memory for all graphs of a device: none of them leaves anything in it that is needed after its turn. A graph
    that stays keeps it, for a memory that all graphs have left can't be entered again."""
    device = torch.cuda.current_device()
    if device not in _FIRST:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            torch.zeros(1, device="cuda")
        _FIRST[device] = graph
    return _FIRST[device].pool()


# ---------------------------------------------------------------------- batches of states


class Places:
    """Where the batches of a pass lie while heads learn from them: for each size the same memory."""

    def __init__(self) -> None:
        self.batches: dict[Hashable, StateBatch] = {}

    def put(self, batch: StateBatch) -> tuple[Hashable, StateBatch] | None:
        """The size of a batch, and the batch filled up to it; None where it is too large to gain from it."""
        states, windows = batch.states, len(batch.windows)
        assert isinstance(batch.total, int), "a batch is filled up once"
        if any(part.numel() > MOST_VALUES for part in (states.tokens, states.cls, states.mean) if part is not None):
            return None
        tokens = longest = slots = 0
        if states.tokens is not None:
            tokens, longest = len(states.tokens), round_up(int(states.lengths.max()), parts=4)
            slots = round_up(tokens)
        rows = round_up(windows + (slots - tokens) // max(1, longest) + 2, parts=4)
        key = slots, rows, longest
        if key not in self.batches:
            self.batches[key] = _make(batch, slots, rows, longest)
        _copy(batch, self.batches[key])
        return key, self.batches[key]


def _make(batch: StateBatch, slots: int, rows: int, longest: int) -> StateBatch:
    states = batch.states

    def make(part: Tensor | None, size: int) -> Tensor | None:
        return None if part is None else part.new_zeros(size, *part.shape[1:])

    start, end, value = (part.new_zeros(rows) for part in vars(batch.targets).values())  # each (row)
    packing = None
    if slots:
        device = states.device
        numbers = torch.zeros(2, slots, dtype=torch.int64, device=device)  # (owner or position, slot)
        starts = torch.zeros(rows, dtype=torch.int64, device=device)  # (row)
        packing = Packing(starts, torch.zeros(rows + 1, dtype=torch.int32, device=device), *numbers)
    filled = HiddenStates(
        torch.full((rows,), longest),
        tokens=make(states.tokens, slots),
        cls=make(states.cls, rows),
        mean=make(states.mean, rows),
        pooled=states.pooled,
        packing=packing,
        real=batch.targets.value.new_zeros(slots or rows),
    )
    weights = batch.targets.value.new_zeros(rows)  # (row)
    return StateBatch(batch.windows, filled, Targets(start, end, value), weights)


def _copy(batch: StateBatch, filled: StateBatch) -> None:
    """A batch into its place. The rest keeps what was there before: any numbers do, since they have no weight."""
    windows, states, targets = len(batch.windows), filled.states, filled.targets
    for name in ("tokens", "cls", "mean"):
        part, place = getattr(batch.states, name), getattr(states, name)
        if part is not None:
            place[: len(part)].copy_(part)
    for part, place in zip(vars(batch.targets).values(), vars(targets).values(), strict=True):
        place[:windows].copy_(part)
        place[windows:].zero_()
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
    """Where the windows lie. Slots beyond them are further windows, none of them longer than the longest may be."""
    assert states.tokens is not None and filled.tokens is not None and filled.packing is not None
    tokens, slots, longest = len(states.tokens), len(filled.tokens), int(filled.lengths[0])
    packing, place = states.packing or Packing.of(states.lengths, states.device), filled.packing
    place.starts[:windows].copy_(packing.starts)
    place.starts[windows:].fill_(tokens if tokens < slots else 0)
    place.bounds[: windows + 1].copy_(packing.bounds)
    further = torch.arange(1, len(place.starts) - windows + 1, dtype=torch.int32, device=place.bounds.device)  # (row)
    place.bounds[windows + 1 :].copy_((further * longest + tokens).clamp(max=slots))
    place.owners[:tokens].copy_(packing.owners)
    place.owners[tokens:].fill_(len(place.starts) - 1)  # in the last row, which no window has
    place.positions[:tokens].copy_(packing.positions)
    place.positions[tokens:].zero_()


# ---------------------------------------------------------------------- batches of tokens


def fill_up(tokens: PackedTokens, pad_id: int) -> PackedTokens:
    """The same sequences and further ones of padding, so that tokens and sequences are as many as in other batches of
    about this size; `lengths` then only says how long a sequence may be."""
    count, longest = len(tokens.input_ids), round_up(tokens.longest, parts=4)
    slots = round_up(count)
    rows = round_up(len(tokens) + (slots - count) // longest + 2, parts=4)
    further = torch.full((rows - len(tokens),), longest)  # (further sequence)
    further = (count + further.cumsum(0)).clamp(max=slots).diff(prepend=torch.tensor([count]))
    lengths = torch.cat([tokens.lengths, further])  # (row)
    ids, types = tokens.input_ids.new_full((slots,), pad_id), tokens.type_ids.new_zeros(slots)
    ids[:count], types[:count] = tokens.input_ids, tokens.type_ids
    return PackedTokens(ids, types, torch.full((rows,), longest), Packing.of(lengths))


class TokenPlaces:
    """Where the batches of fine-tuning lie: for each size the same memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.places: dict[Hashable, list[Tensor]] = {}

    def put(self, tokens: PackedTokens, targets: Targets, weights: Tensor) -> tuple[Hashable, Any]:
        """The size of a batch that was filled up, and the batch on the device."""
        packing = tokens.packing
        given = [tokens.input_ids, tokens.type_ids, *vars(packing).values(), *vars(targets).values(), weights]
        key = len(tokens.input_ids), len(tokens), tokens.longest
        if key not in self.places:
            self.places[key] = [torch.empty_like(part, device=self.device) for part in given]
        place = self.places[key]
        for part, own in zip(given, place, strict=True):
            own.copy_(part, non_blocking=True)
        moved = PackedTokens(place[0], place[1], tokens.lengths, Packing(*place[2:6]))
        return key, (moved, Targets(*place[6:9]), place[9])
