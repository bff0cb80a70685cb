"""A user's labelled table, checked and ready to train on: a file, a data frame, or columns in memory.

table = read_own_table("train.csv")                 columns and kind are guessed; table.notes says how
table = from_columns(texts, labels)                 lists, arrays, Series
notes = check_same_labels(train, dev)
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any

from bertvision.errors import UserError, shorten
from bertvision.kinds import Kind
from bertvision.tables import counted
from bertvision.tasks.build_table import IN_MEMORY, Options, OwnTable, build_table
from bertvision.tasks.files import note_on_delimiter, read_rows
from bertvision.tasks.guess_columns import Given
from bertvision.tasks.in_memory import as_list, rows_of_columns, rows_of_frame, split_pairs
from bertvision.tasks.table_source import SHOWN, Source, quoted

__all__ = ["OwnTable", "check_same_labels", "from_columns", "from_frame", "read_own_table"]

OVERLAP = 0.05
"""Share of dev texts in train from which a note is written."""


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
    path = Path(os.path.expanduser(path))
    given = Given(text, text_pair, label, weight, id)
    options = Options(kind, skip_empty, most_rows, seed, like)
    return build_table(read_rows(path), Source(path.name), given, options, note_on_delimiter(path))


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
    return build_table(rows_of_frame(frame), IN_MEMORY, given, Options(kind, skip_empty, most_rows, seed, like))


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
    return build_table(rows_of_columns(columns), IN_MEMORY, given, Options(kind, skip_empty, most_rows, seed, like))


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
    unknown = [f"{shorten(label)} ({counted(rows, 'row')})" for label, rows in found.items() if label not in known]
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
