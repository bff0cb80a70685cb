"""Which rows judge the candidates: the folds of a cross-validation where rows are few, else a held-out part."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bertvision.errors import UserError

FOLDS = 5
MANY_ROWS = 2500
"""From this many rows on, a part is held out instead of a cross-validation."""
HELD_OUT_SHARE, LEAST_HELD_OUT, MOST_HELD_OUT = 0.2, 500, 2000
MOST_SHARE, LEAST_GROUP = 0.02, 4
"""Pairs that share a text are judged together, in groups of at most this share of the rows, or so many rows."""
ROUGH = 100
"""With fewer judged rows, the user is warned."""


@dataclass(frozen=True)
class Split:
    """Which rows each fit leaves out. One fit: a held-out part. Several: the folds of a cross-validation."""

    held: list[Tensor]  # each (held-out row)
    rows: int

    @property
    def how(self) -> str:
        return "cv" if len(self.held) > 1 else "held_out"

    @property
    def judged(self) -> Tensor:
        """(judged row) in ascending order; all rows in a cross-validation."""
        return torch.cat(self.held).sort().values

    def used(self, fold: int) -> Tensor:
        """(row) the rows that a fit reads."""
        mask = torch.ones(self.rows, dtype=torch.bool)
        mask[self.held[fold]] = False
        return mask.nonzero().squeeze(1)

    def join(self, outputs: Sequence[Tensor]) -> Tensor:
        """(judged row, output) the outputs of each fit on the rows it left out, in the order of `judged`."""
        order = torch.cat(self.held).argsort()  # (judged row)
        return torch.cat(list(outputs))[order]


def choose_split(
    texts: Sequence[str],
    labels: Sequence[int] | None,
    seed: int,
    pairs: Sequence[str] | None = None,
    folds: int = FOLDS,
) -> Split:
    """Split rows at random, stratified by label. Rows with the same text stay together: otherwise a model would be
    judged on a text that it has read. `pairs` are the second texts of pairs."""
    rows = len(texts)
    groups = _group_rows(texts) if pairs is None else _group_pairs(texts, pairs)
    if labels is not None:
        _check_counts(groups, labels)
    elif len(groups) < 4:
        raise UserError(f"{len(groups)} different texts are too few to choose a model: at least 4 are needed.")
    order = _stratify(groups, labels, np.random.default_rng([seed, 3]))
    if rows >= MANY_ROWS:
        wanted = min(MOST_HELD_OUT, max(LEAST_HELD_OUT, round(HELD_OUT_SHARE * rows)))
        every = max(2, rows // wanted)
        held = [row for number, group in enumerate(order) if number % every == 0 for row in group]
        return Split([torch.tensor(sorted(held))], rows)
    folds = min(folds, len(groups))
    parts = [[row for group in order[fold::folds] for row in group] for fold in range(folds)]
    return Split([torch.tensor(sorted(part)) for part in parts], rows)


def _group_rows(texts: Sequence[str]) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        groups.setdefault(text, []).append(row)
    return list(groups.values())


def _group_pairs(first: Sequence[str], second: Sequence[str]) -> list[list[int]]:
    """Pairs of the same two texts, in either order, stay together: as two towers they read the same. Pairs that share
    one text do too, so that no model is judged on a text whose label it has memorised. Texts in many pairs could join
    everything into one group, though, so rare texts join first, and no group grows beyond a share of the rows."""
    alike: dict[tuple[str, str], list[int]] = {}
    for row, (one, other) in enumerate(zip(first, second, strict=True)):
        alike.setdefault((min(one, other), max(one, other)), []).append(row)
    groups = list(alike.values())
    holding: dict[str, list[int]] = {}  # text → numbers of the groups that hold it
    for number, texts in enumerate(alike):
        for text in dict.fromkeys(texts):
            holding.setdefault(text, []).append(number)
    most = max(LEAST_GROUP, round(MOST_SHARE * len(first)))
    parent = list(range(len(groups)))  # (group) the group that it was joined to

    def find(number: int) -> int:
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    for numbers in sorted(holding.values(), key=len):
        joined = sorted({find(number) for number in numbers})
        if len(joined) > 1 and sum(len(groups[number]) for number in joined) <= most:
            for number in joined[1:]:
                groups[joined[0]] += groups[number]
                parent[number] = joined[0]
    return [sorted(group) for number, group in enumerate(groups) if parent[number] == number]


def _stratify(groups: list[list[int]], labels: Sequence[int] | None, random: np.random.Generator) -> list[list[int]]:
    """The groups in random order, but with equal labels next to each other: dealing them out one by one then gives
    every part its share of each label."""
    shuffled = [groups[at] for at in random.permutation(len(groups))]
    return shuffled if labels is None else sorted(shuffled, key=lambda group: labels[group[0]])


def _check_counts(groups: list[list[int]], labels: Sequence[int]) -> None:
    different = np.bincount([label for group in groups for label in {labels[row] for row in group}])
    if (different >= 2).sum() < 2:
        raise UserError(
            "too few rows to choose a model: at least two labels need two different texts each. Add more rows."
        )
