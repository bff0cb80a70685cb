"""Read a user's table row by row: check every cell, count labels, find gaps, and keep all rows or a sample."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from bertvision.errors import UserError, shorten
from bertvision.kinds.label import read_label
from bertvision.tasks.files import Columns
from bertvision.tasks.guess_kind import NOT_A_NUMBER, numbers_in
from bertvision.tasks.in_memory import is_missing
from bertvision.tasks.row_sample import RowSample
from bertvision.tasks.table_source import Gap, Source


class KeptRow(NamedTuple):
    number: int
    place: str
    text: str
    pair: str | None
    label: str
    """The label's name, or the score as written."""
    weight: float | None
    id: str | None


class TableReader:
    def __init__(self, source: Source, columns: Columns, weight: str | None, most_rows: int | None, seed: int) -> None:
        self.source, self.columns, self.weight = source, columns, weight
        self.values: Counter[str] = Counter()
        """Label or score as written → rows."""
        self.total = 0
        self._sample: RowSample[KeptRow] = RowSample(most_rows, seed)
        self._text, self._pair = Gap("text", columns.text), Gap("text", columns.text_pair or "")
        self._label, self._not_a_number = Gap("label", columns.label), Gap("number", columns.label)

    def add(self, place: str, row: Mapping[str, Any]) -> None:
        self.total += 1
        columns = self.columns
        text = self._read_text(row, columns.text, place, self._text)
        pair = self._read_text(row, columns.text_pair, place, self._pair) if columns.text_pair else None
        label = self._read_label(row, place)
        if text is None or label is None or (columns.text_pair and pair is None):
            return
        self.values[label] += 1
        weight = self._read_weight(row, self.weight, place) if self.weight else None
        identity = row.get(columns.id) if columns.id else None
        name = None if is_missing(identity) else str(identity)
        self._sample.add(KeptRow(self.total, place, text, pair, label, weight, name))

    def finish(self, has_labels: bool = False) -> tuple[list[KeptRow], list[Gap], int]:
        """The kept rows in order, the gaps found, and the number of complete rows. `has_labels`: "NA" is a label, even
        among numbers."""
        rows, complete = self._sample.rows(), self._sample.seen
        gaps = [self._text, self._pair, self._label]
        if not has_labels and self._not_a_number.count and numbers_in(self.values) is not None:  # "NA" among numbers
            gaps.append(self._not_a_number)
            rows = [row for row in rows if not _is_no_number(row.label)]
            for value in [value for value in self.values if _is_no_number(value)]:
                complete -= self.values.pop(value)
        return rows, [gap for gap in gaps if gap.count], complete

    def _read_text(self, row: Mapping[str, Any], column: str, place: str, gap: Gap) -> str | None:
        cell = row.get(column)
        if is_missing(cell):
            gap.add(place)
            return None
        if not isinstance(cell, str):
            raise UserError(f"{place}: column '{column}' must be text, found {shorten(cell)}.")
        return str(cell)

    def _read_label(self, row: Mapping[str, Any], place: str) -> str | None:
        cell, column = row.get(self.columns.label), self.columns.label
        if is_missing(cell):
            self._label.add(place)
            return None
        if isinstance(cell, list | tuple | dict | set):
            raise UserError(f"{place}: column '{column}' must hold one label or number per row, found {shorten(cell)}.")
        label = read_label(cell, place, column) if isinstance(cell, str | bool | int | float) else str(cell)
        if _is_no_number(label):
            self._not_a_number.add(place)
        return label

    def _read_weight(self, row: Mapping[str, Any], column: str, place: str) -> float:
        cell = row.get(column)
        try:
            weight = math.nan if cell is None or isinstance(cell, bool) else float(cell)
        except (TypeError, ValueError, OverflowError):
            weight = math.nan
        if not math.isfinite(weight) or weight < 0:
            raise UserError(
                f"{place}: column '{column}' must hold weights, numbers of 0 or more, found {shorten(cell)}."
            )
        return weight


def _is_no_number(label: str) -> bool:
    return label.strip().lower() in NOT_A_NUMBER
