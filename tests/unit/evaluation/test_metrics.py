"""Metrics against arithmetic on counts, and on constant predictions."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.data.examples import Example
from bertvision.data.windows import Features
from bertvision.errors import UserError
from bertvision.evaluation import metrics
from bertvision.evaluation.metrics import LABEL_METRICS, SCORE_METRICS, score_metrics
from bertvision.kinds.label import answerable_by_question

ALL_LABELS = ["accuracy", "f1", "f1_has_answer", "f1_macro", "f1_no_answer", "matthews"]


def plain_f1(gold, predicted, label):
    right = sum(g == p == label for g, p in zip(gold, predicted, strict=True))
    wrong = sum((g == label) != (p == label) for g, p in zip(gold, predicted, strict=True))
    return 200.0 * right / (2 * right + wrong) if right + wrong else 0.0


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30))
@settings(deadline=None)
def test_label_metrics_follow_from_counts(rows):
    gold, predicted = (np.array(column) for column in zip(*rows, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = score_metrics(LABEL_METRICS, ALL_LABELS, gold, predicted)
    tp, tn = sum(gold & predicted), sum((1 - gold) & (1 - predicted))
    fp, fn = sum((1 - gold) & predicted), sum(gold & (1 - predicted))
    below = np.sqrt(float((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))
    present = sorted({*gold.tolist(), *predicted.tolist()})
    assert ours == pytest.approx(
        {
            "accuracy": 100.0 * (tp + tn) / len(gold),
            "f1": plain_f1(gold, predicted, 1),
            "f1_has_answer": plain_f1(gold, predicted, 1),
            "f1_macro": np.mean([plain_f1(gold, predicted, label) for label in present]),
            "f1_no_answer": plain_f1(gold, predicted, 0),
            "matthews": 100.0 * (tp * tn - fp * fn) / below if below else 0.0,
        }
    )


def test_correlations_equal_the_textbook_formula():
    random = np.random.default_rng(3)
    gold = random.normal(size=50)
    predicted = gold + random.normal(size=50)
    ours = score_metrics(SCORE_METRICS, ["pearson", "spearman"], gold, predicted)
    assert ours["pearson"] == pytest.approx(100.0 * np.corrcoef(gold, predicted)[0, 1])
    ranks = [np.argsort(np.argsort(values)) for values in (gold, predicted)]
    assert ours["spearman"] == pytest.approx(100.0 * np.corrcoef(*ranks)[0, 1])


@pytest.mark.parametrize("predicted", [[2.0, 2.0, 2.0], [1e300, 1e300, 1e300], [0.0, 0.0, 0.0]])
def test_constant_predictions_have_zero_correlation_and_no_warning(predicted):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = score_metrics(SCORE_METRICS, ["pearson", "spearman"], np.array([1.0, 2.0, 3.0]), np.array(predicted))
        assert score_metrics(SCORE_METRICS, ["pearson"], np.array([1.0]), np.array([2.0])) == {"pearson": 0.0}
        assert score_metrics(LABEL_METRICS, ["matthews"], np.array([0, 1, 1]), np.array([1, 1, 1])) == {"matthews": 0.0}
        assert score_metrics(LABEL_METRICS, ["f1"], np.array([0, 0]), np.array([0, 0])) == {"f1": 0.0}
    assert scores == {"pearson": 0.0, "spearman": 0.0}


def test_an_unknown_metric_suggests_the_nearest():
    with pytest.raises(UserError, match="did you mean 'accuracy'"):
        score_metrics(LABEL_METRICS, ["acuracy"], np.array([0]), np.array([0]))
    with pytest.raises(UserError, match="pearson, spearman"):
        score_metrics(SCORE_METRICS, ["accuracy"], np.array([0.5]), np.array([0.5]))


def test_unknown_targets_and_broken_predictions_are_not_scored():
    with pytest.raises(AssertionError, match="gold"):
        score_metrics(SCORE_METRICS, ["pearson"], np.array([np.nan, 1.0]), np.array([1.0, 2.0]))
    with pytest.raises(AssertionError, match="NaN"):
        score_metrics(SCORE_METRICS, ["pearson"], np.array([1.0, 2.0]), np.array([1.0, np.nan]))


def test_trivial_baselines():
    assert metrics.majority_label(np.array([2.0, 0.0, 2.0, 1.0], dtype=np.float32)) == 2
    assert metrics.majority_label(np.array([1, 0])) == 0
    assert metrics.mean_score(np.array([0.5, 2.0, 5.0], dtype=np.float32)) == pytest.approx(2.5)


def windows_of(example: list[int]) -> Features:
    count = len(example)
    ones, zeros = np.ones(count, dtype=np.int32), np.zeros(count, dtype=np.int32)
    return Features(
        ones, zeros.astype(np.int8), ones, np.arange(count), np.array(example, dtype=np.int32),
        -np.ones((count, 2), dtype=np.int32), zeros, zeros, zeros.astype(np.float32),
    )  # fmt: skip


def test_a_question_is_answerable_if_any_window_has_an_answer():
    examples = [Example(id, "who?", "") for id in "abc"]
    probabilities = np.array([[0.9, 0.1], [0.3, 0.7], [0.8, 0.2], [0.6, 0.4], [0.55, 0.45]])
    result = answerable_by_question(probabilities, windows_of([0, 0, 0, 1, 2]), examples)
    assert result == pytest.approx(np.array([[0.3, 0.7], [0.6, 0.4], [0.55, 0.45]]))
    assert result.argmax(axis=1).tolist() == [1, 0, 0]


def test_unnormalised_probabilities_are_normalised_per_window():
    probabilities = np.array([[0.7, 0.6], [0.6, 0.7]])
    result = answerable_by_question(probabilities, windows_of([0, 1]), [Example(id, "who?") for id in "ab"])
    assert result.argmax(axis=1).tolist() == [0, 1]
