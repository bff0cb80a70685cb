"""Answers of models whose tokens or windows differ become those of one: candidates meet at their characters."""

import math
from collections.abc import Sequence

from bertvision.errors import UserError
from bertvision.evaluation.combining import LOWEST, check_method
from bertvision.evaluation.spans.answers import NO_SPAN, Candidate, SpanAnswer


def combine_answers(members: Sequence[Sequence[SpanAnswer]], method: str) -> list[SpanAnswer]:
    """Answers of members whose tokens differ: candidates of the same characters are the same candidate.

    A candidate's probability is the maximum or mean over the members, 0 for one that does not have it among its best;
    so is that of "no answer". Scores are the logs of these; probabilities are scaled to sum to 1.
    """
    check_method(method)
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
