"""Answers in arrays become the very lines that Python's own json makes of their rows."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.evaluation.spans.answers import SpanAnswers
from bertvision.evaluation.spans.lines import BLOCK, NUMBERS, decimals, write_lines
from bertvision.evaluation.spans.passages import Passages
from bertvision.kinds import save_predictions
from bertvision.kinds.base import to_json_line
from bertvision.kinds.span import SpanPredictions

ODD_TEXT = st.text(st.sampled_from('ab "\\/\n\t\x00\x1f\x7f\x85\u2028\u2029é👍'), min_size=1, max_size=20)
NUMBER = (
    st.floats(-3e4, 3e4)
    | st.integers(-(10**6), 10**6).map(lambda number: number / 10**6 + 5e-7)  # halves of the last digit
    | st.sampled_from([0.0, -0.0, 1e-7, -1e-7, 1e-5, 9.9e-5, 1e-4, 0.5, -1.5, 1.0, -1e6, 0.0999995, 49.999995, 5e12])
)


@given(st.lists(NUMBER, min_size=1, max_size=30), st.sampled_from([5, 6]))
@settings(deadline=None)
def test_decimals_are_what_python_rounds_and_writes(values: list[float], places: int) -> None:
    front, last = decimals(np.array(values), places)
    assert [a + b for a, b in zip(front, last, strict=True)] == [repr(round(value, places)) for value in values]


def draw_answers(passages: list[str], n_best: int, seed: int) -> SpanAnswers:
    """Random spans of these passages; each question has another number of them."""
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
def test_lines_are_those_of_the_rows(passages: list[str], n_best: int, seed: int, threshold: float) -> None:
    answers = draw_answers([*passages, passages[0]], n_best, seed)  # several questions have one passage
    rows = SpanPredictions(answers.ids, list(answers)).rows(threshold)
    lines = list(write_lines(answers, threshold))
    assert lines == [to_json_line(row) for row in rows]
    assert [json.loads(line) for line in "".join(lines).splitlines()] == rows


@pytest.mark.parametrize("questions", [BLOCK - 1, BLOCK, 2 * BLOCK + 1])
def test_many_questions_and_long_passages_are_all_written(tmp_path: Path, questions: int) -> None:
    answers = draw_answers(["short", "long " * NUMBERS] * (questions // 2) + ["last"] * (questions % 2), 2, 0)
    answers.end[:] = np.minimum(answers.end, answers.start + 9)
    listed, arrays = (SpanPredictions(answers.ids, some) for some in (list(answers), answers))
    save_predictions(tmp_path / "listed", listed, None, 0.5)
    save_predictions(tmp_path / "arrays", arrays, None, 0.5)
    one, other = ((tmp_path / name / "predictions.jsonl").read_bytes() for name in ("listed", "arrays"))
    assert one == other and one.count(b"\n") == questions
