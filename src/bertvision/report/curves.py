"""Curves: scores of models against fine-tuning, shares of the data, compute or epochs, with the same columns."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bertvision.evaluation.statistics import spread
from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.report.drawing import bare_chart, chart_of, colour_models, import_altair, off_zero, tips
from bertvision.report.wording import deviation_of, figure_name, title_of
from bertvision.tables import Cell, Column

EPOCHS = Column("epochs", None, "How far the encoder was fine-tuned")


def score_columns(keys: Sequence[str]) -> list[Column]:
    """Figures, of which the first is given with its spread over the seeds."""
    figures = [Column(figure_name(key), 2) for key in keys]
    deviation = Column("±", 2, f"Standard deviation of {figure_name(keys[0])} over the seeds")
    return [*figures, deviation, Column("seeds")]


def score_cells(group: Group, split: str, keys: Sequence[str]) -> list[Cell]:
    means = [group.mean(split, key) for key in keys]
    return [*means, deviation_of(group.figures(split, keys[0])), len(group.trained)]


def score_rows(groups: Iterable[Group], split: str, key: str) -> list[dict[str, Any]]:
    """A row for each group that has the figure: its mean over the seeds, and as much below and above as they differ."""
    rows = []
    for group in groups:
        values = group.figures(split, key)
        if values:
            found = spread(values)
            around = found.deviation or 0.0
            ends = {"score": found.mean, "low": found.mean - around, "high": found.mean + around}
            rows.append({"epochs": group.epochs, "model": title_of(group), **ends, "seeds": found.count})
    return rows


def draw_scores(
    run: FinishedRun, rows: list[dict[str, Any]], x: Any, tip: str | tuple[str, str], **how: Any
) -> dict[str, Any]:
    """`rows` as `score_rows` gives them, against `x`, which `tip` names under the pointer."""
    name = figure_name(run.main)
    tooltip = tips("model:N", tip, ("score:Q", name, ".2f"), "seeds:Q")
    return draw_curve(rows, x, off_zero("Y", "score:Q", name), tooltip, **how)


def draw_curve(
    rows: Sequence[dict[str, Any]],
    x: Any,
    y: Any,
    tooltip: list[Any],
    line: str = "",
    between: Sequence[Callable[[Any], Any]] = (),
    level: tuple[float | None, str] = (None, ""),
    **point: Any,
) -> dict[str, Any]:
    """Points of models, joined by lines: of all models, or of the one that `line` names. `between` makes layers
    under the points, `level` a score that is a line across the picture, with its name."""
    altair = import_altair()
    base = chart_of(rows).encode(x=x, y=y, color=colour_models(rows), tooltip=tooltip)
    lines = base.transform_filter(f"datum.model == '{line}'") if line else base
    layers = [layer(base) for layer in between]
    chart = altair.layer(lines.mark_line(), *layers, *_spread_rules(base, rows), base.mark_point(**point))
    score, name = level
    return dict((chart if score is None else altair.layer(chart, level_line(score, name))).to_dict())


def _spread_rules(base: Any, rows: Sequence[dict[str, Any]]) -> list[Any]:
    """Lines from low to high where seeds differ; none where nowhere, since Vega warns of a layer without data."""
    if not any("low" in row and row["high"] > row["low"] for row in rows):
        return []
    altair = import_altair()
    rules = base.transform_filter("datum.high > datum.low").mark_rule(strokeWidth=1.5, opacity=0.6)
    return [rules.encode(y=altair.Y("low:Q"), y2="high:Q")]


def level_line(score: float, name: str) -> Any:
    """A dashed line across the picture at a score, with its name over it."""
    altair = import_altair()
    base = bare_chart([{"score": score, "model": name}]).encode(
        y=altair.Y("score:Q"), tooltip=tips("model:N", ("score:Q", None, ".2f"))
    )
    words = base.mark_text(align="right", dy=-7, dx=-4, opacity=0.8).encode(x=altair.value("width"), text="model:N")
    return base.mark_rule(strokeDash=[5, 4], opacity=0.8) + words
