"""Guess whether a user's targets are labels or scores, and refuse columns that hold neither."""

import re
from collections import Counter
from collections.abc import Mapping

from bertvision.errors import UserError, shorten
from bertvision.kinds import LABEL, SCORE, Kind
from bertvision.tables import counted
from bertvision.tasks.table_source import Source, quoted

MOST_NUMERIC_LABELS = 20
"""More different whole numbers than this are scores."""
ROWS_PER_NUMERIC_LABEL = 5
"""Whole numbers with fewer rows each, on average, are scores."""
NOT_A_NUMBER = frozenset({"nan", "na", "n/a", "null", "none"})
"""Count as missing in a column of numbers, and as labels elsewhere."""
MOST_ODD = 0.1
"""Share of rows up to which values that are no numbers count as mistakes in a column of numbers."""

_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_CODE = re.compile(r"\s*[+-]?0\d+\s*")  # 007: a code, not a number
_COMMA = re.compile(r"\s*[+-]?\d+(,\d+)+(\.\d+)?\s*")
_DATE = re.compile(
    r"\s*(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}|\d{4}/\d{1,2}/\d{1,2})([T ]\d{1,2}:\d{2}.*)?\s*"
)


def numbers_in(values: Mapping[str, int], codes: bool = False) -> dict[str, float] | None:
    """Each value as a number, without those that stand for a missing one; None if the column is not numeric.

    007 is a code and not a number, unless `codes` says otherwise.
    """
    present = [value for value in values if value.strip().lower() not in NOT_A_NUMBER]
    if not present or any(_NUMBER.fullmatch(value) is None for value in present):
        return None
    if not codes and any(_CODE.fullmatch(value) for value in present):
        return None
    return {value: float(value) for value in present}


def guess_kind(values: Counter[str], column: str, source: Source) -> tuple[Kind, list[str]]:
    """The kind of a column's values (value → rows), and notes on the guess. UserError if it holds ids or free text."""
    numbers = numbers_in(values)
    if numbers is not None:
        rows = sum(values[value] for value in numbers)
        return _kind_of_numbers(set(numbers.values()), rows, column, source)
    _refuse_odd_numbers(values, column, source)
    rows, distinct = sum(values.values()), len(values)
    dates = sum(_DATE.fullmatch(value) is not None for value in values) > 0.9 * distinct
    if distinct > max(2, rows / 2):
        looks = "dates" if dates else "ids or free text"
        raise UserError(
            f"{source.name}: column '{column}' has {counted(distinct, 'different value')} in {counted(rows, 'row')}, "
            f"for example {quoted(list(values)[:3])}. These look like {looks}, not labels. "
            f"Name the label column with {source.option('label', 'COLUMN')}."
        )
    notes = [f"Column '{column}' holds dates; each of the {distinct} dates is treated as a label."] if dates else []
    return LABEL, notes


def _refuse_odd_numbers(values: Counter[str], column: str, source: Source) -> None:
    """Refuse numbers with a comma, and scores among which a few values are no numbers."""
    commas = [value for value in values if _COMMA.fullmatch(value)]
    if commas and all(_NUMBER.fullmatch(value) or _COMMA.fullmatch(value) for value in values):
        raise UserError(
            f"{source.name}: column '{column}' holds numbers with a comma, such as {shorten(commas[0])}. Write them "
            "with a decimal point and no thousands separators, or treat them as labels with "
            f"{source.option('kind', 'label')}."
        )
    odd = [value for value in values if not _NUMBER.fullmatch(value) and value.strip().lower() not in NOT_A_NUMBER]
    mostly = sum(values[value] for value in odd) <= MOST_ODD * sum(values.values())
    if mostly and len(values) - len(odd) > MOST_NUMERIC_LABELS:
        raise UserError(
            f"{source.name}: column '{column}' holds numbers, but also {quoted(odd)}. Correct these cells, or leave "
            f"them empty and use {source.option('skip_empty')}."
        )


def _kind_of_numbers(numbers: set[float], rows: int, column: str, source: Source) -> tuple[Kind, list[str]]:
    whole = all(number.is_integer() for number in numbers)
    few = len(numbers) <= MOST_NUMERIC_LABELS and rows >= ROWS_PER_NUMERIC_LABEL * len(numbers)
    if whole and (few or len(numbers) <= 2):
        if len(numbers) < 2:
            return LABEL, []  # refused later: at least two labels are needed
        return LABEL, [
            f"Column '{column}' has {len(numbers)} different whole numbers; each is treated as a label. "
            f"To predict a number instead, use {source.option('kind', 'score')}."
        ]
    return SCORE, [
        f"Column '{column}' has {counted(len(numbers), 'different number')}, so a number is predicted. "
        f"To treat each number as a label, use {source.option('kind', 'label')}."
    ]
