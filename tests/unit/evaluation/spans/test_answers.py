"""Answers stored as arrays produce the same rows as single answers, and each row is one line of JSON."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.evaluation.spans.answers import SpanAnswers
from bertvision.evaluation.spans.passages import Passages
from bertvision.kinds import save_predictions
from bertvision.kinds.span import SpanPredictions

ODD_TEXT = st.text(st.sampled_from('ab "\\/\n\t\x00\x1f\x7f\x85\u2028\u2029é👍'), min_size=1, max_size=20)


def draw_answers(passages: list[str], n_best: int, seed: int) -> SpanAnswers:
    """Random spans in these passages; the number of candidates differs between questions."""
    random = np.random.default_rng(seed)
    shape = (len(passages), n_best)
    lengths = np.array([len(passage) for passage in passages])[:, None]  # (question, 1)
    start = random.integers(0, lengths, shape)  # (question, candidate)
    return SpanAnswers(
        ids=[f'q"{index}' for index in range(len(passages))],
        passages=Passages(passages),
        sizes=random.integers(0, n_best + 1, len(passages)),
        start=start.astype(np.int32),
        end=random.integers(start + 1, lengths + 1).astype(np.int32),
        score=-np.sort(random.exponential(9, shape), axis=1),
        probability=random.random(shape) ** 9,
        null_score=-random.exponential(9, len(passages)),
        null_probability=random.random(len(passages)) ** 9,
    )


@given(
    st.lists(ODD_TEXT, min_size=1, max_size=6), st.integers(1, 4), st.integers(0, 99), st.sampled_from([-9.0, 0.0, 9.0])
)
@settings(deadline=None)
def test_rows_of_arrays_equal_those_of_single_answers(
    passages: list[str], n_best: int, seed: int, threshold: float
) -> None:
    answers = draw_answers([*passages, passages[0]], n_best, seed)  # two questions share a passage
    listed = SpanPredictions(answers.ids, list(answers)).rows(threshold)
    assert list(map(flat, answers.rows(threshold))) == [pytest.approx(flat(row), abs=1.1e-6) for row in listed]


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """Flatten a row and its candidates into one dict, because `approx` does not compare lists of dicts."""
    candidates = {f"{key} {rank}": value for rank, one in enumerate(row["n_best"]) for key, value in one.items()}
    return {key: value for key, value in row.items() if key != "n_best"} | candidates


@given(st.lists(ODD_TEXT, min_size=1, max_size=6), st.integers(0, 99))
@settings(deadline=None)
def test_a_line_holds_its_row_and_contains_no_line_break(passages: list[str], seed: int) -> None:
    predictions = SpanPredictions([], draw_answers(passages, 3, seed))
    lines = "".join(predictions.lines()).splitlines()
    assert [json.loads(line) for line in lines] == list(predictions.rows())


def test_numbers_are_rounded_to_five_and_six_places() -> None:
    answers = draw_answers(["abc"], 1, 0)
    answers.sizes[:], answers.score[:], answers.probability[:] = 1, -1.234567, 0.12345678
    answers.null_score[:], answers.null_probability[:] = -0.000004, 0.9999999
    (row,) = answers.rows(-9.0)
    assert (row["score"], row["n_best"][0]["probability"]) == (-1.23457, 0.123457)
    assert (row["null_score"], row["probability"]) == (0.0, 1.0)


def test_half_a_surrogate_pair_can_be_saved_and_loaded(tmp_path: Path) -> None:
    save_predictions(tmp_path, SpanPredictions([], draw_answers(["\ud800b"], 2, 1)), None, 9.0)
    row = json.loads((tmp_path / "predictions.jsonl").read_bytes())
    assert all(one["text"] == "\ud800b"[one["start"] : one["end"]] for one in row["n_best"])
