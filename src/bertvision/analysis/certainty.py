"""How sure the scores of a run are: an interval for each figure of each model, and paired tests between any two."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bertvision.analysis.evidence import Evidence, Group, Model
from bertvision.evaluation.marks import LabelMarks, Marks, ScoreMarks, SpanMarks
from bertvision.evaluation.statistics import (
    Comparison,
    Draws,
    McNemar,
    Measure,
    auc_measure,
    bootstrap,
    compare,
    holm,
    interval,
    label_measure,
    mcnemar,
    mean_measure,
    value_measure,
)
from bertvision.results import read_figure
from bertvision.tasks.base import TargetKind

SURE = 0.05
"""A difference is called significant where its p, corrected for the number of heads, is below this."""


@dataclass(frozen=True)
class Against:
    """A group of models compared with another one by the main figure."""

    ours: Group
    theirs: Group
    gap: Comparison
    p: float
    """The gap's p, corrected for the number of groups that were compared with the same one (Holm)."""
    rights: McNemar | None
    """Who alone was right, of the first seed of each; scores are not right or wrong."""

    @property
    def is_sure(self) -> bool:
        return self.p < SURE


class Certainty:
    """Models of one snapshot, scored on the same draws of the examples of one split."""

    def __init__(self, evidence: Evidence, epochs: float, split: str, draws: int = 2000) -> None:
        self.evidence, self.epochs, self.split, self.draws = evidence, epochs, split, draws
        self._rounds: dict[tuple[str, str], np.ndarray] = {}
        self._marks: dict[str, Marks] = {}

    @cached_property
    def groups(self) -> list[Group]:
        return self.evidence.groups(self.epochs)

    @cached_property
    def compared(self) -> list[Group]:
        """Heads on all of the data, and ensembles: what is compared with the encoder and the control."""
        found = self.evidence.groups(self.epochs, "head", "ensemble")
        return [group for group in found if group.is_whole]

    def marks(self, model: Model) -> Marks:
        if model.name not in self._marks:
            self._marks[model.name] = model.marks(self.split)
        return self._marks[model.name]

    def rounds(self, models: Iterable[Model], key: str) -> np.ndarray:
        """(model, round) a figure of each model in each round of draws; computed once."""
        models = list(models)
        missing = [model for model in models if (model.name, key) not in self._rounds]
        if missing:
            measures = [measure_of(self.marks(model), key, model.threshold) for model in missing]
            found = bootstrap(measures, Draws(len(_first_column(self.marks(missing[0]))), self.draws))
            self._rounds |= {(model.name, key): row for model, row in zip(missing, found, strict=True)}
        return np.stack([self._rounds[model.name, key] for model in models])  # (model, round)

    def prepare(self, keys: Iterable[str]) -> None:
        """Draws once for all models and these figures."""
        wanted = [(model, key) for key in keys for group in self.groups for model in group.well]
        wanted = [(m, key) for m, key in wanted if read_figure(m.scores(self.split), key) is not None]
        if wanted:
            measures = [measure_of(self.marks(model), key, model.threshold) for model, key in wanted]
            found = bootstrap(measures, Draws(len(_first_column(self.marks(wanted[0][0]))), self.draws))
            self._rounds |= {(model.name, key): row for (model, key), row in zip(wanted, found, strict=True)}

    def interval(self, group: Group, key: str) -> tuple[float, float]:
        """What other examples could have given: 95 % of the mean over the group's seeds."""
        return interval(self.rounds(group.well, key).mean(axis=0))

    def compare(self, ours: Group, theirs: Group) -> Comparison:
        key = self.evidence.main
        figures = ours.figures(self.split, key), theirs.figures(self.split, key)
        return compare(*figures, self.rounds(ours.well, key), self.rounds(theirs.well, key))

    def against(self, theirs: Group) -> list[Against]:
        """Every head and ensemble compared with one group."""
        gaps = {group.name: self.compare(group, theirs) for group in self.compared}
        adjusted = holm({name: gap.p for name, gap in gaps.items()}) if gaps else {}
        return [
            Against(group, theirs, gaps[group.name], adjusted[group.name], self.rights(group, theirs))
            for group in self.compared
        ]

    def pairs(self) -> list[Against]:
        """Every two groups, corrected for the number of pairs."""
        pairs = [(one, other) for n, one in enumerate(self.groups) for other in self.groups[:n]]
        gaps = {f"{one.name}\n{other.name}": self.compare(one, other) for one, other in pairs}
        adjusted = holm({name: gap.p for name, gap in gaps.items()}) if gaps else {}
        return [
            Against(one, other, gaps[key], adjusted[key], self.rights(one, other))
            for (one, other), key in zip(pairs, gaps, strict=True)
        ]

    def rights(self, ours: Group, theirs: Group) -> McNemar | None:
        if self.evidence.kind is TargetKind.SCORE:
            return None
        found = []
        for model in (ours.well[0], theirs.well[0]):
            marks = self.marks(model)
            assert not isinstance(marks, ScoreMarks)
            found.append(marks.right(model.threshold or 0.0))  # (example)
        return mcnemar(*found)


def _first_column(marks: Marks) -> np.ndarray:
    return marks.silent if isinstance(marks, SpanMarks) else marks.target  # (example)


def measure_of(marks: Marks, key: str, threshold: float | None) -> Measure:
    """The measure that gives a figure of scores.json from a model's marks, on any draw of the examples."""
    if isinstance(marks, LabelMarks):
        return label_measure(key, marks.target, marks.predicted)
    if isinstance(marks, ScoreMarks):
        return value_measure(key, marks.target, marks.value)
    if key == "no_answer_auc":
        return auc_measure(marks.lead, ~marks.has_answer)
    if key.startswith("forced_"):
        return mean_measure(marks.exact if key == "forced_exact" else marks.f1, marks.has_answer)
    at, part = 0.0, key
    if key.startswith("at_threshold."):
        at, part = threshold or 0.0, key.removeprefix("at_threshold.")
    where = {"HasAns": marks.has_answer, "NoAns": ~marks.has_answer}.get(part.partition("_")[0])
    return mean_measure(marks.exact_at(at) if part.endswith("exact") else marks.f1_at(at), where)
