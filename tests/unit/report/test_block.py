"""A picture's words are made from what it shows of the table."""

from bertvision.report.block import DESCRIBED, Block
from bertvision.tables import Cell, Column, Table


def block_of(rows: list[list[Cell]], title: str = "Scores", **more: str) -> Block:
    columns = ["model", Column("F1", 1), Column("EM", 2), "seeds"]
    return Block("key", title, table=Table(columns, rows), picture={}, drawn=["F1", "EM"], **more)  # type: ignore[arg-type]


def test_each_row_is_told_with_the_figures_that_are_drawn_and_known() -> None:
    rows: list[list[Cell]] = [["encoder", 61.26, 50.0, 1], ["head", None, 55.5, 2], ["failed", None, float("nan"), 1]]
    assert block_of(rows).in_words() == "Scores. encoder: F1 61.3, EM 50.00; head: EM 55.50."
    assert block_of(rows, drawn_rows=Table(["model", "EM"], [["head", 55.5]])).in_words() == "Scores. head: EM 55.5."
    assert block_of([["a", 1.0, 2.0, 1]], "Is it sure?").in_words().startswith("Is it sure? a: ")
    assert block_of(rows, "Is it sure?").in_words().startswith("Is it sure? encoder: ")
    assert block_of(rows, alt="Lines of F1").in_words().startswith("Lines of F1. encoder: ")


def test_of_long_tables_the_first_rows_are_told() -> None:
    words = block_of([[f"head {number}", 1.0, 2.0, 1] for number in range(DESCRIBED + 3)]).in_words()
    assert words.count("F1 1.0") == DESCRIBED and words.endswith("; the table has 3 more.")


def test_without_a_table_or_figures_the_title_or_its_own_words_stand() -> None:
    assert Block("key", "Scores", picture={}).in_words() == "Scores"
    assert Block("key", "Scores", picture={}, alt="A map.").in_words() == "A map."
