"""How messages name a user's table: its rows ("lines 3 and 7") its gaps, and its options ("--label" or "label=…")."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bertvision.tables import counted

SHOWN = 5
"""Rows, labels … that a message lists; it counts the others."""


@dataclass(frozen=True)
class Source:
    """A table and the place where its user gives options: the command line for files, Python for data in memory."""

    name: str
    """"train.csv", or "the data"."""
    is_file: bool = True
    row: str = "line"
    """What a row is called: "line" in text files, else "row"."""

    def option(self, name: str, value: str = "") -> str:
        """`--kind score` for files, `kind="score"` for data in memory."""
        if self.is_file:
            name = "rows" if name == "most_rows" else name
            return f"--{name.replace('_', '-')}{' ' + value if value else ''}"
        return f'{name}="{value}"' if value else f"{name}=True" if name == "skip_empty" else f"{name}=…"

    def rows(self, numbers: Sequence[str], count: int) -> str:
        """lines 3 and 7; lines 3, 4, 5, 6, 7 and 12 more"""
        return f"{self.row}{'' if count == 1 else 's'} {listed(numbers, count)}"


def listed(names: Sequence[str], count: int | None = None) -> str:
    """a; a and b; a, b, c, d, e and 7 more. `count` is the number of names if not all are given."""
    total = len(names) if count is None else count
    shown = list(names[:SHOWN])
    if total > len(shown):
        return f"{', '.join(shown)} and {total - len(shown):,} more"
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else "".join(shown)


def quoted(names: Sequence[str]) -> str:
    """'a', 'b' and 3 more; long names are cut."""
    return listed([repr(name if len(name) <= 40 else name[:39] + "…") for name in names[:SHOWN]], len(names))


@dataclass
class Gap:
    """Rows without a value in a column: how many, and the first few."""

    what: str
    column: str
    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, place: str) -> None:
        self.count += 1
        if len(self.first) < SHOWN:
            self.first.append(number_of(place))

    def describe(self, source: Source) -> str:
        verb, rows = "has" if self.count == 1 else "have", source.rows(self.first, self.count)
        return f"{counted(self.count, 'row')} {verb} no {self.what} in column '{self.column}' ({rows})"


def unit_of(place: str) -> str:
    """ "train.csv, line 3" → "line" """
    return place.split()[-2]


def number_of(place: str) -> str:
    """ "train.csv, line 3" → "3" """
    return place.rsplit(" ", 1)[1]
