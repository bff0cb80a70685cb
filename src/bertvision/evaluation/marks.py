"""Marks: how a model did on each example, in a few numbers. Kept beside the predictions, they are what statistics and
analyses are made of: read in milliseconds, where the predictions of a large set take seconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from bertvision.evaluation import squad
from bertvision.evaluation.answers import NO_SPAN, SpanAnswer, null_scores_of, spans_at
from bertvision.evaluation.predictions import Predictions
from bertvision.tasks.base import Example, TargetKind

FILE = "marks.safetensors"
Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SpanMarks:
    """Of each question: what the best span, the second best and silence would score, and which of them is said."""

    exact: Float  # (example) 0 or 1: EM of the best span
    f1: Float  # (example) 0 to 1
    silent: Float  # (example) what saying nothing scores: 1 where there is no answer
    score: Float  # (example) of the best span, a sum of log-probabilities
    null_score: Float  # (example) of "no answer"
    second_exact: Float  # (example)
    second_f1: Float  # (example)
    second_score: Float  # (example) NO_SPAN where there is no second span
    has_answer: Bool  # (example)

    @property
    def lead(self) -> Float:
        """By how much "no answer" beats the best span."""
        return self.null_score - self.score  # (example)

    def says_nothing(self, threshold: float = 0.0) -> Bool:
        return self.lead > threshold  # (example)

    def exact_at(self, threshold: float = 0.0) -> Float:
        return np.where(self.says_nothing(threshold), self.silent, self.exact)  # (example)

    def f1_at(self, threshold: float = 0.0) -> Float:
        return np.where(self.says_nothing(threshold), self.silent, self.f1)  # (example)

    def right(self, threshold: float = 0.0) -> Bool:
        return self.exact_at(threshold) == 1  # (example)


@dataclass(frozen=True)
class LabelMarks:
    target: npt.NDArray[np.int64]  # (example) index of the gold label
    probabilities: Float  # (example, label)

    @property
    def predicted(self) -> npt.NDArray[np.int64]:
        return self.probabilities.argmax(axis=1)  # (example)

    def right(self, threshold: float = 0.0) -> Bool:
        return self.predicted == self.target  # (example)


@dataclass(frozen=True)
class ScoreMarks:
    target: Float  # (example)
    value: Float  # (example)


Marks = SpanMarks | LabelMarks | ScoreMarks
CLASSES: dict[TargetKind, type[SpanMarks] | type[LabelMarks] | type[ScoreMarks]] = {
    TargetKind.SPAN: SpanMarks,
    TargetKind.LABEL: LabelMarks,
    TargetKind.SCORE: ScoreMarks,
}


def build_marks(predictions: Predictions, examples: list[Example]) -> Marks:
    if predictions.kind is TargetKind.SPAN:
        return _mark_answers(predictions.answers, examples)
    targets = np.array([example.target for example in examples], dtype=np.float64)  # (example)
    if predictions.kind is TargetKind.LABEL:
        assert predictions.probabilities is not None
        return LabelMarks(targets.astype(np.int64), predictions.probabilities.astype(np.float64))
    assert predictions.values is not None
    return ScoreMarks(targets, predictions.values.astype(np.float64))


def _mark_answers(answers: Sequence[SpanAnswer], examples: list[Example]) -> SpanMarks:
    gold = [tuple(answer.text for answer in example.answers or ()) for example in examples]
    best, second = spans_at(answers, 0), spans_at(answers, 1)
    exact, f1 = _measure(gold, best.text)  # (example), (example)
    there = second.score > NO_SPAN  # (example)
    second_exact, second_f1 = (np.where(there, found, 0.0) for found in _measure(gold, second.text))
    return SpanMarks(
        exact=exact,
        f1=f1,
        silent=np.array([squad.has_none(texts) for texts in gold], dtype=np.float64),
        score=best.score,
        null_score=null_scores_of(answers),
        second_exact=second_exact,
        second_f1=second_f1,
        second_score=second.score,
        has_answer=np.array([bool(texts) for texts in gold], dtype=bool),
    )


def _measure(gold: list[tuple[str, ...]], said: list[str]) -> tuple[Float, Float]:
    found = np.array(list(map(squad.measure, gold, said)), dtype=np.float64).reshape(-1, 2)  # (example, 2)
    return np.ascontiguousarray(found[:, 0]), np.ascontiguousarray(found[:, 1])


def save_marks(folder: Path, marks: Marks) -> None:
    save_file({name: np.ascontiguousarray(values) for name, values in vars(marks).items()}, folder / FILE)


def load_marks(folder: Path, kind: TargetKind) -> Marks:
    return CLASSES[kind](**load_file(folder / FILE))
