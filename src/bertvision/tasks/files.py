"""A user's own texts: CSV, TSV, JSON lines or Parquet with columns named in the config.

CSV is quoted as in RFC 4180. TSV is not quoted, as in GLUE: a line is a row, and tabs separate cells. Use CSV or JSON
lines for texts with tabs or line breaks. CSV and TSV start with a header line. Files with another delimiter than their
extension promises are read with theirs (`delimiter_of`).
"""

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bertvision.data.examples import Example
from bertvision.data.spooled import collect_examples
from bertvision.disk import parse_json, why_no_path
from bertvision.errors import UserError, list_names, shorten, suggest
from bertvision.kinds import Kind
from bertvision.kinds.label import read_label
from bertvision.tables import counted
from bertvision.tasks.base import check_unique_ids
from bertvision.tasks.data_file import DataFile
from bertvision.tasks.table_source import Gap, Source, unit_of
from bertvision.tasks.text_files import (
    MOST_COLUMNS,
    MOST_LINE,
    ROW_BYTES,
    SPOOLED_ROW_BYTES,
    Bound,
    find_file,
    open_plain,
    plain_suffix,
    read_lines,
    read_raw_lines,
    split_tabs,
    the_only_file,
    too_long,
)

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
DELIMITER_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
PEEKED = 20
"""Rows by which another delimiter is recognised."""
MOST_NAME, PARQUET_ROWS, PARQUET_BUFFER = 200, 1000, 1 << 20
"""Characters of a column's name; rows of a batch of a Parquet file, and bytes of each column that are read at once."""
STEMS = {"train": ("train",), "dev": ("dev", "validation"), "test": ("test",)}
"""File names without their extension, by split."""

Row = tuple[str, Mapping[str, Any]]
"""Location of a row, for messages ("train.csv, line 3"), and its cells by column."""


@dataclass(frozen=True)
class Columns:
    text: str = "text"
    text_pair: str | None = None
    label: str = "label"
    id: str | None = None


def read_file(path: DataFile, columns: Columns, kind: Kind, labels: Sequence[str], split: str) -> Sequence[Example]:
    """Read every row of a user's file as an Example. Only a test split may lack labels. Many rows wait on disk."""
    return to_examples(read_rows(path, SPOOLED_ROW_BYTES), columns, kind, labels, split, str(path))


def to_examples(
    rows: Iterable[Row], columns: Columns, kind: Kind, labels: Sequence[str], split: str, where: str
) -> Sequence[Example]:
    """Convert rows to Examples; `where` names the file or hub dataset in messages."""
    examples = collect_examples(_to_examples(rows, columns, kind, labels, split, where))
    if columns.id:
        check_unique_ids(lambda: (example.id for example in examples), where)
    return examples


def _to_examples(
    rows: Iterable[Row], columns: Columns, kind: Kind, labels: Sequence[str], split: str, where: str
) -> Iterator[Example]:
    gaps, number = {name: Gap("text", name) for name in (columns.text, columns.text_pair) if name}, 0
    for number, (place, row) in enumerate(rows, start=1):
        text = _text(row, columns.text, "text", place)
        pair = _text(row, columns.text_pair, "text_pair", place) if columns.text_pair else None
        identity = _identity(row, columns.id, place) if columns.id else f"{split}-{number - 1}"
        target = _target(row, columns.label, kind, labels, place, required=split != "test")
        for name, gap in gaps.items():
            if not row[name].strip():
                gap.add(place)
        yield Example(identity, text, pair, target)
    if not number:
        raise UserError(f"{where} has no rows.")
    if split != "test":
        _refuse_gaps(gaps.values(), where, unit_of(place))


def _refuse_gaps(gaps: Iterable[Gap], where: str, unit: str) -> None:
    found = [gap.describe(Source(where, row=unit)) for gap in gaps if gap.count]
    if found:
        raise UserError(f"{where}: {'; '.join(found)}. Fill them in, or remove these rows.")


def discover_labels(rows: Iterable[Row], column: str, where: str) -> tuple[str, ...]:
    """The labels found, sorted."""
    labels = tuple(sorted({read_label(_cell(row, column, "label", place), place, column) for place, row in rows}))
    if len(labels) < 2:
        raise UserError(
            f"{where}: column '{column}' has {'only one label: ' + labels[0] if labels else 'no labels'}. "
            "At least two are needed. If the others occur only in dev, list all of them in task.labels."
        )
    return labels


def find_files(folder: Path, splits: Iterable[str] = tuple(STEMS)) -> dict[str, Path]:
    """The file of each split in a folder: train.csv, dev.tsv, test.jsonl.gz …; splits without one are left out."""
    found = {}
    for split in splits:
        paths = [path for stem in STEMS[split] for ending in FORMATS if (path := find_file(folder, stem + ending))]
        path = the_only_file(folder, split, paths)
        if path:
            found[split] = path
    return found


def check_columns(path: DataFile, columns: Columns, labelled: bool) -> list[str]:
    """Mistakes in the column names, judging by the file's first row; empty if there are none."""
    _, row = next(read_rows(path), ("", {}))
    if not row:
        return [f"{path} has no rows."]
    wanted = {"text": columns.text, "text_pair": columns.text_pair, "id": columns.id}
    if labelled:
        wanted["label"] = columns.label
    return [_no_column(row, name, key, str(path)) for key, name in wanted.items() if name and name not in row]


def read_rows(path: DataFile, row_bytes: int = ROW_BYTES) -> Iterator[Row]:
    """Every row of a CSV, TSV, JSON lines or Parquet file; the file extension decides which. `row_bytes` is what a row
    takes besides its text: less if rows are not kept in memory."""
    if why := why_no_path(str(path)):
        raise UserError(f"there is no file {shorten(str(path))}: {why}.")
    if isinstance(path, Path) and os.path.isdir(path):
        raise UserError(f"{path} is a folder, but a file was expected.")
    suffix = plain_suffix(path)
    if suffix in DELIMITERS:
        delimiter = delimiter_of(path)
        quoted = suffix == ".csv" or delimiter != "\t"
        return _tabular(path, _read_csv(path, delimiter, row_bytes) if quoted else _read_tsv(path, row_bytes))
    if suffix == ".jsonl":
        return _read_json_lines(path, row_bytes)
    if suffix == ".parquet":
        return _read_parquet(path, row_bytes)
    raise wrong_ending(path, FORMATS)


def wrong_ending(path: DataFile, expected: Sequence[str]) -> UserError:
    suffix = plain_suffix(path)
    hint = " Save the sheet as CSV (UTF-8)." if suffix in (".xlsx", ".xls", ".ods") else ""
    return UserError(f"{path} ends in '{suffix}', expected {', '.join(expected)} (text also with .gz or .xz).{hint}")


def delimiter_of(path: DataFile) -> str:
    """What separates the cells of a CSV or TSV file: what its extension says, unless the header has a single cell and
    the first rows agree on another delimiter."""
    expected = DELIMITERS[plain_suffix(path)]
    header = next(_read_csv(path, expected) if expected == "," else _read_tsv(path))[1]
    others = [mark for mark in DELIMITER_NAMES if mark != expected and mark in header[0]]
    if len(header) > 1 or not others:
        return expected
    widths = {mark: _widths(path, mark) for mark in others}
    agreed = {mark: found.pop() for mark, found in widths.items() if len(found) == 1}
    if not agreed:
        likely = DELIMITER_NAMES[max(others, key=header[0].count)]
        raise UserError(
            f"{path} should be separated by {DELIMITER_NAMES[expected]}. Its header looks separated by {likely} "
            f"({header[0][:80]}), but its rows have different numbers of cells. Enclose cells that contain {likely} in "
            '"…", or save the file again as CSV with commas.'
        )
    return max(agreed, key=lambda mark: agreed[mark])


def note_on_delimiter(path: DataFile) -> list[str]:
    """A sentence for the user if a file has another delimiter than its extension promises."""
    suffix = plain_suffix(path)
    if suffix not in DELIMITERS or (found := delimiter_of(path)) == DELIMITERS[suffix]:
        return []
    return [f"{path.name} is separated by {DELIMITER_NAMES[found]}, not {DELIMITER_NAMES[DELIMITERS[suffix]]}."]


def _widths(path: DataFile, delimiter: str) -> set[int]:
    """The numbers of cells that occur in the first rows; none if they are not valid CSV."""
    try:
        return {len(cells) for _, cells in islice(_read_csv(path, delimiter), PEEKED)}
    except UserError:
        return set()


def _read_tsv(path: DataFile, row_bytes: int = ROW_BYTES) -> Iterator[tuple[int, list[str]]]:
    return ((number, split_tabs(line)) for number, line in read_lines(path, row_bytes) if line)


def _read_csv(path: DataFile, delimiter: str = ",", row_bytes: int = ROW_BYTES) -> Iterator[tuple[int, list[str]]]:
    number, size = 1, 0

    def lines() -> Iterator[str]:
        nonlocal size
        for _, line in read_raw_lines(path, row_bytes):
            size += len(line)
            if size > MOST_LINE:  # quoted cells with line ends
                raise UserError(too_long(path, number))
            yield line

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if cells:  # skip empty lines
                yield number, cells
            number, size = reader.line_num + 1, 0
    except csv.Error as error:
        raise UserError(
            f"{path}, line {number}: the row that starts here is not valid CSV ({error}). "
            'Enclose cells with commas, quotation marks or line breaks in "…", and write "" for each quotation mark '
            "inside them. Use JSON lines (.jsonl) for very long texts."
        ) from error


def _tabular(path: DataFile, lines: Iterator[tuple[int, list[str]]]) -> Iterator[Row]:
    _, header = next(lines)
    check_header(header, f"{path}, line 1")
    for number, cells in lines:
        if len(cells) != len(header):
            raise UserError(
                f"{path}, line {number}: expected {counted(len(header), 'cell')}, as in the header "
                f"({list_names(header, 300)}), found {len(cells)}{' or more' if len(cells) > MOST_COLUMNS else ''}."
            )
        yield f"{path}, line {number}", dict(zip(header, cells, strict=True))


def check_header(names: Sequence[str], place: str) -> None:
    if len(names) > MOST_COLUMNS:
        raise UserError(f"{place}: more than {MOST_COLUMNS:,} columns, the most that a table can have.")
    if long := next((name for name in names if len(str(name)) > MOST_NAME), None):
        raise UserError(
            f"{place}: a column is called {shorten(long)}, but names of columns have at most {MOST_NAME} characters. "
            "Does the file begin with a line of names?"
        )
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"{place}: two columns have the same name in the header: {list_names(twice, 300)}.")


def _read_parquet(path: DataFile, row_bytes: int) -> Iterator[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            f"{path}: reading Parquet needs pyarrow: pip install 'bertvision[parquet]' (or pyarrow)."
        ) from None
    number, bound = 0, Bound(path)
    try:
        # Page by page: a row group can have a million rows.
        with open_plain(path) as raw, parquet.ParquetFile(raw, buffer_size=PARQUET_BUFFER, pre_buffer=False) as file:
            check_header(file.schema_arrow.names, str(path))
            for batch in file.iter_batches(batch_size=PARQUET_ROWS, use_threads=False):
                bound.add(batch.nbytes + row_bytes * batch.num_rows, "row", number + 1)
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except FileNotFoundError:
        raise UserError(f"there is no file {path}.") from None
    except (OSError, ValueError, OverflowError, pyarrow.ArrowException) as error:
        if isinstance(error, UserError):
            raise
        why = re.sub(r"\b\w+(Exception|Error): ", "", " ".join(str(error).split()))[:300].rstrip(".")
        raise UserError(f"{path} is not a valid Parquet file: {why}.") from error


def _read_json_lines(path: DataFile, row_bytes: int) -> Iterator[Row]:
    for number, line in read_lines(path, row_bytes):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {number}: not valid JSON: {error.msg} at column {error.colno}.") from error
        except ValueError as error:
            raise UserError(f"{path}, line {number}: not valid JSON: {error}.") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: expected an object {{…}}, found {shorten(row)}.")
        if len(row) > MOST_COLUMNS:
            check_header(list(row), f"{path}, line {number}")
        yield f"{path}, line {number}", row


def _no_column(row: Mapping[str, Any], column: str, key: str, place: str) -> str:
    return f"{place}: there is no column {shorten(column)} (task.{key}): {suggest(column, row)}"


def _cell(row: Mapping[str, Any], column: str, key: str, place: str) -> Any:
    if column not in row:
        raise UserError(_no_column(row, column, key, place))
    return row[column]


def _text(row: Mapping[str, Any], column: str, key: str, place: str) -> str:
    cell = _cell(row, column, key, place)
    if not isinstance(cell, str):
        raise UserError(f"{place}: column '{column}' (task.{key}) must be text, found {shorten(cell)}.")
    return cell


def _identity(row: Mapping[str, Any], column: str, place: str) -> str:
    cell = _cell(row, column, "id", place)
    if cell is None or cell == "":
        raise UserError(f"{place}: column '{column}' (task.id) is empty. Give every row an id, or leave task.id out.")
    return str(cell)


def _target(
    row: Mapping[str, Any], column: str, kind: Kind, labels: Sequence[str], place: str, required: bool
) -> int | float | None:
    if not required and row.get(column) in (None, ""):
        return None
    return kind.parse(_cell(row, column, "label", place), labels, place, column)
