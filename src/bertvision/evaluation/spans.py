"""From start and end logits to answers: the best spans of each question, and when to say that there is none.

decoded = decode_spans(start_logits, end_logits, features, examples)
threshold = choose_threshold(decoded_of_held_out, gold_of_held_out)
answers_at(decoded, threshold) → {id: text}, "" for no answer
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertvision.data.windows import Features, text_between
from bertvision.evaluation import squad
from bertvision.tasks.base import Example

GROUP = 128  # windows decoded at once: their scores stay in the processor's cache
LOWEST = -1e4  # log-probabilities end here, so that scores stay finite (and valid JSON)
NO_SPAN = -1e6  # score of a question whose passage has no text to answer with

Float64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]


class Candidate(NamedTuple):
    text: str
    start: int
    """First character in the passage."""
    end: int
    """One past the last character in the passage."""
    score: float
    """Sum of the log-probabilities of start and end token."""
    probability: float
    """Softmax over the scores of the candidates and of "no answer"."""


@dataclass(frozen=True, slots=True)
class SpanAnswer:
    """The best span of one question and what speaks for there being none."""

    id: str
    text: str
    """Best span; empty only if the passage has no text."""
    start: int
    end: int
    score: float
    null_score: float
    """No-answer score: the minimum over the question's windows."""
    null_probability: float
    n_best: list[Candidate]
    """Distinct in their place in the passage, best first; the first is the answer above."""

    @property
    def null_lead(self) -> float:
        """By how much "no answer" beats the best span."""
        return self.null_score - self.score


class _Pairs(NamedTuple):
    """The best (start, end) pairs of each window, best first; score -inf where a window has fewer."""

    score: Float64  # (window, pair)
    start: npt.NDArray[np.int64]  # (window, pair)
    end: npt.NDArray[np.int64]  # (window, pair)


def decode_spans(
    start_logits: Array,
    end_logits: Array,
    features: Features,
    examples: list[Example],
    n_best: int = 20,
    max_answer_tokens: int = 30,
) -> list[SpanAnswer]:
    """One SpanAnswer for each example, from packed (token,) logits of all windows.

    A span starts and ends at tokens of the passage that hold more than white space, start ≤ end, and its score is
    the sum of two log-probabilities, each a log-softmax over all tokens of the window.
    """
    for name, logits in (("start", start_logits), ("end", end_logits)):
        assert logits.shape == features.input_ids.shape, (
            f"{logits.shape} {name} logits, {len(features.input_ids)} tokens"
        )
        assert not np.isnan(logits).any(), f"{name} logits hold NaN: the model that made them has diverged"
    start_scores = _log_softmax(start_logits, features)  # (token,)
    end_scores = _log_softmax(end_logits, features)  # (token,)
    null_scores = np.full(len(examples), np.inf)  # (example,)
    np.minimum.at(null_scores, features.example, start_scores[features.starts] + end_scores[features.starts])
    visible = _visible_tokens(features, examples)  # (token,)
    start_scores, end_scores = (np.where(visible, scores, -np.inf) for scores in (start_scores, end_scores))
    # Twice as many as asked for: two pairs can cover the same characters, where one character has several tokens.
    pairs = _best_pairs(start_scores, end_scores, features, 2 * n_best, max_answer_tokens)
    windows = np.searchsorted(features.example, np.arange(len(examples) + 1))  # (example + 1,)
    return [
        _answer(
            example, float(null_scores[index]), _ranked(pairs, features, windows[index], windows[index + 1]), n_best
        )
        for index, example in enumerate(examples)
    ]


def _log_softmax(logits: Array, features: Features) -> Float64:
    """Log-probabilities within each window, not below LOWEST."""
    if not len(features):
        return np.zeros(0)
    logits = logits.astype(np.float64)  # (token,)
    highest = np.maximum.reduceat(logits, features.starts)  # (window,)
    assert np.isfinite(highest).all(), "a window's highest logit is infinite"
    logits -= np.repeat(highest, features.lengths)
    total = np.log(np.add.reduceat(np.exp(logits), features.starts))  # (window,)
    scores: Float64 = np.maximum(logits - np.repeat(total, features.lengths), LOWEST)  # (token,)
    return scores


def _visible_tokens(features: Features, examples: list[Example]) -> npt.NDArray[np.bool_]:
    """(token,) whether a token is of the passage and holds a character that is not white space."""
    visible = np.zeros(len(features.input_ids), dtype=bool)
    for window, example in enumerate(features.example):
        tokens = features.tokens_of(window)
        before = _visible_before(examples[example].text_pair or "")  # (character + 1,)
        offsets = features.offsets[tokens]  # (token, 2)
        # Tokens of other texts have -1, -1: the last count minus itself is 0 too.
        visible[tokens] = before[offsets[:, 1]] > before[offsets[:, 0]]
    return visible


@lru_cache(maxsize=8)  # questions of one passage follow each other
def _visible_before(passage: str) -> npt.NDArray[np.int64]:
    """(character + 1,) how many characters that are not white space come before each place."""
    shown = np.fromiter((not character.isspace() for character in passage), dtype=np.int64, count=len(passage))
    return np.concatenate([[0], np.cumsum(shown)])


def _best_pairs(starts: Float64, ends: Float64, features: Features, count: int, longest: int) -> _Pairs:
    """The `count` best pairs of each window, from scores (token,) that are -inf where no span may start or end."""
    result = _Pairs(
        np.full((len(features), count), -np.inf),
        np.zeros((len(features), count), dtype=np.int64),
        np.zeros((len(features), count), dtype=np.int64),
    )
    order = np.argsort(features.lengths, kind="stable")  # windows of like length together: little padding
    for first in range(0, len(order), GROUP):
        group = order[first : first + GROUP]  # (window,)
        width = int(features.lengths[group].max())
        place = features.starts[group, None] + np.arange(width)  # (window, token)
        inside = np.arange(width) < features.lengths[group, None]  # (window, token)
        place = np.where(inside, place, 0)
        found = _best_pairs_of_group(
            np.where(inside, starts[place], -np.inf), np.where(inside, ends[place], -np.inf), count, longest
        )
        for whole, part in zip(result, found, strict=True):
            whole[group, : part.shape[1]] = part
    return result


def _best_pairs_of_group(starts: Float64, ends: Float64, count: int, longest: int) -> _Pairs:
    """Best pairs of padded windows (window, token). Only starts whose best pair is among the best can be needed."""
    windows, width = starts.shape
    padded = np.concatenate([ends, np.full((windows, longest), -np.inf)], axis=1)  # (window, token + longest)
    best_end = padded[:, :width].copy()  # (window, token): the best end a span from here can have
    for length in range(1, min(longest, width)):
        np.maximum(best_end, padded[:, length : length + width], out=best_end)
    kept = _top(starts + best_end, min(count, width))  # (window, start)
    reach = np.arange(min(longest, width))  # (length,)
    row = np.arange(windows)[:, None]
    chosen_ends = kept[:, :, None] + reach  # (window, start, length)
    scores = starts[row, kept][:, :, None] + padded[row[:, :, None], chosen_ends]  # (window, start, length)
    flat = scores.reshape(windows, -1)  # (window, start * length)
    best = _top(flat, min(count, flat.shape[1]))  # (window, pair)
    score, start, end = flat[row, best], kept[row, best // len(reach)], chosen_ends.reshape(windows, -1)[row, best]
    rank = np.lexsort((end, start, -score), axis=1)  # (window, pair)
    return _Pairs(score[row, rank], start[row, rank], end[row, rank])


def _top(values: Float64, count: int) -> npt.NDArray[np.int64]:
    """(row, count) places of the highest values of each row, in no order."""
    if count == values.shape[1]:
        return np.broadcast_to(np.arange(count), values.shape)
    return np.argpartition(values, -count, axis=1)[:, -count:].astype(np.int64, copy=False)


def _ranked(pairs: _Pairs, features: Features, first: int, last: int) -> Iterator[tuple[float, int, int]]:
    """Score and character range of the pairs of one question's windows, best first."""
    window, pair = np.nonzero(pairs.score[first:last] > -np.inf)  # (pair,), (pair,)
    window += first
    score = pairs.score[window, pair]  # (pair,)
    low = features.offsets[features.starts[window] + pairs.start[window, pair], 0]  # (pair,)
    high = features.offsets[features.starts[window] + pairs.end[window, pair], 1]  # (pair,)
    if last - first > 1:
        order = np.argsort(-score, kind="stable")
        score, low, high = score[order], low[order], high[order]
    return zip(score.tolist(), low.tolist(), high.tolist(), strict=True)


def _answer(example: Example, null_score: float, ranked: Iterable[tuple[float, int, int]], n_best: int) -> SpanAnswer:
    passage = example.text_pair or ""
    spans: dict[tuple[int, int], tuple[str, float]] = {}  # distinct, best first
    for score, low, high in ranked:
        text, start, end = text_between(passage, low, high)
        if text and (start, end) not in spans:
            spans[start, end] = (text, score)
            if len(spans) == n_best:
                break
    probabilities = _softmax([null_score, *(score for _, score in spans.values())])
    candidates = [
        Candidate(text, start, end, score, probability)
        for ((start, end), (text, score)), probability in zip(spans.items(), probabilities[1:], strict=True)
    ]
    best = candidates[0] if candidates else Candidate("", 0, 0, NO_SPAN, 0.0)
    return SpanAnswer(example.id, *best[:4], null_score, probabilities[0], candidates)


def _softmax(scores: list[float]) -> list[float]:
    powers = np.exp(np.array(scores) - max(scores))
    probabilities: list[float] = (powers / powers.sum()).tolist()
    return probabilities


def answers_at(decoded: Sequence[SpanAnswer], threshold: float) -> dict[str, str]:
    """Text of each question's answer; "" if "no answer" beats the best span by more than the threshold."""
    return {answer.id: "" if answer.null_lead > threshold else answer.text for answer in decoded}


def choose_threshold(decoded: Sequence[SpanAnswer], gold: squad.Gold, metric: str = "f1") -> float:
    """The threshold with the highest mean "f1" or "exact"; call it with held-out questions, never those reported.

    Tried are 0, each question's own lead of "no answer", and a value below them all; of equals the one nearest 0.
    """
    measure = {"f1": squad.f1, "exact": squad.exact}[metric]
    if not decoded:
        return 0.0
    leads = np.array([answer.null_lead for answer in decoded])  # (question,)
    answered = np.array([measure(gold[answer.id], answer.text) for answer in decoded])  # (question,)
    silent = np.array([measure(gold[answer.id], "") for answer in decoded])  # (question,)
    order = np.argsort(leads)
    gains = np.concatenate([[0.0], np.cumsum((answered - silent)[order])])  # (answered questions,)
    tried = np.unique(np.concatenate([[0.0, np.nextafter(leads.min(), -np.inf)], leads]))  # (threshold,)
    # At a threshold, all questions whose lead is not above it are answered. Rounding: sums of fractions may differ
    # in their last digits where the scores are equal.
    totals = np.round(gains[np.searchsorted(leads[order], tried, side="right")], 9)  # (threshold,)
    best = tried[totals == totals.max()]
    return float(best[np.argmin(np.abs(best))])


def threshold_free(decoded: Sequence[SpanAnswer], gold: squad.Gold) -> dict[str, float]:
    """Measures that do not hang on a threshold, in percent.

    `forced_exact` and `forced_f1`: on the answerable questions, when the model must answer. `no_answer_auc`: how well
    the lead of "no answer" tells unanswerable questions (the positive class) from answerable ones. A measure for
    which there are no questions has no key.
    """
    answerable = [answer for answer in decoded if gold[answer.id]]
    scores: dict[str, float] = {}
    if answerable:
        part = {answer.id: gold[answer.id] for answer in answerable}
        _, exacts, f1s = squad.per_question(part, {answer.id: answer.text for answer in answerable})
        scores |= {"forced_exact": 100.0 * float(exacts.mean()), "forced_f1": 100.0 * float(f1s.mean())}
    if 0 < len(answerable) < len(decoded):
        positive = np.array([not gold[answer.id] for answer in decoded])  # (question,)
        scores["no_answer_auc"] = 100.0 * _auc(np.array([answer.null_lead for answer in decoded]), positive)
    return scores


def _auc(values: Float64, positive: npt.NDArray[np.bool_]) -> float:
    """Area under the ROC curve, by the Mann-Whitney statistic (ties count half)."""
    from scipy.stats import rankdata

    positives, negatives = int(positive.sum()), int((~positive).sum())
    ranks = float(rankdata(values)[positive].sum())
    return (ranks - positives * (positives + 1) / 2) / (positives * negatives)
