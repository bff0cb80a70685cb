"""Scores of labels and values, all in percent (0 to 100, correlations -100 to 100), and the trivial baselines.

score_labels(["accuracy", "f1"], gold, predicted) → {"accuracy": 87.5, "f1": 90.1}
"""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from bertvision.data.windows import Features
from bertvision.registry import Registry
from bertvision.tasks.base import Example

Array = npt.NDArray[Any]
Metric = Callable[[Array, Array], float]

label_metrics: Registry[Metric] = Registry("label metric")
score_metrics: Registry[Metric] = Registry("score metric")


@label_metrics.register("accuracy")
def accuracy(gold: Array, predicted: Array) -> float:
    return 100.0 * float(np.mean(gold == predicted))


@label_metrics.register("f1")
@label_metrics.register("f1_has_answer")
def f1_of_label_1(gold: Array, predicted: Array) -> float:
    return _f1(gold == 1, predicted == 1)


@label_metrics.register("f1_no_answer")
def f1_of_label_0(gold: Array, predicted: Array) -> float:
    return _f1(gold == 0, predicted == 0)


@label_metrics.register("f1_macro")
def f1_macro(gold: Array, predicted: Array) -> float:
    """Mean F1 of the labels that occur in gold or predictions."""
    from sklearn.metrics import f1_score

    return 100.0 * float(f1_score(gold, predicted, average="macro", zero_division=0.0))


@label_metrics.register("matthews")
def matthews(gold: Array, predicted: Array) -> float:
    """Matthews correlation; 0 where it is undefined because one side is constant."""
    from sklearn.metrics import matthews_corrcoef

    if _is_constant(gold) or _is_constant(predicted):
        return 0.0
    return 100.0 * float(matthews_corrcoef(gold, predicted))


@score_metrics.register("pearson")
def pearson(gold: Array, predicted: Array) -> float:
    """Pearson correlation; 0 where it is undefined because one side is constant."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, gold, predicted)


@score_metrics.register("spearman")
def spearman(gold: Array, predicted: Array) -> float:
    """Rank correlation; 0 where it is undefined because one side is constant."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, gold, predicted)


def _f1(gold: Array, predicted: Array) -> float:
    from sklearn.metrics import f1_score

    return 100.0 * float(f1_score(gold, predicted, zero_division=0.0))


def _correlation(measure: Callable[[Array, Array], Any], gold: Array, predicted: Array) -> float:
    gold, predicted = gold.astype(np.float64), predicted.astype(np.float64)
    if _is_constant(gold) or _is_constant(predicted):
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns of nearly constant values; the figure is still the figure
        value = float(measure(gold, predicted)[0])
    return 0.0 if np.isnan(value) else 100.0 * value


def _is_constant(values: Array) -> bool:
    return bool(np.all(values == values[:1]))


def score_labels(metrics: Iterable[str], gold: Array, predicted: Array) -> dict[str, float]:
    """The named label metrics of predicted label indices, in percent."""
    return _score(label_metrics, metrics, gold, predicted)


def score_values(metrics: Iterable[str], gold: Array, predicted: Array) -> dict[str, float]:
    """The named score metrics of predicted values, in percent."""
    return _score(score_metrics, metrics, gold, predicted)


def _score(registry: Registry[Metric], metrics: Iterable[str], gold: Array, predicted: Array) -> dict[str, float]:
    gold, predicted = np.asarray(gold), np.asarray(predicted)  # (example,), (example,)
    assert gold.shape == predicted.shape and gold.ndim == 1, f"{gold.shape} gold against {predicted.shape} predicted"
    assert len(gold) > 0, "there is nothing to score"
    assert np.isfinite(gold).all(), "gold targets must be known"
    assert np.isfinite(predicted).all(), "predictions hold NaN or infinity"
    return {name: registry[name](gold, predicted) for name in metrics}


def majority_label(train_targets: Array) -> int:
    """The trivial baseline of labels: the most frequent one in train (the first of equals)."""
    labels, counts = np.unique(np.asarray(train_targets), return_counts=True)
    return int(labels[np.argmax(counts)])


def mean_score(train_targets: Array) -> float:
    """The trivial baseline of scores: their mean in train."""
    return float(np.mean(np.asarray(train_targets), dtype=np.float64))


def answerable_by_question(
    probabilities: Array, features: Features, examples: list[Example]
) -> npt.NDArray[np.float64]:
    """Probabilities (example, 2) of no answer and answer, from those of the windows (window, 2).

    A question is answerable if any of its windows says so: its probability is the highest of its windows. Rows are
    scaled to sum to 1 first, since an element-wise maximum over models does not.
    """
    probabilities = np.asarray(probabilities, dtype=np.float64)  # (window, 2)
    assert probabilities.shape == (len(features), 2), f"{probabilities.shape} for {len(features)} windows"
    has_answer = probabilities[:, 1] / probabilities.sum(axis=1)  # (window,)
    highest = np.zeros(len(examples), dtype=np.float64)  # (example,)
    np.maximum.at(highest, features.example, has_answer)
    return np.stack([1.0 - highest, highest], axis=1)  # (example, 2)
