"""Pairs of texts as two towers: each text goes through the encoder alone, and a head compares the two."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bertvision.settings import setting

PAIRS = ("joined", "towers")


def pairs_setting() -> Any:
    """The setting `pairs` of a head."""
    return setting(
        "joined",
        "pairs of texts: read both as one sequence ('joined'), or each alone, compared by |u - v|, u · v and cosine "
        "('towers')",
        choices=PAIRS,
    )


def compared_size(hidden: int) -> int:
    """Number of values that `compare` returns for states of this size."""
    return 2 * hidden + 1


def compare(first: Tensor, second: Tensor) -> Tensor:
    """|u − v|, u · v (elementwise) and the cosine of two states (…, hidden), side by side. Which text comes first makes
    no difference."""
    parts = [(first - second).abs(), first * second, cosines(first, second)]
    return torch.cat(parts, dim=-1)  # (…, 2 · hidden + 1)


def cosines(first: Tensor, second: Tensor) -> Tensor:
    return functional.cosine_similarity(first, second, dim=-1).unsqueeze(-1)  # (…, 1)
