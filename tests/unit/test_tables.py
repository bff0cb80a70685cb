"""Formatting of numbers and tables."""

import pytest

from bertvision.tables import Cell, Column, Table, plain, show, to_markdown


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


def test_a_column_is_numeric_if_all_its_values_are_numbers() -> None:
    rows: list[list[Cell]] = [[1, "a", None, True, None], [None, 2, 0.5, False, float("nan")]]
    assert Table(map(str, range(5)), rows).is_numeric() == [True, False, True, False, False]
    assert Table(["empty", Column("empty with digits", 2)], [[None, None]]).is_numeric() == [False, True]


def test_columns_that_share_a_note_share_a_line_of_the_legend() -> None:
    columns = [Column("a", note="one"), Column("b"), Column("c", note="two"), Column("d", note="one")]
    assert Table(columns, []).legend() == [("a, d", "one"), ("c", "two")]


def test_nan_and_infinity_become_null_at_any_depth() -> None:
    assert plain({"a": [float("nan"), (1, float("-inf"))], "b": 0.5}) == {"a": [None, [1, None]], "b": 0.5}


def test_every_markdown_row_has_all_cells_and_shared_notes_appear_once() -> None:
    table = Table(
        ["a", Column("b", 1, "Points."), Column("c", note="Points.")], [["x", 0.26, 3], ["y"]], "Title", "Of it."
    )
    lines = [
        "## Title",
        "",
        "| a | b | c |",
        "|---|---:|---:|",
        "| x | 0.3 | 3 |",
        "| y |  |  |",
        "",
        "Of it. Points.",
        "",
    ]
    assert to_markdown(table).split("\n") == lines


def test_empty_columns_are_left_out() -> None:
    assert Table(["a", "b", "c"], [[1, None, 0], [2, None, None]]).without_empty().headings == ["a", "c"]
