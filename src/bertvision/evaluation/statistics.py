"""The uncertainty of scores: bootstrap intervals and comparisons, exact tests, and the spread over seeds.

draws = Draws(len(gold))
rounds = bootstrap([LABEL_METRICS["accuracy"].measure(gold, model) for model in models], draws) → (model, round)
interval(rounds[0]) → (86.1, 88.9)
compare(ours, theirs, rounds[:3], rounds[3:]) → Comparison(difference=0.8, low=0.1, high=1.5, p=0.03)

Every model is scored on the same draws, so comparisons are paired.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 250  # rounds at a time: with 12,000 examples, 12 MB of counts
MOST_EXAMPLES = 1 << 24  # float32 represents all integers up to here exactly
DIGITS = 4  # of a difference in percent; float32 rounding errors are smaller

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Counts = npt.NDArray[np.float32]
Measure = Callable[[Counts], Float64]
"""Takes counts (round, example) of how often each example was drawn; returns scores (round,) in percent."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Bootstrap resamples. Each round draws `examples` examples with replacement. Equal seeds produce equal draws."""

    examples: int
    rounds: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        assert 0 < self.examples <= MOST_EXAMPLES, f"{self.examples} examples to draw from"
        assert self.rounds > 0, f"{self.rounds} rounds"

    def __iter__(self) -> Iterator[Counts]:
        """Yield counts (round, example) in blocks, to limit memory."""
        random = np.random.default_rng(self.seed)
        for first in range(0, self.rounds, BLOCK):
            counts = np.empty((min(BLOCK, self.rounds - first), self.examples), dtype=np.float32)  # (round, example)
            for row in counts:
                row[:] = np.bincount(random.integers(self.examples, size=self.examples), minlength=self.examples)
            yield counts


def bootstrap(measures: Sequence[Measure], draws: Draws) -> Float64:
    """(measure, round) the value of each measure in each round."""
    blocks = [np.stack([measure(counts) for measure in measures]) for counts in draws]  # [(measure, round)]
    return np.concatenate(blocks, axis=1)  # (measure, round)


def mean_measure(credits: Array, where: Array | None = None) -> Measure:
    """Mean of credits (example,) from 0 to 1 over the examples selected by `where`; NaN in a round that draws none."""
    inside = np.ones(len(credits)) if where is None else np.asarray(where, dtype=np.float64)  # (example,)
    return ratio_measure(np.where(inside > 0, credits, 0.0), inside, undefined=np.nan)


def auc_measure(values: Array, positive: Array) -> Measure:
    """Area under the ROC curve: how often a positive's value beats a negative's, ties counting half.

    NaN in a round without positives or without negatives.
    """
    values, positive = np.asarray(values, dtype=np.float64), np.asarray(positive, dtype=bool)  # (example,), (example,)
    assert values.shape == positive.shape and values.ndim == 1, f"{values.shape} values, {positive.shape} positive"
    assert np.isfinite(values).all(), "values hold NaN or infinity"
    positives, negatives = np.flatnonzero(positive), np.flatnonzero(~positive)  # (positive,), (negative,)
    beaten_by = twice_below(values, negatives, positives)

    def measure(counts: Counts) -> Float64:
        drawn = np.take(counts, positives, axis=1)  # (round, positive)
        positives_drawn = drawn.sum(axis=1, dtype=np.float64)  # (round,)
        negatives_drawn = counts.sum(axis=1, dtype=np.float64) - positives_drawn  # (round,)
        beaten = sum_products(drawn, beaten_by(counts)) / 2  # (round,)
        return 100.0 * divide(beaten, positives_drawn * negatives_drawn, undefined=np.nan)  # (round,)

    return measure


def ratio_measure(above: Float64, below: Float64, undefined: float) -> Measure:
    """Sum of `above` divided by sum of `below` (example,) over the drawn examples, in percent."""
    assert above.shape == below.shape and above.ndim == 1, f"{above.shape} by {below.shape}"
    above_32, below_32 = above.astype(np.float32), below.astype(np.float32)  # (example,), (example,)

    def measure(counts: Counts) -> Float64:
        # Two matrix-vector products are faster than one product with a two-column matrix.
        sums = np.stack([counts @ above_32, counts @ below_32]).astype(np.float64)  # (2, round)
        return 100.0 * divide(sums[0], sums[1], undefined)  # (round,)

    return measure


def twice_below(values: Float64, lower: Array, upper: Array) -> Callable[[Counts], npt.NDArray[np.int32]]:
    """(round, upper) for each example in `upper`, twice the number of drawn examples from `lower` with a lower value.
    Ties count once instead of twice.

    The values are sorted only once. The draws then affect nothing but the cumulative sums over the sorted values.
    """
    ordered = lower[np.argsort(values[lower], kind="stable")]  # (lower,)
    first = np.searchsorted(values[ordered], values[upper], side="left")  # (upper,)
    last = np.searchsorted(values[ordered], values[upper], side="right")  # (upper,)

    def count(counts: Counts) -> npt.NDArray[np.int32]:
        drawn = np.take(counts, ordered, axis=1).astype(np.int32)  # (round, lower)
        passed = np.zeros((len(counts), len(ordered) + 1), dtype=np.int32)  # (round, lower + 1)
        # numpy sums integers several times faster than floats, and np.take is faster than indexing.
        np.cumsum(drawn, axis=1, dtype=np.int32, out=passed[:, 1:])
        return np.take(passed, first, axis=1) + np.take(passed, last, axis=1)  # (round, upper)

    return count


def sum_products(left: Array, right: Array) -> Float64:
    """(round,) sums of products over the examples, in float64."""
    result: Float64 = np.einsum("re,re->r", left, right, dtype=np.float64)  # (round,)
    return result


def divide(above: Float64, below: Float64, undefined: float) -> Float64:
    return np.divide(above, below, out=np.full(above.shape, undefined), where=below != 0)


def interval(values: Array, level: float = 0.95) -> tuple[float, float]:
    """Return the percentile interval, the middle `level` of the rounds. NaN rounds are ignored."""
    known = values[~np.isnan(values)]  # (round,)
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference between two groups of models, in percentage points."""

    difference: float
    low: float
    high: float
    p: float
    """Two-sided p value: twice the fraction of rounds on the other side of 0."""


def compare(
    ours: Sequence[float], theirs: Sequence[float], our_rounds: Array, their_rounds: Array, level: float = 0.95
) -> Comparison:
    """Compare our mean over seeds with theirs, given the scores of each seed, and of each seed and round (seed, round).

    Both must come from the same draws. Examples are resampled, seeds are not: the interval describes how these very
    models could score on other examples, not how other seeds could score.
    """
    assert len(ours) == len(our_rounds) and len(theirs) == len(their_rounds), "a score for each seed"
    assert our_rounds.shape[1] == their_rounds.shape[1], "compared models must be scored on the same draws"
    gaps = our_rounds.mean(axis=0) - their_rounds.mean(axis=0)  # (round,)
    gaps = np.round(gaps[~np.isnan(gaps)], DIGITS)  # (round,)
    fewer = min(int((gaps <= 0).sum()), int((gaps >= 0).sum()))
    p = min(1.0, 2 * (fewer + 1) / (len(gaps) + 1))
    return Comparison(float(np.mean(ours) - np.mean(theirs)), *interval(gaps, level), p)


@dataclass(frozen=True, slots=True)
class McNemar:
    """How many examples only one of two models gets right, and the probability of so uneven a split if neither model
    is better."""

    only_ours: int
    only_theirs: int
    p: float


def mcnemar(ours_right: Array, theirs_right: Array) -> McNemar:
    """Exact two-sided McNemar test, given where each model is right (example,). p is 1 if the models never disagree."""
    from scipy.stats import binom

    ours_right, theirs_right = np.asarray(ours_right, dtype=bool), np.asarray(theirs_right, dtype=bool)  # (example,)
    assert ours_right.shape == theirs_right.shape, f"{ours_right.shape} examples against {theirs_right.shape}"
    only_ours, only_theirs = int((ours_right & ~theirs_right).sum()), int((theirs_right & ~ours_right).sum())
    tail = float(binom.cdf(min(only_ours, only_theirs), only_ours + only_theirs, 0.5))
    return McNemar(only_ours, only_theirs, min(1.0, 2 * tail))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjust p values for multiple testing, to control the family-wise error rate (Holm 1979)."""
    assert not np.isnan(list(p_values.values())).any(), "a p value is NaN"
    adjusted: dict[str, float] = {}
    highest = 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = highest
    return {name: adjusted[name] for name in p_values}


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and spread of a score over the seeds of one head."""

    mean: float
    deviation: float | None
    """Sample standard deviation; None for a single value."""
    count: int


def spread(values: Sequence[float]) -> Spread:
    assert len(values) > 0, "there is nothing to average"
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(float(np.mean(values)), deviation, len(values))
