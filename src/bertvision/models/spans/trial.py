"""A candidate after it was judged, and the rule by which one of several is chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertvision.heads import Head, MemberConfig
from bertvision.kinds.span import SpanResults


@dataclass(frozen=True)
class Trial:
    """A candidate after it was judged."""

    name: str
    outputs: np.ndarray  # (token of a judged window, 2)
    results: SpanResults
    threshold: float
    probability: float
    """Mean log-probability of the first and last tokens of the answers."""
    parameters: int
    seconds: float
    role: str = "head"
    """encoder (the last layer), or head."""
    note: str = ""
    member: MemberConfig | None = None
    head: Head | None = None
    """Trained on all questions but the judged ones, if these were held out."""

    @property
    def f1(self) -> float:
        """F1 in percent at the threshold chosen on the judged questions."""
        return float(100 * self.results.f1_at(self.threshold).mean())


def choose(trials: Sequence[Trial]) -> tuple[Trial, list[Trial]]:
    """The best, and those that it was chosen from.

    Trials whose F1 is within one standard error of the highest (of the paired difference) can't be told apart by it.
    Among them, the one that gives the answers the highest probability is chosen, which is a finer measure.
    """
    best = max(trials, key=lambda trial: (round(trial.f1, 6), -trial.parameters))
    tied = [trial for trial in trials if trial is best or _is_as_good(trial, best)]
    return max(tied, key=lambda trial: (round(trial.probability, 6), -trial.parameters)), tied


def _is_as_good(trial: Trial, best: Trial) -> bool:
    difference, error = compare(best, trial)
    return difference <= error


def compare(one: Trial, other: Trial) -> tuple[float, float]:
    """How many points of F1 one is ahead of the other, and the standard error of that."""
    ahead = 100 * (one.results.f1_at(one.threshold) - other.results.f1_at(other.threshold))  # (question)
    return float(ahead.mean()), float(ahead.std(ddof=1)) / len(ahead) ** 0.5
