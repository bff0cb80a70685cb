"""How far to trust an answer: how often answers that said the same, as surely, were right on held-out training data."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertvision.evaluation.marks import LabelMarks, Marks, ScoreMarks, SpanMarks

GROUPS, LEAST = 10, 50
"""Groups of answers by how sure they were, at most, and examples of a group, at least."""
ANSWER, SILENCE, SCORE = "answer", "no answer", "score"
"""What can be said where there are no labels: of spans the first two, of scores the last."""
DIGITS = 5  # of sureness, as rows of predictions have them

Float = npt.NDArray[np.float64]
Group = dict[str, float]


def measure_trust(marks: Marks, threshold: float = 0.0, labels: Sequence[str] = ()) -> dict[str, list[Group]]:
    """For each thing that was said, a label, an answer or silence, groups from the least sure on: from which sureness
    on, the share that was right, and of how many. Scores are not right or wrong: their one group has the mean distance
    from the true one."""
    if isinstance(marks, ScoreMarks):
        return {SCORE: [{"off_by": float(np.abs(marks.value - marks.target).mean()), "examples": len(marks.value)}]}
    names = list(labels) if isinstance(marks, LabelMarks) else [ANSWER, SILENCE]
    said = marks.predicted if isinstance(marks, LabelMarks) else marks.says_nothing(threshold).astype(int)  # (example)
    sure, right = how_sure(marks, threshold), marks.right(threshold)  # (example), (example)
    own = {name: said == number for number, name in enumerate(names)}  # (example) each
    return {name: _group(sure[some], right[some]) for name, some in own.items() if some.any()}


def _group(sure: Float, right: npt.NDArray[np.bool_]) -> list[Group]:
    """Even parts by sureness; those that begin at the same one are one group, as nothing could tell them apart."""
    order = np.argsort(sure, kind="stable")  # (example)
    joined: dict[float, list[npt.NDArray[np.intp]]] = {}
    for part in np.array_split(order, max(1, min(GROUPS, len(order) // LEAST))):
        joined.setdefault(float(sure[part[0]]), []).append(part)
    wholes = {start: np.concatenate(parts) for start, parts in joined.items()}  # (example) each
    return [{"from": start, "right": float(right[w].mean()), "examples": len(w)} for start, w in wholes.items()]


def how_sure(marks: SpanMarks | LabelMarks, threshold: float = 0.0) -> Float:
    """Of labels the probability of the one given; of spans how far the no-answer score is from the threshold."""
    sure = marks.probabilities.max(axis=1) if isinstance(marks, LabelMarks) else np.abs(marks.lead - threshold)
    return np.asarray(np.round(sure, DIGITS))  # (example)


def sureness_of(row: dict[str, Any], threshold: float) -> float | None:
    """The same of a row that a model gave; None for a score."""
    if "probabilities" in row:
        return round(float(max(row["probabilities"].values())), DIGITS)
    if "null_score" in row:
        return round(abs(float(row["null_score"]) - float(row["score"]) - threshold), DIGITS)
    return None


def said_in(row: dict[str, Any]) -> str:
    """What a row says, by the name that trust in it is kept under."""
    if "label" in row:
        return str(row["label"])
    if "answer" in row:
        return SILENCE if row["start"] is None else ANSWER
    return SCORE


def trust_in(row: dict[str, Any], trust: dict[str, list[Group]], threshold: float) -> Group:
    """What is known of answers like this one: `right` or `off_by`, and of how many `examples`; of what was never said
    on held-out data no more than that."""
    groups, sure = trust.get(said_in(row)), sureness_of(row, threshold)
    if groups is None:
        return {"examples": 0}
    if sure is None:
        return {key: groups[0][key] for key in ("off_by", "examples")}
    found = [group for group in groups if group["from"] <= sure] or groups[:1]
    return {key: found[-1][key] for key in ("right", "examples")}
