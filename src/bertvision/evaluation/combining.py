"""The arithmetic of ensembles: outputs of several models become those of one, in the same form.

combined = combine(task.kind, outputs, features, "max")
weights = fit_weights(task.kind, outputs_of_held_out, held_out)
combined = combine(task.kind, outputs, features, "fitted", weights)
answers = combine_answers([answers_of_one, answers_of_another], "mean"), where windows or tokenizers differ
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertvision.data.windows import Features
from bertvision.errors import UserError, suggest
from bertvision.evaluation.answers import LOWEST, NO_SPAN, Candidate, SpanAnswer
from bertvision.tasks.base import TargetKind

METHODS = ("max", "mean", "sum", "fitted")
LEAST_GAIN = 1e-9  # of the log-likelihood, in one iteration of the weights' fit
MOST_ITERATIONS = 1000

Float64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]


def combine(
    kind: TargetKind, outputs: list[np.ndarray], features: Features, method: str, weights: np.ndarray | None = None
) -> np.ndarray:
    """Outputs of the ensemble, float32 and finite: log-probabilities for spans and labels, values for scores.

    "max" and "mean" are of the members' probabilities (a softmax over the window's tokens or over the labels), "sum" is
    of their logits, "fitted" is the mean of probabilities with the `weights` of `fit_weights`. The maxima do not sum
    to 1; who reads them as logits scales them. Scores have no probabilities: there it is the values themselves.
    """
    _check_method(method)
    _check_outputs(kind, outputs, features)
    assert (weights is not None) == (method == "fitted"), f"'{method}' with weights {weights}"
    if kind is TargetKind.SCORE:
        combined = _combine_values(outputs, method, weights)  # (window, 1)
    elif method == "max":
        combined = _highest(kind, outputs, features)  # (token, 2) or (window, label)
    elif method == "sum":
        combined = _log_softmax(kind, _total(outputs), features)  # (token, 2) or (window, label)
    else:
        shares = np.ones(len(outputs)) if weights is None else np.asarray(weights, dtype=np.float64)  # (member,)
        combined = _mean(kind, outputs, features, shares)  # (token, 2) or (window, label)
    assert np.isfinite(combined).all(), "an ensemble's outputs are not finite: a member has diverged"
    return combined.astype(np.float32)


def fit_weights(kind: TargetKind, outputs: list[np.ndarray], features: Features) -> np.ndarray:
    """(member,) weights ≥ 0 from held-out training data, never from the set that is reported.

    Labels and spans: they sum to 1 and make the gold labels, or the gold start and end tokens, most likely under the
    weighted mean of probabilities; each window is an observation, [CLS] the gold token of one without an answer.
    Scores: least squares. Windows whose target is not known are left out.
    """
    _check_outputs(kind, outputs, features)
    if kind is TargetKind.SCORE:
        return _fit_values(outputs, features)
    gold = [_gold(kind, output, features) for output in outputs]
    return _most_likely(np.stack(gold, axis=1))  # (member,)


def combine_answers(members: Sequence[Sequence[SpanAnswer]], method: str) -> list[SpanAnswer]:
    """Answers of members whose tokens differ: candidates of the same characters are the same candidate.

    A candidate's probability is the maximum or mean over the members, 0 for one that does not have it among its best;
    so is that of "no answer". Scores are the logs of these; probabilities are scaled to sum to 1.
    """
    _check_method(method)
    if method not in ("max", "mean"):
        why = {
            "sum": "logits belong to tokens, and these members cut the passages into different ones",
            "fitted": "weights are fitted to the tokens of the gold answers, and these members have different ones",
        }[method]
        raise UserError(
            f"Members with different tokenizers or windows cannot be combined by '{method}': {why}. Use 'max' or "
            "'mean', or members of one encoder with the same data settings."
        )
    assert members, "an ensemble needs a member"
    members = [list(answers) for answers in members]  # answers in arrays are made once
    ids = [answer.id for answer in members[0]]
    for answers in members[1:]:
        if [answer.id for answer in answers] != ids:
            raise UserError(
                f"Members must have answered the same questions in the same order, but of the {len(ids)} of the first "
                f"and the {len(answers)} of another not all ids are equal. Combine runs of the same data."
            )
    limit = max((len(answer.n_best) for answers in members for answer in answers), default=0)
    return [_combine_question(answers, method, limit) for answers in zip(*members, strict=True)]


# ---------------------------------------------------------------------------------------------------- raw outputs


def _check_method(method: str) -> None:
    if method not in METHODS:
        raise UserError(f"There is no way '{method}' to combine members: {suggest(method, METHODS)}")


def _check_outputs(kind: TargetKind, outputs: list[np.ndarray], features: Features) -> None:
    assert outputs, "an ensemble needs a member"
    size = len(features.input_ids) if kind is TargetKind.SPAN else len(features)
    width = {TargetKind.SPAN: 2, TargetKind.SCORE: 1, TargetKind.LABEL: outputs[0].shape[1]}[kind]
    for output in outputs:
        assert output.shape == (size, width), f"a member's outputs are {output.shape}, expected {(size, width)}"


def _combine_values(outputs: list[np.ndarray], method: str, weights: np.ndarray | None) -> Float64:
    values = np.stack(outputs).astype(np.float64)  # (member, window, 1)
    if method == "max":
        combined: Float64 = values.max(axis=0)  # (window, 1)
    elif method in ("mean", "sum"):  # scores have no logits, and their sum would leave the scale
        combined = values.mean(axis=0)  # (window, 1)
    else:
        combined = np.tensordot(np.asarray(weights, dtype=np.float64), values, axes=1)  # (window, 1)
    return combined


# Logs of probabilities, not probabilities: a token that all members find very unlikely keeps its rank. One member
# after the other: a large set has millions of tokens, and their float64 of all members would not fit.


def _highest(kind: TargetKind, outputs: list[np.ndarray], features: Features) -> Float64:
    highest = _log_softmax(kind, outputs[0], features)  # (token, 2) or (window, label)
    for output in outputs[1:]:
        np.maximum(highest, _log_softmax(kind, output, features), out=highest)
    return highest


def _mean(kind: TargetKind, outputs: list[np.ndarray], features: Features, shares: Float64) -> Float64:
    assert shares.shape == (len(outputs),) and (shares >= 0).all() and shares.sum() > 0, f"weights {shares}"
    total = np.full(outputs[0].shape, -np.inf)  # (token, 2) or (window, label)
    for output, share in zip(outputs, shares / shares.sum(), strict=True):
        if share > 0:
            scores = _log_softmax(kind, output, features)  # (token, 2) or (window, label)
            scores += math.log(share)
            np.logaddexp(total, scores, out=total)
    return total


def _total(outputs: list[np.ndarray]) -> Float64:
    total = np.zeros(outputs[0].shape)  # (token, 2) or (window, label)
    for output in outputs:
        total += output
    return total


def _log_softmax(kind: TargetKind, outputs: Array, features: Features) -> Float64:
    """Log-probabilities over the tokens of each window, or over the labels; not below LOWEST."""
    if not len(features):
        return np.zeros(outputs.shape)
    scores: Float64 = outputs.astype(np.float64)  # (token, 2) or (window, label)
    if kind is TargetKind.SPAN:
        highest = np.maximum.reduceat(scores, features.starts, axis=0)  # (window, 2)
        assert np.isfinite(highest).all(), "a window's logits hold NaN or infinity: the model has diverged"
        scores -= np.repeat(highest, features.lengths, axis=0)
        total = np.log(np.add.reduceat(np.exp(scores), features.starts, axis=0))  # (window, 2)
        scores -= np.repeat(total, features.lengths, axis=0)
    else:
        highest = scores.max(axis=1, keepdims=True)  # (window, 1)
        assert np.isfinite(highest).all(), "a window's logits hold NaN or infinity: the model has diverged"
        scores -= highest
        scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return np.maximum(scores, LOWEST, out=scores)


# -------------------------------------------------------------------------------------------------------- weights


def _gold(kind: TargetKind, output: np.ndarray, features: Features) -> Float64:
    """(observation,) log-probabilities one member gives to the gold labels, or to the gold start and end tokens."""
    scores = _log_softmax(kind, output, features)  # (token, 2) or (window, label)
    if kind is TargetKind.SPAN:
        starts = scores[features.starts + features.start, 0]  # (window,)
        ends = scores[features.starts + features.end, 1]  # (window,)
        return np.concatenate([starts, ends])
    known = np.flatnonzero(~np.isnan(features.target))  # (observation,)
    return scores[known, features.target[known].astype(np.int64)]


def _most_likely(gold: Float64) -> Float64:
    """Weights (member,) of the likeliest mixture of log-probabilities (observation, member), by EM.

    The likelihood is concave, and each iteration raises it: w_i becomes the mean over n of w_i p_i(n) / Σ_j w_j p_j(n).
    """
    assert len(gold), "weights need windows whose target is known"
    # A factor common to all members of an observation changes nothing, and so the best of each is put to 1.
    chances = np.exp(gold - gold.max(axis=1, keepdims=True))  # (observation, member)
    weights = np.full(gold.shape[1], 1.0 / gold.shape[1])  # (member,)
    mixed = chances @ weights  # (observation,)
    likelihood = float(np.log(mixed).sum())
    for _ in range(MOST_ITERATIONS):
        weights = weights * (chances.T @ (1.0 / mixed)) / len(gold)  # (member,)
        mixed = chances @ weights
        before, likelihood = likelihood, float(np.log(mixed).sum())
        if likelihood - before < LEAST_GAIN:
            break
    scaled: Float64 = weights / weights.sum()  # (member,)
    return scaled


def _fit_values(outputs: list[np.ndarray], features: Features) -> Float64:
    from scipy.optimize import nnls

    known = ~np.isnan(features.target)  # (window,)
    assert known.any(), "weights need windows whose target is known"
    values = np.concatenate(outputs, axis=1)[known].astype(np.float64)  # (observation, member)
    weights: Float64 = nnls(values, features.target[known].astype(np.float64))[0]  # (member,)
    # No member helps: better all alike than a constant 0.
    return weights if weights.any() else np.full(len(outputs), 1.0 / len(outputs))


# -------------------------------------------------------------------------------------------------------- answers


def _combine_question(answers: Sequence[SpanAnswer], method: str, limit: int) -> SpanAnswer:
    texts: dict[tuple[int, int], str] = {}
    found: dict[tuple[int, int], list[float]] = {}
    nulls: list[float] = []
    for answer in answers:
        # From the scores, since a probability may have been rounded to 0.
        total = _log_sum([answer.null_score, *(candidate.score for candidate in answer.n_best)])
        nulls.append(answer.null_score - total)
        for candidate in answer.n_best:
            place = (candidate.start, candidate.end)
            texts[place] = candidate.text
            found.setdefault(place, []).append(candidate.score - total)
    scores = {place: _join(logs, method, len(answers)) for place, logs in found.items()}
    null_score = _join(nulls, method, len(answers))
    best = sorted(scores, key=lambda place: (-scores[place], place))[:limit]
    total = _log_sum([null_score, *(scores[place] for place in best)])
    n_best = [
        Candidate(texts[place], *place, scores[place], math.exp(min(scores[place] - total, 0.0))) for place in best
    ]
    first = n_best[0] if n_best else Candidate("", 0, 0, NO_SPAN, 0.0)
    null_probability = math.exp(min(null_score - total, 0.0))
    return SpanAnswer(answers[0].id, *first[:4], null_score, null_probability, n_best)


def _join(logs: list[float], method: str, members: int) -> float:
    """Log of the maximum or mean of probabilities; members beyond those in the list have 0."""
    joined = max(logs) if method == "max" else _log_sum(logs) - math.log(members)
    return max(joined, LOWEST)


def _log_sum(logs: list[float]) -> float:
    """Log of the sum of what these are the logs of; the same in any order."""
    highest = max(logs)
    return highest + math.log(math.fsum(math.exp(value - highest) for value in logs))
