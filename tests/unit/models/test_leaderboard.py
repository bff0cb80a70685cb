"""The leaderboard: its table, the reason for the choice, and what all layers added."""

import dataclasses

import pytest

from bertvision.models.leaderboard import Leaderboard, Line, spread


def board(chosen: str = "mlp", how: str = "cv", **scores: float | None) -> Leaderboard:
    roles = {"majority": "baseline", "tfidf_lr": "peer", "last_lr": "encoder", "average": "ensemble"}
    lines = [
        Line(name, cv, None if cv is None else 1.5, cv, None, 0.5, 10, "", roles.get(name, "head"))
        for name, cv in scores.items()
    ]
    return Leaderboard(lines, chosen, "accuracy", "accuracy", how, 5, 200)


def test_the_gain_compares_the_best_head_with_the_last_and_the_best_single_layer() -> None:
    found = board(majority=20.0, tfidf_lr=99.0, last_lr=80.0, best_layer_lr=85.0, linear=84.0, mlp=87.5)
    assert found.gain() == (
        "All layers (mlp) add 7.5 points over the last layer, and add 2.5 points over the best single layer."
    )
    worse = board("last_lr", majority=20.0, last_lr=80.0, best_layer_lr=80.0, linear=79.0)
    assert worse.gain() == (
        "All layers (linear) lose 1.0 points to the last layer, and lose 1.0 points to the best single layer."
    )
    same = board(last_lr=80.0, best_layer_lr=80.01, linear=None, mlp=80.0)
    assert "score the same as the last layer" in same.gain()
    assert board("last_lr", majority=20.0, last_lr=80.0).gain() == ""


def test_the_choice_is_explained_and_compared_with_the_baseline() -> None:
    assert board(majority=20.0, mlp=80.0).why() == "Chosen: mlp, the best in 5-fold cross-validation on 200 rows."
    assert "the best on 200 held-out rows" in board(how="held_out", majority=20.0, mlp=80.0).why()
    tied = dataclasses.replace(board(majority=20.0, mlp=80.0, linear=80.5), tied=2)
    assert "lowest log-loss of the 2 models that are within one standard error" in tied.why()
    assert "does not beat the majority baseline" in board(majority=80.0, mlp=80.0).why()


def test_the_table_marks_the_chosen_model_and_leaves_out_empty_columns() -> None:
    table = board(majority=20.0, mlp=80.0).table()
    assert "dev" not in table.headings and "note" not in table.headings
    assert [row[:2] for row in table.rows] == [["", "majority"], ["*", "mlp"]]


def test_the_spread_is_the_standard_deviation() -> None:
    assert spread([80.0, 82.0, 84.0]) == pytest.approx(2.0) and spread([80.0]) is None
