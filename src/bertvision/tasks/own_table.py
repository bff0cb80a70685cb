"""A user's labelled table, checked and ready to train on: a file, a data frame, or columns in memory.

table = read_own_table("train.csv")                 columns and kind are guessed; table.notes says how
table = from_columns(texts, labels)                 lists, arrays, Series
notes = check_same_labels(train, dev)
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bertvision.errors import UserError, suggest
from bertvision.kinds import KINDS, LABEL, SCORE, Kind
from bertvision.tables import counted
from bertvision.tasks.base import check_unique_ids
from bertvision.tasks.files import Columns, Row, note_on_delimiter, read_rows
from bertvision.tasks.guess_columns import Given, guess_columns
from bertvision.tasks.guess_kind import guess_kind, numbers_in
from bertvision.tasks.in_memory import as_list, rows_of_columns, rows_of_frame, split_pairs
from bertvision.tasks.table_notes import note_on_columns, note_on_conflicts, notes_on_labels, notes_on_rows
from bertvision.tasks.table_reader import KeptRow, TableReader
from bertvision.tasks.table_source import SHOWN, Source, number_of, quoted, unit_of

PEEKED = 1000
"""Rows by which columns are guessed."""
OVERLAP = 0.05
"""Share of dev texts in train from which a note is written."""
IN_MEMORY = Source("the data", is_file=False, row="row")


@dataclass(frozen=True)
class OwnTable:
    texts: list[str]
    pairs: list[str] | None
    """Second texts, if the table has pairs."""
    labels: list[str] | None
    """Kind label: the name of each row's label."""
    scores: list[float] | None
    """Kind score."""
    weights: list[float] | None
    """Sample weights, if a column was named."""
    ids: list[str]
    """The id column, else the number of the line or row."""
    places: list[str]
    """ "train.csv, line 3", for messages."""
    kind: Kind
    columns: Columns
    total: int
    """Rows in the table before skipping and sampling."""
    notes: list[str]
    """Sentences for the user: what was guessed and how to change it, rows skipped, rows sampled."""
    name: str = IN_MEMORY.name
    """ "train.csv", for messages."""

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Options:
    """What the user asked for, apart from columns."""

    kind: Kind | str | None
    skip_empty: bool
    most_rows: int | None
    seed: int
    like: OwnTable | None


def read_own_table(
    path: Path | str,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    weight: str | None = None,
    id: str | None = None,
    kind: Kind | str | None = None,
    skip_empty: bool = False,
    most_rows: int | None = None,
    seed: int = 0,
    like: OwnTable | None = None,
) -> OwnTable:
    """Read a CSV, TSV, JSON lines or Parquet file. Columns that are not given, and the kind, are guessed.

    `most_rows` draws a random sample of a longer file. `like` is the training table: its columns and kind are used,
    nothing is guessed, and the labels need not suffice for training.
    """
    path = Path(path).expanduser()
    given = Given(text, text_pair, label, weight, id)
    options = Options(kind, skip_empty, most_rows, seed, like)
    return _read(read_rows(path), Source(path.name), given, options, note_on_delimiter(path))


def from_frame(
    frame: Any,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    weight: str | None = None,
    id: str | None = None,
    kind: Kind | str | None = None,
    skip_empty: bool = False,
    most_rows: int | None = None,
    seed: int = 0,
    like: OwnTable | None = None,
) -> OwnTable:
    """Like `read_own_table`, for a pandas or polars data frame."""
    given = Given(text, text_pair, label, weight, id)
    return _read(rows_of_frame(frame), IN_MEMORY, given, Options(kind, skip_empty, most_rows, seed, like))


def from_columns(
    texts: Any,
    targets: Any,
    *,
    pairs: Any = None,
    weights: Any = None,
    ids: Any = None,
    kind: Kind | str | None = None,
    skip_empty: bool = False,
    most_rows: int | None = None,
    seed: int = 0,
    like: OwnTable | None = None,
) -> OwnTable:
    """Like `read_own_table`, for lists, tuples, arrays or Series.

    Second texts are in `pairs`, or `texts` holds pairs such as (question, passage).
    """
    first, second = split_pairs(as_list(texts, "texts"))
    if second is not None and pairs is not None:
        raise UserError("texts holds pairs already: leave out pairs, or pass single texts.")
    found = {"texts": first, "labels": as_list(targets, "labels"), "pairs": second}
    for name, values in (("pairs", pairs), ("weights", weights), ("ids", ids)):
        if values is not None:
            found[name] = as_list(values, name)
    columns = {name: values for name, values in found.items() if values is not None}
    given = Given(*(name if name in columns else None for name in ("texts", "pairs", "labels", "weights", "ids")))
    return _read(rows_of_columns(columns), IN_MEMORY, given, Options(kind, skip_empty, most_rows, seed, like))


def check_same_labels(train: OwnTable, dev: OwnTable) -> list[str]:
    """Return notes on a dev table. UserError if it has labels that the training table lacks."""
    notes = _compare_labels(train, dev)
    seen = set(zip(train.texts, train.pairs or train.texts, strict=True))
    shared = sum(both in seen for both in zip(dev.texts, dev.pairs or dev.texts, strict=True))
    if shared >= OVERLAP * len(dev):
        notes.append(
            f"{shared:,} of the {counted(len(dev), 'text')} in {dev.name} also occur in {train.name}. Scores on "
            f"{dev.name} will be too high."
        )
    return notes


def _compare_labels(train: OwnTable, dev: OwnTable) -> list[str]:
    if train.labels is None or dev.labels is None:
        return []
    known, found = Counter(train.labels), Counter(dev.labels)
    unknown = [f"{label!r} ({counted(rows, 'row')})" for label, rows in found.items() if label not in known]
    if unknown:
        more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
        raise UserError(
            f"{dev.name} has {counted(len(unknown), 'label')} that {train.name} lacks: {', '.join(unknown[:SHOWN])}"
            f"{more}. Labels without training rows can't be predicted. Correct the spelling, add such rows to "
            f"{train.name}, or remove them from {dev.name}."
        )
    absent = [label for label in known if label not in found]
    if not absent:
        return []
    return [f"{dev.name} has no rows for {counted(len(absent), 'label')} of {train.name}: {quoted(absent)}."]


# ---------------------------------------------------------------------- from rows to a table


def _read(rows: Iterator[Row], source: Source, given: Given, options: Options, notes: Iterable[str] = ()) -> OwnTable:
    kind = _check_options(options, source)
    first = list(islice(rows, PEEKED))
    if not first:
        raise UserError(f"{source.name} has no rows.")
    source = replace(source, row=unit_of(first[0][0]))
    if options.like is not None:
        given = _given_like(options.like.columns, given)
    columns = guess_columns([row for _, row in first], given, source)
    reader = TableReader(source, columns, given.weight, options.most_rows, options.seed)
    for place, row in chain(first, rows):
        reader.add(place, row)
    kept, gaps, complete = reader.finish()
    if given.label is None and columns.label in reader.values:
        raise UserError(
            f"{source.name} seems to have no header: '{columns.label}' is in the first line and also a label. Add a "
            f"first line with the names of the columns, or confirm the column with {source.option('label')}."
        )
    if gaps and not options.skip_empty:
        raise UserError(
            f"{source.name}: {'; '.join(gap.describe(source) for gap in gaps)}. Fill them in, or leave these rows out "
            f"with {source.option('skip_empty')}."
        )
    if not kept:
        raise UserError(f"{source.name} has no rows with both a text and a label.")
    why: list[str] = []
    if kind is None:
        kind, why = guess_kind(reader.values, columns.label, source)
    about = [*notes, *note_on_columns(given, columns, kind, reader.values, source), *why]
    about += notes_on_rows(source, reader.total, complete, len(kept), [gap.describe(source) for gap in gaps])
    if options.like is None:
        _check_targets(kind, reader.values, columns.label, source)
        about += notes_on_labels(reader.values, columns.label) if kind is LABEL else []
        about += note_on_conflicts([(row.text, row.pair, row.label) for row in kept])
    ids = _ids(kept, columns, given, source, about)
    return _table(kept, kind, columns, ids, reader.total, about, source)


def _check_options(options: Options, source: Source) -> Kind | None:
    if options.most_rows is not None and options.most_rows < 2:
        raise UserError(f"{source.option('rows')} must be at least 2, found {options.most_rows}.")
    kind = options.kind if options.kind is not None or options.like is None else options.like.kind
    if kind is None:
        return None
    known = {"label": LABEL, "score": SCORE}
    if isinstance(kind, str) and kind not in known:
        raise UserError(f"{source.option('kind', kind)}: {suggest(kind, known)}")
    found = KINDS[kind] if isinstance(kind, str) else kind
    assert found in (LABEL, SCORE), "tables hold labels or scores"
    return found


def _given_like(columns: Columns, given: Given) -> Given:
    return Given(
        given.text or columns.text, given.text_pair or columns.text_pair, given.label or columns.label, given.weight,
        given.id,
    )  # fmt: skip


def _check_targets(kind: Kind, values: Counter[str], column: str, source: Source) -> None:
    if kind is SCORE:
        numbers = numbers_in(values)
        if numbers is not None and len(set(numbers.values())) < 2:
            raise UserError(f"{source.name}: all numbers in column '{column}' are the same, {next(iter(values))}.")
    elif len(values) < 2:
        (label, rows), *_ = values.items()
        raise UserError(
            f"{source.name}: column '{column}' has only one label, {label!r} ({counted(rows, 'row')}). At least two "
            f"are needed. If another column holds the label, name it with {source.option('label', 'COLUMN')}."
        )


def _ids(rows: list[KeptRow], columns: Columns, given: Given, source: Source, notes: list[str]) -> list[str]:
    """The id column; the numbers of the rows if there is none, or if a guessed one has gaps or repetitions."""
    numbers, named = [number_of(row.place) for row in rows], [row.id for row in rows if row.id is not None]
    if columns.id is None:
        return numbers
    if given.id is not None:
        if len(named) < len(rows):
            place = next(row.place for row in rows if row.id is None)
            raise UserError(f"{place}: column '{columns.id}' is empty. Give every row an id, or name no id column.")
        check_unique_ids(named, source.name)
    elif len(set(named)) < len(rows):
        notes.append(f"Column '{columns.id}' has repeated or empty ids, so the numbers of the {source.row}s are used.")
        return numbers
    return named


def _table(
    rows: list[KeptRow], kind: Kind, columns: Columns, ids: list[str], total: int, notes: list[str], source: Source
) -> OwnTable:
    weights = [row.weight for row in rows if row.weight is not None]
    if weights and not sum(weights):
        raise UserError(f"{source.name}: all weights are 0.")
    return OwnTable(
        texts=[row.text for row in rows],
        pairs=[row.pair or "" for row in rows] if columns.text_pair else None,
        labels=[row.label for row in rows] if kind is LABEL else None,
        scores=[_score(row, columns.label, source) for row in rows] if kind is SCORE else None,
        weights=weights or None,
        ids=ids,
        places=[row.place for row in rows],
        kind=kind,
        columns=columns,
        total=total,
        notes=notes,
        name=source.name,
    )


def _score(row: KeptRow, column: str, source: Source) -> float:
    number = (numbers_in({row.label: 1}, codes=True) or {}).get(row.label)
    if number is None or not math.isfinite(number):
        raise UserError(
            f"{row.place}: column '{column}' must hold numbers, found {row.label!r:.80}. Correct it, or treat the "
            f"column as labels with {source.option('kind', 'label')}."
        )
    return number
