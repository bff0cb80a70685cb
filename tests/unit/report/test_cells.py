"""Numbers as people read them."""

import pytest

from bertvision.report.block import Cell, Column, Frame
from bertvision.report.cells import group_notes, numeric_columns, plain, show


@pytest.mark.parametrize(
    ("cell", "digits", "shown"),
    [
        (1234567, None, "1,234,567"),
        (1234.5678, 2, "1,234.57"),
        (-0.5, 1, "−0.5"),
        (-0.0001, 2, "0.00"),
        (0, 2, "0.00"),
        (0.0003, None, "0.0003"),
        (1e-5, None, "1e-05"),
        (3.0, None, "3"),
        (True, None, "yes"),
        (None, 2, "–"),
        (float("nan"), 2, "–"),
        (float("inf"), None, "–"),
        ("-0.0 text", 2, "-0.0 text"),
    ],
)
def test_a_cell_is_shown_with_separators_and_its_digits(cell: Cell, digits: int | None, shown: str) -> None:
    assert show(cell, Column("x", digits)) == shown


def test_a_column_is_numeric_when_all_that_is_there_is_numbers() -> None:
    rows: list[list[Cell]] = [[1, "a", None, True, None], [None, 2, 0.5, False, float("nan")]]
    assert numeric_columns(Frame([Column(str(i)) for i in range(5)], rows)) == [True, False, True, False, False]
    assert numeric_columns(Frame([Column("empty"), Column("empty with digits", 2)], [[None, None]])) == [False, True]


def test_columns_that_share_a_note_share_a_line_of_the_legend() -> None:
    columns = [Column("a", note="one"), Column("b"), Column("c", note="two"), Column("d", note="one")]
    assert group_notes(Frame(columns, [])) == [("a, d", "one"), ("c", "two")]


def test_json_gets_null_for_what_is_no_number_however_deep() -> None:
    assert plain({"a": [float("nan"), (1, float("-inf"))], "b": 0.5}) == {"a": [None, [1, None]], "b": 0.5}
