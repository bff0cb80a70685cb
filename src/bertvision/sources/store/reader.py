"""Read a store: batches of states in any order, prefetched by a thread while the heads train.

The reader looks several steps ahead and fetches their windows in disk order, each directly into its batch. The batches
follow the plan's shuffled order, while the disk reads mostly forward. docs/store_format.md has the effect on a spinning
disk.
"""

import math
import os
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cached_property
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from bertvision.data.windows import Features
from bertvision.disk import fit, parse_json
from bertvision.encoder.states import HiddenStates, Part
from bertvision.errors import UserError
from bertvision.sources.base import StateBatch, make_ahead, pack_targets
from bertvision.sources.store.dtypes import TORCH, from_stored
from bertvision.sources.store.format import (
    DIGITS,
    MANIFEST,
    WRITING,
    Contents,
    Manifest,
    Shard,
    bad_shard,
    parse_header,
)
from bertvision.sources.store.location import Buffer, ByteRange, Location, open_location
from bertvision.sources.store.scan import scan

MEMORY = 1 << 30  # bytes of states, prefetched and in use together
PAGE = 4096
NUMPY: dict[str, Any] = {"I64": np.dtype("<i8"), "F32": np.dtype("<f4")}  # dtypes of the per-window arrays
# Concurrent reads: disks and servers answer several at once faster than one by one; more than the cores are slower.
THREADS = max(2, min(4, os.cpu_count() or 2))


class Store:
    """A complete store, opened for reading. Threads and processes can share it."""

    def __init__(self, location: Location, manifest: Manifest) -> None:
        self.location, self.manifest = location, manifest
        self.contents: Contents = manifest.contents

    @classmethod
    def open(cls, path: str | Path | Location, identity: dict[str, Any] | None = None) -> "Store":
        """Open the store at a path. Raise UserError if it is incomplete or damaged, or if its identity differs from
        the given one."""
        found = scan(open_location(path))
        location = found.location
        if found.problem is not None:
            raise found.problem
        if found.manifest is None:
            begun = found.shards or WRITING in found.sizes
            if begun:
                raise UserError(f"the store at '{location}' is incomplete: `bertvision encode` finishes it.")
            raise UserError(f"no store at '{location}': expected {MANIFEST} there.")
        if identity is not None:
            found.refuse_other(identity)
        for shard, why in found.broken:
            raise bad_shard(location, shard, why)
        return cls(location, found.manifest)

    def __len__(self) -> int:
        """Number of windows."""
        return self.manifest.windows

    def check(self, shard: Shard) -> None:
        """Verify the checksum of a shard."""
        if self.location.hash(shard.file)[:DIGITS] != shard.sha256:
            raise bad_shard(self.location, shard, "is damaged")

    def __repr__(self) -> str:
        parts = ", ".join(self.contents.parts)
        return f"Store('{self.location}', {len(self):,} windows, {parts}, {self.contents.dtype})"

    def read(self, part: Part, windows: Iterable[int]) -> Tensor:
        """Return the states of the given windows, concatenated, as float32: (position, layer, hidden)."""
        if part not in self.contents.parts:
            raise UserError(f"'{self.location}' has no '{part}' states, only {', '.join(self.contents.parts)}.")
        chosen = np.fromiter(windows, dtype=np.int64)
        if len(chosen) and not 0 <= chosen.min() <= chosen.max() < len(self):
            raise UserError(
                f"'{self.location}' has windows 0 to {len(self) - 1:,}, not {chosen.min()} to {chosen.max()}."
            )
        stored = StateReader(self, (part,), self.facts()["lengths"]).fetch([chosen])[0][part]
        return from_stored(stored, torch.float32)

    def facts(self) -> dict[str, np.ndarray]:
        """Return `lengths`, `example`, `start`, `end` and `target` of every window."""
        return self._facts[0]

    def ids(self) -> list[str]:
        """Return the ids of the examples, in order."""
        return self._facts[1]

    @cached_property
    def _facts(self) -> tuple[dict[str, np.ndarray], list[str]]:
        found: dict[str, list[np.ndarray]] = {name: [] for name in ("lengths", "example", "start", "end", "target")}
        ids: list[str] = []
        for shard in self.manifest.shards:
            try:
                data = self.location.read(shard.file, 0, min(shard.at.values()))  # everything before the states
                header, begin = parse_header(data)
                ids += fit(parse_json(header["__metadata__"]["ids"]), list[str])
                for name in ("offsets", "example", "start", "end", "target"):
                    first, last = header[name]["data_offsets"]
                    values = np.frombuffer(data[begin + first : begin + last], NUMPY[header[name]["dtype"]])
                    if len(values) != shard.windows + (name == "offsets"):
                        raise ValueError(f"{name} is not for {shard.windows:,} windows")
                    is_offsets = name == "offsets"
                    found["lengths" if is_offsets else name].append(np.diff(values) if is_offsets else values)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise bad_shard(self.location, shard, f"can't be read ({error})") from error
        return {name: np.concatenate(parts) for name, parts in found.items()}, ids


class Buffers:
    """Recycled memory: allocating new pages would take as long as the reads themselves."""

    def __init__(self) -> None:
        self.free: list[np.ndarray] = []  # smallest first
        self.back: deque[np.ndarray] = deque()  # filled by finalizers, which run at any time and must not take the lock
        self.lock = Lock()

    def take(self, size: int) -> Tensor:
        """Return a tensor of `size` bytes. The memory is reused once the tensor and all its views are gone."""
        with self.lock:
            while self.back:
                insort(self.free, self.back.popleft(), key=len)
            fitting = bisect_left(self.free, size, key=len)
            if fitting == len(self.free):  # none is large enough: replace the smallest with a larger one
                del self.free[:1]
                whole = _aligned(size + size // 2)  # pages that are never written take no memory
            else:
                whole = self.free.pop(fitting)
        lent = whole[:size]
        finalize(lent, self.back.append, whole).atexit = False
        return torch.from_numpy(lent)  # (byte)


def _aligned(size: int) -> np.ndarray:
    """Allocate page-aligned bytes, which the system copies into faster."""
    room = np.empty(size + PAGE, dtype=np.uint8)
    first = -room.ctypes.data % PAGE
    return room[first : first + size]


class StateReader:
    """Locates the states of each window in a store, and reads them."""

    def __init__(self, store: Store, parts: tuple[Part, ...], lengths: np.ndarray) -> None:
        contents, shards = store.contents, store.manifest.shards
        missing = set(parts) - set(contents.parts)
        assert not missing, f"the store has {contents.parts}, not {missing}"
        assert len(lengths) == len(store) and lengths.sum() == store.manifest.tokens, "lengths must match the store"
        self.store, self.parts = store, parts
        self.buffers = Buffers()
        self.lengths = lengths.astype(np.int64)  # (window)
        counts = np.array([shard.windows for shard in shards])  # (shard)
        self.shard = np.repeat(np.arange(len(shards)), counts)  # (window)
        first_window = np.repeat(np.cumsum(counts) - counts, counts)  # (window)
        before = np.cumsum(self.lengths) - self.lengths  # (window) tokens before it in the store
        tokens = np.array([shard.tokens for shard in shards])  # (shard)
        token_in_shard = before - np.repeat(np.cumsum(tokens) - tokens, counts)  # (window)
        window_in_shard = np.arange(len(self.lengths)) - first_window  # (window)
        self.start: dict[Part, np.ndarray] = {}  # each (window) byte offset in the shard
        self.size: dict[Part, np.ndarray] = {}  # each (window) bytes
        for part in parts:
            at, record = np.repeat([shard.at[part] for shard in shards], counts), contents.record_bytes(part)
            position = token_in_shard if part == "tokens" else window_in_shard
            self.start[part] = at + position * record
            self.size[part] = self.lengths * record if part == "tokens" else np.full_like(self.lengths, record)

    def bytes_of(self, windows: np.ndarray) -> int:
        return sum(int(self.size[part][windows].sum()) for part in self.parts)

    def fetch(
        self, batches: list[np.ndarray], pinned: bool = False, pool: ThreadPoolExecutor | None = None
    ) -> list[dict[Part, Tensor]]:
        """Read the stored states of each batch's windows, in disk order."""
        contents = self.store.contents
        found: list[dict[Part, Tensor]] = []
        wanted: list[tuple[np.ndarray, np.ndarray, list[Buffer]]] = []  # shards, starts and buffers of a batch's part
        for windows in batches:
            made: dict[Part, Tensor] = {}
            for part in self.parts:
                shape = contents.shape(part, len(windows), int(self.lengths[windows].sum()))
                made[part] = self._make(shape, pinned)
                wanted.append((self.shard[windows], self.start[part][windows], self._cut(made[part], part, windows)))
            found.append(made)
        shards = np.concatenate([entry[0] for entry in wanted])
        starts = np.concatenate([entry[1] for entry in wanted])
        buffers = [buffer for entry in wanted for buffer in entry[2]]
        self._read(shards, starts, buffers, pool)
        return found

    def _make(self, shape: tuple[int, int, int], pinned: bool) -> Tensor:
        dtype = TORCH[self.store.contents.dtype]
        if pinned:  # torch recycles pinned memory itself
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        return self.buffers.take(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)

    def _cut(self, made: Tensor, part: Part, windows: np.ndarray) -> list[Buffer]:
        """Return the bytes of each window in a batch."""
        numbers: Any = made.view(torch.uint8).numpy().reshape(-1)
        whole = memoryview(numbers) if made.numel() else memoryview(b"")
        ends = np.cumsum(self.size[part][windows]).tolist()
        return [whole[first:last] for first, last in zip([0, *ends], ends, strict=False)]

    def _read(
        self, shards: np.ndarray, starts: np.ndarray, buffers: list[Buffer], pool: ThreadPoolExecutor | None
    ) -> None:
        order = np.lexsort((starts, shards)).tolist()
        jobs: list[tuple[Shard, list[ByteRange]]] = []
        shard_of, start_of = shards.tolist(), starts.tolist()
        neighbours: list[Buffer] = []
        last, end, used = -1, -1, 0
        for index in order:
            # Jobs are taken in disk order: small ones keep the threads close to each other on the disk.
            if shard_of[index] != last or used > self.store.location.at_once:
                last, end, used = shard_of[index], -1, 0
                jobs.append((self.store.manifest.shards[last], []))
            if start_of[index] != end:  # adjacent windows are one read
                neighbours = []
                jobs[-1][1].append(ByteRange(start_of[index], neighbours))
            neighbours.append(buffers[index])
            end = start_of[index] + len(buffers[index])
            used += len(buffers[index])
        if pool is None:
            for job in jobs:
                self._read_ranges(*job)
        else:
            list(pool.map(self._read_ranges, *zip(*jobs, strict=True)))

    def _read_ranges(self, shard: Shard, ranges: list[ByteRange]) -> None:
        try:
            self.store.location.read_into(shard.file, ranges)
        except (OSError, EOFError) as error:
            raise bad_shard(self.store.location, shard, f"can't be read ({error})") from error


class StoredSource:
    """The batches of a plan, read from a store."""

    def __init__(
        self,
        store: Store,
        features: Features,
        plan: list[np.ndarray],
        keep: Iterable[Part],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        share: tuple[int, int] = (0, 1),
        memory: int = MEMORY,
        pools: Iterable[int] = (),
    ) -> None:
        """`dtype` is the dtype of the returned states, `memory` limits the bytes read ahead, and `pools` lists the
        steps at which a new pool of blocks begins: the steps of a pool are best read together."""
        self.store, self.features, self.plan = store, features, plan
        self.device, self.dtype, self.memory = torch.device(device), dtype, memory
        self.rank, self.processes = share
        self.reading = StateReader(store, tuple(keep), features.lengths)
        self.pools = sorted(pools)

    @property
    def steps(self) -> int:
        return len(self.plan)

    def batches(self, first: int = 0) -> Iterator[StateBatch]:
        return map(self._batch, count(first), self.stored(first))

    def stored(self, first: int = 0) -> Iterator[dict[Part, Tensor]]:
        """Yield the states of each step from `first` on, in their stored form."""
        # One thread stays a group ahead of the one in use, and distributes its reads over a few others.
        with (
            ThreadPoolExecutor(THREADS, "store-read") as readers,
            closing(make_ahead(lambda group: self._fetch(group, readers), self.groups(first), 2)) as groups,
        ):
            for fetched in groups:
                fetched.reverse()
                while fetched:
                    yield fetched.pop()

    def _fetch(self, group: range, readers: ThreadPoolExecutor) -> list[dict[Part, Tensor]]:
        return self.reading.fetch([self._mine(step) for step in group], self.device.type == "cuda", readers)

    def _batch(self, step: int, stored: dict[Part, Tensor]) -> StateBatch:
        windows = self._mine(step)
        parts: dict[str, Any] = {
            part: from_stored(values.to(self.device, non_blocking=True), self.dtype) for part, values in stored.items()
        }
        lengths = torch.from_numpy(self.features.lengths[windows].astype(np.int64))  # (sequence)
        states = HiddenStates(lengths, **parts, pooled="cls" in parts and self.store.contents.pooled)
        return StateBatch(windows, states, pack_targets(self.features, windows).to(self.device), len(self.plan[step]))

    def _mine(self, step: int) -> np.ndarray:
        return self.plan[step][self.rank :: self.processes]

    def groups(self, first: int = 0) -> Iterator[range]:
        """Yield groups of consecutive steps that are read together; one group is in use while the next is read.

        Pools of blocks are read whole if one fits in half of the memory. Otherwise a group uses an eighth of it: that
        is as fast, and the first batch arrives sooner.
        """
        start, most = first, self.memory // (2 if self.pools else 8)
        while start < self.steps:
            stop, used = start, 0
            while stop < self.steps:
                size = self.reading.bytes_of(self._mine(stop))
                if stop > start and used + size > most:
                    break
                used += size
                stop += 1
            whole = bisect_right(self.pools, stop) - 1
            if stop < self.steps and whole >= 0 and self.pools[whole] > start:
                stop = self.pools[whole]
            yield range(start, stop)
            start = stop
