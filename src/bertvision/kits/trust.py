"""How far to trust an answer: how often answers that were as sure were right on held-out training data."""

from typing import Any

import numpy as np
import numpy.typing as npt

from bertvision.evaluation.marks import LabelMarks, Marks, ScoreMarks, SpanMarks

GROUPS, LEAST = 10, 20
"""Groups of answers by how sure they were, at most, and examples of a group, at least."""

Float = npt.NDArray[np.float64]


def measure_trust(marks: Marks, threshold: float = 0.0) -> list[dict[str, float]]:
    """Groups of answers from the least sure on: from which sureness on, the share that was right, and of how many.
    Scores are not right or wrong: their one group has the mean distance from the true one."""
    if isinstance(marks, ScoreMarks):
        return [{"off_by": float(np.abs(marks.value - marks.target).mean()), "examples": len(marks.value)}]
    sure, right = how_sure(marks, threshold), marks.right(threshold)  # (example), (example)
    order = np.argsort(sure, kind="stable")  # (example)
    parts = max(1, min(GROUPS, len(order) // LEAST))
    return [
        {"from": float(sure[part[0]]), "right": float(right[part].mean()), "examples": len(part)}
        for part in np.array_split(order, parts)
    ]


def how_sure(marks: SpanMarks | LabelMarks, threshold: float = 0.0) -> Float:
    """Of labels the probability of the one given; of spans how far the no-answer score is from the threshold, on
    whichever side."""
    if isinstance(marks, LabelMarks):
        return marks.probabilities.max(axis=1)  # (example)
    return np.abs(marks.lead - threshold)  # (example)


def sureness_of(row: dict[str, Any], threshold: float) -> float | None:
    """The same of a row that a model gave; None for a score."""
    if "probabilities" in row:
        return float(max(row["probabilities"].values()))
    if "null_score" in row:
        return abs(float(row["null_score"]) - float(row["score"]) - threshold)
    return None


def trust_in(row: dict[str, Any], groups: list[dict[str, float]], threshold: float) -> dict[str, float]:
    """What is known of answers like this one: `right` or `off_by`, and of how many `examples`."""
    sure = sureness_of(row, threshold)
    if sure is None:
        return {key: groups[0][key] for key in ("off_by", "examples")}
    found = [group for group in groups if group["from"] <= sure] or groups[:1]
    return {key: found[-1][key] for key in ("right", "examples")}
