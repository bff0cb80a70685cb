"""Which questions judge the candidates: the folds of a cross-validation where questions are few, else a held-out part.

Questions on the same article, or on the same passage, stay together. Where there are too few articles for that,
passages are kept apart instead, and with a single passage, questions.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch

from bertvision.data.examples import Example
from bertvision.errors import UserError
from bertvision.models.split import Split

FOLDS = 3
MANY_QUESTIONS = 500
"""From this many questions on, a part is held out instead of a cross-validation."""
HELD_OUT_SHARE, MOST_HELD_OUT = 0.2, 1000
FEWEST_ARTICLES = 3
LARGEST_SHARE = 0.5
"""If one article has more than this share of the questions, too little would be left to train on."""


def split_questions(examples: list[Example], seed: int) -> tuple[Split, str]:
    """Return the split, and what is kept apart: "article", "passage" or "question"."""
    groups, unit = _find_groups(examples)
    if len(groups) < 2:
        raise UserError("all questions are the same one on the same passage: at least two different ones are needed.")
    order = np.random.default_rng([seed, 3]).permutation(len(groups)).tolist()
    if len(examples) >= MANY_QUESTIONS:
        wanted = min(MOST_HELD_OUT, round(HELD_OUT_SHARE * len(examples)))
        held: list[int] = []
        for number in order:
            # A large group is left out if the next ones come closer to the wanted number.
            if abs(len(held) + len(groups[number]) - wanted) < abs(len(held) - wanted):
                held += groups[number]
        if held and len(held) <= 2 * wanted:
            return Split([torch.tensor(sorted(held))], len(examples)), unit
    parts: list[list[int]] = [[] for _ in range(min(FOLDS, len(groups)))]
    for number in sorted(order, key=lambda number: -len(groups[number])):
        min(parts, key=len).extend(groups[number])
    return Split([torch.tensor(sorted(part)) for part in parts], len(examples)), unit


def _find_groups(examples: list[Example]) -> tuple[list[list[int]], str]:
    by_article = _connect(examples, lambda one: (f"article {one.group}", f"passage {one.text_pair}"))
    if len(by_article) >= FEWEST_ARTICLES and max(map(len, by_article)) <= LARGEST_SHARE * len(examples):
        return by_article, "article"
    by_passage = _connect(examples, lambda one: (f"passage {one.text_pair}",))
    if len(by_passage) > 1:
        return by_passage, "passage"
    # The same question twice is one question.
    return _connect(examples, lambda one: (one.text,)), "question"


def _connect(examples: list[Example], keys_of: Callable[[Example], tuple[str, ...]]) -> list[list[int]]:
    """Groups of examples that share a key, directly or through others."""
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while parent.setdefault(key, key) != key:
            parent[key] = key = parent[parent[key]]
        return key

    for example in examples:
        first, *others = keys_of(example)
        for other in others:
            parent[root(other)] = root(first)
    groups: dict[str, list[int]] = {}
    for number, example in enumerate(examples):
        groups.setdefault(root(keys_of(example)[0]), []).append(number)
    return list(groups.values())


def warn_about(split: Split, unit: str) -> Iterator[str]:
    """Sentences on what the split can't show."""
    if unit == "passage":
        yield (
            "There are too few articles to keep some apart, so models are judged on other passages of the same "
            "articles: scores on new articles may be lower."
        )
    elif unit == "question":
        yield (
            "All questions are on one passage, so models are judged on other questions on the same passage: scores on "
            "new passages will be lower. Add questions on other passages."
        )
