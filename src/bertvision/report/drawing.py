"""What pictures share: altair charts of plain rows, as wide as the page, without colours of their own (the page's theme
gives them, light or dark)."""

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
    """A chart of these rows, one object each; encodings name their types ("epochs:Q")."""
    return bare_chart(rows).properties(width="container", height=height)


def bare_chart(rows: Sequence[dict[str, Any]]) -> Any:
    """One to be laid over another, whose size it takes."""
    altair = import_altair()
    return altair.Chart(altair.Data(values=list(rows)))


def tips(*fields: str | tuple[str, str | None] | tuple[str, str | None, str]) -> list[Any]:
    """What is shown under the pointer: fields, with a title and a number's format where these are not plain."""
    altair, found = import_altair(), []
    for field in fields:
        name, title, form = (*((field,) if isinstance(field, str) else field), None, None)[:3]
        named = {"title": title, "format": form}
        found.append(altair.Tooltip(name, **{key: value for key, value in named.items() if value is not None}))
    return found


def off_zero(channel: str, field: str, title: str) -> Any:
    """An axis, "X" or "Y", that need not begin at zero: scores differ by little."""
    altair = import_altair()
    return getattr(altair, channel)(field, title=title, scale=altair.Scale(zero=False))


def colour_by(field: str, order: Sequence[str], title: str | None = None) -> Any:
    """Colours of the theme for the values of a field, in this order."""
    altair = import_altair()
    return altair.Color(f"{field}:N", scale=altair.Scale(domain=list(order)), title=title)


def colour_models(rows: Sequence[dict[str, Any]]) -> Any:
    """The encoder alone has the first colour in every picture, there or not, and so the control has the second."""
    names = list(dict.fromkeys(row["model"] for row in rows))
    order = names if ENCODER in names else [ENCODER, *names]
    return colour_by("model", order).legend(values=names, title=None)


def two_sided(limit: float, linear: float) -> Any:
    """The theme's two colours around zero, the same way round in every picture. Up to about `linear` the scale is even,
    above it is squeezed: a few values may be far larger than the rest, which should be seen, too."""
    scale = import_altair().Scale
    return scale(type="symlog", constant=linear, range="diverging", domain=[-limit, limit])


def diagonal(x: str, y: str, low: float, high: float, what: str) -> Any:
    """A dashed line where both fields are equal."""
    ends = [{x: low, y: low, "end": high, "what": what}]
    line = bare_chart(ends).mark_rule(strokeDash=[5, 4])
    (tip,) = tips("what:N")
    return line.encode(x=f"{x}:Q", y=f"{y}:Q", x2="end:Q", y2="end:Q", tooltip=tip)
