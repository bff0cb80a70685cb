"""Build an OwnTable from rows: guess columns and kind, check targets, collect notes."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice

from bertvision.errors import UserError, shorten, suggest
from bertvision.kinds import KINDS, LABEL, SCORE, Kind
from bertvision.tables import counted
from bertvision.tasks.base import check_unique_ids
from bertvision.tasks.files import Columns, Row
from bertvision.tasks.guess_columns import Given, guess_columns
from bertvision.tasks.guess_kind import guess_kind, numbers_in
from bertvision.tasks.table_notes import note_on_columns, note_on_conflicts, notes_on_labels, notes_on_rows
from bertvision.tasks.table_reader import KeptRow, TableReader
from bertvision.tasks.table_source import Source, number_of, unit_of

PEEKED = 1000
"""Rows by which columns are guessed."""
LARGEST, SMALLEST, CLOSEST = 1e15, 1e-15, 1e-5
"""Scores are fitted in single precision: their largest size, their least range, and that relative to their size."""
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


def build_table(
    rows: Iterator[Row], source: Source, given: Given, options: Options, notes: Iterable[str] = ()
) -> OwnTable:
    """Read all rows, check them and keep those that the options ask for. `notes` come first in the table's notes."""
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
    kept, gaps, complete = reader.finish(has_labels=kind is LABEL)
    _check_header(given, columns, reader.values, source)
    missing = [gap.describe(source) for gap in gaps]
    _check_gaps(missing, len(kept), options, source)
    why: list[str] = []
    if kind is None:
        kind, why = guess_kind(reader.values, columns.label, source)
    about = [*notes, *note_on_columns(given, columns, kind, reader.values, source), *why]
    about += notes_on_rows(source, reader.total, complete, len(kept), missing)
    if options.like is None:
        _check_targets(kind, reader.values, columns.label, source)
        about += notes_on_labels(reader.values, columns.label) if kind is LABEL else []
        about += note_on_conflicts([(row.text, row.pair, row.label) for row in kept])
    ids = _ids(kept, columns, given, source, about)
    return _table(kept, kind, columns, ids, reader.total, about, source)


def _check_header(given: Given, columns: Columns, values: Counter[str], source: Source) -> None:
    if source.is_file and given.label is None and columns.label in values:
        raise UserError(
            f"{source.name} seems to have no header: '{columns.label}' is in the first line and also a label. Add a "
            f"first line with the names of the columns, or confirm the column with {source.option('label')}."
        )


def _check_gaps(missing: list[str], kept: int, options: Options, source: Source) -> None:
    if missing and not options.skip_empty:
        raise UserError(
            f"{source.name}: {'; '.join(missing)}. Fill them in, or leave these rows out with "
            f"{source.option('skip_empty')}."
        )
    if not kept:
        raise UserError(f"{source.name} has no rows with both a text and a label.")


def _check_options(options: Options, source: Source) -> Kind | None:
    if options.most_rows is not None and options.most_rows < 2:
        raise UserError(f"{source.option('most_rows')} must be at least 2, found {options.most_rows}.")
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
        if numbers is not None:
            _check_spread(list(numbers.values()), column, source)
    elif len(values) < 2:
        (label, rows), *_ = values.items()
        raise UserError(
            f"{source.name}: column '{column}' has only one label, {shorten(label)} ({counted(rows, 'row')}). At least "
            f"two are needed. If another column holds the label, name it with {source.option('label', 'COLUMN')}."
        )


def _check_spread(numbers: list[float], column: str, source: Source) -> None:
    """Refuse scores that are all the same, or the same in single precision."""
    lowest, highest = min(numbers), max(numbers)
    largest = max(abs(lowest), abs(highest))
    if largest > LARGEST:
        return  # refused later, with its row
    if lowest == highest:
        raise UserError(f"{source.name}: all numbers in column '{column}' are the same, {lowest:g}.")
    if highest - lowest < max(SMALLEST, CLOSEST * largest):
        raise UserError(
            f"{source.name}: the numbers in column '{column}' are too close to each other, from {lowest:.12g} to "
            f"{highest:.12g}. Multiply them, or subtract their mean."
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
        check_unique_ids(lambda: named, source.name)
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
    if number is None or math.isnan(number):
        raise UserError(
            f"{row.place}: column '{column}' must hold numbers, found {shorten(row.label)}. Correct it, or treat the "
            f"column as labels with {source.option('kind', 'label')}."
        )
    if abs(number) > LARGEST:
        raise UserError(
            f"{row.place}: column '{column}' must hold numbers between {-LARGEST:g} and {LARGEST:g}, found "
            f"{shorten(row.label)}. Divide all of them by the same number."
        )
    return number
