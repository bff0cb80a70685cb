"""Subsets of the data: limits, and the part of the training set that is held out for every choice."""

import numpy as np

from bertvision.data.examples import Example
from bertvision.errors import UserError

USUAL_SHARE, MOST_SHARE, ENOUGH = 0.05, 0.2, 500
"""How much of the training set is held out by default: a share, and for small sets a number of examples."""


def draw(examples: list[Example], count: int | None, seed: int) -> list[Example]:
    """Draw `count` examples without replacement, in their original order; all of them if there are no more."""
    if count is None or count >= len(examples):
        return examples
    chosen = np.random.default_rng([seed, 1]).choice(len(examples), count, replace=False)
    return [examples[index] for index in np.sort(chosen)]


def hold_out(examples: list[Example], share: float | None, seed: int) -> tuple[list[Example], list[Example]]:
    """Return (training, held-out) examples. Without a share: 5 %, or of a small set as many as make a choice more than
    chance, 500, but at most a fifth. Whole groups are drawn until at least `share` of the examples is held out.

    Questions on one article are related, so they stay together. If groups are so large that more than twice the share
    would be held out (for example, in a corpus of one article), passages are the groups instead.
    """
    if share is None:
        share = max(USUAL_SHARE, min(ENOUGH / max(1, len(examples)), MOST_SHARE))
    if share == 0:
        return examples, []
    if len(examples) < 2:
        raise UserError(f"{len(examples)} training example(s) can't be split: add more, or set data.hold_out=0.")
    wanted = max(1, round(share * len(examples)))
    for key in (lambda example: example.group or example.id, lambda example: example.text_pair or example.id):
        groups: dict[str, list[int]] = {}
        for index, example in enumerate(examples):
            groups.setdefault(key(example), []).append(index)
        held = _draw_groups(list(groups.values()), wanted, seed)
        if len(held) <= max(2 * wanted, wanted + 2):
            break
    if len(held) >= len(examples):
        held = set(list(held)[: len(examples) // 2])
    training = [example for index, example in enumerate(examples) if index not in held]
    return training, [examples[index] for index in sorted(held)]


def _draw_groups(groups: list[list[int]], wanted: int, seed: int) -> set[int]:
    held: set[int] = set()
    for group in np.random.default_rng([seed, 2]).permutation(len(groups)):
        if len(held) >= wanted:
            break
        held.update(groups[group])
    return held
