"""Trust: how often the same prediction, with similar confidence, was right on held-out data."""

from typing import Annotated, TypedDict

import numpy as np
import numpy.typing as npt
from msgspec import Meta

GROUPS, LEAST = 10, 50
"""Predictions are grouped by confidence: the maximum number of groups, and the minimum number of examples in each."""
DIGITS = 5  # of the confidence, as in the rows of predictions

Group = dict[str, float]
Trust = dict[str, list[Group]]
"""Prediction → its groups, least confident first. A group has the lowest confidence in it (`from`), the fraction of
predictions that were right (`right`), and the number of `examples`."""


_Examples = Annotated[int, Meta(ge=0, le=10**15)]
Rated = TypedDict(
    "Rated", {"from": float, "right": Annotated[float, Meta(ge=0, le=1)], "examples": _Examples}, total=True
)
"""A group of predictions that are right or wrong, in a file."""
RatedTrust = dict[str, Annotated[list[Rated], Meta(min_length=1)]]


class Measured(TypedDict):
    """The one group of predictions that are off by something, in a file."""

    off_by: float
    examples: _Examples


MeasuredTrust = dict[str, Annotated[list[Measured], Meta(min_length=1)]]


def group(confidence: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]) -> list[Group]:
    """Split examples into groups of equal size by confidence (example). Groups that start at the same confidence are
    merged, because a lookup could not tell them apart."""
    order = np.argsort(confidence, kind="stable")  # (example)
    joined: dict[float, list[npt.NDArray[np.intp]]] = {}
    for part in np.array_split(order, max(1, min(GROUPS, len(order) // LEAST))):
        joined.setdefault(float(confidence[part[0]]), []).append(part)
    wholes = {start: np.concatenate(parts) for start, parts in joined.items()}  # (example) each
    return [{"from": start, "right": float(right[w].mean()), "examples": len(w)} for start, w in wholes.items()]


def look_up(known: Trust, predicted: str, confidence: float) -> Group:
    """Return the group that a prediction belongs to, or `{"examples": 0}` if it was never made on held-out data."""
    if predicted not in known:
        return {"examples": 0}
    groups, confidence = known[predicted], round(float(confidence), DIGITS)
    found = [group for group in groups if group["from"] <= confidence] or groups[:1]
    return {key: found[-1][key] for key in ("right", "examples")}
