"""How far to trust an answer, from held-out answers written down here."""

import numpy as np
import pytest

from bertvision.evaluation.marks import LabelMarks, ScoreMarks, SpanMarks
from bertvision.kits.trust import measure_trust, trust_in


def labels(sure: np.ndarray, right: np.ndarray) -> LabelMarks:
    """Two labels; the first is said, with this probability."""
    return LabelMarks(np.where(right, 0, 1), np.stack([sure, 1 - sure], axis=1))


def test_groups_are_even_parts_by_sureness_and_count_what_was_right() -> None:
    sure = np.linspace(0.6, 0.99, 40)
    right = np.arange(40) >= 15  # of the twenty least sure five are right, of the others all
    groups = measure_trust(labels(sure, right))
    assert [group["examples"] for group in groups] == [20, 20]
    assert [group["right"] for group in groups] == [0.25, 1.0]
    assert groups[1]["from"] == pytest.approx(sure[20])
    row = {"label": "a", "probabilities": {"a": float(sure[25]), "b": float(1 - sure[25])}}
    assert trust_in(row, groups, 0.0) == {"right": 1.0, "examples": 20}
    row["probabilities"] = {"a": 0.5, "b": 0.5}  # less sure than any that was seen: as the least sure ones
    assert trust_in(row, groups, 0.0) == {"right": 0.25, "examples": 20}


def test_few_examples_are_one_group() -> None:
    (group,) = measure_trust(labels(np.array([0.7, 0.9, 0.8]), np.array([True, False, True])))
    assert group["right"] == pytest.approx(2 / 3) and group["examples"] == 3


def test_an_answer_is_the_surer_the_further_it_is_from_the_threshold_on_either_side() -> None:
    count = 40
    lead = np.concatenate([np.linspace(-10, -6, 10), np.linspace(-1, 1.5, 20), np.linspace(6, 9, 10)])  # (example)
    zeros = np.zeros(count)
    far = np.abs(lead) > 5
    marks = SpanMarks(
        exact=far.astype(float), f1=zeros, silent=far.astype(float), score=zeros, null_score=lead,
        second_exact=zeros, second_f1=zeros, second_score=zeros, has_answer=np.ones(count, dtype=bool),
    )  # fmt: skip
    groups = measure_trust(marks, threshold=0.0)
    assert [group["right"] for group in groups] == [0.0, 1.0]
    for null_score, right in ((7.0, 1.0), (-8.0, 1.0), (0.5, 0.0)):
        row = {"answer": "", "null_score": null_score, "score": 0.0}
        assert trust_in(row, groups, 0.0)["right"] == right
    assert trust_in({"answer": "", "null_score": 7.0, "score": 0.0}, groups, 6.5)["right"] == 0.0


def test_scores_have_their_mean_distance_from_the_true_ones() -> None:
    marks = ScoreMarks(target=np.array([1.0, 2.0, 5.0]), value=np.array([1.5, 2.0, 4.0]))
    groups = measure_trust(marks)
    assert trust_in({"score": 3.0}, groups, 0.0) == {"off_by": pytest.approx(0.5), "examples": 3}
