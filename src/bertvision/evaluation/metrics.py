"""Metrics for labels and scores. Each is registered once, with its title, its value and its values on resamples.

    LABEL_METRICS["accuracy"].figure(gold, predicted) → 87.5       in percent; correlations -100 to 100
    LABEL_METRICS["accuracy"].measure(gold, predicted)(counts) → (round,)

To add a metric, add a function to this file. Values come from scikit-learn and scipy. Bootstrap rounds are vectorised
here instead, from counts of how often each example was drawn: the libraries would have to be called once per round.
"""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertvision.evaluation.statistics import (
    Counts,
    Measure,
    divide,
    mean_measure,
    ratio_measure,
    sum_products,
    twice_below,
)
from bertvision.registry import Registry

CONSTANT = 1e-13  # a variance below this fraction of the mean square is a rounding error

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
OfPredictions = Callable[[Array, Array], float]


@dataclass(frozen=True)
class Metric:
    title: str
    """The display name."""
    figure: OfPredictions
    """Computes the metric in percent from gold and predicted values (example,)."""
    measure: Callable[[Array, Array], Measure]
    """Computes the metric on many resamples of the examples at once."""


LABEL_METRICS: Registry[Metric] = Registry("label metric")
SCORE_METRICS: Registry[Metric] = Registry("score metric")


def register(
    registry: Registry[Metric], name: str, title: str, measure: Callable[[Array, Array], Measure]
) -> Callable[[OfPredictions], OfPredictions]:
    """Decorate a function that computes a metric: register it as `name`, with a title and its vectorised form for the
    bootstrap."""

    def add(figure: OfPredictions) -> OfPredictions:
        registry.register(name)(Metric(title, figure, measure))
        return figure

    return add


# ---------------------------------------------------------------------- labels


@register(LABEL_METRICS, "accuracy", "accuracy", lambda gold, predicted: mean_measure(gold == predicted))
def accuracy(gold: Array, predicted: Array) -> float:
    return 100.0 * float(np.mean(gold == predicted))


@register(LABEL_METRICS, "f1", "F1", lambda gold, predicted: _f1_measure(gold == 1, predicted == 1))
@register(
    LABEL_METRICS, "f1_has_answer", "F1 has answer", lambda gold, predicted: _f1_measure(gold == 1, predicted == 1)
)
def f1_of_label_1(gold: Array, predicted: Array) -> float:
    return _f1(gold == 1, predicted == 1)


@register(LABEL_METRICS, "f1_no_answer", "F1 no answer", lambda gold, predicted: _f1_measure(gold == 0, predicted == 0))
def f1_of_label_0(gold: Array, predicted: Array) -> float:
    return _f1(gold == 0, predicted == 0)


def _f1(gold: Array, predicted: Array) -> float:
    from sklearn.metrics import f1_score

    return 100.0 * float(f1_score(gold, predicted, zero_division=0.0))


def _f1_measure(gold: npt.NDArray[np.bool_], predicted: npt.NDArray[np.bool_]) -> Measure:
    right = (gold & predicted).astype(np.float64)  # (example,)
    return ratio_measure(2 * right, gold.astype(np.float64) + predicted, undefined=0.0)


def _f1_macro_measure(gold: Array, predicted: Array) -> Measure:
    tally = _tally(gold, predicted)

    def measure(counts: Counts) -> Float64:
        right, golds, guesses = tally(counts)  # (round, label) each
        f1 = divide(2 * right, golds + guesses, undefined=0.0)  # (round, label)
        return 100.0 * f1.sum(axis=1) / (golds + guesses > 0).sum(axis=1)  # (round,)

    return measure


@register(LABEL_METRICS, "f1_macro", "macro F1", _f1_macro_measure)
def f1_macro(gold: Array, predicted: Array) -> float:
    """Mean F1 over the labels that occur in the gold labels or the predictions."""
    from sklearn.metrics import f1_score

    return 100.0 * float(f1_score(gold, predicted, average="macro", zero_division=0.0))


def _matthews_measure(gold: Array, predicted: Array) -> Measure:
    """Matthews correlation for any number of labels (Gorodkin 2004); for two it equals the usual definition."""
    tally = _tally(gold, predicted)

    def measure(counts: Counts) -> Float64:
        right, golds, guesses = tally(counts)  # (round, label) each
        total = golds.sum(axis=1)  # (round,)
        covariance = total * right.sum(axis=1) - (golds * guesses).sum(axis=1)  # (round,)
        gold_variance = total**2 - (golds**2).sum(axis=1)  # (round,)
        guess_variance = total**2 - (guesses**2).sum(axis=1)  # (round,)
        return 100.0 * divide(covariance, np.sqrt(gold_variance) * np.sqrt(guess_variance), undefined=0.0)  # (round,)

    return measure


@register(LABEL_METRICS, "matthews", "Matthews", _matthews_measure)
def matthews(gold: Array, predicted: Array) -> float:
    """Matthews correlation; 0 if it is undefined because one side is constant."""
    from sklearn.metrics import matthews_corrcoef

    if _is_constant(gold) or _is_constant(predicted):
        return 0.0
    return 100.0 * float(matthews_corrcoef(gold, predicted))


def _tally(gold: Array, predicted: Array) -> Callable[[Counts], Float64]:
    """Diagonal, row sums and column sums of the confusion matrix of each round: (3, round, label)."""
    labels = np.unique(np.concatenate([gold, predicted]))  # (label,)
    is_gold, is_guess = gold[:, None] == labels, predicted[:, None] == labels  # (example, label), (example, label)
    columns = np.concatenate([is_gold & is_guess, is_gold, is_guess], axis=1).astype(np.float32)  # (example, 3 * label)

    def tally(counts: Counts) -> Float64:
        sums = (counts @ columns).astype(np.float64)  # (round, 3 * label): integers, so exact
        return np.moveaxis(sums.reshape(len(counts), 3, len(labels)), 1, 0)  # (3, round, label)

    return tally


# ---------------------------------------------------------------------- scores


def _pearson_measure(gold: Float64, predicted: Float64) -> Measure:
    x, y = _scaled(gold), _scaled(predicted)  # (example,), (example,)
    moments = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1)  # (example, moment)

    def measure(counts: Counts) -> Float64:
        total, x_sum, y_sum, xx, yy, xy = (counts.astype(np.float64) @ moments).T  # (round,) each
        x_variance, y_variance = total * xx - x_sum**2, total * yy - y_sum**2  # (round,), (round,)
        constant = (x_variance <= CONSTANT * total * xx) | (y_variance <= CONSTANT * total * yy)  # (round,)
        return _correlation_on_counts(total * xy - x_sum * y_sum, x_variance, y_variance, constant)  # (round,)

    return measure


@register(SCORE_METRICS, "pearson", "Pearson", _pearson_measure)
def pearson(gold: Array, predicted: Array) -> float:
    """Pearson correlation; 0 if it is undefined because one side is constant."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, gold, predicted)


def _spearman_measure(gold: Float64, predicted: Float64) -> Measure:
    everyone = np.arange(len(gold))
    gold_below, predicted_below = twice_below(gold, everyone, everyone), twice_below(predicted, everyone, everyone)

    def measure(counts: Counts) -> Float64:
        total = counts.sum(axis=1, keepdims=True)  # (round, 1)
        x, y = gold_below(counts) - total, predicted_below(counts) - total  # (round, example): twice the rank, mean 0
        x_variance, y_variance, covariance = (sum_products(counts * a, b) for a, b in ((x, x), (y, y), (x, y)))
        constant = (x_variance == 0) | (y_variance == 0)  # (round,): all values are exact
        return _correlation_on_counts(covariance, x_variance, y_variance, constant)  # (round,)

    return measure


@register(SCORE_METRICS, "spearman", "Spearman", _spearman_measure)
def spearman(gold: Array, predicted: Array) -> float:
    """Spearman rank correlation; 0 if it is undefined because one side is constant."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, gold, predicted)


def _correlation(of: Callable[[Array, Array], Any], gold: Array, predicted: Array) -> float:
    gold, predicted = gold.astype(np.float64), predicted.astype(np.float64)
    if _is_constant(gold) or _is_constant(predicted):
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns about nearly constant values; the result is still valid
        value = float(of(gold, predicted)[0])
    return 0.0 if np.isnan(value) else 100.0 * value


def _correlation_on_counts(covariance: Float64, x_variance: Float64, y_variance: Float64, constant: Array) -> Float64:
    """Correlation in percent; 0 if it is undefined because one side is constant."""
    # Take the roots first: the product of two small variances can underflow to 0.
    below = np.where(constant, 0.0, np.sqrt(np.maximum(x_variance, 0.0)) * np.sqrt(np.maximum(y_variance, 0.0)))
    return 100.0 * np.clip(divide(covariance, below, undefined=0.0), -1.0, 1.0)  # (round,)


def _scaled(values: Float64) -> Float64:
    """Shift and scale values into -1 to 1, so that sums of squares stay accurate. Correlations don't change."""
    centred = values - np.median(values)  # (example,)
    largest = np.abs(centred).max()
    return centred / largest if largest > 0 else centred  # (example,)


def _is_constant(values: Array) -> bool:
    return bool(np.all(values == values[:1]))


# ---------------------------------------------------------------------- called by the kinds


def score_metrics(
    registry: Registry[Metric], metrics: Iterable[str], gold: Array, predicted: Array
) -> dict[str, float]:
    """Compute the named metrics of predictions, in percent."""
    gold, predicted = np.asarray(gold), np.asarray(predicted)  # (example,), (example,)
    assert gold.shape == predicted.shape and gold.ndim == 1, f"{gold.shape} gold against {predicted.shape} predicted"
    assert len(gold) > 0, "there is nothing to score"
    assert np.isfinite(gold).all(), "gold targets must be known"
    assert np.isfinite(predicted).all(), "predictions hold NaN or infinity"
    return {name: registry[name].figure(gold, predicted) for name in metrics}


def majority_label(train_targets: Array) -> int:
    """Return the most frequent label in train (the first if several tie): the trivial baseline for labels."""
    labels, counts = np.unique(np.asarray(train_targets), return_counts=True)
    return int(labels[np.argmax(counts)])


def mean_score(train_targets: Array) -> float:
    """Return the mean score in train: the trivial baseline for scores."""
    return float(np.mean(np.asarray(train_targets), dtype=np.float64))
