"""The figures of one model on one split, and of the trivial baseline that stands in every table. All in percent."""

from typing import Any

import numpy as np

from bertvision.evaluation import metrics, squad
from bertvision.evaluation.marks import Marks, SpanMarks, build_marks
from bertvision.evaluation.predictions import Predictions
from bertvision.evaluation.spans import best_threshold, forced_scores
from bertvision.tasks.base import Example, TargetKind, Task

Scores = dict[str, Any]


def gold_answers(examples: list[Example]) -> dict[str, list[str]]:
    """Id → texts of the gold answers, none for a question without an answer."""
    return {example.id: [answer.text for answer in example.answers or ()] for example in examples}


def score_predictions(
    task: Task,
    predictions: Predictions,
    examples: list[Example],
    threshold: float | None = None,
    marks: Marks | None = None,
) -> Scores:
    """Figures of a model; for spans at threshold 0, at the chosen `threshold`, and those that hang on none. `marks` are
    those of the predictions, where they have been made."""
    if task.kind is TargetKind.SPAN:
        spans = _span_marks(predictions, examples, marks)
        scores: Scores = _at(spans, 0.0)
        scores |= forced_scores(spans.lead, spans.exact, spans.f1, spans.has_answer)
        if threshold is not None:
            scores |= {"threshold": threshold, "at_threshold": _at(spans, threshold)}
        return scores
    targets = np.array([example.target for example in examples], dtype=np.float64)  # (example)
    if task.kind is TargetKind.SCORE:
        assert predictions.values is not None
        return {**metrics.score_values(task.metrics, targets, predictions.values), "total": len(examples)}
    return {**metrics.score_labels(task.metrics, targets, predictions.label_indices()), "total": len(examples)}


def _span_marks(predictions: Predictions, examples: list[Example], marks: Marks | None) -> SpanMarks:
    spans = build_marks(predictions, examples) if marks is None else marks
    assert isinstance(spans, SpanMarks)
    return spans


def _at(marks: SpanMarks, threshold: float) -> Scores:
    return dict(squad.mean_scores(marks.exact_at(threshold), marks.f1_at(threshold), marks.has_answer))


def pick_threshold(predictions: Predictions, held_out: list[Example], marks: Marks | None = None) -> float:
    """The no-answer threshold with the best F1 on held-out training questions."""
    spans = _span_marks(predictions, held_out, marks)
    return best_threshold(spans.lead, spans.f1, spans.silent)


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
