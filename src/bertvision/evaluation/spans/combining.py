"""Combine the answers of models with different tokens or windows. Candidates are matched by their characters."""

import math
from collections.abc import Sequence

from bertvision.errors import UserError
from bertvision.evaluation.combining import LOWEST, check_method
from bertvision.evaluation.spans.answers import NO_SPAN, Candidate, SpanAnswer


def combine_answers(members: Sequence[Sequence[SpanAnswer]], method: str) -> list[SpanAnswer]:
    """Combine the answers of members whose tokens differ. Candidates that cover the same characters are merged.

    The probability of a candidate is the maximum or mean over the members; a member that does not have it among its
    candidates contributes 0. "No answer" is combined in the same way. Scores are the logarithms of these
    probabilities; the probabilities themselves are normalised to sum to 1.
    """
    check_method(method)
    if method not in ("max", "mean"):
        why = {
            "sum": "logits belong to tokens, and the tokens of these members differ",
            "fitted": "weights are fitted to the tokens of the gold answers, and the tokens of these members differ",
        }[method]
        raise UserError(
            f"'{method}' cannot combine members with different tokenizers or windows: {why}. Use 'max' or 'mean', or "
            "choose members with the same encoder and data settings."
        )
    assert members, "an ensemble needs at least one member"
    members = [list(answers) for answers in members]  # create each SpanAnswer only once
    ids = [answer.id for answer in members[0]]
    for answers in members[1:]:
        if [answer.id for answer in answers] != ids:
            raise UserError(
                "members must have answered the same questions in the same order, but the question ids differ: the "
                f"first member has {len(ids)}, another has {len(answers)}. Combine runs on the same data."
            )
    limit = max((len(answer.n_best) for answers in members for answer in answers), default=0)
    return [_combine_question(answers, method, limit) for answers in zip(*members, strict=True)]


def _combine_question(answers: Sequence[SpanAnswer], method: str, limit: int) -> SpanAnswer:
    texts: dict[tuple[int, int], str] = {}
    found: dict[tuple[int, int], list[float]] = {}
    nulls: list[float] = []
    for answer in answers:
        # Computed from the scores, because a probability may have been rounded to 0.
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
    """Log of the maximum or mean of probabilities. Members that are not in the list count as 0."""
    joined = max(logs) if method == "max" else _log_sum(logs) - math.log(members)
    return max(joined, LOWEST)


def _log_sum(logs: list[float]) -> float:
    """Log of the sum of exponentials; the result does not depend on the order."""
    highest = max(logs)
    return highest + math.log(math.fsum(math.exp(value - highest) for value in logs))
