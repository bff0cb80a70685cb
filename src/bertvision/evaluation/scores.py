"""The figures of one model on one split, and of the trivial baseline that stands in every table. All in percent."""

from typing import Any

import numpy as np

from bertvision.evaluation import metrics, squad
from bertvision.evaluation.predictions import Predictions
from bertvision.evaluation.spans import answers_at, choose_threshold, threshold_free
from bertvision.tasks.base import Example, TargetKind, Task

Scores = dict[str, Any]


def gold_answers(examples: list[Example]) -> dict[str, list[str]]:
    """Id → texts of the gold answers, none for a question without an answer."""
    return {example.id: [answer.text for answer in example.answers or ()] for example in examples}


def score_predictions(
    task: Task, predictions: Predictions, examples: list[Example], threshold: float | None = None
) -> Scores:
    """Figures of a model; for spans at threshold 0, at the chosen `threshold`, and those that hang on none."""
    if task.kind is TargetKind.SPAN:
        gold = gold_answers(examples)
        scores: Scores = dict(squad.score_answers(gold, answers_at(predictions.answers, 0.0)))
        scores |= threshold_free(predictions.answers, gold)
        if threshold is not None:
            scores |= {"threshold": threshold, "at_threshold": _at(gold, predictions, threshold)}
        return scores
    targets = np.array([example.target for example in examples], dtype=np.float64)  # (example)
    if task.kind is TargetKind.SCORE:
        assert predictions.values is not None
        return {**metrics.score_values(task.metrics, targets, predictions.values), "total": len(examples)}
    return {**metrics.score_labels(task.metrics, targets, predictions.label_indices()), "total": len(examples)}


def _at(gold: dict[str, list[str]], predictions: Predictions, threshold: float) -> Scores:
    return dict(squad.score_answers(gold, answers_at(predictions.answers, threshold)))


def pick_threshold(predictions: Predictions, held_out: list[Example]) -> float:
    """The no-answer threshold with the best F1 on held-out training questions."""
    return choose_threshold(predictions.answers, gold_answers(held_out))


def score_baseline(task: Task, train: list[Example], examples: list[Example]) -> Scores:
    """Always "no answer", the majority label of train, or the mean score of train."""
    if task.kind is TargetKind.SPAN:
        return dict(squad.score_answers(gold_answers(examples), {example.id: "" for example in examples}))
    targets = np.array([example.target for example in examples], dtype=np.float64)  # (example)
    known = np.array([example.target for example in train], dtype=np.float64)  # (example)
    if task.kind is TargetKind.SCORE:
        constant = np.full(len(targets), metrics.mean_score(known))
        return {**metrics.score_values(task.metrics, targets, constant), "total": len(examples)}
    constant = np.full(len(targets), metrics.majority_label(known))
    return {**metrics.score_labels(task.metrics, targets, constant), "total": len(examples)}
