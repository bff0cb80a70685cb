"""What `predict` returns for one text. Each kind of target has a class of its own, with the prediction as fields.

    result = model.predict("A fine film.")
    result.label, result.probability, result.trust
    result.to_dict()                                plain values, as `bertvision predict --json` prints them

In a notebook, a result shows itself as HTML. All text is escaped, and the colours suit light and dark pages.
"""

import dataclasses
import html
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bertvision.evaluation.trust import Group
from bertvision.tables import counted

SHARED = ("task", "trust", "text", "text_pair")
MOST_SHOWN, CONTEXT = 8, 600
"""In HTML: bars, and characters of a passage on each side of its answer."""
_FRAME = (
    "font:14px/1.5 system-ui,sans-serif;max-width:46em;margin:.4em 0;padding:.7em 1em;border-radius:8px;"
    "border:1px solid rgba(128,128,128,.4)"
)
_TRACK = "display:inline-block;width:12em;height:.7em;border-radius:4px;background:rgba(128,128,128,.25)"


@dataclass(frozen=True, kw_only=True, repr=False)
class Result(ABC):
    """The prediction for one text. Subclasses add the fields of their kind."""

    task: str
    trust: Group | None
    """How similar predictions did on held-out data: `right` (a fraction) or `off_by`, and the number of `examples`.
    None if nothing was held out."""
    text: str = field(repr=False, compare=False)
    text_pair: str | None = field(default=None, repr=False, compare=False)

    @abstractmethod
    def describe(self) -> str:
        """The prediction on one line."""

    @abstractmethod
    def body(self) -> str:
        """The prediction as HTML."""

    def to_dict(self) -> dict[str, Any]:
        """The task, the prediction and its trust as plain values."""
        own = {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.repr}
        return {"task": own.pop("task"), **{key: own[key] for key in own if key not in SHARED}, "trust": self.trust}

    def line(self) -> str:
        """The prediction and its trust on one line."""
        return self.describe() if self.trust is None else f"{self.describe()}  [{describe_trust(self.trust)}]"

    def __repr__(self) -> str:
        return f"<{self.task}: {self.line()}>"

    def _repr_html_(self) -> str:
        said = "" if self.trust is None else f'<div style="opacity:.75">{escape(describe_trust(self.trust))}</div>'
        title = f'<div style="opacity:.75">{escape(self.task)}</div>'
        return f'<div class="tex2jax_ignore mathjax_ignore" style="{_FRAME}">{title}{self.body()}{said}</div>'


def describe_trust(trust: Group) -> str:
    if not trust["examples"]:
        return "no similar answers on held-out data"
    if "off_by" in trust:
        return f"off by {trust['off_by']:.2f} on average on {int(trust['examples'])} held-out examples"
    verb = "was" if trust["examples"] == 1 else "were"
    return f"{100 * trust['right']:.0f} % of {counted(trust['examples'], 'similar held-out answer')} {verb} right"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


# ---------------------------------------------------------------------- parts of HTML


def escape(text: str) -> str:
    return html.escape(text).encode("utf-8", "backslashreplace").decode()  # half a surrogate pair is no character


def strong(text: str) -> str:
    return f'<div style="font-size:1.2em"><b>{escape(text)}</b></div>'


def bars(shares: Iterable[tuple[str, float]]) -> str:
    """A bar for each name, the largest first; of very many, only the largest."""
    ordered = sorted(shares, key=lambda one: one[1], reverse=True)
    rows = "".join(
        f'<div><span style="{_TRACK}"><span style="display:block;height:100%;border-radius:4px;'
        f'background:rgba(66,133,244,.85);width:{100 * min(max(share, 0.0), 1.0):.1f}%"></span></span> '
        f"{percent(share)} {escape(name)}</div>"
        for name, share in ordered[:MOST_SHOWN]
    )
    more = len(ordered) - MOST_SHOWN
    return rows + (f'<div style="opacity:.75">and {counted(more, "more label")}</div>' if more > 0 else "")


def highlight(passage: str, start: int, end: int) -> str:
    """A passage with an answer marked in it. A long one is cut on both sides."""
    low, high = max(0, start - CONTEXT), end + CONTEXT
    before, after = ("… " if low else "") + passage[low:start], passage[end:high] + (" …" * (high < len(passage)))
    mark = f'<mark style="background:rgba(255,193,7,.45);color:inherit">{escape(passage[start:end])}</mark>'
    mark = mark if end > start else ""
    return f'<div style="white-space:pre-wrap">{escape(before)}{mark}{escape(after)}</div>'
