"""Work that is recorded as a CUDA graph and replayed: one start for hundreds of kernels, each of which takes the
program longer to start than it runs, where encoder or head is small.

    tokens = fill_up(tokens, pad_id)
    key, buffered, _ = buffers.put(tokens)            in the memory that batches of this size always have
    states = graphs.run(key, lambda: encoder(buffered))   plain the first time, recorded the second, then replayed

What is recorded reads and writes the same memory each time. So batches are filled up to one of a few sizes.
"""

import contextlib
import gc
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import psutil
import torch
from torch import Tensor

from bertvision.encoder.states import PackedTokens, Packing
from bertvision.errors import UserError

# Steps with more arithmetic than this keep a GPU busy longer than the program takes to start them.
MOST_WORK = 2e13


def round_up(count: int, parts: int = 8) -> int:
    """The next of a few sizes, of which there are `parts` between a power of two and its double."""
    step = max(1, (1 << (count - 1).bit_length()) // (2 * parts))
    return -(-count // step) * step


def spare_bytes(device: torch.device, part: int) -> int:
    """One part in so many of the device's memory: what may be kept for the sake of recording."""
    memory = (
        torch.cuda.get_device_properties(device).total_memory
        if device.type == "cuda"
        else psutil.virtual_memory().total
    )
    return int(memory) // part


class Pool:
    """Memory and a stream for graphs that leave nothing in it which another one of them may not write over. It is given
    back with the last of them."""

    def __init__(self) -> None:
        self.first: torch.cuda.CUDAGraph | None = None
        self.stream: torch.cuda.Stream | None = None

    def enter(self) -> tuple[Any, torch.cuda.Stream]:
        # A graph that stays: a memory that all graphs have left can't be entered again. One stream: on another, memory
        # would not be used again.
        if self.first is None or self.stream is None:
            self.first, self.stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
            with torch.cuda.graph(self.first, stream=self.stream, capture_error_mode="thread_local"):
                torch.zeros(1, device="cuda")
        return self.first.pool(), self.stream


class Graphs:
    """Recorded steps, by the size of their batch. What a step does must depend on nothing but memory."""

    def __init__(self, pool: Pool | None = None) -> None:
        self.pool = pool or Pool()
        self.seen: set[Hashable] = set()
        self.unrecorded: set[Hashable] = set()
        """Those that memory does not suffice to record."""
        self.recorded: dict[Hashable, tuple[torch.cuda.CUDAGraph, Any]] = {}

    def run(self, key: Hashable, step: Callable[[], Any]) -> Any:
        """Takes the step; gives what it gave when it was recorded: the same tensors, with new values."""
        # The first time finds the kernels and makes what is made once.
        if key not in self.seen or key in self.unrecorded:
            self.seen.add(key)
            return step()
        if key not in self.recorded and not self._record(key, step):
            self.unrecorded.add(key)
            return step()
        graph, result = self.recorded[key]
        graph.replay()
        return result

    def _record(self, key: Hashable, step: Callable[[], Any]) -> bool:
        """False where memory does not suffice, not even without what is kept for later."""
        for _ in range(2):
            graph = torch.cuda.CUDAGraph()
            try:
                with _recording(graph, self.pool):
                    result = step()
                self.recorded[key] = graph, result
                return True
            except torch.cuda.OutOfMemoryError:
                pass  # while it is handled, the error's frames hold the tensors that have to go
            except RuntimeError as error:
                reason = str(error).splitlines()[0][:200]
                raise UserError(
                    f"a step could not be recorded as a CUDA graph ({reason}): set encoder.record = false and go on."
                ) from error
            del graph
            torch.cuda.empty_cache()
        return False


@contextlib.contextmanager
def _recording(graph: torch.cuda.CUDAGraph, pool: Pool) -> Iterator[None]:
    """What is started inside is recorded and not run. `torch.cuda.graph` would also collect garbage and give memory
    back, which takes longer than all the rest."""
    memory, stream = pool.enter()
    stream.wait_stream(torch.cuda.current_stream())
    collecting = gc.isenabled()
    gc.disable()  # what is collected meanwhile may free memory of the device, which can't be recorded
    try:
        with torch.cuda.stream(stream):
            # Other threads go on with what they do: they prepare batches.
            graph.capture_begin(pool=memory, capture_error_mode="thread_local")
            try:
                yield
            finally:
                graph.capture_end()
    finally:
        if collecting:
            gc.enable()
    torch.cuda.current_stream().wait_stream(stream)


# ---------------------------------------------------------------------- batches of tokens


def fill_up(tokens: PackedTokens, pad_id: int, most: int | None = None) -> PackedTokens:
    """The same sequences and further ones of padding, so that tokens and sequences are as many as in other batches of
    about this size; `lengths` then only says how long a sequence may be. `most` is what the encoder takes."""
    count, longest = len(tokens.input_ids), round_up(tokens.longest, parts=4)
    longest = longest if most is None else max(tokens.longest, min(longest, most))
    slots = round_up(count)
    rows = round_up(len(tokens) + (slots - count) // longest + 2, parts=4)
    further = torch.full((rows - len(tokens),), longest)  # (further sequence)
    further = (count + further.cumsum(0)).clamp(max=slots).diff(prepend=torch.tensor([count]))
    lengths = torch.cat([tokens.lengths, further])  # (row)
    ids, types = tokens.input_ids.new_full((slots,), pad_id), tokens.type_ids.new_zeros(slots)
    ids[:count], types[:count] = tokens.input_ids, tokens.type_ids
    return PackedTokens(ids, types, torch.full((rows,), longest), Packing.of(lengths))


class TokenBuffers:
    """What batches of tokens are copied into before they go through an encoder: one buffer for each size."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.buffers: dict[Hashable, list[Tensor]] = {}

    def put(self, tokens: PackedTokens, *others: Tensor) -> tuple[Hashable, PackedTokens, list[Tensor]]:
        """The size of a batch that was filled up, and the batch on the device, with other tensors that belong to it."""
        given = [tokens.input_ids, tokens.type_ids, *vars(tokens.packing).values(), *others]
        key = len(tokens.input_ids), len(tokens), tokens.longest
        if key not in self.buffers:
            self.buffers[key] = [torch.empty_like(part, device=self.device) for part in given]
        buffer = self.buffers[key]
        for part, own in zip(given, buffer, strict=True):
            own.copy_(part, non_blocking=True)
        return key, PackedTokens(buffer[0], buffer[1], tokens.lengths, Packing(*buffer[2:6])), buffer[6:]
