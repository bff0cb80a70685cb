"""Tables and number formatting for the terminal, messages, Markdown files, model cards and reports."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Cell = str | int | float | bool | None
MISSING = "–"
MINUS = "\N{MINUS SIGN}"  # as wide as a digit, unlike a hyphen


@dataclass(frozen=True)
class Column:
    heading: str
    digits: int | None = None
    """Decimals to display; files keep full precision. None: text, or a whole number."""
    note: str = ""
    """What the heading means, if it is not obvious; several columns may share a note."""


Headings = list[Column | str]
Rows = list[list[Cell]]
Row = dict[Column | str, Cell]
"""Column → value."""


@dataclass(init=False)
class Table:
    """A table whose numbers stay numbers, so that they sort and export. A column may be given by its heading."""

    columns: list[Column]
    rows: Rows
    title: str
    note: str
    first_to_go: tuple[str, ...]
    """Headings of the columns to drop, in this order, if the terminal is too narrow."""

    def __init__(
        self,
        columns: Iterable[Column | str],
        rows: Iterable[Sequence[Cell]],
        title: str = "",
        note: str = "",
        first_to_go: Sequence[str] = (),
    ) -> None:
        self.columns = [Column(column) if isinstance(column, str) else column for column in columns]
        self.rows = [list(row) for row in rows]
        self.title, self.note, self.first_to_go = title, note, tuple(first_to_go)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Table":
        """Build a table from rows of column → value, all with the same columns."""
        found = list(rows)
        return cls(found[0] if found else [], [list(row.values()) for row in found])

    @property
    def headings(self) -> list[str]:
        return [column.heading for column in self.columns]

    def records(self) -> list[dict[str, Cell]]:
        """One dict per row, heading → cell."""
        return [dict(zip(self.headings, row, strict=True)) for row in self.rows]

    def texts(self) -> list[list[str]]:
        """The cells as displayed; short rows are padded."""
        blank = [""] * len(self.columns)
        return [
            [show(cell, column) for cell, column in zip([*row, *blank], self.columns, strict=False)]
            for row in self.rows
        ]  # fmt: skip

    def is_numeric(self) -> list[bool]:
        """For each column, whether all its values are numbers; an empty column counts as numeric if it has digits."""
        numeric = []
        for index, column in enumerate(self.columns):
            values = [row[index] for row in self.rows if not is_missing(row[index])]
            numeric.append(all(map(_is_number, values)) if values else column.digits is not None)
        return numeric

    def legend(self) -> list[tuple[str, str]]:
        """(headings, note) pairs; columns with the same note share one."""
        groups: dict[str, list[str]] = {}
        for column in self.columns:
            if column.note:
                groups.setdefault(column.note, []).append(column.heading)
        return [(", ".join(headings), note) for note, headings in groups.items()]

    def explain(self, shown: Iterable[str]) -> str:
        """The notes of these headings, in one line."""
        notes = {column.heading: column.note for column in self.columns}
        return " ".join(filter(None, dict.fromkeys(notes[heading] for heading in shown)))

    def without_empty(self) -> "Table":
        """The table without columns that have no values."""
        kept = [index for index in range(len(self.columns)) if any(row[index] is not None for row in self.rows)]
        return Table([self.columns[index] for index in kept], [[row[index] for index in kept] for row in self.rows])


def to_markdown(table: Table) -> str:
    """The table with its title as a heading and its notes below. Cells are not escaped."""
    alignments = ["---"] + ["---:"] * (len(table.columns) - 1)
    rows = [f"| {' | '.join(cells)} |" for cells in table.texts()]
    note = " ".join(filter(None, [table.note, table.explain(table.headings)]))
    return "\n".join(
        [f"## {table.title}", "", f"| {' | '.join(table.headings)} |", f"|{'|'.join(alignments)}|", *rows, "", note, ""]
    )


def is_missing(cell: Cell) -> bool:
    """Whether a cell is None, NaN or infinite, and so can't be ranked."""
    return cell is None or (isinstance(cell, float) and not math.isfinite(cell))


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def show(cell: Cell, column: Column) -> str:
    """12,345.68 with two digits; yes or no; a dash for a missing value."""
    if is_missing(cell):
        return MISSING
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int | float):
        return _show_number(cell, column.digits)
    return str(cell)


def _show_number(number: int | float, digits: int | None) -> str:
    if digits is not None:
        text = f"{number:,.{digits}f}"
    elif number == int(number):
        text = f"{int(number):,}"
    else:
        text = f"{number:,.4g}"
    is_zero = not text.strip("-0.,")  # show -0.00 as 0.00
    return text.lstrip("-") if is_zero else text.replace("-", MINUS, 1) if number < 0 else text


def plain(value: Any) -> Any:
    """The same value with None for NaN and infinities, which JSON can't express."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def counted(number: float, noun: str) -> str:
    """1 epoch, 0.5 epochs, 1,000 steps."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{shown} {noun}{'' if number == 1 else 's'}"
