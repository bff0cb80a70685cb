"""Contrastive fine-tuning (`finetune.method = "contrastive"`): the means of texts with the same label move together,
those of other texts apart. It learns from pairs, so a few rows of each label are enough.

The loss is supervised contrastive learning (Khosla et al. 2020) on the mean over the tokens of the last layer. A step
compares every two texts of its batch. SetFit (Tunstall et al. 2022), which made tuning on few rows common, encodes both
texts of every pair that it draws: a batch of 48 rows has 1,128 pairs and encodes 48 texts.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bertvision.data.packing import BatchPlan
from bertvision.errors import UserError
from bertvision.kinds import Kind

TEMPERATURE = 1.0
"""Similarities are divided by this. The lower it is, the more the nearest texts count. On other draws than the reported
ones, 1 was better than 0.3 and 0.1 (LOG.md)."""
FEWEST_ALIKE = 4
"""Rows of the same label in a batch, where a batch can't hold every row."""


def check_labels(kind: Kind) -> None:
    """Raise UserError if a task has no labels to compare."""
    if not kind.has_labels:
        raise UserError(
            "finetune.method = 'contrastive' compares texts by their labels, but this task's target is a "
            f"{kind}: set another method."
        )


def contrastive_loss(means: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum, over the texts, of the mean surprise that another text is one with the same label.

    means (sequence, hidden), labels (sequence), weights (sequence), 0 for padding. A text without another of its label
    adds nothing. No shape depends on the values, so a step can be recorded.
    """
    vectors = functional.normalize(means.float(), dim=1)  # (sequence, hidden)
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)  # (sequence, sequence)
    others = (weights > 0).unsqueeze(0) & ~itself  # (sequence, sequence)
    alike = (labels.unsqueeze(0) == labels.unsqueeze(1)) & others  # (sequence, sequence)
    similarity = (vectors @ vectors.T / TEMPERATURE).masked_fill(~others, -1e9)  # (sequence, sequence)
    surprise = -similarity.log_softmax(dim=1).masked_fill(~alike, 0.0).sum(1)  # (sequence)
    return (surprise / alike.sum(1).clamp(min=1) * weights).sum()


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
