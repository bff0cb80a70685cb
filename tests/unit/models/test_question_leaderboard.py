"""The leaderboard of a fit on questions: the reason for the choice, and what training added to the shipped head."""

from typing import Any

from bertvision.models.spans.leaderboard import BASELINE, Leaderboard, Line


def board(chosen: str, how: str = "cv", tied: tuple[str, ...] = (), **f1: float | None) -> Leaderboard:
    roles = {BASELINE: "baseline", "last_linear": "encoder"}
    lines = [
        Line(name, score, score, 1.0, None if score is None else score + 10, None, None, None, 0.5, 10, "note",
             roles.get(name, "head"))
        for name, score in f1.items()
    ]  # fmt: skip
    return Leaderboard(lines, chosen, how, 3, 200, "article", tied, 1.25)


SCORES: dict[str, Any] = {BASELINE: 33.0, "last_linear": 90.0, "kit": 58.0, "continued": 61.5, "ladder_128_deep": 40.0}


def test_the_gain_compares_training_with_the_shipped_head() -> None:
    gain = board("continued", **SCORES).gain()
    assert "(continued) changes F1 by +3.5 points (standard error 1.2)" in gain and "answerable-only F1 by +3.5" in gain
    # If the shipped head is chosen, the best trained one is named: what it would have changed.
    assert "(continued) changes F1 by -2.0 points" in board("kit", **{**SCORES, "continued": 56.0}).gain()
    assert board("ladder_128_deep", ladder_128_deep=40.0).gain() == ""  # the shipped head does not fit
    assert board("kit", kit=58.0, continued=None).gain() == ""  # there was no time


def test_the_choice_is_explained_and_compared_with_never_answering() -> None:
    where = "3-fold cross-validation on 200 questions, no article on both sides"
    assert board("continued", **SCORES).why() == f"Chosen: continued, the best F1 in {where}."
    assert "on 200 held-out questions, no article" in board("continued", "held_out", **SCORES).why()
    tied = board("kit", tied=("kit", "continued"), **SCORES).why()
    assert "within one standard error of the best (the others: continued)" in tied
    assert "does not beat never answering" in board("kit", **{BASELINE: 58.0, "kit": 58.0}).why()


def test_the_table_marks_the_chosen_model_and_has_no_empty_columns() -> None:
    table = board("continued", **SCORES).table()
    assert [row[1] for row in table.rows if row[0] == "*"] == ["continued"]
    assert "dev F1" not in table.headings and "answerable-only F1" in table.headings
