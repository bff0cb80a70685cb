"""From the graph's outputs to answers, by the rules of bertvision: labels, scores, the best span, trust."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, pre_tokenizers

from bertvision_runtime.folder import Task
from bertvision_runtime.texts import Pair, Window

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Trust = dict[str, float] | None
LOWEST = -1e4  # of log-probabilities
NO_SPAN = -1e6  # the score where a passage has no text
DIGITS, SHARE_DIGITS = 5, 6
MOST_SHOWN = 3
"""Probabilities on a line."""
ANSWER, SILENCE, SCORE = "answer", "no answer", "score"
"""Names in tables of trust."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """The prediction for one text."""

    task: str
    trust: Trust
    """How similar predictions did on held-out data; None if that was not measured."""

    def to_dict(self) -> dict[str, Any]:
        own = {key: value for key, value in vars(self).items() if key not in ("task", "trust")}
        return {"task": self.task, **own, "trust": self.trust}

    def describe(self) -> str:
        """The prediction on one line."""
        raise NotImplementedError

    def line(self) -> str:
        """The prediction and its trust on one line."""
        return self.describe() if self.trust is None else f"{self.describe()}  [{_describe_trust(self.trust)}]"

    def __repr__(self) -> str:
        return f"<{self.task}: {self.line()}>"


@dataclass(frozen=True, kw_only=True, repr=False)
class Label(Result):
    label: str
    probability: float
    probabilities: dict[str, float]

    def describe(self) -> str:
        chances = list(self.probabilities.items())
        if len(chances) > MOST_SHOWN:
            chances = sorted(chances, key=lambda one: one[1], reverse=True)[:MOST_SHOWN]
        return f"{self.label} ({', '.join(f'{name} {100 * chance:.0f} %' for name, chance in chances)})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Score(Result):
    score: float

    def describe(self) -> str:
        return f"{self.score:.3f}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Span(Result):
    answer: str
    """Empty if there is none."""
    start: int | None
    end: int | None
    probability: float
    no_answer: bool

    def describe(self) -> str:
        chance = f"{100 * self.probability:.0f} %"
        if self.no_answer:
            return f"{SILENCE} ({chance})"
        return f"{self.answer} ({chance}, characters {self.start} to {self.end})"


def _describe_trust(trust: dict[str, float]) -> str:
    count = int(trust["examples"])
    if not count:
        return "no similar answers on held-out data"
    if "off_by" in trust:
        return f"off by {trust['off_by']:.2f} on average on {count} held-out examples"
    answers = "1 similar held-out answer was" if count == 1 else f"{count:,} similar held-out answers were"
    return f"{100 * trust['right']:.0f} % of {answers} right"


def decode(task: Task, outputs: Sequence[list[Array]], windows: list[Window], pair: Pair) -> Result:
    """`outputs` are those of each member, one array for each window: (token, 2) for spans, (output,) otherwise."""
    if task.kind == "span":
        joined = _combine(task, outputs, axis=0)
        return _decode_span(task, joined, windows, pair[1] or "")
    joined = _combine(task, [[np.stack(member)] for member in outputs], axis=1)  # one (window, output)
    return _decode_label(task, joined[0]) if task.kind == "label" else _decode_score(task, joined[0])


# ---------------------------------------------------------------------- ensembles


def _combine(task: Task, outputs: Sequence[list[Array]], axis: int) -> list[Float]:
    """The outputs of one model, or of an ensemble's members together. `axis` is that of probabilities, which add up to
    1 over the tokens of a window (0) or over the labels (1)."""
    method = task.method
    whole = [[part.astype(np.float64) for part in member] for member in outputs]
    if method is None:
        return whole[0]
    shares = np.array(task.weights if task.weights is not None else [1.0] * len(whole))  # (member,)
    parts = [np.stack(some) for some in zip(*whole, strict=True)]  # each (member, token or window, output)
    combine = _combine_values if task.kind == "score" else _combine_logits
    return [combine(part, method, shares, axis).astype(np.float32).astype(np.float64) for part in parts]


def _combine_values(values: Float, method: str, shares: Float, axis: int) -> Float:
    if method == "max":
        return values.max(0)
    return np.tensordot(shares, values, axes=1) if method == "fitted" else values.mean(0)


def _combine_logits(logits: Float, method: str, shares: Float, axis: int) -> Float:
    """Log-probabilities of the ensemble."""
    if method == "sum":
        return _log_softmax(logits.sum(0), axis)
    logs = np.stack([_log_softmax(one, axis) for one in logits])  # (member, token or window, output)
    if method == "max":
        return logs.max(0)
    found = np.full(logs.shape[1:], -np.inf)
    for one, share in zip(logs, shares / shares.sum(), strict=True):
        if share > 0:
            found = np.logaddexp(found, one + math.log(share))
    return found


def _log_softmax(logits: Float, axis: int) -> Float:
    shifted = logits - logits.max(axis, keepdims=True)
    found: Float = np.maximum(shifted - np.log(np.exp(shifted).sum(axis, keepdims=True)), LOWEST)
    return found


# ---------------------------------------------------------------------- labels and scores


def _decode_label(task: Task, outputs: Float) -> Label:
    powers = np.exp(outputs - outputs.max(1, keepdims=True))  # (window, label)
    shares = powers / powers.sum(1, keepdims=True)  # (window, label)
    if task.windowed:  # answerable if any window has an answer
        highest = float((shares[:, 1] / shares.sum(1)).max())
        shares = np.array([[1.0 - highest, highest]])  # (1, label)
    chances = {name: round(float(share), SHARE_DIGITS) for name, share in zip(task.labels, shares[0], strict=True)}
    label = task.labels[int(shares[0].argmax())]
    trust = look_up(task, label, max(chances.values()))
    return Label(task=task.name, trust=trust, label=label, probability=chances[label], probabilities=chances)


def _decode_score(task: Task, outputs: Float) -> Score:
    known = None if task.trust is None else task.trust.get(SCORE)
    trust: Trust = None if task.trust is None else {"examples": 0}
    if known:
        trust = {key: known[0][key] for key in ("off_by", "examples")}
    return Score(task=task.name, trust=trust, score=round(float(outputs[0, 0]), DIGITS))


def look_up(task: Task, said: str, confidence: float) -> Trust:
    """How often the same prediction, with similar confidence, was right on held-out data."""
    if task.trust is None:
        return None
    groups = task.trust.get(said)
    if not groups:
        return {"examples": 0}
    found = [group for group in groups if group["from"] <= round(confidence, DIGITS)] or groups[:1]
    return {key: found[-1][key] for key in ("right", "examples")}


# ---------------------------------------------------------------------- spans


def _decode_span(task: Task, outputs: list[Float], windows: list[Window], passage: str) -> Span:
    spans, nulls = [], []
    # An ensemble's outputs are log-probabilities already. Maxima do not add up to 1, and stay as they are.
    normalise: Callable[[Float], Float] = (lambda one: _log_softmax(one, 0)) if task.method is None else _bounded
    for logits, window in zip(outputs, windows, strict=True):
        logs = normalise(logits)  # (token, 2)
        nulls.append(float(logs[0].sum()))
        spans.append(_best_spans(logs, window, passage, task.n_best, task.max_answer_tokens))
    score, start, end = (np.concatenate(part) for part in zip(*spans, strict=True))  # (candidate,) each
    best: dict[tuple[int, int], float] = {}
    for at in np.argsort(-score, kind="stable"):  # windows overlap: the better score of a span counts
        best.setdefault((int(start[at]), int(end[at])), float(score[at]))
    places = list(best)[: task.n_best]
    null = min(nulls)
    scores = np.array([null, *(best[place] for place in places)])  # (1 + candidate,)
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    top = float(scores[1]) if places else NO_SPAN
    silent = null - top > task.threshold
    low, high = places[0] if places else (0, 0)
    none = silent or low == high
    lead = abs(round(null, DIGITS) - round(top, DIGITS) - task.threshold)
    return Span(
        task=task.name,
        trust=look_up(task, SILENCE if silent else ANSWER, lead),
        answer="" if silent else passage[low:high],
        start=None if silent else low,
        end=None if silent else high,
        probability=round(float(shares[0] if silent else shares[1] if places else 0.0), SHARE_DIGITS),
        no_answer=none,
    )


def _bounded(logs: Float) -> Float:
    found: Float = np.maximum(logs, LOWEST)
    return found


def _best_spans(logs: Float, window: Window, passage: str, n_best: int, longest: int) -> tuple[Float, Array, Array]:
    """Score, first character and end of the best spans of a window, best first. Spans of equal scores are ordered by
    start, then end."""
    low, high, tokens = _visible(window, passage)  # (visible token,) each
    if not len(tokens):
        return np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    # Tokens of one character, as those of an emoji: several spans can cover the same characters.
    repeats = bool((np.diff(low) <= 0).any() or (np.diff(high) <= 0).any())
    count = 2 * n_best if repeats else n_best
    start, end = logs[tokens].T  # (visible token,), (visible token,)
    reach = tokens[None, :] - tokens[:, None]  # (start, end) tokens between them
    scores = np.where((reach >= 0) & (reach < longest), start[:, None] + end[None, :], -np.inf).ravel()
    if count < len(scores):
        least = np.partition(scores, -count)[-count]
        chosen = np.flatnonzero((scores >= least) & (scores > -np.inf))  # (pair,) in order of start, then end
    else:
        chosen = np.flatnonzero(scores > -np.inf)  # (pair,)
    chosen = chosen[np.argsort(-scores[chosen], kind="stable")][:count]
    return scores[chosen], low[chosen // len(tokens)], high[chosen % len(tokens)]


def _visible(window: Window, passage: str) -> tuple[Array, Array, Array]:
    """The tokens of the passage that contain more than white space: the first character of a span that starts there,
    one past the last of a span that ends there, and the token."""
    rows = []
    starts, ends = _graphemes(passage)
    for token, (begin, end) in enumerate(window.offsets.tolist()):
        text = passage[begin:end] if begin >= 0 else ""
        if text.strip():
            first = begin + len(text) - len(text.lstrip())
            last = first + len(text.strip()) - 1
            rows.append((starts[first] if starts else first, ends[last] if ends else last + 1, token))
    low, high, tokens = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return low, high, tokens


@lru_cache(maxsize=64)
def _graphemes(passage: str) -> tuple[list[int], list[int]]:
    """The start and the end of the character (grapheme) that each code point belongs to; nothing if all are alone."""
    if passage.isascii():
        return [], []
    starts, ends = list(range(len(passage))), list(range(1, len(passage) + 1))
    clean = passage.encode("utf-8", "replace").decode()  # half a surrogate pair is no character
    for _, (low, high) in _SPLIT.pre_tokenize_str(clean):
        starts[low:high], ends[low:high] = [low] * (high - low), [high] * (high - low)
    return starts, ends


_SPLIT = pre_tokenizers.Split(Regex(r"\X"), "isolated")
