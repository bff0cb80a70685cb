"""Read a table or a text file of any size in batches, with bounded memory: from a path, or from an address.

for rows in read_row_batches("s3://bucket/new.parquet"): …            [(place, cells by column), …]
for examples in batches_of(read_any_text("new.csv")): …               [Example, …], as `bertvision predict --file` reads

A malformed file raises UserError where the reading gets there. A batch is closed by rows or by characters.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from bertvision.data.examples import Example
from bertvision.tasks.data_file import DataFile, find_data_file
from bertvision.tasks.files import Row, read_rows
from bertvision.tasks.text_files import SPOOLED_ROW_BYTES

Item = TypeVar("Item")
MOST_ROWS, MOST_CHARACTERS = 4096, 4_000_000
"""Of a batch."""


def read_row_batches(path: str | DataFile, rows: int = MOST_ROWS) -> Iterator[list[Row]]:
    """The rows of a CSV, TSV, JSON lines or Parquet file, each with its place ("new.csv, line 3") for messages."""
    return _batch(read_rows(find_data_file(path), SPOOLED_ROW_BYTES), rows, _size_of_row)


def batches_of(examples: Iterable[Example], rows: int = MOST_ROWS) -> Iterator[list[Example]]:
    return _batch(examples, rows, lambda one: len(one.text) + len(one.text_pair or ""))


def _size_of_row(row: Row) -> int:
    return sum(len(cell) for cell in row[1].values() if isinstance(cell, str))


def _batch(items: Iterable[Item], rows: int, size_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    size = 0
    for one in items:
        batch.append(one)
        size += size_of(one)
        if len(batch) >= rows or size >= MOST_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
