"""Batches of windows: shuffled by (seed, epoch), filled to a number of tokens or of rows."""

from dataclasses import dataclass

import numpy as np

# A block shuffle takes runs of BLOCK neighbouring windows in random order, and mixes POOL runs at a time.
BLOCK, POOL = 8, 64


@dataclass(frozen=True)
class BatchPlan:
    """The batches of every epoch. The same arguments produce the same plan on any machine."""

    epochs: list[list[np.ndarray]]
    """The batches of each epoch; a batch is an array of window indices."""

    @property
    def steps(self) -> int:
        return sum(len(batches) for batches in self.epochs)

    def batch(self, step: int) -> np.ndarray:
        """Return the windows of step `step`, counted from 0 over all epochs."""
        for batches in self.epochs:
            if step < len(batches):
                return batches[step]
            step -= len(batches)
        raise IndexError(step)

    def step_at(self, epochs: float) -> int:
        """Return the number of steps in the given, possibly fractional, number of epochs."""
        whole = min(int(epochs), len(self.epochs))
        steps = sum(len(batches) for batches in self.epochs[:whole])
        if whole < len(self.epochs):
            steps += round((epochs - whole) * len(self.epochs[whole]))
        return steps


def plan_batches(
    lengths: np.ndarray,
    epochs: float,
    seed: int,
    rows: int | None = None,
    tokens: int | None = None,
    shuffle: str = "windows",
) -> BatchPlan:
    """Plan shuffled batches of `rows` windows or up to `tokens` tokens. A fractional last epoch is planned in full."""
    orders = (draw_order(len(lengths), shuffle, seed, 3, epoch) for epoch in range(int(np.ceil(epochs))))
    return BatchPlan([fill_batches(lengths, order, rows, tokens) for order in orders])


def draw_order(count: int, shuffle: str, *seeds: int) -> np.ndarray:
    """Shuffle all windows. "windows" is a uniform shuffle. "blocks" draws runs of neighbouring windows and shuffles the
    windows of a pool of runs, so that a disk reads whole runs."""
    draws = np.random.default_rng(seeds)
    if shuffle == "windows":
        return draws.permutation(count)
    assert shuffle == "blocks"
    runs = draws.permutation(-(-count // BLOCK))  # (run)
    pools = []
    for first in range(0, len(runs), POOL):
        windows = (runs[first : first + POOL, None] * BLOCK + np.arange(BLOCK)).ravel()  # (window of the pool)
        pools.append(draws.permutation(windows[windows < count]))
    return np.concatenate([np.zeros(0, dtype=np.int64), *pools])  # (window)


def find_pools(batches: list[np.ndarray]) -> list[int]:
    """Return the steps at which a pool begins, for an epoch shuffled by blocks."""
    sizes = np.array([len(windows) for windows in batches])  # (step)
    pools = (np.cumsum(sizes) - sizes) // (BLOCK * POOL)  # (step) of each step's first window
    return np.flatnonzero(np.diff(pools, prepend=-1)).tolist()


@dataclass(frozen=True)
class Pass:
    """All steps of one pass over the states, and the steps that each member trains on."""

    steps: list[np.ndarray]
    """The windows of each step."""
    starts: list[int]
    """The steps at which a tenth of an epoch begins. Steps before and after are never encoded together."""
    courses: dict[tuple[int, float], list[int]]
    """The steps of a member, by its (epochs, data_fraction)."""
    pools: list[int]
    """The steps at which a pool begins, if shuffled by blocks. The steps of a pool are read together."""


def plan_pass(
    lengths: np.ndarray,
    wanted: set[tuple[int, float]],
    seed: int,
    rows: int | None = None,
    tokens: int | None = None,
    shuffle: str = "windows",
) -> Pass:
    """Plan a pass for members with the wanted (epochs, data_fraction).

    A member on all data trains on every step of its epochs. A member on a fraction trains on the first steps of the
    first epoch, so fractions are nested. Its later epochs repeat the same windows, in extra steps at the end of the
    pass. A member's steps do not depend on the other members.
    """
    whole = max([epochs for epochs, fraction in wanted if fraction == 1], default=1)
    plan = plan_batches(lengths, whole, seed, rows, tokens, shuffle)
    count = len(plan.epochs[0])
    tenths = [round(tenth * count / 10) for tenth in range(11)]
    steps: list[np.ndarray] = []
    starts: list[int] = []
    pools: list[int] = []
    for batches in plan.epochs:
        pools += [len(steps) + pool for pool in find_pools(batches)]
        starts += [len(steps) + tenth for tenth in tenths[:-1] if tenth < len(batches)]
        steps += batches
    firsts = {fraction: max(1, round(fraction * count)) for _, fraction in wanted if fraction < 1}
    if all(fraction < 1 for _, fraction in wanted):  # no member needs the rest of the epoch
        steps = steps[: min(tenth for tenth in tenths if tenth >= max(firsts.values()))]
        starts, pools = ([step for step in found if step < len(steps)] for found in (starts, pools))
    courses = {(epochs, fraction): list(range(plan.step_at(epochs))) for epochs, fraction in wanted if fraction == 1}
    for fraction, first in sorted(firsts.items()):
        ends = [list(range(first))]
        windows = np.concatenate(steps[:first])
        for epoch in range(1, max(epochs for epochs, other in wanted if other == fraction)):
            neighbours = np.sort(windows) if shuffle == "blocks" else windows
            order = neighbours[draw_order(len(windows), shuffle, seed, 4, epoch)]
            batches = fill_batches(lengths, order, rows, tokens)
            pools += [len(steps) + pool for pool in find_pools(batches)]
            starts.append(len(steps))
            steps += batches
            ends.append([*ends[-1], *range(starts[-1], len(steps))])
        courses |= {(epochs, other): ends[epochs - 1] for epochs, other in wanted if other == fraction}
    return Pass(steps, starts, courses, pools if shuffle == "blocks" else [])


def fill_batches(
    lengths: np.ndarray, order: np.ndarray, rows: int | None = None, tokens: int | None = None
) -> list[np.ndarray]:
    """Split `order` into batches of `rows` windows, or of as many as fit in `tokens` (at least one)."""
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
