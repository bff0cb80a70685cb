"""How claims are judged: findings, verdicts, and which head stands for "a head".

A claim is a list of findings: how far one model is above another, for each metric and seed, and how far below it may
be. A score agrees if its mean over seeds is above that limit and no seed is below it. A claim holds if all of its
scores agree, partly if at least a third do, and does not hold otherwise; one seed decides nothing. A finding with a
p-value agrees only if p < 0.05. A claim without findings is not measured if runs exist but lack what it needs.
"A head" is the best of the papers' heads on held-out data; the ladder, and reading means instead of [CLS], are ours.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from bertvision.report.wording import signed
from paper.kept import Experiment, Experiments, Mean, Place, by_encoder
from paper.names import FORCED, JUDGED, LABELS
from paper.spans import head_names

HOLDS, PARTLY, FAILS = "holds", "partly", "does not hold"
UNCLEAR, ONE_SEED, OPEN, NOT_MEASURED = "no clear difference", "one seed", "not tested yet", "not measured"
COUNTED = {
    HOLDS: ("holds", "hold"),
    PARTLY: ("holds in part", "hold in part"),
    FAILS: ("does not hold", "do not hold"),
    UNCLEAR: ("shows no clear difference", "show no clear difference"),
    ONE_SEED: ("has one seed", "have one seed"),
    NOT_MEASURED: ("is not measured", "are not measured"),
    OPEN: ("is not tested yet", "are not tested yet"),
}
ALPHA = 0.05
"""A finding with a p-value agrees only below this."""
MAIN = "at_threshold.f1"
OWN, NO_DECAY = "no such control", "not tested"
"""In place of the papers' scores, for claims of our own."""


@dataclass(frozen=True)
class Finding:
    """One comparison, seed by seed."""

    words: str
    gaps: dict[str, Mean]
    """By metric: the difference, or any other value that must be above zero for the claim to hold."""
    allowed: float = 0.0
    """How far below zero still agrees with the claim."""
    shown: str = ""
    """Text shown instead of the gaps."""
    chance: float | None = None
    """The p-value of the finding, where it has one."""

    @property
    def agreeing(self) -> list[bool]:
        if self.chance is not None and self.chance >= ALPHA:
            return [False] * len(self.gaps)
        return [min(gap.mean, *gap.values) >= -self.allowed and gap.mean + self.allowed > 0 for gap in self.scores]

    @property
    def scores(self) -> list[Mean]:
        return list(self.gaps.values())

    def __str__(self) -> str:
        gaps = ", ".join(f"{LABELS.get(key, key)} {signed_mean(gap)}" for key, gap in self.gaps.items())
        return f"{self.words}: {self.shown or gaps}"


@dataclass(frozen=True)
class Claim:
    text: str
    paper: str
    """The papers' own scores."""
    findings: list[Finding]
    further: list[str] = field(default_factory=list)
    """More evidence, which does not affect the verdict."""
    rule: str = ""
    """How it is judged, if not by the default rule."""
    brief: str = ""
    """What we found in a few words; default: the range of the differences."""
    unsupported: str = FAILS
    """The verdict if too few scores agree."""
    missing: str = ""
    """What the kept files lack, and which runs would measure it."""

    @property
    def title(self) -> str:
        return f"{self.text} ({self.rule})" if self.rule else self.text

    @property
    def found(self) -> str:
        """What we found in a few words."""
        if self.brief or not self.findings:
            return self.brief
        means: dict[str, list[float]] = {}
        for finding in self.findings:
            for key, gap in finding.gaps.items():
                means.setdefault(key, []).append(gap.mean)
        if FORCED in means:
            means = {FORCED: means[FORCED]}
        elif len({len(own) for own in means.values()}) > 1 or len(means) > 2:  # different tasks have different metrics
            means = {"points": [mean for own in means.values() for mean in own]}
        ranges = ", ".join(f"{LABELS.get(key, key)} {range_of(own)}" for key, own in means.items())
        return f"{ranges}; {self.count} scores agree"

    @property
    def count(self) -> str:
        return f"{sum(self.agreeing)} of {len(self.agreeing)}"

    @property
    def agreeing(self) -> list[bool]:
        return [agrees for finding in self.findings for agrees in finding.agreeing]

    @property
    def seeds(self) -> int:
        """The smallest number of seeds behind any of its scores."""
        return min((len(gap.values) for finding in self.findings for gap in finding.scores), default=0)

    @property
    def evidence(self) -> list[str]:
        """Every finding, what is missing, and further evidence."""
        missing = [f"{NOT_MEASURED}: {self.missing}"] if self.missing else []
        return [*map(str, self.findings), *missing, *self.further]

    @property
    def verdict(self) -> str:
        if not self.findings:
            return NOT_MEASURED if self.missing else OPEN
        if self.seeds < 2:
            return ONE_SEED
        if all(self.agreeing):
            return HOLDS
        return PARTLY if 3 * sum(self.agreeing) >= len(self.agreeing) else self.unsupported


def range_of(values: list[float]) -> str:
    return f"{signed(min(values))} to {signed(max(values))}"


def signed_mean(gap: Mean) -> str:
    return signed(gap.mean) + ("" if gap.deviation is None else f" ± {gap.deviation:.2f}")


def claim_of(text: str, paper: str, found: Iterable[Finding | None], further: Iterable[str] = (), **more: str) -> Claim:
    return Claim(text, paper, [finding for finding in found if finding is not None], list(further), **more)


def compare(
    words: str,
    one: Place,
    other: Place,
    keys: Iterable[str] = JUDGED,
    allowed: float = 0.0,
    split: str = "dev",
) -> Finding | None:
    """The differences over the seeds that both have; None if there are none."""
    if not one.exists or not other.exists:
        return None
    gaps = {}
    for key in keys:
        ours, theirs = (place.experiment.by_seed(place.epochs, place.model, key, split) for place in (one, other))
        both = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        if both:
            gaps[key] = Mean(both)
    return Finding(words, gaps, allowed) if gaps else None


# ---------------------------------------------------------------------- which runs and heads


def spans(experiments: Experiments) -> list[tuple[str, Experiment]]:
    return by_encoder(experiments, "squad2_{}")


def is_the_papers(head: str) -> bool:
    return not head.startswith("ladder") and not head.endswith("_mean")


def best_of_the_papers(experiment: Experiment, epochs: float, key: str = MAIN) -> str | None:
    theirs = [name for name in head_names(experiment, epochs) if is_the_papers(name)]
    return experiment.best_head(epochs, key, theirs) if epochs in experiment.head_snapshots else None


def best_place(
    first: Experiment, more: Experiment | None, epochs: float, key: str = MAIN, theirs: bool = True
) -> Place | None:
    """The best head on held-out data in two experiments, among the papers' heads or all. The second experiment counts
    only if it has the same seeds."""
    found: list[tuple[float, Place]] = []
    for one in [first] + ([more] if more is not None and more.seeds == first.seeds else []):
        head = best_of_the_papers(one, epochs, key) if theirs else one.best_head(epochs, key)
        mean = one.mean(epochs, head, key, "held_out") if head is not None else None
        if head is not None and mean is not None:
            found.append((mean.mean, Place(one, epochs, head)))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def best_for_spans(experiments: Experiments, main: Experiment, epochs: float) -> Place | None:
    """The best of the papers' heads, including those with kernels along tokens."""
    return best_place(main, experiments.get(f"{main.name}_kernels"), epochs)
