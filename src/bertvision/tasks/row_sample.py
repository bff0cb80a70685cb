"""A uniform random sample of a table that is read row by row. No label is lost: each keeps two rows if it has them."""

import random
from collections import Counter
from typing import Generic, Protocol, TypeVar


class Numbered(Protocol):
    @property
    def number(self) -> int: ...

    @property
    def label(self) -> str: ...


R = TypeVar("R", bound=Numbered)
LEAST = 2
"""Rows that every label keeps: one to train on and one to hold out."""


class RowSample(Generic[R]):
    """Add rows one by one; `rows()` returns at most `most` of them in file order. None keeps all rows."""

    def __init__(self, most: int | None, seed: int) -> None:
        self.most, self.seen = most, 0
        self._random = random.Random(seed)
        self._kept: list[R] = []
        self._firsts: dict[str, list[R]] | None = None if most is None else {}  # the first rows of each label

    def add(self, row: R) -> None:
        self.seen += 1
        if self._firsts is not None:
            self._remember(row, self._firsts)
        if self.most is None or len(self._kept) < self.most:
            self._kept.append(row)
        elif (place := self._random.randrange(self.seen)) < self.most:
            self._kept[place] = row

    def rows(self) -> list[R]:
        if self.most is not None and self.seen > self.most:
            self._restore_rare_labels()
        return sorted(self._kept, key=lambda row: row.number)

    def _remember(self, row: R, firsts: dict[str, list[R]]) -> None:
        same = firsts.setdefault(row.label, [])
        if len(same) < LEAST:
            same.append(row)
        assert self.most is not None
        if len(firsts) * LEAST > self.most:  # too many to keep them all: scores, or an error that is reported later
            self._firsts = None

    def _restore_rare_labels(self) -> None:
        """Put back the first rows of labels that lost too many, in place of random rows of frequent labels."""
        counts, numbers = Counter(row.label for row in self._kept), {row.number for row in self._kept}
        lost = []
        for label, firsts in (self._firsts or {}).items():
            spare = [row for row in firsts if row.number not in numbers]
            lost += spare[: max(0, LEAST - counts[label])]
        for place in self._random.sample(range(len(self._kept)), len(self._kept)):
            if not lost:
                return
            label = self._kept[place].label
            if counts[label] > LEAST:
                counts[label] -= 1
                self._kept[place] = lost.pop()
