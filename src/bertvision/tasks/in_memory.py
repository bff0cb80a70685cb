"""Rows of data in memory: lists, arrays, Series and data frames, recognised by their methods (nothing is imported)."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bertvision.errors import UserError, list_names, shorten
from bertvision.tasks.files import Row

PANDAS_MISSING = ("NAType", "NaTType")


def as_list(values: Any, name: str) -> list[Any]:
    """The values of a list, tuple, array, Series or iterator as plain Python objects."""
    if hasattr(values, "columns"):
        raise UserError(f"{name} must be one column, found a table. Pass one of its columns, such as table['text'].")
    if isinstance(values, str | bytes | Mapping) or not (isinstance(values, Iterable) or hasattr(values, "to_list")):
        raise UserError(f"{name} must be a list with one entry per row, found {type(values).__name__}.")
    for method in ("to_list", "tolist"):
        if hasattr(values, method):
            found = getattr(values, method)()
            return found if isinstance(found, list) else [found]
    return [value.item() if getattr(value, "ndim", None) == 0 else value for value in values]  # NumPy scalars


def is_missing(cell: Any) -> bool:
    """Whether a cell holds nothing: None, NaN, or blank text. The text "NA" is a value."""
    if cell is None or type(cell).__name__ in PANDAS_MISSING:
        return True
    return (isinstance(cell, float) and math.isnan(cell)) or (isinstance(cell, str) and not cell.strip())


def rows_of_columns(columns: Mapping[str, list[Any]]) -> Iterator[Row]:
    """Rows of columns with equal lengths, called "row 1", "row 2" …"""
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} has {length:,}" for name, length in lengths.items())
        raise UserError(f"every column needs one entry per row, but their numbers differ: {found}.")
    names = list(columns)
    for number, cells in enumerate(zip(*columns.values(), strict=True), start=1):
        yield f"row {number}", dict(zip(names, cells, strict=True))


def rows_of_frame(frame: Any) -> Iterator[Row]:
    """Rows of a pandas or polars data frame."""
    if not hasattr(frame, "columns"):
        found = "None" if frame is None else type(frame).__name__
        raise UserError(f"expected a data frame, found {found}. Pass lists of texts and labels instead.")
    names = list(frame.columns)
    if len(set(names)) < len(names):
        raise UserError(f"two columns of the data frame have the same name: {list_names(list(map(str, names)), 300)}.")
    yield from rows_of_columns({str(name): as_list(frame[name], str(name)) for name in names})


def split_pairs(texts: list[Any]) -> tuple[list[Any], list[Any] | None]:
    """First and second texts, if the first entry is a pair; otherwise the texts and None."""
    if not texts or not isinstance(texts[0], list | tuple):
        return texts, None
    for number, entry in enumerate(texts, start=1):
        if not isinstance(entry, list | tuple) or len(entry) != 2:
            raise UserError(f"row {number}: expected a pair of texts as in row 1, found {shorten(entry)}.")
    return [first for first, _ in texts], [second for _, second in texts]
