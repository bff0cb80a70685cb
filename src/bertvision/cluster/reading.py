"""The rows of one input file, in batches: CSV, TSV, JSON lines or Parquet, at a path or an address."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from bertvision.data.examples import Example
from bertvision.errors import UserError, shorten
from bertvision.tasks.data_file import find_data_file
from bertvision.tasks.files import FORMATS, Columns, read_rows
from bertvision.tasks.files import Row as Cells
from bertvision.tasks.table_source import number_of
from bertvision.tasks.text_files import SPOOLED_ROW_BYTES, plain_suffix, reading_up_to

BATCH, MOST_CHARACTERS = 1024, 2_000_000
"""Rows and characters that are answered together."""
LARGEST = 1e9
"""Megabytes of a file: nothing is kept but a batch."""


class Input(NamedTuple):
    """A row of a file: what to answer, or what is wrong with it."""

    example: Example
    problem: str | None


def is_readable(name: str) -> bool:
    """Whether a file has one of the formats, by its name."""
    hidden = Path(name).name.startswith((".", "_"))
    return not hidden and plain_suffix(Path(name)) in FORMATS


def read_batches(address: str, choices: Sequence[Columns]) -> Iterator[list[Input]]:
    """Every row of a file, in order. `choices` are the names that its columns can have, the best first. A row without
    text has a problem; a file that can't be read raises UserError where the reading gets there."""
    rows = _iterate_rows(address)
    first = list(islice(rows, 1))
    columns = choose_columns(address, choices, first)
    batch, size = list[Input](), 0
    for cells in chain(first, rows):
        batch.append(to_input(cells, columns))
        size += len(batch[-1].example.text) + len(batch[-1].example.text_pair or "")
        if len(batch) >= BATCH or size >= MOST_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def choose_columns(address: str, choices: Sequence[Columns], rows: list[Cells]) -> Columns:
    there = rows[0][1] if rows else {}
    for columns in choices:
        if all(name in there for name in (columns.text, columns.text_pair, columns.id) if name):
            return columns
    wanted = " · ".join(", ".join(name for name in (one.text, one.text_pair, one.id) if name) for one in choices)
    raise UserError(f"{address}: expected one of these sets of columns: {wanted}; found {shorten(list(there), 300)}.")


def to_input(cells: Cells, columns: Columns) -> Input:
    place, row = cells
    texts: list[str] = []
    problem = None
    for name in (columns.text, columns.text_pair):
        if name is not None:
            cell = row.get(name)
            if cell is not None and not isinstance(cell, str):
                problem = problem or f"column '{name}' must be text, found {shorten(cell)}."
            texts.append(cell if isinstance(cell, str) else "")
    own = row.get(columns.id or "id")
    identity = number_of(place) if own in (None, "") else str(own)
    return Input(Example(identity, texts[0], texts[1] if len(texts) > 1 else None), problem)


def _iterate_rows(address: str) -> Iterator[Cells]:
    with reading_up_to(LARGEST):
        yield from read_rows(find_data_file(address), SPOOLED_ROW_BYTES)
