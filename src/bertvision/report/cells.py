"""A value of a table as people read it, and as JSON can hold it."""

import math
from typing import Any

from bertvision.report.block import Cell, Column, Frame
from bertvision.report.wording import MINUS

MISSING = "–"


def is_missing(cell: Cell) -> bool:
    """None, or a float that is no number: neither can be ranked against the rest."""
    return cell is None or (isinstance(cell, float) and not math.isfinite(cell))


def is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool) and not is_missing(cell)


def numeric_columns(frame: Frame) -> list[bool]:
    """For each column, whether all that is there is numbers; an empty one goes by whether it names digits."""
    numeric = []
    for place, column in enumerate(frame.columns):
        there = [row[place] for row in frame.rows if not is_missing(row[place])]
        numeric.append(all(is_number(cell) for cell in there) if there else column.digits is not None)
    return numeric


def group_notes(frame: Frame) -> list[tuple[str, str]]:
    """(headings, note) for a legend: columns that share a note share a line."""
    groups: dict[str, list[str]] = {}
    for column in frame.columns:
        if column.note:
            groups.setdefault(column.note, []).append(column.heading)
    return [(", ".join(headings), note) for note, headings in groups.items()]


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
