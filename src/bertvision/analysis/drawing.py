"""What all pictures share: altair charts of plain rows, as wide as the page, without colours of their own (the page's
theme gives them, light or dark)."""

from collections.abc import Sequence
from typing import Any

from bertvision.errors import UserError

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
