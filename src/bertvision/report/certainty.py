"""Statistics for the scores of a run: a confidence interval for each score, and paired tests between any two models."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bertvision.evaluation.statistics import (
    Comparison,
    Draws,
    McNemar,
    Measure,
    bootstrap,
    compare,
    holm,
    interval,
    mcnemar,
)
from bertvision.kinds import ExampleResults
from bertvision.pipeline.finished import FinishedRun, Group, Model, read_figure

SURE = 0.05
"""A difference is significant if p, corrected for the number of comparisons, is below this …"""
ENOUGH = 10
"""… and the two models differ on at least this many examples. With fewer, a bootstrap is not reliable."""
DRAWS = {"main": 10_000, "other": 2_000, "no_answer_auc": 500}
"""Bootstrap samples per metric. The main metric gets most, because the smallest possible p is about two over the number
of samples, and Holm's correction multiplies it by the number of comparisons. The AUC is slow and gets fewest."""
MCNEMAR, PAIRED = "McNemar", "paired bootstrap"


@dataclass(frozen=True)
class Against:
    """A group of models compared with another one."""

    ours: Group
    theirs: Group
    gap: Comparison
    """Difference of the means over seeds, by a paired bootstrap."""
    rights: McNemar | None
    """Examples that only one side got right, first seed of each; None for scores, which are not right or wrong."""
    test: str
    """The test behind `p`: McNemar's if the metric counts right answers and each side is one model."""
    p: float
    """Corrected for the number of comparisons (Holm)."""
    examples: int

    @property
    def is_sure(self) -> bool:
        return self.p < SURE and self.is_enough

    @property
    def is_enough(self) -> bool:
        """Whether the two differ on enough examples for a test to be meaningful."""
        apart = self.examples if self.rights is None else self.rights.only_ours + self.rights.only_theirs
        return apart >= ENOUGH


class Certainty:
    """Statistics of the models at one snapshot (`epochs`) on one split. All models share the bootstrap samples."""

    def __init__(self, run: FinishedRun, epochs: float, split: str) -> None:
        self.run, self.epochs, self.split = run, epochs, split
        self._rounds: dict[tuple[float, str, str], np.ndarray] = {}
        self._results: dict[tuple[float, str], ExampleResults] = {}

    @cached_property
    def groups(self) -> list[Group]:
        return self.run.groups(self.epochs)

    @cached_property
    def compared(self) -> list[Group]:
        """The groups compared with the encoder and the control: heads trained on all of the data, and ensembles."""
        found = self.run.groups(self.epochs, "head", "ensemble")
        return [group for group in found if group.is_whole]

    @cached_property
    def examples(self) -> int:
        return len(self.results(self.run.encoder(self.epochs).models[0]))

    def results(self, model: Model) -> ExampleResults:
        key = model.epochs, model.name
        if key not in self._results:
            self._results[key] = model.results(self.split)
        return self._results[key]

    def draws(self, key: str) -> Draws:
        return Draws(self.examples, DRAWS["main"] if key == self.run.main else DRAWS.get(key, DRAWS["other"]))

    def prepare(self, keys: Iterable[str]) -> None:
        """Compute the bootstrap samples of these metrics for all models of the snapshot at once."""
        models = [model for group in self.groups for model in group.trained]
        wanted = [(model, key) for key in keys for model in models]
        self._draw([(m, key) for m, key in wanted if read_figure(m.scores(self.split), key) is not None])

    def _draw(self, wanted: list[tuple[Model, str]]) -> None:
        missing = [(model, key) for model, key in wanted if (model.epochs, model.name, key) not in self._rounds]
        for draws in {self.draws(key) for _, key in missing}:  # draw the examples once for all metrics that share them
            some = [(model, key) for model, key in missing if self.draws(key) == draws]
            found = bootstrap([self._measure(model, key) for model, key in some], draws)
            self._rounds |= {(m.epochs, m.name, key): row for (m, key), row in zip(some, found, strict=True)}

    def rounds(self, models: list[Model], key: str) -> np.ndarray:
        """(model, round) The metric of each model on each bootstrap sample; cached."""
        self._draw([(model, key) for model in models])
        return np.stack([self._rounds[model.epochs, model.name, key] for model in models])  # (model, round)

    def interval(self, group: Group, key: str) -> tuple[float, float]:
        """95 % bootstrap interval over the examples, of the mean over the group's seeds."""
        return interval(self.rounds(group.trained, key).mean(axis=0))

    def compare(self, ours: Group, theirs: Group, key: str | None = None) -> Comparison:
        """Compare two groups of the run, at any snapshots, by any metric (default: the main one)."""
        key = key or self.run.main
        figures = ours.figures(self.split, key), theirs.figures(self.split, key)
        return compare(*figures, self.rounds(ours.trained, key), self.rounds(theirs.trained, key))

    def against(self, theirs: Group) -> list[Against]:
        """Compare every head and ensemble of the snapshot with one group."""
        return self.test([(group, theirs) for group in self.compared])

    def pairs(self) -> list[Against]:
        """Compare every pair of groups at the snapshot."""
        return self.test([(one, other) for n, one in enumerate(self.groups) for other in self.groups[:n]])

    def across(self) -> list[Against]:
        """Compare the best head of each snapshot with the encoder alone at every later snapshot."""
        found = []
        for epochs in self.run.head_snapshots:
            best = self.run.best_head(epochs)
            later = [at for at in self.run.snapshots if at > epochs]
            found += [(best, self.run.encoder(at)) for at in later if best is not None]
        return self.test(found)

    def test(self, pairs: list[tuple[Group, Group]]) -> list[Against]:
        """Compare pairs of groups by the main metric, with p corrected for their number."""
        if not pairs:
            return []
        gaps = [self.compare(*pair) for pair in pairs]
        rights = [self.rights(*pair) for pair in pairs]
        tests = [MCNEMAR if self._is_exact(*pair) else PAIRED for pair in pairs]
        raw = [r.p if r and test == MCNEMAR else gap.p for r, gap, test in zip(rights, gaps, tests, strict=True)]
        p = list(holm({str(number): value for number, value in enumerate(raw)}).values())
        rows = zip(pairs, gaps, rights, tests, p, strict=True)
        return [Against(*pair, gap, right, test, value, self.examples) for pair, gap, right, test, value in rows]

    def _is_exact(self, ours: Group, theirs: Group) -> bool:
        """Whether McNemar's exact test applies: the main metric is the rate of right answers, and each side is one
        model."""
        return self.run.main in self.run.kind.exact_keys and len(ours.trained) == len(theirs.trained) == 1

    def rights(self, ours: Group, theirs: Group) -> McNemar | None:
        models = ours.trained[0], theirs.trained[0]
        our_rights, their_rights = (self.results(model).right(model.threshold or 0.0) for model in models)  # (example)
        return None if our_rights is None or their_rights is None else mcnemar(our_rights, their_rights)

    def _measure(self, model: Model, key: str) -> Measure:
        """The function that computes a metric of scores.json on any sample of the examples."""
        return self.run.kind.measure(key, self.results(model), model.threshold)
