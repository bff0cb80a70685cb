"""How much to trust a prediction, measured on made-up held-out predictions."""

import numpy as np
import pytest

from bertvision.kinds import LABEL, SCORE, SPAN
from bertvision.kinds.label import LabelResults
from bertvision.kinds.score import ScoreResults
from bertvision.kinds.span import SpanResults

LABELS = ("a", "b")


def labels(sure: np.ndarray, right: np.ndarray, said: int = 0) -> LabelResults:
    """Results for two labels, of which label `said` is predicted with probability `sure`."""
    both = [sure, 1 - sure] if said == 0 else [1 - sure, sure]
    return LabelResults(np.where(right, said, 1 - said), np.stack(both, axis=1))


def spans(lead: np.ndarray, exact: np.ndarray, silent: np.ndarray) -> SpanResults:
    zeros = np.zeros(len(lead))
    return SpanResults(
        exact=exact.astype(float), f1=zeros, silent=silent.astype(float), score=zeros, null_score=lead,
        second_exact=zeros, second_f1=zeros, second_score=zeros, has_answer=~silent,
    )  # fmt: skip


def test_groups_have_equal_sizes_by_confidence_and_the_fraction_that_was_right() -> None:
    sure = np.linspace(0.6, 0.99, 100)
    right = np.arange(100) >= 40  # 10 of the 50 least confident are right, and all of the others
    trust = LABEL.measure_trust(labels(sure, right), LABELS)
    groups = trust["a"]
    assert [group["examples"] for group in groups] == [50, 50]
    assert [group["right"] for group in groups] == [0.2, 1.0]
    assert groups[1]["from"] == pytest.approx(sure[50], abs=1e-5)
    row = {"label": "a", "probabilities": {"a": float(sure[60]), "b": float(1 - sure[60])}}
    assert LABEL.trust_row(row, trust, 0.0) == {"right": 1.0, "examples": 50}
    row["probabilities"] = {"a": 0.5, "b": 0.5}  # less confident than all examples: belongs to the lowest group
    assert LABEL.trust_row(row, trust, 0.0) == {"right": 0.2, "examples": 50}


def test_few_examples_are_one_group() -> None:
    trust = LABEL.measure_trust(labels(np.array([0.7, 0.9, 0.8]), np.array([True, False, True])), LABELS)
    (group,) = trust["a"]
    assert group["right"] == pytest.approx(2 / 3) and group["examples"] == 3


def test_trust_is_measured_separately_for_each_label() -> None:
    first = labels(np.full(30, 0.9), np.arange(30) < 27)  # "a": nine in ten are right
    second = labels(np.full(10, 0.9), np.arange(10) < 2, said=1)  # "b": same confidence, two in ten are right
    both = LabelResults(
        *(np.concatenate(pair) for pair in zip(vars(first).values(), vars(second).values(), strict=True))
    )
    trust = LABEL.measure_trust(both, LABELS)
    found = [LABEL.trust_row({"label": name, "probabilities": {name: 0.9}}, trust, 0.0) for name in LABELS]
    assert found == [{"right": 0.9, "examples": 30}, {"right": 0.2, "examples": 10}]


def test_a_label_that_was_never_predicted_has_no_trust() -> None:
    trust = LABEL.measure_trust(labels(np.full(30, 0.9), np.ones(30, dtype=bool)), LABELS)
    assert list(trust) == ["a"]
    assert LABEL.trust_row({"label": "b", "probabilities": {"a": 0.1, "b": 0.9}}, trust, 0.0) == {"examples": 0}


def test_groups_that_start_at_the_same_confidence_are_merged() -> None:
    sure = np.concatenate([np.full(156, 0.9), np.full(52, 0.95)])  # four groups of 52; three start at 0.9
    trust = LABEL.measure_trust(labels(sure, np.arange(208) % 4 == 0), LABELS)
    assert trust["a"] == [{"from": 0.9, "right": 0.25, "examples": 156}, {"from": 0.95, "right": 0.25, "examples": 52}]


def test_trust_of_spans_depends_on_whether_they_answer_and_on_the_distance_from_the_threshold() -> None:
    # No answer: 52 near the threshold, all wrong, and 52 far away, all right. Answers: 52 far away, a quarter right.
    lead = np.concatenate([np.linspace(0.1, 1.0, 52), np.linspace(6, 9, 52), np.linspace(-9, -6, 52)])  # (example)
    far = np.arange(156) >= 52
    exact, silent = np.arange(156) >= 143, far & (lead > 0)
    trust = SPAN.measure_trust(spans(lead, exact, silent), (), 0.0)
    nothing = {"answer": "", "start": None, "score": 0.0}
    assert SPAN.trust_row({**nothing, "null_score": 7.0}, trust, 0.0) == {"right": 1.0, "examples": 52}
    assert SPAN.trust_row({**nothing, "null_score": 0.5}, trust, 0.0) == {"right": 0.0, "examples": 52}
    assert SPAN.trust_row({**nothing, "null_score": 7.0}, trust, 6.5)["right"] == 0.0, "near another threshold"
    row = {"answer": "Ada", "start": 0, "score": 7.0, "null_score": 0.0}
    assert SPAN.trust_row(row, trust, 0.0) == {"right": 0.25, "examples": 52}


def test_trust_of_scores_is_their_mean_absolute_error() -> None:
    results = ScoreResults(target=np.array([1.0, 2.0, 5.0]), value=np.array([1.5, 2.0, 4.0]))
    trust = SCORE.measure_trust(results, ())
    assert [len(groups) for groups in trust.values()] == [1]
    assert SCORE.trust_row({"score": 3.0}, trust, 0.0) == {"off_by": pytest.approx(0.5), "examples": 3}
