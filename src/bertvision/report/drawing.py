"""Helpers for pictures: altair charts of plain rows, as wide as the page, with the colours of its light or dark
theme."""

from collections.abc import Sequence
from typing import Any

from bertvision.errors import UserError
from bertvision.report.wording import ENCODER

HEIGHT = 300
ROW = 36  # height of a model's bars


def import_altair() -> Any:
    try:
        import altair
    except ImportError:
        raise UserError("pictures need the package altair: pip install 'bertvision[report]'.") from None
    return altair


def chart_of(rows: Sequence[dict[str, Any]], height: int = HEIGHT) -> Any:
    """A chart of these rows; encodings name their types ("epochs:Q")."""
    return bare_chart(rows).properties(width="container", height=height)


def bare_chart(rows: Sequence[dict[str, Any]]) -> Any:
    """A chart without a size, to be laid over another."""
    altair = import_altair()
    return altair.Chart(altair.Data(values=list(rows)))


def tips(*fields: str | tuple[str, str | None] | tuple[str, str | None, str]) -> list[Any]:
    """A tooltip: fields, with a title and a number format where needed."""
    altair, found = import_altair(), []
    for field in fields:
        name, title, form = (*((field,) if isinstance(field, str) else field), None, None)[:3]
        named = {"title": title, "format": form}
        found.append(altair.Tooltip(name, **{key: value for key, value in named.items() if value is not None}))
    return found


def off_zero(channel: str, field: str, title: str | list[str]) -> Any:
    """An "X" or "Y" axis that need not start at zero: scores differ by little. A title in lines is a list."""
    altair = import_altair()
    return getattr(altair, channel)(field, title=title, scale=altair.Scale(zero=False))


def colour_by(
    field: str,
    order: Sequence[str],
    title: str | list[str] | None = None,
    rows: Sequence[dict[str, Any]] | None = None,
) -> Any:
    """Colours of the theme for the values of a field, in this order. With `rows`, the legend has only their values."""
    altair = import_altair()
    colour = altair.Color(f"{field}:N", scale=altair.Scale(domain=list(order)), title=title)
    return colour if rows is None else colour.legend(values=drawn_values(rows, field, order))


def drawn_values(rows: Sequence[dict[str, Any]], field: str, order: Sequence[str]) -> list[str]:
    """The values of a field that occur in some rows."""
    there = {row[field] for row in rows}
    return [value for value in order if value in there]


def colour_models(rows: Sequence[dict[str, Any]]) -> Any:
    """Colours of models: the encoder alone has the first one in every picture, so the control has the second."""
    names = list(dict.fromkeys(row["model"] for row in rows))
    order = names if ENCODER in names else [ENCODER, *names]
    return colour_by("model", order).legend(values=names, title=None)


def two_sided(limit: float, linear: float) -> Any:
    """The two colours of the theme around zero. The scale is linear up to about `linear` and compressed above it: a few
    values may be far larger than the rest, which should still be visible."""
    scale = import_altair().Scale
    # In RGB, since other colour spaces pass through green between orange and blue.
    return scale(type="symlog", constant=linear, range="diverging", domain=[-limit, limit], interpolate="rgb")


def diagonal(x: str, y: str, low: float, high: float, what: str) -> Any:
    """A dashed line where both fields are equal."""
    ends = [{x: low, y: low, "end": high, "what": what}]
    line = bare_chart(ends).mark_rule(strokeDash=[5, 4])
    (tip,) = tips("what:N")
    return line.encode(x=f"{x}:Q", y=f"{y}:Q", x2="end:Q", y2="end:Q", tooltip=tip)
