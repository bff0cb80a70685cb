"""Read a store: batches of states in any order, prefetched by a thread while the heads train.

The reader looks several steps ahead and fetches their windows in disk order, each directly into its batch. The batches
follow the plan's shuffled order, while the disk reads mostly forward. docs/store_format.md has the effect on a spinning
disk.
"""

import math
import os
import zlib
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cached_property
from itertools import count, repeat
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from bertvision.data.windows import Features
from bertvision.encoder.states import HiddenStates, Part
from bertvision.errors import UserError
from bertvision.sources.base import StateBatch, make_ahead, pack_targets
from bertvision.sources.store.dtypes import TORCH, from_stored
from bertvision.sources.store.format import (
    DIGITS,
    MANIFEST,
    WRITING,
    Checksums,
    Contents,
    Manifest,
    Shard,
    bad_shard,
    read_head,
)
from bertvision.sources.store.location import Buffer, ByteRange, Location, open_location
from bertvision.sources.store.scan import scan

MEMORY = 1 << 30  # bytes of states, prefetched and in use together
PAGE = 4096
# Concurrent reads: disks and servers answer several at once faster than one by one; more than the cores are slower.
THREADS = max(2, min(4, os.cpu_count() or 2))


class Store:
    """A complete store, opened for reading. Threads and processes can share it."""

    def __init__(self, location: Location, manifest: Manifest) -> None:
        self.location, self.manifest = location, manifest
        self.contents: Contents = manifest.contents
        self._checksums: dict[int, Checksums] = {}

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
        """Verify the checksum of a shard that has none for its windows: those are verified whenever they are read."""
        if not self.checksums(shard) and self.location.hash(shard.file)[:DIGITS] != shard.sha256:
            raise bad_shard(self.location, shard, "is damaged")

    def checksums(self, shard: Shard) -> Checksums:
        """The checksums of each window of a shard; none if an earlier version wrote it."""
        if shard.first not in self._checksums:
            self._checksums[shard.first] = read_head(self.location, shard).checksums
        return self._checksums[shard.first]

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
            head = read_head(self.location, shard)
            ids += head.ids
            for name, values in head.facts.items():
                found["lengths" if name == "offsets" else name].append(np.diff(values) if name == "offsets" else values)
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


class Wanted(NamedTuple):
    """One window's states of one part: where they are, and the buffer that they are read into."""

    shard: int
    start: int
    buffer: Buffer
    part: Part
    window: int
    """Its number in the shard."""


class StateReader:
    """Locates the states of each window in a store, and reads them."""

    def __init__(self, store: Store, parts: tuple[Part, ...], lengths: np.ndarray) -> None:
        contents, shards = store.contents, store.manifest.shards
        missing = set(parts) - set(contents.parts)
        assert not missing, f"the store has {contents.parts}, not {missing}"
        assert len(lengths) == len(store) and lengths.sum() == store.manifest.tokens, "lengths must match the store"
        self.store, self.parts = store, parts
        self.buffers = Buffers()
        self.lengths = lengths  # (window)
        self.before = np.cumsum(lengths, dtype=np.int64)  # (window) tokens before it in the store
        self.before -= lengths
        counts = np.array([shard.windows for shard in shards], dtype=np.int64)  # (shard)
        tokens = np.array([shard.tokens for shard in shards], dtype=np.int64)  # (shard)
        self.first_window = np.cumsum(counts) - counts  # (shard)
        self.first_token = np.cumsum(tokens) - tokens  # (shard)
        self.at = {part: np.array([shard.at[part] for shard in shards]) for part in parts}  # each (shard)

    def shard_of(self, windows: np.ndarray) -> np.ndarray:
        """(window) the number of each window's shard."""
        return np.searchsorted(self.first_window, windows, side="right") - 1

    def start_of(self, part: Part, windows: np.ndarray) -> np.ndarray:
        """(window) the byte in its shard at which the states of each window begin."""
        shard, record = self.shard_of(windows), self.store.contents.record_bytes(part)
        if part == "tokens":
            return self.at[part][shard] + (self.before[windows] - self.first_token[shard]) * record
        return self.at[part][shard] + (windows - self.first_window[shard]) * record

    def size_of(self, part: Part, windows: np.ndarray) -> np.ndarray:
        """(window) the bytes of the states of each window."""
        return self.store.contents.window_bytes(part, self.lengths[windows].astype(np.int64))

    def bytes_of(self, windows: np.ndarray) -> int:
        return sum(int(self.size_of(part, windows).sum()) for part in self.parts)

    def fetch(
        self, batches: list[np.ndarray], pinned: bool = False, pool: ThreadPoolExecutor | None = None
    ) -> list[dict[Part, Tensor]]:
        """Read the stored states of each batch's windows, in disk order."""
        contents = self.store.contents
        found: list[dict[Part, Tensor]] = []
        wanted: list[Wanted] = []
        for windows in batches:
            made: dict[Part, Tensor] = {}
            shard = self.shard_of(windows)  # (window)
            for part in self.parts:
                shape = contents.shape(part, len(windows), int(self.lengths[windows].sum()))
                made[part] = self._make(shape, pinned)
                wanted += map(
                    Wanted, shard.tolist(), self.start_of(part, windows).tolist(),
                    self._cut(made[part], part, windows), repeat(part), (windows - self.first_window[shard]).tolist(),
                )  # fmt: skip
            found.append(made)
        self._read(wanted, pool)
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
        ends = np.cumsum(self.size_of(part, windows)).tolist()
        return [whole[first:last] for first, last in zip([0, *ends], ends, strict=False)]

    def _read(self, wanted: list["Wanted"], pool: ThreadPoolExecutor | None) -> None:
        jobs: list[tuple[Shard, list[Wanted]]] = []
        last, used = -1, 0
        for one in sorted(wanted, key=lambda one: (one.shard, one.start)):
            # Jobs are taken in disk order: small ones keep the threads close to each other on the disk.
            if one.shard != last or used > self.store.location.at_once:
                last, used = one.shard, 0
                jobs.append((self.store.manifest.shards[last], []))
            jobs[-1][1].append(one)
            used += len(one.buffer)
        if pool is None:
            for job in jobs:
                self._read_ranges(*job)
        else:
            list(pool.map(self._read_ranges, *zip(*jobs, strict=True)))

    def _read_ranges(self, shard: Shard, wanted: list["Wanted"]) -> None:
        ranges: list[ByteRange] = []
        neighbours, end = list[Buffer](), -1
        for one in wanted:
            if one.start != end:  # adjacent windows are one read
                neighbours = []
                ranges.append(ByteRange(one.start, neighbours))
            neighbours.append(one.buffer)
            end = one.start + len(one.buffer)
        try:
            self.store.location.read_into(shard.file, ranges)
        except (OSError, EOFError) as error:
            raise bad_shard(self.store.location, shard, f"can't be read ({error})") from error
        self._check(shard, wanted)

    def _check(self, shard: Shard, wanted: list["Wanted"]) -> None:
        """Compare what was read with its checksums, in the thread that read it."""
        known = self.store.checksums(shard)
        for one in wanted:
            if one.part in known and zlib.crc32(one.buffer) != known[one.part][one.window]:
                example = int(read_head(self.store.location, shard).facts["example"][one.window])
                raise bad_shard(
                    self.store.location, shard, f"is damaged: the states of example {example:,} have a wrong checksum"
                )


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
