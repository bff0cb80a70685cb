"""Which windows make up each batch: shuffled by (seed, epoch), filled to a number of tokens or of rows."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BatchPlan:
    """The batches of every epoch. A plan is a value: the same arguments give the same batches on any machine."""

    epochs: list[list[np.ndarray]]
    """For each epoch its batches, each the indices of its windows."""

    @property
    def steps(self) -> int:
        return sum(len(batches) for batches in self.epochs)

    def batch(self, step: int) -> np.ndarray:
        """The windows of step `step`, counted from 0 over all epochs."""
        for batches in self.epochs:
            if step < len(batches):
                return batches[step]
            step -= len(batches)
        raise IndexError(step)

    def step_at(self, epochs: float) -> int:
        """How many steps make up this many epochs, whole or not."""
        whole = min(int(epochs), len(self.epochs))
        steps = sum(len(batches) for batches in self.epochs[:whole])
        if whole < len(self.epochs):
            steps += round((epochs - whole) * len(self.epochs[whole]))
        return steps


def plan_batches(
    lengths: np.ndarray, epochs: float, seed: int, rows: int | None = None, tokens: int | None = None
) -> BatchPlan:
    """Shuffled batches for `epochs` epochs (a started one is planned whole), of `rows` windows or up to `tokens`."""
    orders = (
        np.random.default_rng([seed, 3, epoch]).permutation(len(lengths)) for epoch in range(int(np.ceil(epochs)))
    )
    return BatchPlan([fill_batches(lengths, order, rows, tokens) for order in orders])


def fill_batches(
    lengths: np.ndarray, order: np.ndarray, rows: int | None = None, tokens: int | None = None
) -> list[np.ndarray]:
    """Consecutive windows of `order`, as many as fit in `tokens` (one at least), or `rows` at a time."""
    assert (rows is None) != (tokens is None), "a batch is filled to rows or to tokens"
    if rows is not None:
        return [order[start : start + rows] for start in range(0, len(order), rows)]
    assert tokens is not None
    batches, start = [], 0
    ends = np.cumsum(lengths[order])  # (window,)
    while start < len(order):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + tokens, side="right")))
        batches.append(order[start:stop])
        start = stop
    return batches
