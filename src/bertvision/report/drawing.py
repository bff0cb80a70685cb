"""What pictures and tables share: altair charts of plain rows, as wide as the page, without colours of their own (the
page's theme gives them, light or dark); and tables without empty columns."""

from collections.abc import Iterable, Sequence
from typing import Any

from bertvision.errors import UserError
from bertvision.evaluation.statistics import spread
from bertvision.pipeline.finished import Group
from bertvision.report.block import Frame
from bertvision.report.wording import ENCODER, title_of

HEIGHT = 300


def import_altair() -> Any:
    try:
        import altair
    except ImportError:
        raise UserError("pictures need the package altair: pip install 'bertvision[report]'.") from None
    return altair


def chart_of(rows: Sequence[dict[str, Any]], height: int = HEIGHT) -> Any:
    """A chart of these rows, one object each; encodings name their types ("epochs:Q")."""
    altair = import_altair()
    return altair.Chart(altair.Data(values=list(rows))).properties(width="container", height=height)


def colour_by(field: str, order: Sequence[str], title: str | None = None) -> Any:
    """Colours of the theme for the values of a field, in this order."""
    altair = import_altair()
    return altair.Color(f"{field}:N", scale=altair.Scale(domain=list(order)), title=title)


def colour_models(names: Sequence[str]) -> Any:
    """The encoder itself has the first colour in every picture, there or not, and so the control has the second."""
    order = list(names) if ENCODER in names else [ENCODER, *names]
    return colour_by("model", order).legend(values=list(names), title=None)


def two_sided(limit: float, linear: float) -> Any:
    """The theme's two colours around zero, the same way round in every picture. Up to about `linear` the scale is even,
    above it is squeezed: a few values may be far larger than the rest, which should be seen, too."""
    scale = import_altair().Scale
    return scale(type="symlog", constant=linear, range="diverging", domain=[-limit, limit])


def level_line(score: float, name: str) -> Any:
    """A dashed line across the picture at a score, with its name over it."""
    altair = import_altair()
    base = altair.Chart(altair.Data(values=[{"score": score, "model": name}])).encode(
        y=altair.Y("score:Q"), tooltip=[altair.Tooltip("model:N"), altair.Tooltip("score:Q", format=".2f")]
    )
    words = base.mark_text(align="right", dy=-7, dx=-4, opacity=0.8).encode(x=altair.value("width"), text="model:N")
    return base.mark_rule(strokeDash=[5, 4], opacity=0.8) + words


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


def spread_rules(base: Any, rows: Sequence[dict[str, Any]]) -> list[Any]:
    """Lines from low to high where seeds differ; none where nowhere, since Vega warns of a layer without data."""
    if not any(row["high"] > row["low"] for row in rows):
        return []
    altair = import_altair()
    rules = base.transform_filter("datum.high > datum.low").mark_rule(strokeWidth=1.5, opacity=0.6)
    return [rules.encode(y=altair.Y("low:Q"), y2="high:Q")]


def without_empty(frame: Frame) -> Frame:
    """Without the columns that no row has a value for."""
    kept = [place for place in range(len(frame.columns)) if any(row[place] is not None for row in frame.rows)]
    return Frame([frame.columns[place] for place in kept], [[row[place] for place in kept] for row in frame.rows])
