"""Subsets of the data: limits, and the part of the training set that is held out for every choice."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from bertvision.data.examples import Example
from bertvision.data.spooled import choose
from bertvision.errors import UserError

USUAL_SHARE, MOST_SHARE, ENOUGH = 0.05, 0.2, 500
"""How much of the training set is held out by default: a share, and for small sets a number of examples."""


def draw(examples: Sequence[Example], count: int | None, seed: int) -> Sequence[Example]:
    """Draw `count` examples without replacement, in their original order; all of them if there are no more."""
    if count is None or count >= len(examples):
        return examples
    chosen = np.random.default_rng([seed, 1]).choice(len(examples), count, replace=False)
    chosen.sort()
    return choose(examples, chosen)


def hold_out(
    examples: Sequence[Example], share: float | None, seed: int
) -> tuple[Sequence[Example], Sequence[Example]]:
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
        held = _draw_groups(_codes(map(key, examples), len(examples)), wanted, seed)
        if len(held) <= max(2 * wanted, wanted + 2):
            break
    if len(held) >= len(examples):
        held = np.unique(held)[: len(examples) // 2]
    kept = np.ones(len(examples), dtype=bool)  # (example)
    kept[held] = False
    return choose(examples, np.flatnonzero(kept)), choose(examples, np.flatnonzero(~kept))


def _codes(keys: Iterable[str], count: int) -> npt.NDArray[np.uint64]:
    """(example,) a number for each key, the same on every machine: of many examples, keys would fill the memory."""
    digests = (hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest() for key in keys)
    return np.fromiter((int.from_bytes(digest) for digest in digests), dtype=np.uint64, count=count)


def _draw_groups(codes: npt.NDArray[np.uint64], wanted: int, seed: int) -> npt.NDArray[np.int64]:
    """The examples of groups drawn until there are as many as wanted. Groups are numbered in order of appearance."""
    draws = np.random.default_rng([seed, 2])
    alike = np.sort(codes)
    if (alike[1:] != alike[:-1]).all():  # every example is a group
        del alike
        return draws.permutation(len(codes))[:wanted].copy()
    order = np.argsort(codes, kind="stable")  # (example,) those of a group are neighbours, in order
    begins = np.flatnonzero(np.concatenate([[True], alike[1:] != alike[:-1]]))  # (group,)
    del codes, alike
    sizes = np.diff(begins, append=len(order))  # (group,)
    drawn = np.argsort(order[begins], kind="stable")  # (group,) in order of appearance
    drawn = drawn[draws.permutation(len(begins))]  # (group,) in the order of drawing
    drawn = drawn[: int(np.searchsorted(np.cumsum(sizes[drawn]), wanted)) + 1]
    return np.concatenate([order[begins[group] : begins[group] + sizes[group]] for group in drawn])
