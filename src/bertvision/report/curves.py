"""Curves of scores against fine-tuning, data, compute or epochs, and the table columns that they share."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bertvision.evaluation.statistics import spread
from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.report.drawing import bare_chart, chart_of, colour_models, import_altair, off_zero, tips
from bertvision.report.ranking import figure_keys, keys_at_zero
from bertvision.report.wording import deviation_of, figure_name, name_at_zero, title_of
from bertvision.tables import Cell, Column

PANEL = 240
"""Width of one of two panels."""
EPOCHS = Column("epochs", None, "Epochs that the encoder was fine-tuned for")


def score_columns(run: FinishedRun) -> list[Column]:
    """Metrics, the first with its spread over the seeds; where a threshold was chosen, also those at threshold 0."""
    keys = figure_keys(run)
    figures = [Column(figure_name(key), 2) for key in keys]
    deviation = Column("±", 2, f"Standard deviation of {figure_name(keys[0])} over the seeds")
    return [*figures, *(Column(name_at_zero(key), 2) for key in keys_at_zero(run)), deviation, Column("seeds")]


def score_cells(run: FinishedRun, group: Group, split: str) -> list[Cell]:
    keys = figure_keys(run)
    means = [group.mean(split, key) for key in (*keys, *keys_at_zero(run))]
    return [*means, deviation_of(group.figures(split, keys[0])), len(group.trained)]


def drawn_keys(run: FinishedRun) -> dict[str, str]:
    """Key → name of the main metric; where a threshold was chosen, also at threshold 0: the papers use none."""
    return {run.main: figure_name(run.main)} | {key: name_at_zero(key) for key in keys_at_zero(run)[:1]}


def score_rows(groups: Iterable[Group], split: str, key: str) -> list[dict[str, Any]]:
    """A row for each group with a score: the mean over its seeds, and one standard deviation below and above."""
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
    run: FinishedRun,
    rows_of: Callable[[str], list[dict[str, Any]]],
    x: Any,
    tip: str | tuple[str, str],
    level_of: Callable[[str], tuple[float | None, str]],
    line: str = "",
) -> dict[str, Any]:
    """`score_rows` by metric against `x`, which `tip` names in the tooltip; a panel for each of `drawn_keys`."""
    names = drawn_keys(run)
    panels = []
    for key, name in names.items():
        tooltip = tips("model:N", tip, ("score:Q", name, ".2f"), "seeds:Q")
        panels.append(build_curve(rows_of(key), x, off_zero("Y", "score:Q", name), tooltip, line, level=level_of(key)))
    if len(panels) == 1:
        return dict(panels[0].to_dict())
    beside = import_altair().hconcat(*(panel.properties(width=PANEL) for panel in panels))
    return dict(beside.resolve_scale(y="shared").to_dict())


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
    return dict(build_curve(rows, x, y, tooltip, line, between, level, **point).to_dict())


def build_curve(
    rows: Sequence[dict[str, Any]],
    x: Any,
    y: Any,
    tooltip: list[Any],
    line: str = "",
    between: Sequence[Callable[[Any], Any]] = (),
    level: tuple[float | None, str] = (None, ""),
    **point: Any,
) -> Any:
    """Points of models, joined by lines for all models or for the one named by `line`. `between` builds layers under
    the points; `level` is a score and its name, drawn as a line across the picture."""
    altair = import_altair()
    base = chart_of(rows).encode(x=x, y=y, color=colour_models(rows), tooltip=tooltip)
    lines = base.transform_filter(f"datum.model == '{line}'") if line else base
    layers = [layer(base) for layer in between]
    chart = altair.layer(lines.mark_line(), *layers, *_spread_rules(base, rows), base.mark_point(**point))
    score, name = level
    return chart if score is None else altair.layer(chart, level_line(score, name))


def _spread_rules(base: Any, rows: Sequence[dict[str, Any]]) -> list[Any]:
    """Lines from low to high where seeds differ. No empty layer, since Vega warns of a layer without data."""
    if not any("low" in row and row["high"] > row["low"] for row in rows):
        return []
    altair = import_altair()
    rules = base.transform_filter("datum.high > datum.low").mark_rule(strokeWidth=1.5, opacity=0.6)
    return [rules.encode(y=altair.Y("low:Q"), y2="high:Q")]


def level_line(score: float, name: str) -> Any:
    """A dashed line across the picture at a score, with its name above it."""
    altair = import_altair()
    base = bare_chart([{"score": score, "model": name}]).encode(
        y=altair.Y("score:Q"), tooltip=tips("model:N", ("score:Q", None, ".2f"))
    )
    words = base.mark_text(align="right", dy=-7, dx=-4, opacity=0.8).encode(x=altair.value("width"), text="model:N")
    return base.mark_rule(strokeDash=[5, 4], opacity=0.8) + words
