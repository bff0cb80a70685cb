"""Marks: how a model did on each example, in a few numbers. Kept beside the predictions, they are what statistics and
analyses are made of: read in milliseconds, where the predictions of a large set take seconds."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from bertvision.evaluation import squad
from bertvision.evaluation.predictions import Predictions
from bertvision.evaluation.spans import NO_SPAN, SpanAnswer
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
        rows = [_mark_answer(answer, example) for answer, example in zip(predictions.answers, examples, strict=True)]
        has_answer = np.array([bool(example.answers) for example in examples], dtype=bool)  # (example)
        return SpanMarks(**{name: np.array([row[name] for row in rows]) for name in rows[0]}, has_answer=has_answer)
    targets = np.array([example.target for example in examples], dtype=np.float64)  # (example)
    if predictions.kind is TargetKind.LABEL:
        assert predictions.probabilities is not None
        return LabelMarks(targets.astype(np.int64), predictions.probabilities.astype(np.float64))
    assert predictions.values is not None
    return ScoreMarks(targets, predictions.values.astype(np.float64))


def _mark_answer(answer: SpanAnswer, example: Example) -> dict[str, float]:
    gold = [known.text for known in example.answers or ()]
    second = answer.n_best[1] if len(answer.n_best) > 1 else None
    return {
        "exact": squad.exact(gold, answer.text),
        "f1": squad.f1(gold, answer.text),
        "silent": squad.exact(gold, ""),
        "score": answer.score,
        "null_score": answer.null_score,
        "second_exact": squad.exact(gold, second.text) if second else 0.0,
        "second_f1": squad.f1(gold, second.text) if second else 0.0,
        "second_score": second.score if second else NO_SPAN,
    }


def save_marks(folder: Path, marks: Marks) -> None:
    save_file({name: np.ascontiguousarray(values) for name, values in vars(marks).items()}, folder / FILE)


def load_marks(folder: Path, kind: TargetKind) -> Marks:
    return CLASSES[kind](**load_file(folder / FILE))
