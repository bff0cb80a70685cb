"""label: one of several labels, given by its index. A head outputs one logit per label."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from bertvision.data.examples import Example
from bertvision.data.windows import Features
from bertvision.errors import UserError, list_names, shorten
from bertvision.evaluation import combining, trust
from bertvision.evaluation.metrics import LABEL_METRICS, majority_label, score_metrics
from bertvision.evaluation.statistics import Measure
from bertvision.kinds.base import (
    DEFAULT,
    KINDS,
    Aim,
    Array,
    Asked,
    Bool,
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
from bertvision.kinds.result import Result, bars, percent, strong

if TYPE_CHECKING:
    from torch import Tensor


MOST_SHOWN = 3
"""Probabilities in a line of output: of all labels, or of the most likely ones."""


@dataclass(frozen=True)
class LabelPredictions(Predictions):
    probabilities: Float
    """(example, label)"""
    labels: tuple[str, ...]

    def predicted(self, threshold: float = 0.0) -> list[int]:
        return [int(index) for index in self.probabilities.argmax(axis=1)]

    def rows(self, threshold: float = 0.0) -> list[dict[str, Any]]:
        return [
            {
                "id": id,
                "label": self.labels[int(row.argmax())],
                "probabilities": {name: round(float(p), 6) for name, p in zip(self.labels, row, strict=True)},
            }
            for id, row in zip(self.ids, self.probabilities, strict=True)
        ]


@dataclass(frozen=True)
class LabelResults(ExampleResults):
    target: npt.NDArray[np.int64]
    """(example) index of the gold label"""
    probabilities: Float
    """(example, label)"""

    @property
    def predicted(self) -> npt.NDArray[np.int64]:
        return self.probabilities.argmax(axis=1)  # (example)

    def right(self, threshold: float = 0.0) -> Bool:
        return self.predicted == self.target  # (example)


@dataclass(frozen=True, kw_only=True, repr=False)
class LabelResult(Result):
    label: str
    probability: float
    """Of the label."""
    probabilities: dict[str, float]
    """Of every label."""

    def describe(self) -> str:
        chances = list(self.probabilities.items())
        if len(chances) > MOST_SHOWN:
            chances = sorted(chances, key=lambda one: one[1], reverse=True)[:MOST_SHOWN]
        return f"{self.label} ({', '.join(f'{name} {percent(chance)}' for name, chance in chances)})"

    def body(self) -> str:
        return strong(self.label) + bars(self.probabilities.items())


class LabelRow(TypedDict):
    """A line of predictions.jsonl."""

    label: str
    probabilities: Annotated[dict[str, float | None], Meta(min_length=1)]


class LabelKind(Kind):
    row_form = LabelRow
    has_labels = True
    results = LabelResults
    baseline_note = "The baseline always predicts the majority label of train."
    baseline_words = "always predicting the majority label"
    exact_keys = ("accuracy",)

    def output_count(self, labels: int) -> int:
        return labels

    def window_target(self, example: Example, answer_inside: bool) -> float:
        if example.target is not None and example.answers and not answer_inside:
            return 0.0  # answerability: this window does not contain the answer
        return super().window_target(example, answer_inside)

    def losses(self, outputs: "Tensor", states: Packed, targets: WindowTargets) -> "Tensor":
        from torch.nn import functional

        members = len(outputs)
        labels = targets.value.long().repeat(members)  # (member · sequence)
        losses = functional.cross_entropy(outputs.flatten(0, 1), labels, reduction="none")  # (member · sequence)
        return losses.unflatten(0, (members, -1))  # (member, sequence)

    def decode(
        self, task: Asked, outputs: Array, features: Features, examples: Sequence[Example], how: Decoding = DEFAULT
    ) -> LabelPredictions:
        powers = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))  # (window, label)
        probabilities = powers / powers.sum(axis=1, keepdims=True)  # (window, label)
        if task.windowed:
            probabilities = answerable_by_question(probabilities, features, examples)  # (example, label)
        return LabelPredictions([example.id for example in examples], probabilities, task.labels)

    def example_results(self, predictions: LabelPredictions, examples: Sequence[Example]) -> LabelResults:
        return LabelResults(targets_of(examples).astype(np.int64), predictions.probabilities.astype(np.float64))

    def score(self, metrics: Sequence[str], results: LabelResults, threshold: float | None = None) -> Scores:
        return {**score_metrics(LABEL_METRICS, metrics, results.target, results.predicted), "total": len(results)}

    def measure(self, key: str, results: LabelResults, threshold: float | None = None) -> Measure:
        return LABEL_METRICS[key].measure(results.target, results.predicted)

    def baseline(self, metrics: Sequence[str], train: Sequence[Example], examples: Sequence[Example]) -> Scores:
        constant = np.full(len(examples), majority_label(targets_of(train)))
        return {**score_metrics(LABEL_METRICS, metrics, targets_of(examples), constant), "total": len(examples)}

    def title(self, key: str) -> str | None:
        return LABEL_METRICS[key].title if key in LABEL_METRICS else None

    def show_gold(self, example: Example, labels: Sequence[str]) -> str:
        assert example.target is not None, "scored examples have a target"
        return labels[int(example.target)]

    def value_of(self, row: Mapping[str, Any]) -> str:
        return str(row["label"])

    def result(self, row: Mapping[str, Any], **shared: Any) -> LabelResult:
        chances = dict(row["probabilities"])
        return LabelResult(label=row["label"], probability=chances[row["label"]], probabilities=chances, **shared)

    # ------------------------------------------------------------------ layer maps

    has_aim = True

    def aim(self, task: Asked, said: LabelPredictions, features: Features, outputs: "Tensor", threshold: float) -> Aim:
        import torch

        label, count = said.predicted()[0], len(task.labels)
        # With several windows, take the one with the highest probability of an answer, as decoding does.
        window = int(outputs.softmax(dim=1)[:, 1].argmax()) if task.windowed else 0

        def score(outputs: "Tensor") -> "Tensor":
            others = torch.arange(outputs.shape[1], device=outputs.device) != label  # (label)
            return outputs[0, label] - outputs[0, others].mean()

        rest = "that of the other label" if count == 2 else "the mean logit of the other labels"
        return Aim(window, task.labels[label], f"the logit of '{task.labels[label]}' minus {rest}", score)

    def probability_of(self, row: Mapping[str, Any]) -> float | None:
        found: float | None = row["probabilities"][row["label"]]  # null in the file if it was NaN
        return found

    # ------------------------------------------------------------------ combining

    def log_probabilities(self, outputs: Array, features: Features) -> Float:
        scores: Float = outputs.astype(np.float64)  # (window, label)
        if not len(features):
            return np.zeros(outputs.shape)
        highest = scores.max(axis=1, keepdims=True)  # (window, 1)
        assert np.isfinite(highest).all(), "a window's logits hold NaN or infinity: the model has diverged"
        scores -= highest
        scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return np.maximum(scores, combining.LOWEST, out=scores)

    def gold_log_probabilities(self, outputs: Array, features: Features) -> Float:
        known = np.flatnonzero(~np.isnan(features.target))  # (observation)
        return self.log_probabilities(outputs, features)[known, features.target[known].astype(np.int64)]

    def combine_predictions(self, members: list[LabelPredictions], method: str) -> LabelPredictions:
        if method not in ("max", "mean"):
            raise UserError(
                f"its members split passages into different windows, which '{method}' cannot combine. Use max or mean."
            )
        stacked = np.stack([one.probabilities for one in members])  # (member, example, label)
        joined = stacked.max(axis=0) if method == "max" else stacked.mean(axis=0)  # (example, label)
        return LabelPredictions(members[0].ids, joined / joined.sum(axis=1, keepdims=True), members[0].labels)

    # ------------------------------------------------------------------ trust

    def said(self, results: LabelResults, labels: Sequence[str], threshold: float) -> dict[str, Bool]:
        return {name: results.predicted == number for number, name in enumerate(labels)}  # (example) each

    def sureness(self, results: LabelResults, threshold: float) -> Float:
        return np.asarray(np.round(results.probabilities.max(axis=1), trust.DIGITS))  # (example)

    def trust_row(self, row: Mapping[str, Any], known: trust.Trust, threshold: float = 0.0) -> trust.Group:
        return trust.look_up(known, str(row["label"]), max(row["probabilities"].values()))

    # ------------------------------------------------------------------ a user's own files

    def default_metrics(self, labels: Sequence[str]) -> tuple[str, ...]:
        return ("accuracy", "f1") if len(labels) == 2 else ("accuracy", "f1_macro")

    def parse(self, cell: Any, labels: Sequence[str], place: str, column: str) -> int:
        label = read_label(cell, place, column)
        if label not in labels:
            raise UserError(
                f"{place}: unknown label {shorten(label)} in column '{column}'; known: {list_names(labels, 300)}."
            )
        return labels.index(label)


def read_label(cell: Any, place: str, column: str) -> str:
    """Return the name of a label as text. Numbers and booleans are written as in JSON."""
    if cell is None or cell == "":
        raise UserError(f"{place}: column '{column}' (task.label) is empty. Every row of train and dev needs a label.")
    if isinstance(cell, list | dict):
        raise UserError(f"{place}: column '{column}' (task.label) must be one label, found {shorten(cell)}.")
    return json.dumps(cell) if isinstance(cell, bool | int | float) else str(cell)


def answerable_by_question(probabilities: Array, features: Features, examples: Sequence[Example]) -> Float:
    """Return probabilities (example, 2) of "no answer" and "has answer", given those of the windows (window, 2).

    A question is answerable if any of its windows contains an answer, so its probability is the highest among its
    windows. Rows are first normalised to sum to 1, because an element-wise maximum over models does not.
    """
    probabilities = np.asarray(probabilities, dtype=np.float64)  # (window, 2)
    assert probabilities.shape == (len(features), 2), f"{probabilities.shape} for {len(features)} windows"
    has_answer = probabilities[:, 1] / probabilities.sum(axis=1)  # (window,)
    highest = np.zeros(len(examples), dtype=np.float64)  # (example,)
    np.maximum.at(highest, features.example, has_answer)
    return np.stack([1.0 - highest, highest], axis=1)  # (example, 2)


KINDS.register("label")(LabelKind())
