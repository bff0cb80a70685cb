"""Exact match and F1 of answers, by the official SQuAD 2.0 definition (Rajpurkar et al. 2018).

`gold` maps a question's id to the texts of its answers, an empty list meaning that it has none;
`predicted` maps ids to texts, an empty text meaning "no answer".
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
    """Lower case, without ASCII punctuation and articles, single spaces."""
    return " ".join(_words(text))


def _words(text: str) -> tuple[str, ...]:
    if text.isascii() and text.isprintable():  # the same, three times as fast: only letters and digits are left
        words = text.encode().translate(LOWER, ASCII_PUNCTUATION).decode().split()
        return tuple([word for word in words if word not in ("a", "an", "the")])
    return tuple(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact(answers: Sequence[str], predicted: str) -> float:
    """1.0 if the prediction equals a gold answer after normalisation (or rightly says that there is none)."""
    return measure(answers, predicted)[0]


def f1(answers: Sequence[str], predicted: str) -> float:
    """Highest F1 of words shared with a gold answer, 0 to 1; with no answer on either side, whether both have none."""
    return measure(answers, predicted)[1]


def has_none(answers: Sequence[str]) -> bool:
    """Whether saying nothing is right: without an answer, or with none of which normalisation leaves anything."""
    return () in _gold_words(tuple(answers))


def measure(answers: Sequence[str], predicted: str) -> tuple[float, float]:
    """Exact match and F1."""
    return _measure(tuple(answers), predicted)


@lru_cache(maxsize=1 << 16)  # models that are scored one after the other give many of the same answers
def _measure(answers: tuple[str, ...], predicted: str) -> tuple[float, float]:
    said, gold = _words(predicted), _gold_words(answers)
    if said in gold:
        return 1.0, 1.0
    known, best = frozenset(said), 0.0
    for words in gold:
        if not known.isdisjoint(words):
            best = max(best, _f1_of_words(words, said))
    return 0.0, best


@lru_cache(maxsize=1 << 16)
def _gold_words(answers: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    # Officially, answers of which normalisation leaves nothing do not count, and without others the gold is "".
    return frozenset(words for words in map(_words, answers) if words) or frozenset([()])


def _f1_of_words(gold: tuple[str, ...], predicted: tuple[str, ...]) -> float:
    shared = sum([min(gold.count(word), predicted.count(word)) for word in set(gold)])
    # 2·precision·recall / (precision + recall), written so that nothing is divided by zero.
    return 2 * shared / (len(gold) + len(predicted))


def per_question(gold: Gold, predicted: Mapping[str, str]) -> tuple[list[str], Float64, Float64]:
    """Ids, exact match and F1 (0 to 1) of each gold question, in the order of `gold`.

    A question without a prediction is an error. Predictions for other questions are left aside, as in the official
    script, so that a file for the whole set scores a part of it.
    """
    _check_complete(gold, predicted)
    ids = list(gold)
    found = [measure(gold[id], predicted[id]) for id in ids]
    exacts, f1s = np.array(found, dtype=np.float64).T  # (question,), (question,)
    return ids, exacts, f1s


def _check_complete(gold: Gold, predicted: Mapping[str, str]) -> None:
    if not gold:
        raise UserError("there are no questions to score: the data holds none.")
    missing = [id for id in gold if id not in predicted]
    if not missing:
        return
    unknown = [id for id in predicted if id not in gold]
    hint = f" {len(unknown)} of its ids are not in the data: {_first(unknown)}." if unknown else ""
    raise UserError(
        f"{len(missing)} of {len(gold)} questions have no prediction: {_first(missing)}.{hint} Give every question "
        "id a text ('' for no answer), and check that predictions and data are of the same set."
    )


def _first(ids: list[str]) -> str:
    return ", ".join(f"'{id}'" for id in ids[:3]) + (", …" if len(ids) > 3 else "")


def score_answers(gold: Gold, predicted: Mapping[str, str]) -> dict[str, float | int]:
    """Scores under the official keys, in percent (0 to 100).

    Keys are `exact`, `f1`, `total`, and with `HasAns_` and `NoAns_` in front for the questions with and without an
    answer; a part without questions has no keys. Ids are treated as in `per_question`.
    """
    ids, exacts, f1s = per_question(gold, predicted)
    return mean_scores(exacts, f1s, np.array([len(gold[id]) > 0 for id in ids]))


def mean_scores(exacts: Float64, f1s: Float64, has_answer: npt.NDArray[np.bool_]) -> dict[str, float | int]:
    """The same scores from those of each question, 0 to 1, and whether it has an answer: (question,)."""
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
