"""How far to trust a prediction: how often those that said the same, as surely, were right on held-out data."""

import numpy as np
import numpy.typing as npt

GROUPS, LEAST = 10, 50
"""Groups of predictions by how sure they were, at most, and examples of a group, at least."""
DIGITS = 5  # of sureness, as rows of predictions have them

Group = dict[str, float]
Trust = dict[str, list[Group]]
"""By what was said, groups from the least sure on: from which sureness on, the share that was right, of how many."""


def group(sure: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]) -> list[Group]:
    """Even parts by sureness (example); those that begin at the same one are one group, as nothing could tell them
    apart."""
    order = np.argsort(sure, kind="stable")  # (example)
    joined: dict[float, list[npt.NDArray[np.intp]]] = {}
    for part in np.array_split(order, max(1, min(GROUPS, len(order) // LEAST))):
        joined.setdefault(float(sure[part[0]]), []).append(part)
    wholes = {start: np.concatenate(parts) for start, parts in joined.items()}  # (example) each
    return [{"from": start, "right": float(right[w].mean()), "examples": len(w)} for start, w in wholes.items()]


def look_up(known: Trust, said: str, sure: float) -> Group:
    """The group that a prediction belongs to; of what was never said on held-out data no more than that."""
    if said not in known:
        return {"examples": 0}
    groups, sure = known[said], round(float(sure), DIGITS)
    found = [group for group in groups if group["from"] <= sure] or groups[:1]
    return {key: found[-1][key] for key in ("right", "examples")}
