"""score: a number. A head outputs one value and is trained with squared error."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from bertvision.data.examples import Example
from bertvision.data.windows import Features
from bertvision.errors import UserError, shorten
from bertvision.evaluation import combining, trust
from bertvision.evaluation.metrics import SCORE_METRICS, mean_score, score_metrics
from bertvision.evaluation.statistics import Measure
from bertvision.kinds.base import (
    DEFAULT,
    KINDS,
    Aim,
    Array,
    Asked,
    Decoding,
    ExampleResults,
    Float,
    Kind,
    Packed,
    Predictions,
    Scores,
    WindowTargets,
    targets_of,
)
from bertvision.kinds.result import Result, strong

if TYPE_CHECKING:
    from torch import Tensor

SAID = "score"
"""The only key in trust tables: scores form a single group."""


@dataclass(frozen=True)
class ScorePredictions(Predictions):
    values: Array
    """(example)"""

    def predicted(self, threshold: float = 0.0) -> list[float]:
        return [float(value) for value in self.values]

    def rows(self, threshold: float = 0.0) -> list[dict[str, Any]]:
        return [{"id": id, "score": round(float(v), 5)} for id, v in zip(self.ids, self.values, strict=True)]


@dataclass(frozen=True)
class ScoreResults(ExampleResults):
    target: Float
    """(example)"""
    value: Float
    """(example)"""

    def errors(self) -> Float:
        return np.abs(self.value - self.target)  # (example)


@dataclass(frozen=True, kw_only=True, repr=False)
class ScoreResult(Result):
    score: float

    def describe(self) -> str:
        return f"{self.score:.3f}"

    def body(self) -> str:
        return strong(self.describe())


class ScoreRow(TypedDict):
    """A line of predictions.jsonl."""

    score: float | None


class ScoreKind(Kind):
    row_form = ScoreRow
    trust_form = trust.MeasuredTrust
    results = ScoreResults
    baseline_note = "The baseline always predicts the mean score of train."
    baseline_words = "always predicting the mean score"

    def output_count(self, labels: int) -> int:
        return 1

    def losses(self, outputs: "Tensor", states: Packed, targets: WindowTargets) -> "Tensor":
        return (outputs.squeeze(2) - targets.value).square()  # (member, sequence)

    def decode(
        self, task: Asked, outputs: Array, features: Features, examples: Sequence[Example], how: Decoding = DEFAULT
    ) -> ScorePredictions:
        return ScorePredictions([example.id for example in examples], outputs[:, 0])

    def example_results(self, predictions: ScorePredictions, examples: Sequence[Example]) -> ScoreResults:
        return ScoreResults(targets_of(examples), predictions.values.astype(np.float64))

    def score(self, metrics: Sequence[str], results: ScoreResults, threshold: float | None = None) -> Scores:
        return {**score_metrics(SCORE_METRICS, metrics, results.target, results.value), "total": len(results)}

    def measure(self, key: str, results: ScoreResults, threshold: float | None = None) -> Measure:
        assert np.isfinite(results.target).all() and np.isfinite(results.value).all(), "values hold NaN or infinity"
        return SCORE_METRICS[key].measure(results.target, results.value)

    def baseline(self, metrics: Sequence[str], train: Sequence[Example], examples: Sequence[Example]) -> Scores:
        constant = np.full(len(examples), mean_score(targets_of(train)))
        return {**score_metrics(SCORE_METRICS, metrics, targets_of(examples), constant), "total": len(examples)}

    def title(self, key: str) -> str | None:
        return SCORE_METRICS[key].title if key in SCORE_METRICS else None

    def show_gold(self, example: Example, labels: Sequence[str]) -> float:
        assert example.target is not None, "scored examples have a target"
        return float(example.target)

    def value_of(self, row: Mapping[str, Any]) -> float:
        return math.nan if row["score"] is None else float(row["score"])

    def show_row(self, row: Mapping[str, Any]) -> str:
        return f"{row['score']:.2f}"

    def result(self, row: Mapping[str, Any], **shared: Any) -> ScoreResult:
        return ScoreResult(score=row["score"], **shared)

    has_aim = True

    def aim(self, task: Asked, said: ScorePredictions, features: Features, outputs: "Tensor", threshold: float) -> Aim:
        return Aim(0, f"{said.predicted()[0]:.2f}", "the score", lambda outputs: outputs[0, 0])

    def combine(self, outputs: list[Array], features: Features, method: str, weights: Array | None = None) -> Array:
        self.check_rows(outputs, features)
        return combining.combine_values(outputs, method, weights)

    def held_out_loss(self, outputs: Array, features: Features) -> float:
        return float(np.square(outputs[:, 0] - features.target).mean())

    def fit_weights(self, outputs: list[Array], features: Features) -> Float:
        self.check_rows(outputs, features)
        return combining.fit_values(outputs, features.target)

    def measure_trust(self, results: ScoreResults, labels: Sequence[str], threshold: float = 0.0) -> trust.Trust:
        """Return one group with the mean absolute error, because scores are not right or wrong."""
        return {SAID: [{"off_by": float(np.abs(results.value - results.target).mean()), "examples": len(results)}]}

    def trust_row(self, row: Mapping[str, Any], known: trust.Trust, threshold: float = 0.0) -> trust.Group:
        return {key: known[SAID][0][key] for key in ("off_by", "examples")} if SAID in known else {"examples": 0}

    def default_metrics(self, labels: Sequence[str]) -> tuple[str, ...]:
        return ("pearson", "spearman")

    def parse(self, cell: Any, labels: Sequence[str], place: str, column: str) -> float:
        try:
            score = math.nan if isinstance(cell, bool) else float(cell)
        except (TypeError, ValueError, OverflowError):
            score = math.nan
        if not math.isfinite(score):
            raise UserError(f"{place}: column '{column}' (task.label) must be a number, found {shorten(cell)}.")
        return score


KINDS.register("score")(ScoreKind())
