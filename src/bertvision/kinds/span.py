"""span: where the answer starts and ends in a passage, or "no answer". A head outputs two logits per token."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from bertvision.data.examples import Example
from bertvision.data.windows import Features
from bertvision.evaluation import combining, trust
from bertvision.evaluation.spans import official
from bertvision.evaluation.spans.answers import (
    NO_SPAN,
    SpanAnswer,
    SpanAnswers,
    make_row,
    null_scores_of,
    spans_at,
)
from bertvision.evaluation.spans.combining import combine_answers
from bertvision.evaluation.spans.decode import answers_at, best_threshold, decode_spans, forced_scores
from bertvision.evaluation.statistics import Measure, auc_measure, mean_measure
from bertvision.kinds.base import (
    DEFAULT,
    KINDS,
    Aim,
    Array,
    Asked,
    Bool,
    Decoding,
    ExampleResults,
    Figure,
    Float,
    Kind,
    Packed,
    Predictions,
    Scores,
    WindowTargets,
)
from bertvision.kinds.result import Result, bars, highlight, percent, strong

if TYPE_CHECKING:
    from torch import Tensor

ANSWER, SILENCE = "answer", "no answer"
"""The two possible predictions in trust tables."""
CHOSEN = "at_threshold."
_OFFICIAL = "EM, F1: official definition, no-answer threshold 0."
_PARTS = "HasAns F1, NoAns F1: F1 on answerable and on unanswerable questions, threshold 0."
_THRESHOLD = "EM*, F1*: at the no-answer threshold chosen on held-out training questions."
_FORCED = "Answerable-only EM, F1: on answerable questions when the model must answer; no threshold."
FIGURES = (
    Figure("exact", "EM", "exact match, official definition, no-answer threshold 0", _OFFICIAL),
    Figure("f1", "F1", "F1, official definition, no-answer threshold 0", _OFFICIAL),
    Figure("HasAns_f1", "HasAns F1", "F1 on answerable questions, threshold 0", _PARTS, has_interval=False),
    Figure("NoAns_f1", "NoAns F1", "F1 on unanswerable questions, threshold 0", _PARTS, has_interval=False),
    Figure(
        "at_threshold.exact", "EM*", "exact match at the no-answer threshold chosen on held-out training questions",
        _THRESHOLD,
    ),
    Figure("at_threshold.f1", "F1*", "F1 at the same threshold as EM*", _THRESHOLD),
    Figure(
        "forced_exact", "answerable-only EM", "exact match on answerable questions when the model must answer", _FORCED
    ),
    Figure("forced_f1", "answerable-only F1", "F1 on answerable questions when the model must answer", _FORCED),
    Figure(
        "no_answer_auc", "AUC", "how well the no-answer score separates unanswerable from answerable questions",
        "AUC: area under the ROC curve of the no-answer score.",
    ),
)  # fmt: skip
TITLES = {"exact": "EM", "f1": "F1"}


@dataclass(frozen=True)
class SpanPredictions(Predictions):
    answers: Sequence[SpanAnswer]
    """One per question, each with its n best candidates."""

    def predicted(self, threshold: float = 0.0) -> list[str]:
        return list(answers_at(self.answers, threshold).values())

    def rows(self, threshold: float = 0.0) -> Iterable[dict[str, Any]]:
        if isinstance(self.answers, SpanAnswers):
            return self.answers.rows(threshold)
        return (_row(answer, threshold) for answer in self.answers)


@dataclass(frozen=True)
class SpanResults(ExampleResults):
    """For each question: the scores of the best span, the second-best span and "no answer". The threshold decides
    between them."""

    exact: Float
    """(example) 0 or 1: exact match of the best span"""
    f1: Float
    """(example) 0 to 1: F1 of the best span"""
    silent: Float
    """(example) exact match and F1 of giving no answer: 1 if the question is unanswerable, else 0"""
    score: Float
    """(example) score of the best span, a sum of log-probabilities"""
    null_score: Float
    """(example) score of "no answer\""""
    second_exact: Float
    """(example)"""
    second_f1: Float
    """(example)"""
    second_score: Float
    """(example) NO_SPAN if there is no second span"""
    has_answer: Bool
    """(example)"""

    @property
    def lead(self) -> Float:
        """The score of "no answer" minus that of the best span."""
        return self.null_score - self.score  # (example)

    def says_nothing(self, threshold: float = 0.0) -> Bool:
        return self.lead > threshold  # (example)

    def exact_at(self, threshold: float = 0.0) -> Float:
        return np.where(self.says_nothing(threshold), self.silent, self.exact)  # (example)

    def f1_at(self, threshold: float = 0.0) -> Float:
        return np.where(self.says_nothing(threshold), self.silent, self.f1)  # (example)

    def right(self, threshold: float = 0.0) -> Bool:
        return self.exact_at(threshold) == 1  # (example)


@dataclass(frozen=True, kw_only=True, repr=False)
class SpanResult(Result):
    answer: str
    """Empty if there is none."""
    start: int | None
    """First character of the answer in the passage; None if there is no answer."""
    end: int | None
    """One past its last character."""
    probability: float
    """Of the answer, or of "no answer"."""
    no_answer: bool
    """Whether the prediction is that the passage has no answer."""
    candidates: list[dict[str, Any]] = field(repr=False)
    """The best answers, the first being the most probable: text, start, end, score, probability."""

    def describe(self) -> str:
        if self.no_answer:
            return f"{SILENCE} ({percent(self.probability)})"
        return f"{self.answer} ({percent(self.probability)}, characters {self.start} to {self.end})"

    def body(self) -> str:
        found = [(self.answer or SILENCE, self.probability)]
        passage = highlight(self.text_pair or "", self.start or 0, self.end or 0)
        return strong(self.text) + passage + bars(found)


class SpanRow(TypedDict):
    """A line of predictions.jsonl."""

    answer: str
    start: int | None
    end: int | None
    probability: float | None


class SpanKind(Kind):
    row_form = SpanRow
    position = "token"
    reads_answers = True
    has_threshold = True
    checkpoint = "ForQuestionAnswering"
    hub_task = "question-answering"
    results = SpanResults
    baseline_note = "The baseline never answers."
    baseline_words = "never answering"
    right_note = "Right: exact match, each model at its own no-answer threshold."
    exact_keys = ("exact", "at_threshold.exact")
    sureness_note = (
        'Confidence: the distance of the no-answer score from its threshold. Right: an exact match, or "no answer" to '
        "an unanswerable question."
    )

    def output_count(self, labels: int) -> int:
        return 2

    def window_target(self, example: Example, answer_inside: bool) -> float:
        return float("nan")  # the targets of spans are `start` and `end`

    def losses(self, outputs: "Tensor", states: Packed, targets: WindowTargets) -> "Tensor":
        """Cross-entropy over the tokens of each window, averaged over start and end."""
        import torch
        from torch.nn import functional

        padded, mask = states.pad(outputs.transpose(0, 1))  # (window, longest, member, 2), (window, longest)
        padded = padded.masked_fill(~mask[..., None, None], torch.finfo(padded.dtype).min)
        wanted = torch.stack([targets.start, targets.end], dim=1).unsqueeze(1)  # (window, 1, 2)
        losses = functional.cross_entropy(padded, wanted.expand(-1, len(outputs), -1), reduction="none")
        return losses.mean(2).T  # (window, member, 2) → (member, window)

    def decode(
        self, task: Asked, outputs: Array, features: Features, examples: Sequence[Example], how: Decoding = DEFAULT
    ) -> SpanPredictions:
        answers = decode_spans(
            outputs[:, 0], outputs[:, 1], features, examples, how.n_best, how.longest, how.device, how.are_logs
        )
        return SpanPredictions([example.id for example in examples], answers)

    # ------------------------------------------------------------------ scoring

    def example_results(self, predictions: SpanPredictions, examples: Sequence[Example]) -> SpanResults:
        gold = [tuple(answer.text for answer in example.answers or ()) for example in examples]
        best, second = spans_at(predictions.answers, 0), spans_at(predictions.answers, 1)
        exact, f1 = _measure(gold, best.text)  # (example), (example)
        there = second.score > NO_SPAN  # (example)
        second_exact, second_f1 = (np.where(there, found, 0.0) for found in _measure(gold, second.text))
        return SpanResults(
            exact=exact,
            f1=f1,
            silent=np.array([official.has_none(texts) for texts in gold], dtype=np.float64),
            score=best.score,
            null_score=null_scores_of(predictions.answers),
            second_exact=second_exact,
            second_f1=second_f1,
            second_score=second.score,
            has_answer=np.array([bool(texts) for texts in gold], dtype=bool),
        )

    def score(self, metrics: Sequence[str], results: SpanResults, threshold: float | None = None) -> Scores:
        """Score at threshold 0, at the chosen threshold if there is one, and without a threshold."""
        scores = _score_at(results, 0.0) | forced_scores(results.lead, results.exact, results.f1, results.has_answer)
        if threshold is not None:
            scores |= {"threshold": threshold, "at_threshold": _score_at(results, threshold)}
        return scores

    def pick_threshold(self, results: SpanResults, unanswerable: float | None = None) -> float:
        """Return the no-answer threshold with the best F1 on held-out training questions. They are weighted so that the
        given share of them is unanswerable."""
        f1, silent, has = results.f1, results.silent, results.has_answer  # (example) each
        if unanswerable is not None and 0 < has.sum() < len(has):
            weights = np.where(has, (1 - unanswerable) / has.mean(), unanswerable / (~has).mean())  # (example)
            f1, silent = f1 * weights, silent * weights
        return best_threshold(results.lead, f1, silent)

    def measure(self, key: str, results: SpanResults, threshold: float | None = None) -> Measure:
        if key == "no_answer_auc":
            return auc_measure(results.lead, ~results.has_answer)
        if key.startswith("forced_"):
            return mean_measure(results.exact if key == "forced_exact" else results.f1, results.has_answer)
        part = key.removeprefix(CHOSEN)
        at = (threshold or 0.0) if part != key else 0.0
        where = {"HasAns": results.has_answer, "NoAns": ~results.has_answer}.get(part.partition("_")[0])
        return mean_measure(results.exact_at(at) if part.endswith("exact") else results.f1_at(at), where)

    def baseline(self, metrics: Sequence[str], train: Sequence[Example], examples: Sequence[Example]) -> Scores:
        return dict(official.score_answers(gold_answers(examples), {example.id: "" for example in examples}))

    # ------------------------------------------------------------------ tables

    def title(self, key: str) -> str | None:
        return TITLES.get(key)

    def main(self, metrics: Sequence[str], has_held_out: bool) -> str:
        """Return the key of F1 at the threshold chosen on held-out questions, which predictions use as well."""
        return f"{CHOSEN}f1" if has_held_out else "f1"

    def figures(self, metrics: Sequence[str]) -> list[Figure]:
        return list(FIGURES)

    def show_gold(self, example: Example, labels: Sequence[str]) -> str:
        return " / ".join(dict.fromkeys(answer.text for answer in example.answers or ())) or SILENCE

    def value_of(self, row: Mapping[str, Any]) -> str:
        return str(row["answer"])

    def show_row(self, row: Mapping[str, Any]) -> str:
        return row["answer"] or SILENCE

    def result(self, row: Mapping[str, Any], **shared: Any) -> SpanResult:
        own = {key: row[key] for key in ("answer", "start", "end", "probability")}
        return SpanResult(**own, no_answer=not row["answer"], candidates=row["n_best"], **shared)

    # ------------------------------------------------------------------ layer maps

    has_aim = True

    def aim(self, task: Asked, said: SpanPredictions, features: Features, outputs: "Tensor", threshold: float) -> Aim:
        """Return the score of the best span in the window where it scores highest, or that of [CLS] if the prediction
        is "no answer"."""
        answer = said.answers[0]
        window, start, end = _best_window(answer, features, outputs)
        if answer.null_lead > threshold or not answer.text:
            what = 'the sum of the first token\'s start and end logits, which stand for "no answer"'
            return Aim(window, SILENCE, what, lambda outputs: outputs[0, 0] + outputs[0, 1])
        what = "the start logit of the answer's first token plus the end logit of its last token"
        place = (answer.start, answer.end)
        score = lambda outputs: outputs[start, 0] + outputs[end, 1]  # noqa: E731
        return Aim(window, answer.text, what, score, start, end, place)

    def probability_of(self, row: Mapping[str, Any]) -> float | None:
        found: float | None = row["probability"]  # null in the file if it was NaN
        return found

    # ------------------------------------------------------------------ combining

    def log_probabilities(self, outputs: Array, features: Features) -> Float:
        """(token, 2) log-probabilities of start and end over the tokens of each window."""
        if not len(features):
            return np.zeros(outputs.shape)
        scores: Float = outputs.astype(np.float64)  # (token, 2)
        highest = np.maximum.reduceat(scores, features.starts, axis=0)  # (window, 2)
        assert np.isfinite(highest).all(), "a window's logits hold NaN or infinity: the model has diverged"
        scores -= np.repeat(highest, features.lengths, axis=0)
        total = np.log(np.add.reduceat(np.exp(scores), features.starts, axis=0))  # (window, 2)
        scores -= np.repeat(total, features.lengths, axis=0)
        return np.maximum(scores, combining.LOWEST, out=scores)

    def gold_log_probabilities(self, outputs: Array, features: Features) -> Float:
        """Log-probabilities of the gold start and end tokens. [CLS] is the gold token of a window without an answer."""
        scores = self.log_probabilities(outputs, features)  # (token, 2)
        starts = scores[features.starts + features.start, 0]  # (window)
        ends = scores[features.starts + features.end, 1]  # (window)
        return np.concatenate([starts, ends])

    def combine_predictions(self, members: list[SpanPredictions], method: str) -> SpanPredictions:
        return SpanPredictions(members[0].ids, combine_answers([one.answers for one in members], method))

    # ------------------------------------------------------------------ trust

    def said(self, results: SpanResults, labels: Sequence[str], threshold: float) -> dict[str, Bool]:
        silent = results.says_nothing(threshold)  # (example)
        return {ANSWER: ~silent, SILENCE: silent}

    def sureness(self, results: SpanResults, threshold: float) -> Float:
        return np.asarray(np.round(np.abs(results.lead - threshold), trust.DIGITS))  # (example)

    def trust_row(self, row: Mapping[str, Any], known: trust.Trust, threshold: float = 0.0) -> trust.Group:
        predicted = SILENCE if row["start"] is None else ANSWER
        return trust.look_up(known, predicted, abs(float(row["null_score"]) - float(row["score"]) - threshold))


def gold_answers(examples: Sequence[Example]) -> dict[str, list[str]]:
    """Map each id to the texts of its gold answers; the list is empty for an unanswerable question."""
    return {example.id: [answer.text for answer in example.answers or ()] for example in examples}


def _best_window(answer: SpanAnswer, features: Features, outputs: "Tensor") -> tuple[int, int, int]:
    """Return the window in which an answer scores highest, and the answer's first and last token there."""
    best = (-np.inf, 0, 0, 0)
    for window in range(len(features)):
        tokens = features.tokens_of(window)
        low, high = features.offsets[tokens].T  # (token), (token)
        touched = np.flatnonzero((low < answer.end) & (high > answer.start) & (high > low))  # (token of the answer)
        if len(touched):
            scores = outputs[tokens].log_softmax(dim=0)  # (token, 2)
            start, end = int(touched[0]), int(touched[-1])
            best = max(best, (float(scores[start, 0] + scores[end, 1]), window, start, end), key=lambda one: one[0])
    return best[1:]


def _measure(gold: list[tuple[str, ...]], predicted: list[str]) -> tuple[Float, Float]:
    found = np.array(list(map(official.measure, gold, predicted)), dtype=np.float64).reshape(-1, 2)  # (example, 2)
    return np.ascontiguousarray(found[:, 0]), np.ascontiguousarray(found[:, 1])


def _score_at(results: SpanResults, threshold: float) -> Scores:
    return dict(official.mean_scores(results.exact_at(threshold), results.f1_at(threshold), results.has_answer))


def _row(answer: SpanAnswer, threshold: float) -> dict[str, Any]:
    n_best = [
        {**found._asdict(), "score": round(found.score, 5), "probability": round(found.probability, 6)}
        for found in answer.n_best
    ]
    nulls = round(answer.null_score, 5), round(answer.null_probability, 6)
    return make_row(answer.id, n_best, *nulls, answer.null_lead > threshold)


KINDS.register("span")(SpanKind())
