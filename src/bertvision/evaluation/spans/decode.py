"""From start and end logits to answers: find the best spans of each question, and decide when to give no answer.

decoded = decode_spans(start_logits, end_logits, features, examples)
answers_at(decoded, threshold) → {id: text}, "" for no answer

Spans with equal scores are ordered by window, then start, then end. Scores are float64, and sums and comparisons are
the same on every device. So are the answers.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertvision.data.examples import Example
from bertvision.data.windows import Features
from bertvision.evaluation.combining import LOWEST
from bertvision.evaluation.spans.answers import (
    SpanAnswer,
    SpanAnswers,
    ids_of,
    null_scores_of,
    spans_at,
)
from bertvision.evaluation.spans.layout import SpanLayout, Sums, layout_of

if TYPE_CHECKING:
    import torch

BLOCK = 1024  # windows normalised at a time

Float64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]


def decode_spans(
    start_logits: Array,
    end_logits: Array,
    features: Features,
    examples: Sequence[Example],
    n_best: int = 20,
    max_answer_tokens: int = 30,
    device: "torch.device | str" = "cpu",
    are_logs: bool = False,
) -> SpanAnswers:
    """Find the answer to each example, given the packed (token,) logits of all windows. `device` is where spans are
    searched.

    A span starts and ends at tokens of the passage that contain more than white space, with start ≤ end. Its score is
    the sum of two log-probabilities, each a log-softmax over all tokens of the window, or with `are_logs` the given
    value.
    """
    from bertvision.evaluation.spans.pairs import find_pairs  # imports torch, which scoring alone does not need

    sides = (("start", start_logits), ("end", end_logits))
    for name, logits in sides:
        assert logits.shape == features.input_ids.shape, (
            f"{logits.shape} {name} logits, {len(features.input_ids)} tokens"
        )
        assert not np.isnan(logits).any(), f"{name} logits hold NaN: the model has diverged"
    layout = layout_of(features, examples)
    if are_logs:
        sums = [Sums(np.zeros(len(features)), np.zeros(len(features))) for _ in sides]
    else:
        with ThreadPoolExecutor(len(sides)) as pool:
            sums = list(pool.map(_sum_up, (logits for _, logits in sides), (features, features)))
    silence = [
        np.maximum(logits[features.starts].astype(np.float64) - one.highest - one.total, LOWEST)
        for (_, logits), one in zip(sides, sums, strict=True)
    ]  # start, end: each (window,)
    null_scores = np.full(len(examples), np.inf)  # (example,)
    np.minimum.at(null_scores, features.example, silence[0] + silence[1])
    found = find_pairs(layout, (start_logits, end_logits), sums, n_best, max_answer_tokens, device)
    score, start, end = found  # each (window, pair)
    places = layout.low[start], layout.high[end]  # (window, pair), (window, pair)
    return _build_answers(examples, layout, *_join_windows(layout, score, *places, n_best), null_scores)


def _sum_up(logits: Array, features: Features) -> Sums:
    """Return each window's highest logit, and the log of the sum of exp(logit - highest). Always computed by numpy:
    exponentials and sums of other libraries differ in the last digit."""
    sums = Sums(np.zeros(len(features)), np.zeros(len(features)))
    for first in range(0, len(features), BLOCK):
        some = slice(first, first + BLOCK)
        starts, lengths = features.starts[some], features.lengths[some]
        part = logits[starts[0] : starts[-1] + lengths[-1]].astype(np.float64)  # (token,)
        highest = np.maximum.reduceat(part, starts - starts[0])  # (window,)
        part -= np.repeat(highest, lengths)
        sums.highest[some] = highest
        sums.total[some] = np.log(np.add.reduceat(np.exp(part, out=part), starts - starts[0]))
    assert np.isfinite(sums.highest).all(), "a window's highest logit is infinite"
    return sums


# ------------------------------------------------------------------------------------------------------ the answers


def _join_windows(
    layout: SpanLayout, score: Float64, start: Array, end: Array, n_best: int
) -> tuple[Float64, Array, Array]:
    """Merge the spans of each question's windows: score, start and end character of its best (example, candidate)."""
    windows = np.diff(layout.first_window)  # (example,)
    several = windows > 1  # (example,) whether spans can be duplicates and must be merged
    several[np.searchsorted(layout.first_window, np.flatnonzero(layout.repeats), side="right") - 1] = True
    size = (len(windows), n_best)
    found = np.full(size, -np.inf), np.zeros(size, dtype=np.int32), np.zeros(size, dtype=np.int32)
    chosen = np.flatnonzero((windows == 1) & ~several)  # (question,)
    for whole, part in zip(found, (score, start, end), strict=True):
        whole[chosen] = part[layout.first_window[chosen], :n_best]
    for count in np.unique(windows[several]):
        chosen = np.flatnonzero((windows == count) & several)  # (question,)
        rows = layout.first_window[chosen, None] + np.arange(count)  # (question, window)
        merged = _merge(*(part[rows].reshape(len(rows), -1) for part in (score, start, end)))
        for whole, part in zip(found, merged, strict=True):
            whole[chosen] = part[:, :n_best]
    return found


def _merge(score: Float64, start: Array, end: Array) -> list[Array]:
    """Sort rows (question, pair) by score and remove duplicate positions: duplicates get -inf and come last."""
    order = np.argsort(-score, axis=1, kind="stable")  # (question, pair)
    score, start, end = (np.take_along_axis(part, order, axis=1) for part in (score, start, end))
    place = start.astype(np.int64) << 32 | end  # (question, pair)
    alike = np.argsort(place, axis=1, kind="stable")  # (question, pair)
    ordered = np.take_along_axis(place, alike, axis=1)
    again = np.zeros(place.shape, dtype=bool)  # (question, pair)
    np.put_along_axis(again, alike[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    score = np.where(again, -np.inf, score)
    order = np.argsort(np.isneginf(score), axis=1, kind="stable")
    return [np.take_along_axis(part, order, axis=1) for part in (score, start, end)]


def _build_answers(
    examples: Sequence[Example], layout: SpanLayout, score: Float64, start: Array, end: Array, null_scores: Float64
) -> SpanAnswers:
    scores = np.concatenate([null_scores[:, None], score], axis=1)  # (example, 1 + candidate)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))  # (example, 1 + candidate)
    shares = powers / powers.sum(axis=1, keepdims=True)  # (example, 1 + candidate)
    return SpanAnswers(
        ids=[example.id for example in examples],
        passages=layout.passages,
        sizes=(score > -np.inf).sum(axis=1),
        start=start,
        end=end,
        score=score,
        probability=shares[:, 1:],
        null_score=null_scores,
        null_probability=shares[:, 0],
    )


# ------------------------------------------------------------------------------------------------------ thresholds


def answers_at(decoded: Sequence[SpanAnswer], threshold: float) -> dict[str, str]:
    """Map each id to its answer; "" if "no answer" beats the best span by more than the threshold."""
    best = spans_at(decoded, 0)
    silent = (null_scores_of(decoded) - best.score > threshold).tolist()
    return {id: "" if none else text for id, none, text in zip(ids_of(decoded), silent, best.text, strict=True)}


def best_threshold(leads: Float64, answered: Float64, silent: Float64) -> float:
    """Return the threshold with the highest mean score. Choose it on held-out questions, never on the reported split.

    `leads` (question,) is the score of "no answer" minus that of the best span; `answered` and `silent` (question,) are
    the scores of giving the best span and of giving no answer. The candidates are 0, every lead, and a value below all
    leads. Ties go to the threshold closest to 0.
    """
    if not len(leads):
        return 0.0
    order = np.argsort(leads)
    gains = np.concatenate([[0.0], np.cumsum((answered - silent)[order])])  # (answered questions,)
    tried = np.unique(np.concatenate([[0.0, np.nextafter(leads.min(), -np.inf)], leads]))  # (threshold,)
    # Questions whose lead is at most the threshold are answered. Round, because equal scores can differ in the last
    # digits of their sums.
    totals = np.round(gains[np.searchsorted(leads[order], tried, side="right")], 9)  # (threshold,)
    best = tried[totals == totals.max()]
    return float(best[np.argmin(np.abs(best))])


def forced_scores(leads: Float64, exacts: Float64, f1s: Float64, has_answer: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Compute the scores that need no threshold, in percent. `leads` is as in `best_threshold`; `exacts` and `f1s`
    (question,) are the scores of the best span.

    `forced_exact` and `forced_f1` are measured on answerable questions when the model must answer. `no_answer_auc` is
    how well the leads separate unanswerable questions (the positive class) from answerable ones. Metrics without any
    questions to measure them on are left out.
    """
    scores: dict[str, float] = {}
    if has_answer.any():
        scores |= {
            "forced_exact": 100.0 * float(exacts[has_answer].mean()),
            "forced_f1": 100.0 * float(f1s[has_answer].mean()),
        }
    if has_answer.any() and not has_answer.all():
        scores["no_answer_auc"] = 100.0 * _auc(leads, ~has_answer)
    return scores


def _auc(values: Float64, positive: npt.NDArray[np.bool_]) -> float:
    """Area under the ROC curve, computed exactly from the Mann-Whitney statistic."""
    from scipy.stats import rankdata

    positives, negatives = int(positive.sum()), int((~positive).sum())
    return (float(rankdata(values)[positive].sum()) - positives * (positives + 1) / 2) / (positives * negatives)
