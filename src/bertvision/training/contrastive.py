"""Contrastive fine-tuning (`finetune.method = "contrastive"`): the vectors of texts with the same label move together,
those of other texts apart. It learns from pairs, so a few rows of each label are enough.

The loss is that of SetFit (Tunstall et al. 2022): the cosine of two texts should be 1 if their labels are the same,
else 0. The vector of a text is its [CLS] state in the last layer if the output layer reads that, else the mean over its
tokens. SetFit encodes both texts of every pair that it draws. Here a step compares every two texts of its batch: 48
rows are 1,128 pairs, and 48 texts to encode.
"""

import numpy as np
from torch import Tensor
from torch.nn import functional

from bertvision.data.packing import BatchPlan
from bertvision.errors import UserError
from bertvision.kinds import Kind

FEWEST_ALIKE = 4
"""Rows of the same label in a batch, where a batch can't hold every row."""


def check_labels(kind: Kind) -> None:
    """Raise UserError if a task has no labels to compare."""
    if not kind.has_labels:
        raise UserError(
            "finetune.method = 'contrastive' compares texts by their labels, but this task's target is a "
            f"{kind}: set another method."
        )


def contrastive_loss(vectors: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The squared error of the cosines: half the mean over pairs with the same label plus half that over other pairs,
    times the sum of the weights.

    vectors (sequence, hidden), labels (sequence), weights (sequence), 0 for padding. No shape depends on the values, so
    a step can be recorded.
    """
    units = functional.normalize(vectors.float(), dim=1)  # (sequence, hidden)
    cosines = units @ units.T  # (sequence, sequence)
    real = weights > 0  # (sequence)
    same = labels.unsqueeze(0) == labels.unsqueeze(1)  # (sequence, sequence)
    pairs = (real.unsqueeze(0) & real.unsqueeze(1)).triu(1)  # (sequence, sequence) each pair once
    errors = (cosines - same.float()).square()  # (sequence, sequence)
    halves = [(errors * kind).sum() / kind.sum().clamp(min=1) for kind in (pairs & same, pairs & ~same)]
    return weights.sum() * (halves[0] + halves[1]) / 2


def plan_pairs(labels: np.ndarray, epochs: int, rows: int, seed: int) -> BatchPlan:
    """Batches of about `rows` rows in which every label has several rows, so that there are pairs."""
    return BatchPlan([_deal(labels, rows, np.random.default_rng([seed, 6, epoch])) for epoch in range(epochs)])


def _deal(labels: np.ndarray, rows: int, draws: np.random.Generator) -> list[np.ndarray]:
    """All rows once: groups of rows of one label, in random order, dealt out to batches of equal size."""
    if len(labels) <= rows:
        return [draws.permutation(len(labels))]
    alike = max(FEWEST_ALIKE, rows // len(np.unique(labels)))
    groups: list[np.ndarray] = []
    for label in np.unique(labels):
        own = draws.permutation(np.flatnonzero(labels == label))  # (row)
        groups += np.array_split(own, max(1, round(len(own) / alike)))
    order = np.concatenate([groups[at] for at in draws.permutation(len(groups))])  # (row)
    return np.array_split(order, -(-len(labels) // rows))
