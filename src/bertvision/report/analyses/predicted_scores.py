"""Predicted against true scores."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertvision.evaluation.metrics import pearson, spearman
from bertvision.kinds.score import ScoreResults
from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.report.analysis import analysis, gives
from bertvision.report.block import Block
from bertvision.report.drawing import bare_chart, chart_of, diagonal, off_zero, tips
from bertvision.report.ranking import best_or_control, results_of
from bertvision.report.wording import in_text, joined, stand_in_note, title_of
from bertvision.tables import Column, Headings, Rows, Table, counted

BINS = 5
POINTS = 2000  # most points in the picture
HEIGHT = 380


@dataclass(frozen=True)
class Bin:
    """The examples whose true score is in one of the equal bins of the scale."""

    low: float
    high: float
    examples: int
    true: float
    """Their mean true score."""
    predicted: float
    """Their mean predicted score."""

    @property
    def name(self) -> str:
        return f"{self.low:.3g} to {self.high:.3g}"


def _results(group: Group, split: str) -> ScoreResults:
    """The results of the first seed that finished training."""
    return results_of(group.trained[0], split, ScoreResults)


def mean_error(results: ScoreResults) -> float:
    """Mean absolute error."""
    return float(results.errors().mean())


def bin_scores(results: ScoreResults) -> list[Bin]:
    """Divide the range of true scores into equal bins; empty bins are left out. The last bin includes its upper end."""
    low, high = float(results.target.min()), float(results.target.max())
    edges = np.linspace(low, high, BINS + 1)  # (edge)
    inside = np.clip(np.searchsorted(edges, results.target, side="right") - 1, 0, BINS - 1)  # (example)
    found = []
    for number in np.unique(inside):
        some = inside == number  # (example)
        ends = float(edges[number]), float(edges[number + 1])
        means = float(results.target[some].mean()), float(results.value[some].mean())
        found.append(Bin(*ends, int(some.sum()), *means))
    return found


@analysis("Predictions", 80, "Predicted against true scores", [gives(ScoreResults)])
def predicted_against_true(run: FinishedRun, split: str) -> Block:
    """Predicted against true scores of the best head, and the errors of each model."""
    groups = run.groups(run.last)
    best = best_or_control(run, run.last) or run.encoder(run.last)
    results = _results(best, split)
    some = draw_evenly(len(results))
    sampled = (
        f"The picture shows {len(some):,} of {len(results):,} examples, evenly spaced."
        if len(some) < len(results)
        else ""
    )
    several = any(len(group.models) > 1 for group in groups)
    return Block(
        sentences=[_describe_distance(run, split, best), _describe_ends(best, bin_scores(results))],
        table=_table_of(run, split, groups, best),
        picture=_draw_values(results, some),
        drawn=["mean true", "mean predicted"],
        drawn_rows=_table_of(run, split, [best], best),
        note=joined(
            f"The range of true scores is divided into {BINS} equal bins; the line connects their means.",
            sampled,
            stand_in_note([best]),
            "With several seeds, errors and correlations are means over the seeds." if several else "",
        ),
        folded=True,
    )


def draw_evenly(count: int) -> npt.NDArray[np.int64]:
    """Indices of the examples shown: all, or POINTS of them, evenly spaced."""
    if count <= POINTS:
        return np.arange(count)
    return np.linspace(0, count - 1, POINTS).round().astype(np.int64)


def _error(group: Group, split: str) -> float:
    """Mean absolute error, averaged over seeds."""
    return float(np.mean([mean_error(results_of(model, split, ScoreResults)) for model in group.trained]))


def _describe_distance(run: FinishedRun, split: str, best: Group) -> str:
    text = f"The mean absolute error is {_error(best, split):.3f} for {in_text(best)}"
    if best.role == "encoder":
        return f"{text}."
    return f"{text} and {_error(run.encoder(run.last), split):.3f} for the encoder alone."


def _describe_ends(best: Group, bins: list[Bin]) -> str:
    first, last = bins[0], bins[-1]
    if first is last:
        return f"All true scores are {first.true:.2f}; {in_text(best)} predicts {first.predicted:.2f} on average."
    low, high = (f"({one.name}, {counted(one.examples, 'example')}, mean {one.true:.2f})" for one in (first, last))
    return (
        f"For the lowest true scores {low}, {in_text(best)} predicts {first.predicted:.2f} on average; for the highest "
        f"{high}, {last.predicted:.2f}."
    )


def _correlation(group: Group, split: str, metric: str) -> float | None:
    """Take a correlation from the run's scores, or compute it from the results if it is not among them."""
    known = group.mean(split, metric)
    if known is not None:
        return known
    results = _results(group, split)
    return {"pearson": pearson, "spearman": spearman}[metric](results.target, results.value)


def _table_of(run: FinishedRun, split: str, groups: list[Group], best: Group) -> Table:
    columns: Headings = [
        "model", "true scores", "examples", Column("mean true", 3), Column("mean predicted", 3),
        Column("mean absolute error", 3), Column("Pearson", 2), Column("Spearman", 2),
    ]  # fmt: skip
    whole: Rows = []
    parts: Rows = []
    named = {group.name for group in (best, run.encoder(run.last), run.control(run.last)) if group is not None}
    for group in groups:
        results = _results(group, split)
        means = [len(results), float(results.target.mean()), float(results.value.mean()), _error(group, split)]
        whole.append(
            [title_of(group), "all", *means, *(_correlation(group, split, one) for one in ("pearson", "spearman"))]
        )
        for one in bin_scores(results) if group.name in named else ():
            parts.append([title_of(group), one.name, one.examples, one.true, one.predicted, None, None, None])
    return Table(columns, whole + parts)


def _draw_values(results: ScoreResults, some: npt.NDArray[np.int64]) -> dict[str, Any]:
    rows = [
        {"true": round(float(results.target[number]), 4), "predicted": round(float(results.value[number]), 4)}
        for number in some
    ]
    x, y = off_zero("X", "true:Q", "true score"), off_zero("Y", "predicted:Q", "predicted score")
    tooltip = tips(("true:Q", None, ".3f"), ("predicted:Q", None, ".3f"))
    points = chart_of(rows, HEIGHT).mark_point(size=24, opacity=0.35).encode(x=x, y=y, tooltip=tooltip)
    low, high = float(results.target.min()), float(results.target.max())
    means = [
        {"true": one.true, "predicted": one.predicted, "scores": one.name, "examples": one.examples}
        for one in bin_scores(results)
    ]
    through = bare_chart(means).encode(
        x="true:Q",
        y="predicted:Q",
        tooltip=tips(
            ("scores:N", "true scores"),
            ("examples:Q", None, ","),
            ("true:Q", "mean true", ".3f"),
            ("predicted:Q", "mean predicted", ".3f"),
        ),
    )
    even = diagonal("true", "predicted", low, high, "predicted = true")
    return dict((points + through.mark_line() + even + through.mark_point(size=90)).to_dict())
