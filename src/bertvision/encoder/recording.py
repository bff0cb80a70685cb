"""CUDA graphs: record a step once, then replay it with a single launch instead of hundreds.

With a small encoder or head, launching a kernel takes longer than running it.

    tokens = fill_up(tokens, pad_id)
    key, buffered, _ = buffers.put(tokens)                copied into the buffer for this batch size
    states = graphs.run(key, lambda: encoder(buffered))   eager the first time, recorded the second, then replayed

A graph reads and writes the same memory on every replay, so batches are padded to one of a few sizes.
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

# Steps with more operations than this keep a GPU busy for longer than it takes to launch them.
MOST_WORK = 2e13


def round_up(count: int, parts: int = 8) -> int:
    """Round up to one of a few sizes: `parts` sizes between each power of two and the next."""
    step = max(1, (1 << (count - 1).bit_length()) // (2 * parts))
    return -(-count // step) * step


def spare_bytes(device: torch.device, part: int) -> int:
    """The device's total memory divided by `part`: how much recording may use."""
    memory = (
        torch.cuda.get_device_properties(device).total_memory
        if device.type == "cuda"
        else psutil.virtual_memory().total
    )
    return int(memory) // part


class Pool:
    """A memory pool and a stream shared by graphs that may overwrite each other's memory. The memory is freed with the
    last graph."""

    def __init__(self) -> None:
        self.first: torch.cuda.CUDAGraph | None = None
        self.stream: torch.cuda.Stream | None = None

    def enter(self) -> tuple[Any, torch.cuda.Stream]:
        # One graph stays alive: a pool that all graphs have left can't be entered again. All use one stream, since
        # memory is not reused across streams.
        if self.first is None or self.stream is None:
            self.first, self.stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
            with torch.cuda.graph(self.first, stream=self.stream, capture_error_mode="thread_local"):
                torch.zeros(1, device="cuda")
        return self.first.pool(), self.stream


class Graphs:
    """Recorded steps by batch size. A step must depend on nothing but the contents of memory."""

    def __init__(self, pool: Pool | None = None) -> None:
        self.pool = pool or Pool()
        self.seen: set[Hashable] = set()
        self.unrecorded: set[Hashable] = set()
        """Sizes for which memory is too small to record."""
        self.recorded: dict[Hashable, tuple[torch.cuda.CUDAGraph, Any]] = {}

    def run(self, key: Hashable, step: Callable[[], Any]) -> Any:
        """Run the step, and return its result: for a replay, the recorded tensors with new values."""
        # The first call is eager: it selects the kernels and does one-time initialisation.
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
        """Record the step. Return False if memory is too small even after emptying torch's cache."""
        for _ in range(2):
            graph = torch.cuda.CUDAGraph()
            try:
                with _recording(graph, self.pool):
                    result = step()
                self.recorded[key] = graph, result
                return True
            except torch.cuda.OutOfMemoryError:
                pass  # inside this block, the error's frames would keep the tensors alive
            except RuntimeError as error:
                reason = str(error).splitlines()[0][:200]
                raise UserError(
                    f"a step could not be recorded as a CUDA graph ({reason}): set encoder.record = false and rerun."
                ) from error
            del graph
            torch.cuda.empty_cache()
        return False


@contextlib.contextmanager
def _recording(graph: torch.cuda.CUDAGraph, pool: Pool) -> Iterator[None]:
    """Record the kernels launched inside, without running them. `torch.cuda.graph` would also collect garbage and
    release memory, which takes longer than the recording itself."""
    memory, stream = pool.enter()
    stream.wait_stream(torch.cuda.current_stream())
    collecting = gc.isenabled()
    gc.disable()  # a collection could free device memory, which can't be recorded
    try:
        with torch.cuda.stream(stream):
            # Thread-local: other threads continue to prepare batches.
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
    """Add sequences of padding until the batch has one of a few sizes. `lengths` then holds only the maximum length of
    a sequence. `most` is the encoder's maximum length."""
    count, longest = len(tokens.input_ids), round_up(tokens.longest, parts=4)
    longest = longest if most is None else max(tokens.longest, min(longest, most))
    slots = round_up(count)
    rows = round_up(len(tokens) + (slots - count) // longest + 2, parts=4)
    padding = torch.full((rows - len(tokens),), longest)  # (padding sequence)
    padding = (count + padding.cumsum(0)).clamp(max=slots).diff(prepend=torch.tensor([count]))
    lengths = torch.cat([tokens.lengths, padding])  # (row)
    ids, types = tokens.input_ids.new_full((slots,), pad_id), tokens.type_ids.new_zeros(slots)
    ids[:count], types[:count] = tokens.input_ids, tokens.type_ids
    return PackedTokens(ids, types, torch.full((rows,), longest), Packing.of(lengths))


class TokenBuffers:
    """Device buffers that batches of tokens are copied into before encoding, one for each batch size."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.buffers: dict[Hashable, list[Tensor]] = {}

    def put(self, tokens: PackedTokens, *others: Tensor) -> tuple[Hashable, PackedTokens, list[Tensor]]:
        """Copy a padded batch and tensors that belong to it to the device. Return its size, the batch, the tensors."""
        given = [tokens.input_ids, tokens.type_ids, *vars(tokens.packing).values(), *others]
        key = len(tokens.input_ids), len(tokens), tokens.longest
        if key not in self.buffers:
            self.buffers[key] = [torch.empty_like(part, device=self.device) for part in given]
        buffer = self.buffers[key]
        for part, own in zip(given, buffer, strict=True):
            own.copy_(part, non_blocking=True)
        return key, PackedTokens(buffer[0], buffer[1], tokens.lengths, Packing(*buffer[2:6])), buffer[6:]
