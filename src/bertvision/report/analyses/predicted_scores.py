"""Analyses of scores (numbers as targets): what is predicted against what is true. None for other kinds of task."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertvision.evaluation.metrics import pearson, spearman
from bertvision.kinds import SCORE
from bertvision.kinds.score import ScoreMarks
from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.report.block import Block, Cell, Column, Frame
from bertvision.report.drawing import chart_of, import_altair
from bertvision.report.ranking import best_or_control
from bertvision.report.wording import in_text, joined, opening, stand_in_note, title_of
from bertvision.words import counted

BINS = 5
POINTS = 2000  # of the picture at most
HEIGHT = 380


@dataclass(frozen=True)
class Bin:
    """Examples whose true score lies in one of equal parts of the scale."""

    low: float
    high: float
    examples: int
    true: float
    """Their mean true score."""
    predicted: float
    """The mean of what is predicted of them."""

    @property
    def name(self) -> str:
        return f"{self.low:.3g} to {self.high:.3g}"


def marks_of(group: Group, split: str) -> ScoreMarks:
    """Those of the seed that stands for its group."""
    found = group.trained[0].marks(split)
    assert isinstance(found, ScoreMarks), f"{group.name} gives no scores"
    return found


def mean_error(marks: ScoreMarks) -> float:
    """How far predictions are from the truth, in the mean."""
    return float(np.abs(marks.value - marks.target).mean())


def bin_scores(marks: ScoreMarks) -> list[Bin]:
    """Equal parts of the range of true scores, without those that have no example; the last holds the highest."""
    low, high = float(marks.target.min()), float(marks.target.max())
    edges = np.linspace(low, high, BINS + 1)  # (edge)
    inside = np.clip(np.searchsorted(edges, marks.target, side="right") - 1, 0, BINS - 1)  # (example)
    found = []
    for number in np.unique(inside):
        some = inside == number  # (example)
        ends = float(edges[number]), float(edges[number + 1])
        means = float(marks.target[some].mean()), float(marks.value[some].mean())
        found.append(Bin(*ends, int(some.sum()), *means))
    return found


def predicted_against_true(evidence: FinishedRun, split: str) -> Block | None:
    """Predicted against true scores of the best head, and how far each model is off."""
    if evidence.kind is not SCORE:
        return None
    groups, at = evidence.groups(evidence.last), evidence.last
    best = best_or_control(evidence, at) or evidence.encoder(at)
    marks = marks_of(best, split)
    some = draw_evenly(len(marks.target))
    sampled = (
        "" if len(some) == len(marks.target) else f"The picture shows {len(some):,} of them, evenly spaced in the data."
    )
    parts = f"The range of true scores is cut into {BINS} equal parts; the line goes through the means of each."
    several = any(len(group.models) > 1 for group in groups)
    means = "Errors and correlations of several seeds are means over them." if several else ""
    return Block(
        f"predicted_against_true_{split}",
        "Predicted against true scores",
        [_tell_distance(evidence, split, best), _tell_ends(best, bin_scores(marks))],
        _values_frame(evidence, split, groups, best),
        _draw_values(marks, some),
        _values_in_words(best, marks),
        joined(parts, sampled, stand_in_note([best]), means),
        folded=True,
    )


def draw_evenly(count: int) -> npt.NDArray[np.int64]:
    """Numbers of the examples that are drawn: all, or as many as the picture can hold, evenly spaced."""
    if count <= POINTS:
        return np.arange(count)
    return np.linspace(0, count - 1, POINTS).round().astype(np.int64)


def _errors(group: Group, split: str) -> list[float]:
    """The mean error of each seed."""
    found = [model.marks(split) for model in group.trained]
    return [mean_error(marks) for marks in found if isinstance(marks, ScoreMarks)]


def _tell_distance(evidence: FinishedRun, split: str, best: Group) -> str:
    ours = float(np.mean(_errors(best, split)))
    text = f"{opening(in_text(best))} is {ours:.3f} off the true score on average (mean absolute error)"
    if best.role == "encoder":
        return f"{text}."
    theirs = float(np.mean(_errors(evidence.encoder(evidence.last), split)))
    return f"{text}, the encoder itself {theirs:.3f}."


def _tell_ends(best: Group, bins: list[Bin]) -> str:
    told = [
        f"{one.predicted:.2f} where they are {one.true:.2f} on average ({one.name}, {counted(one.examples, 'example')})"
        for one in (bins if len(bins) == 1 else [bins[0], bins[-1]])
    ]
    if len(told) == 1:
        return f"True scores are all the same: {in_text(best)} predicts {told[0]}."
    return f"Of the lowest true scores it predicts {told[0]}, of the highest {told[1]}."


def _correlation(group: Group, split: str, metric: str) -> float | None:
    """From the run's scores where they have it, else from the marks."""
    known = group.mean(split, metric)
    if known is not None:
        return known
    measure = {"pearson": pearson, "spearman": spearman}[metric]
    marks = marks_of(group, split)
    return measure(marks.target, marks.value)


def _values_frame(evidence: FinishedRun, split: str, groups: list[Group], best: Group) -> Frame:
    columns = [Column("model"), Column("true scores"), Column("examples"), Column("mean true", 3)]
    columns += [
        Column("mean predicted", 3),
        Column("mean absolute error", 3),
        Column("Pearson", 2),
        Column("Spearman", 2),
    ]
    whole: list[list[Cell]] = []
    for group in groups:
        marks = marks_of(group, split)
        means: list[Cell] = [len(marks.target), float(marks.target.mean()), float(marks.value.mean())]
        error = float(np.mean(_errors(group, split)))
        whole.append(
            [title_of(group), "all", *means, error, *(_correlation(group, split, m) for m in ("pearson", "spearman"))]
        )
    parts: list[list[Cell]] = []
    control = evidence.control(evidence.last)
    named = {group.name for group in (best, evidence.encoder(evidence.last), control) if group is not None}
    for group in (group for group in groups if group.name in named):
        for one in bin_scores(marks_of(group, split)):
            parts.append([title_of(group), one.name, one.examples, one.true, one.predicted, None, None, None])
    return Frame(columns, whole + parts)


def _draw_values(marks: ScoreMarks, some: npt.NDArray[np.int64]) -> dict[str, Any]:
    altair = import_altair()
    rows = [
        {"true": round(float(marks.target[number]), 4), "predicted": round(float(marks.value[number]), 4)}
        for number in some
    ]
    low, high = float(marks.target.min()), float(marks.target.max())
    x = altair.X("true:Q", title="true score", scale=altair.Scale(zero=False))
    y = altair.Y("predicted:Q", title="predicted score", scale=altair.Scale(zero=False))
    values = ["true:Q", "predicted:Q"]
    tooltip = [altair.Tooltip(value, format=".3f") for value in values]
    points = chart_of(rows, HEIGHT).mark_point(size=24, opacity=0.35).encode(x=x, y=y, tooltip=tooltip)
    ends = altair.Data(values=[{"true": low, "predicted": low, "end": high, "what": "predicted as it is"}])
    diagonal = altair.Chart(ends).mark_rule(strokeDash=[5, 4])
    diagonal = diagonal.encode(x="true:Q", y="predicted:Q", x2="end:Q", y2="end:Q", tooltip=altair.Tooltip("what:N"))
    means = [
        {"true": one.true, "predicted": one.predicted, "scores": one.name, "examples": one.examples}
        for one in bin_scores(marks)
    ]
    through = altair.Chart(altair.Data(values=means)).encode(
        x="true:Q",
        y="predicted:Q",
        tooltip=[
            altair.Tooltip("scores:N", title="true scores"),
            altair.Tooltip("examples:Q", format=","),
            altair.Tooltip("true:Q", title="mean true", format=".3f"),
            altair.Tooltip("predicted:Q", title="mean predicted", format=".3f"),
        ],
    )
    return dict((points + through.mark_line() + diagonal + through.mark_point(size=90)).to_dict())


def _values_in_words(best: Group, marks: ScoreMarks) -> str:
    means = ", ".join(f"{one.predicted:.2f} for {one.true:.2f}" for one in bin_scores(marks))
    return (
        f"Scatter of predicted against true scores of {in_text(best)}, with a diagonal where both are equal. Means of "
        f"predictions for means of true scores: {means}."
    )
