"""Examples and arrays that wait on disk once there are many, so that memory stays the same however long a file is.

examples = collect_examples(rows)          a list, or a sequence that reads from disk
ids_of(examples)   choose(examples, rows)
column = GrowingArray(np.int32); column.append(values); column.finish()       an array, or one that reads from disk
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from bertvision.data.examples import Answer, Example
from bertvision.disk import Spool

MOST_EXAMPLES, MOST_CHARACTERS = 50_000, 50_000_000
"""That are held in memory."""
MOST_BYTES = 8 << 20
"""Of an array that is held in memory."""
BLOCK = 256
"""Examples that are read from disk at once."""
PIECE = 1 << 20
"""Numbers that are read from disk at once."""


# ---------------------------------------------------------------------- examples


def collect_examples(examples: Iterable[Example]) -> Sequence[Example]:
    """All examples: a list, or on disk if they are many."""
    kept: list[Example] = []
    characters, more = 0, iter(examples)
    for one in more:
        kept.append(one)
        characters += len(one.text) + len(one.text_pair or "")
        if len(kept) > MOST_EXAMPLES or characters > MOST_CHARACTERS:
            return SpooledExamples(kept, more)
    return kept


class SpooledExamples(Sequence[Example]):
    """Examples on disk, in blocks. The one that was read last is kept."""

    def __init__(self, first: list[Example], more: Iterable[Example]) -> None:
        """`first` is emptied."""
        self._spool, self._starts, self._count = Spool(), [0], 0
        block: list[Example] = []
        for source in (_drain(first), more):
            for one in source:
                block.append(one)
                if len(block) == BLOCK:
                    self._append(block)
                    block = []
        self._append(block)
        self._last: tuple[int, list[Example]] = -1, []

    def _append(self, block: list[Example]) -> None:
        # ASCII, so that lone surrogates come back.
        rows = [[one.id, one.text, one.text_pair, one.target, one.answers, one.group] for one in block]
        self._spool.append(json.dumps(rows).encode("ascii"))
        self._starts.append(self._spool.size)
        self._count += len(block)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        number, place = divmod(int(index) % self._count, BLOCK)
        return self._read(number)[place]

    def __iter__(self) -> Iterator[Example]:
        for number in range(len(self._starts) - 1):
            yield from self._read(number)

    def _read(self, number: int) -> list[Example]:
        last, block = self._last
        if last != number:
            rows = json.loads(self._spool.read(self._starts[number], self._starts[number + 1]))
            block = [_example(*row) for row in rows]
            self._last = number, block
        return block


def _example(
    id: str, text: str, pair: str | None, target: Any, answers: list[tuple[str, int]] | None, group: str | None
) -> Example:
    return Example(id, text, pair, target, None if answers is None else tuple(Answer(*one) for one in answers), group)


def _drain(items: list[Example]) -> Iterator[Example]:
    """All items, from the first on. The list is emptied before the next ones arrive."""
    found = items[:]
    items.clear()
    yield from found


class ChosenExamples(Sequence[Example]):
    """Some examples of a sequence on disk."""

    def __init__(self, examples: Sequence[Example], rows: np.ndarray) -> None:
        self._examples = examples
        self._rows = rows.astype(np.int32) if len(examples) < 2**31 else rows  # (example)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        if isinstance(index, slice):
            return [self._examples[int(row)] for row in self._rows[index]]
        return self._examples[int(self._rows[index])]


def choose(examples: Sequence[Example], rows: np.ndarray) -> Sequence[Example]:
    """The examples in these rows."""
    if isinstance(examples, list):
        return [examples[row] for row in rows]
    return ChosenExamples(examples, rows)


class SpooledIds(Sequence[str]):
    """The ids of examples on disk."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [one.id for one in self._examples[index]]
        return self._examples[index].id


def ids_of(examples: Sequence[Example]) -> Sequence[str]:
    return [one.id for one in examples] if isinstance(examples, list) else SpooledIds(examples)


# ---------------------------------------------------------------------- arrays


class GrowingArray:
    """An array that grows at its end. It is on disk once it is large; of equal numbers, only one is kept."""

    def __init__(self, dtype: Any, *shape: int, on_disk: bool = True) -> None:
        """`shape` is that of an entry. Only with `on_disk` may it leave the memory."""
        self.dtype, self.shape, self._on_disk = np.dtype(dtype), shape, on_disk
        self._count = 0
        self._buffer = np.empty((0, *shape), self.dtype)
        self._filled = 0
        """Entries in the buffer; those before them are in the spool."""
        self._spool: Spool | None = None
        self._same: Any = None
        """The number that all entries are, as long as they are equal."""

    def append(self, values: np.ndarray) -> None:
        values = np.asarray(values, dtype=self.dtype)
        if not values.size:
            return
        if not self._count:
            self._same = values.flat[0]
        if self._same is not None and not (values == self._same).all():
            for first in range(0, self._count, PIECE):
                self._keep(np.full((min(PIECE, self._count - first), *self.shape), self._same, self.dtype))
            self._same = None
        if self._same is None:
            self._keep(values)
        self._count += len(values)

    def _keep(self, values: np.ndarray) -> None:
        needed = self._filled + len(values)
        if needed > len(self._buffer):  # one block of memory that grows: small ones would leave holes
            self._buffer.resize((2 * needed, *self.shape), refcheck=False)
        self._buffer[self._filled : needed] = values
        self._filled = needed
        if self._on_disk and self._buffer[:needed].nbytes > MOST_BYTES:
            self._spool = self._spool or Spool()
            self._spool.append(self._buffer[:needed])
            self._filled = 0

    def finish(self) -> Any:
        """The whole array; a `SpooledArray` if it is large. One that can't be written stands for many equal numbers."""
        shape = self._count, *self.shape
        if self._same is not None:
            same = np.broadcast_to(np.array(self._same, self.dtype), shape)
            return same.copy() if same.nbytes <= MOST_BYTES else same
        self._buffer.resize((self._filled, *self.shape), refcheck=False)
        if self._spool is None:
            return self._buffer
        if self._filled:
            self._spool.append(self._buffer)
        self._buffer = np.empty((0, *self.shape), self.dtype)
        return SpooledArray(self._spool, self.dtype, shape)


class SpooledArray:
    """An array on disk. It can be read at slices and at arrays of indices; everything else reads all of it."""

    def __init__(self, spool: Spool, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.spool, self.dtype, self.shape = spool, dtype, shape
        self._width = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self[:] if dtype is None else self[:].astype(dtype)

    def __getitem__(self, key: Any) -> np.ndarray:
        if isinstance(key, slice) and key.step in (None, 1):
            start, stop, _ = key.indices(len(self))
            return self._read(np.array([start]), np.array([max(stop - start, 0)]))
        if isinstance(key, np.ndarray) and key.ndim == 1 and key.dtype.kind in "iu":
            cuts = np.flatnonzero(np.diff(key) != 1) + 1  # (run) neighbours are read at once
            begins = np.concatenate([[0], cuts]).astype(np.int64)[: len(key)]  # (run)
            return self._read(key[begins], np.diff(begins, append=len(key)))
        found: np.ndarray = self[:][key]
        return found

    def _read(self, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The entries of some ranges, one after the other."""
        found = np.empty((int(counts.sum()), *self.shape[1:]), self.dtype)
        numbers: Any = found.reshape(-1).view(np.uint8)
        view = memoryview(numbers)
        width, first = self._width, 0
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            if not 0 <= start <= start + count <= len(self):
                raise IndexError(start)
            self.spool.read_into(start * width, view[first : first + count * width])
            first += count * width
        return found


def pieces_of(array: Any) -> Iterator[bytes]:
    """The bytes of an array, a part at a time."""
    for first in range(0, len(array), PIECE):
        yield np.ascontiguousarray(array[first : first + PIECE]).tobytes()
