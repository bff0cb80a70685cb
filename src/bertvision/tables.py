"""Tables and numbers as people read them: on the terminal, in messages, Markdown files, cards and a report's page."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Cell = str | int | float | bool | None
MISSING = "–"
MINUS = "\N{MINUS SIGN}"  # as wide as a figure, where a hyphen is not


@dataclass(frozen=True)
class Column:
    heading: str
    digits: int | None = None
    """Decimals that people are shown of a number; files keep all of them. None: text, or a whole number."""
    note: str = ""
    """What the heading means, where that is not plain; several columns may share a note."""


Headings = list[Column | str]
Rows = list[list[Cell]]
Row = dict[Column | str, Cell]
"""Values under their columns."""


@dataclass(init=False)
class Table:
    """Numbers stay numbers, so that they sort and can be read by programs; a column can be given as its heading."""

    columns: list[Column]
    rows: Rows
    title: str
    note: str
    first_to_go: tuple[str, ...]
    """Headings of columns left out, in this order, where the terminal is too narrow."""

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
        """Of rows that say under which column each value stands, the same columns in each."""
        found = list(rows)
        return cls(found[0] if found else [], [list(row.values()) for row in found])

    @property
    def headings(self) -> list[str]:
        return [column.heading for column in self.columns]

    def records(self) -> list[dict[str, Cell]]:
        """One object a row, by heading."""
        return [dict(zip(self.headings, row, strict=True)) for row in self.rows]

    def texts(self) -> list[list[str]]:
        """The cells as people are shown them; a short row is filled up."""
        blank = [""] * len(self.columns)
        return [
            [show(cell, column) for cell, column in zip([*row, *blank], self.columns, strict=False)]
            for row in self.rows
        ]  # fmt: skip

    def is_numeric(self) -> list[bool]:
        """For each column, whether all that is there is numbers; an empty one goes by whether it names digits."""
        numeric = []
        for place, column in enumerate(self.columns):
            there = [row[place] for row in self.rows if not is_missing(row[place])]
            numeric.append(all(map(_is_number, there)) if there else column.digits is not None)
        return numeric

    def legend(self) -> list[tuple[str, str]]:
        """(headings, note): columns that share a note share a line."""
        groups: dict[str, list[str]] = {}
        for column in self.columns:
            if column.note:
                groups.setdefault(column.note, []).append(column.heading)
        return [(", ".join(headings), note) for note, headings in groups.items()]

    def explain(self, shown: Iterable[str]) -> str:
        """What these headings mean, in a line."""
        notes = {column.heading: column.note for column in self.columns}
        return " ".join(filter(None, dict.fromkeys(notes[heading] for heading in shown)))

    def without_empty(self) -> "Table":
        """Without the columns that no row has a value for."""
        kept = [place for place in range(len(self.columns)) if any(row[place] is not None for row in self.rows)]
        return Table([self.columns[place] for place in kept], [[row[place] for place in kept] for row in self.rows])


def to_markdown(table: Table) -> str:
    """Under its title as a heading, with its note below; cells are not escaped."""
    results = ["---"] + ["---:"] * (len(table.columns) - 1)
    rows = [f"| {' | '.join(cells)} |" for cells in table.texts()]
    note = " ".join(filter(None, [table.note, table.explain(table.headings)]))
    return "\n".join(
        [f"## {table.title}", "", f"| {' | '.join(table.headings)} |", f"|{'|'.join(results)}|", *rows, "", note, ""]
    )


def is_missing(cell: Cell) -> bool:
    """None, or a float that is no number: neither can be ranked against the rest."""
    return cell is None or (isinstance(cell, float) and not math.isfinite(cell))


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def show(cell: Cell, column: Column) -> str:
    """12,345.68 with two digits; yes or no; a dash where nothing is known."""
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
    nothing = not text.strip("-0.,")  # -0.00 is 0.00 to people
    return text.lstrip("-") if nothing else text.replace("-", MINUS, 1) if number < 0 else text


def plain(value: Any) -> Any:
    """The same value with null for what JSON has no word for: NaN and the infinities."""
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
