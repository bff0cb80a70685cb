"""Answers to questions: the best spans of each question, and the score of "no answer".

answers = decode_spans(…)              SpanAnswers: arrays over all questions, since a large split has many candidates
answers[3].n_best[0].text              the SpanAnswer of one question is created on access
spans_at(answers, 0).text              the best span of every question; also takes a list of SpanAnswer
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from bertvision.evaluation.spans.passages import Passages

NO_SPAN = -1e6  # score of a missing span, such as that of a passage without text

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]


class Candidate(NamedTuple):
    text: str
    start: int
    """First character in the passage."""
    end: int
    """One past the last character in the passage."""
    score: float
    """Sum of the log-probabilities of the start and the end token."""
    probability: float
    """Softmax over the scores of the candidates and of "no answer"."""


@dataclass(frozen=True, slots=True)
class SpanAnswer:
    """The best spans of one question, and the score of "no answer"."""

    id: str
    text: str
    """The best span; empty only if the passage has no text."""
    start: int
    end: int
    score: float
    null_score: float
    """No-answer score: the minimum over the question's windows."""
    null_probability: float
    n_best: list[Candidate]
    """Candidates at distinct positions in the passage, best first. The first is the answer above."""

    @property
    def null_lead(self) -> float:
        """The score of "no answer" minus that of the best span."""
        return self.null_score - self.score


class Spans(NamedTuple):
    """The span of a given rank for each question."""

    text: list[str]
    """Empty if a question has no span of this rank."""
    score: Float64
    """(question,) NO_SPAN if a question has no span of this rank"""


@dataclass(frozen=True, eq=False)
class SpanAnswers(Sequence[SpanAnswer]):
    """The answers to all questions of a split, as arrays. Candidates beyond a question's `sizes` are undefined."""

    ids: list[str]
    passages: Passages
    sizes: npt.NDArray[np.int64]
    """(question,) number of candidates"""
    start: Int32
    """(question, candidate) first character in the passage"""
    end: Int32
    """(question, candidate) one past the last character"""
    score: Float64
    """(question, candidate) best first"""
    probability: Float64
    """(question, candidate)"""
    null_score: Float64
    """(question,)"""
    null_probability: Float64
    """(question,)"""

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, place: int) -> SpanAnswer: ...
    @overload
    def __getitem__(self, place: slice) -> list[SpanAnswer]: ...
    def __getitem__(self, place: int | slice) -> SpanAnswer | list[SpanAnswer]:
        if isinstance(place, slice):
            return [self[index] for index in range(*place.indices(len(self)))]
        passage, count = self.passages.texts[place], self.sizes[place]
        columns = (self.start, self.end, self.score, self.probability)
        rows = zip(*(column[place, :count].tolist() for column in columns), strict=True)
        n_best = [Candidate(passage[start:end], start, end, *rest) for start, end, *rest in rows]
        best = n_best[0] if n_best else Candidate("", 0, 0, NO_SPAN, 0.0)
        silence = float(self.null_score[place]), float(self.null_probability[place])
        return SpanAnswer(self.ids[place], *best[:4], *silence, n_best)

    def at(self, rank: int) -> Spans:
        """Return the span of the given rank for each question; rank 0 is the best."""
        if rank >= self.score.shape[1]:
            return Spans([""] * len(self), np.full(len(self), NO_SPAN))
        there = self.sizes > rank  # (question,)
        low = np.where(there, self.start[:, rank], 0).tolist()
        high = np.where(there, self.end[:, rank], 0).tolist()
        texts = [passage[first:last] for passage, first, last in zip(self.passages.texts, low, high, strict=True)]
        return Spans(texts, np.where(there, self.score[:, rank], NO_SPAN))

    def rows(self, threshold: float) -> Iterator[dict[str, Any]]:
        """Yield one row per question, in the form that users see."""
        silent = (self.null_score - self.at(0).score > threshold).tolist()  # (question,)
        # Round whole arrays: a split has hundreds of thousands of candidates.
        null_score = np.round(self.null_score, 5)  # (question,)
        null_probability = np.round(self.null_probability, 6)  # (question,)
        score, probability = np.round(self.score, 5), np.round(self.probability, 6)  # (question, candidate) × 2
        for question, (id, passage, size) in enumerate(zip(self.ids, self.passages.texts, self.sizes, strict=True)):
            columns = (column[question, :size].tolist() for column in (self.start, self.end, score, probability))
            n_best = [
                {"text": passage[start:end], "start": start, "end": end, "score": sum, "probability": share}
                for start, end, sum, share in zip(*columns, strict=True)
            ]
            nulls = float(null_score[question]), float(null_probability[question])
            yield make_row(id, n_best, *nulls, silent[question])


def make_row(
    id: str, n_best: list[dict[str, Any]], null_score: float, null_probability: float, is_silent: bool
) -> dict[str, Any]:
    """Build a question's row of predictions.jsonl."""
    best = n_best[0] if n_best else {"text": "", "start": 0, "end": 0, "score": NO_SPAN, "probability": 0.0}
    return {
        "id": id,
        "answer": "" if is_silent else best["text"],
        "probability": null_probability if is_silent else best["probability"],
        "start": None if is_silent else best["start"],
        "end": None if is_silent else best["end"],
        "null_score": null_score,
        "score": best["score"],
        "n_best": n_best,
    }


def spans_at(answers: Sequence[SpanAnswer], rank: int) -> Spans:
    """Return the span of the given rank for each question; rank 0 is the best."""
    if isinstance(answers, SpanAnswers):
        return answers.at(rank)
    if rank == 0:
        return Spans([answer.text for answer in answers], np.array([answer.score for answer in answers]))
    found = [answer.n_best[rank] if len(answer.n_best) > rank else None for answer in answers]
    texts = [candidate.text if candidate else "" for candidate in found]
    return Spans(texts, np.array([candidate.score if candidate else NO_SPAN for candidate in found]))


def null_scores_of(answers: Sequence[SpanAnswer]) -> Float64:
    """(question,) scores of "no answer"."""
    if isinstance(answers, SpanAnswers):
        return answers.null_score
    return np.array([answer.null_score for answer in answers])


def ids_of(answers: Sequence[SpanAnswer]) -> list[str]:
    return answers.ids if isinstance(answers, SpanAnswers) else [answer.id for answer in answers]
