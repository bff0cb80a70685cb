"""Exact match and F1 of answers, by the official SQuAD 2.0 definition (Rajpurkar et al. 2018).

`gold` maps the id of each question to the texts of its answers; an empty list means that the question is unanswerable.
`predicted` maps ids to texts; an empty text means "no answer".
"""

import re
import string
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from bertvision.errors import UserError

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
ASCII_PUNCTUATION, LOWER = string.punctuation.encode(), bytes(range(256)).lower()

Gold = Mapping[str, Sequence[str]]
Float64 = npt.NDArray[np.float64]


def normalize_answer(text: str) -> str:
    """Convert to lower case, remove ASCII punctuation and articles, and collapse white space."""
    return " ".join(_words(text))


def _words(text: str) -> tuple[str, ...]:
    if text.isascii() and text.isprintable():  # same result, three times as fast
        words = text.encode().translate(LOWER, ASCII_PUNCTUATION).decode().split()
        return tuple([word for word in words if word not in ("a", "an", "the")])
    return tuple(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact(answers: Sequence[str], predicted: str) -> float:
    """Return 1.0 if the prediction equals a gold answer after normalisation, or if both are "no answer"."""
    return measure(answers, predicted)[0]


def f1(answers: Sequence[str], predicted: str) -> float:
    """Return the highest word F1 with any gold answer, 0 to 1. If either side is "no answer", 1 if both are, else 0."""
    return measure(answers, predicted)[1]


def has_none(answers: Sequence[str]) -> bool:
    """Whether "no answer" is right: the question has no gold answers, or all are empty after normalisation."""
    return () in _gold_words(tuple(answers))


def measure(answers: Sequence[str], predicted: str) -> tuple[float, float]:
    """Return exact match and F1."""
    return _measure(tuple(answers), predicted)


@lru_cache(maxsize=1 << 16)  # models scored one after another share many answers
def _measure(answers: tuple[str, ...], predicted: str) -> tuple[float, float]:
    found, gold = _words(predicted), _gold_words(answers)
    if found in gold:
        return 1.0, 1.0
    known, best = frozenset(found), 0.0
    for words in gold:
        if not known.isdisjoint(words):
            best = max(best, _f1_of_words(words, found))
    return 0.0, best


@lru_cache(maxsize=1 << 16)
def _gold_words(answers: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    # As in the official script: answers that are empty after normalisation are dropped. With none left, gold is "".
    return frozenset(words for words in map(_words, answers) if words) or frozenset([()])


def _f1_of_words(gold: tuple[str, ...], predicted: tuple[str, ...]) -> float:
    shared = sum([min(gold.count(word), predicted.count(word)) for word in set(gold)])
    # 2·precision·recall / (precision + recall), rearranged to avoid division by zero.
    return 2 * shared / (len(gold) + len(predicted))


def per_question(gold: Gold, predicted: Mapping[str, str]) -> tuple[list[str], Float64, Float64]:
    """Return ids, exact match and F1 (0 to 1) of each gold question, in the order of `gold`.

    Raise a UserError if a question has no prediction. Predictions for other questions are ignored, as in the official
    script, so that predictions for a whole split can be scored on a part of it.
    """
    _check_complete(gold, predicted)
    ids = list(gold)
    found = [measure(gold[id], predicted[id]) for id in ids]
    exacts, f1s = np.array(found, dtype=np.float64).T  # (question,), (question,)
    return ids, exacts, f1s


def _check_complete(gold: Gold, predicted: Mapping[str, str]) -> None:
    if not gold:
        raise UserError("no questions to score: the data is empty.")
    missing = [id for id in gold if id not in predicted]
    if not missing:
        return
    unknown = [id for id in predicted if id not in gold]
    hint = f" {len(unknown)} of the predicted ids are not in the data: {_first(unknown)}." if unknown else ""
    raise UserError(
        f"{len(missing)} of {len(gold)} questions have no prediction: {_first(missing)}.{hint} Provide a text for "
        "every question id ('' for no answer), and check that the predictions belong to this data."
    )


def _first(ids: list[str]) -> str:
    return ", ".join(f"'{id}'" for id in ids[:3]) + (", …" if len(ids) > 3 else "")


def score_answers(gold: Gold, predicted: Mapping[str, str]) -> dict[str, float | int]:
    """Return the scores under their official keys, in percent (0 to 100).

    The keys are `exact`, `f1` and `total`. With the prefix `HasAns_` or `NoAns_` they refer to the answerable or the
    unanswerable questions, and are left out if there are none. Ids are handled as in `per_question`.
    """
    ids, exacts, f1s = per_question(gold, predicted)
    return mean_scores(exacts, f1s, np.array([len(gold[id]) > 0 for id in ids]))


def mean_scores(exacts: Float64, f1s: Float64, has_answer: npt.NDArray[np.bool_]) -> dict[str, float | int]:
    """Return the same scores, given those of each question, 0 to 1, and whether it is answerable (question,)."""
    scores = _means("", exacts, f1s)
    for prefix, part in (("HasAns_", has_answer), ("NoAns_", ~has_answer)):
        if part.any():
            scores |= _means(prefix, exacts[part], f1s[part])
    return scores


def _means(prefix: str, exacts: Float64, f1s: Float64) -> dict[str, float | int]:
    return {
        f"{prefix}exact": 100.0 * float(exacts.mean()),
        f"{prefix}f1": 100.0 * float(f1s.mean()),
        f"{prefix}total": len(exacts),
    }
