"""Predicted labels: the confusion matrix, and how well models are calibrated."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertvision.kinds.label import LabelResults
from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.report.analysis import analysis, gives
from bertvision.report.block import Block
from bertvision.report.drawing import chart_of, colour_models, diagonal, import_altair, tips
from bertvision.report.ranking import main_models, results_of
from bertvision.report.wording import in_text, joined, listed, opening, stand_in_note, title_of
from bertvision.tables import Column, Headings, Rows, Table, counted

BINS = 10
WORDED = 8  # with more labels, cells have no numbers
CELL = 56  # height of a cell

Counts = npt.NDArray[np.int64]


# ---------------------------------------------------------------------- confusion matrix


@analysis("Predictions", 60, "Confusion matrix", [gives(LabelResults)])
def confusion_matrix(run: FinishedRun, split: str) -> Block:
    """How often each label was predicted for each true label: encoder alone, control and best head."""
    groups, labels = main_models(run), list(run.task.labels)
    found = {
        title_of(group): count_labels(results_of(group.trained[0], split, LabelResults), len(labels))
        for group in groups
    }
    best = groups[-1]
    name, matrix = title_of(best), found[title_of(best)]  # (true, predicted)
    shown = f"The picture shows {in_text(best)}; the table has all models." if len(groups) > 1 else ""
    return Block(
        sentences=[_describe_right(groups, list(found.values())), _describe_error(in_text(best), labels, matrix)],
        table=_matrix_table(labels, found),
        picture=_draw_matrix(labels, matrix),
        drawn=[f"{name} (%)"],
        note=joined("Percentages are of all examples with the true label.", shown, stand_in_note(groups)),
        folded=True,
    )


def count_labels(results: LabelResults, labels: int) -> Counts:
    """(true label, predicted label) number of examples."""
    pairs = results.target * labels + results.predicted  # (example)
    return np.bincount(pairs, minlength=labels * labels).reshape(labels, labels)


def _describe_right(groups: list[Group], matrices: list[Counts]) -> str:
    rights = [int(matrix.trace()) for matrix in matrices]
    total = int(matrices[0].sum())
    *others, (name, right) = zip(map(in_text, groups), rights, strict=True)
    first = f"{opening(name)} labels {right:,} of {counted(total, 'example')} correctly ({100 * right / total:.1f} %)"
    rest = [f"{other} {number:,} ({100 * number / total:.1f} %)" for other, number in others]
    return f"{listed([first, *rest])}."


def _describe_error(name: str, labels: list[str], matrix: Counts) -> str:
    wrong = matrix * (1 - np.eye(len(labels), dtype=np.int64))  # (true, predicted)
    most = int(wrong.max())
    if not most:
        return f"{opening(name)} makes no errors."
    true, predicted = np.unravel_index(int(wrong.argmax()), wrong.shape)
    share = 100 * most / int(matrix[true].sum())
    ties = int((wrong == most).sum())
    lead = "The most frequent error" if ties == 1 else f"One of the {ties} most frequent errors"
    return (
        f"{lead} of {name} is predicting '{labels[predicted]}' for '{labels[true]}': {counted(most, 'example')}, "
        f"{share:.1f} % of those with the true label '{labels[true]}'."
    )


def _share(matrix: Counts, true: int, given: int) -> float | None:
    """Percentage of the examples with the true label; None if there are none."""
    total = int(matrix[true].sum())
    return 100 * int(matrix[true, given]) / total if total else None


def _matrix_table(labels: list[str], found: dict[str, Counts]) -> Table:
    columns = [Column("true label"), Column("predicted label")]
    for name in found:
        columns += [
            Column(name, None, "Examples"),
            Column(f"{name} (%)", 1, "Percentage of the examples with the true label"),
        ]
    rows: Rows = []
    for true, true_name in enumerate(labels):
        for given, given_name in enumerate(labels):
            cells = [
                cell for matrix in found.values() for cell in (int(matrix[true, given]), _share(matrix, true, given))
            ]
            rows.append([true_name, given_name, *cells])
    return Table(columns, rows)


def _draw_matrix(labels: list[str], matrix: Counts) -> dict[str, Any]:
    altair, rows = import_altair(), []
    for true, true_name in enumerate(labels):
        for given, given_name in enumerate(labels):
            share, count = _share(matrix, true, given), int(matrix[true, given])
            words = f"{count:,}" if share is None else f"{count:,} ({share:.0f} %)"
            cell = {"count": count, "share": share, "strength": share or 0.0, "words": words}
            rows.append({"true": true_name, "given": given_name, **cell})
    few = len(labels) <= WORDED
    axis = altair.Axis(orient="top", labelAngle=0 if few else -90)
    base = chart_of(rows, max(120, (CELL if few else CELL // 3) * len(labels))).encode(
        x=altair.X("given:N", sort=labels, title="predicted label", axis=axis),
        y=altair.Y("true:N", sort=labels, title="true label"),
        tooltip=tips(
            ("true:N", "true label"),
            ("given:N", "predicted label"),
            ("count:Q", "examples", ","),
            ("share:Q", "% of the true label", ".1f"),
        ),
    )
    # Opacity instead of a colour ramp: the page shows through, and the text stays legible on any cell.
    opacity = altair.Opacity("strength:Q", scale=altair.Scale(domain=[0, 100], range=[0.04, 0.55]), legend=None)
    cells = base.mark_rect().encode(opacity=opacity)
    return dict((cells + base.mark_text().encode(text="words:N") if few else cells).to_dict())


# ---------------------------------------------------------------------- calibration


@dataclass(frozen=True)
class Reliability:
    """A model's confidence in its predicted labels and whether they are right, in equal bins of confidence."""

    confidence: npt.NDArray[np.float64]  # (example) 0 to 1
    right: npt.NDArray[np.bool_]  # (example)

    @property
    def bins(self) -> npt.NDArray[np.int64]:
        """(example) The bin of each example: 0 for confidences below 0.1, and so on; bins include their lower end."""
        # Rounded, since 0.7 / 0.1 is a little less than 7.
        return np.minimum(np.floor(np.round(self.confidence * BINS, 9)), BINS - 1).astype(np.int64)  # (example)

    @property
    def error(self) -> float:
        """Expected calibration error in percent: the mean gap between confidence and accuracy, weighted by bin size."""
        distance = self.confidence - self.right  # (example)
        sums = np.bincount(self.bins, weights=distance, minlength=BINS)  # (bin)
        return 100 * float(np.abs(sums).sum()) / len(self.right)


def measure_reliability(results: LabelResults) -> Reliability:
    return Reliability(results.probabilities.max(axis=1), results.right())


@analysis("Predictions", 70, "Calibration", [gives(LabelResults)])
def reliability_curve(run: FinishedRun, split: str) -> Block:
    """Confidence of the predicted label against accuracy: encoder alone, control and best head."""
    groups = main_models(run)
    found = {
        title_of(group): measure_reliability(results_of(group.trained[0], split, LabelResults)) for group in groups
    }  # fmt: skip
    names = [in_text(group) for group in groups]
    errors = [f"{name} {one.error:.1f}" for name, one in zip(names, found.values(), strict=True)]
    compared = [f"Expected calibration error (lower is better): {', '.join(errors)}."] if len(errors) > 1 else []
    note = (
        f"Confidence is the probability of the predicted label, in {BINS} equal bins. The expected calibration error "
        "(ECE) is the mean gap between confidence and accuracy over the bins, weighted by the number of examples in "
        "each. In the picture, larger points stand for bins with more examples."
    )
    return Block(
        sentences=[_describe_confidence(names[-1], found[title_of(groups[-1])]), *compared],
        table=_reliability_table(found),
        picture=_draw_reliability(found),
        drawn=["mean confidence (%)", "accuracy (%)"],
        note=joined(note, stand_in_note(groups)),
        folded=True,
    )


def _describe_confidence(name: str, found: Reliability) -> str:
    sure, right = 100 * float(found.confidence.mean()), 100 * float(found.right.mean())
    gap = float(f"{sure - right:.1f}")
    bias = f"{'overconfident' if gap > 0 else 'underconfident'} by {abs(gap):.1f} points"
    return (
        f"{opening(name)} is {bias if gap else 'neither over- nor underconfident'} on average: mean confidence "
        f"{sure:.1f} %, accuracy {right:.1f} %, expected calibration error {found.error:.1f} points."
    )


def _bin_rows(found: Reliability) -> list[tuple[int, int, float, float]]:
    """(bin, examples, mean confidence in percent, accuracy in percent) for each bin with examples."""
    rows = []
    for number in range(BINS):
        inside = found.bins == number  # (example)
        if inside.any():
            sure, right = 100 * float(found.confidence[inside].mean()), 100 * float(found.right[inside].mean())
            rows.append((number, int(inside.sum()), sure, right))
    return rows


def _bin_name(number: int) -> str:
    return f"{100 * number // BINS} to {100 * (number + 1) // BINS} %"


def _reliability_table(found: dict[str, Reliability]) -> Table:
    columns: Headings = [
        "model", "confidence", "examples", Column("mean confidence (%)", 1), Column("accuracy (%)", 1),
        Column("confidence − accuracy", 1, "Above 0: overconfident"),
        Column("ECE", 2, "Expected calibration error, in points"),
    ]  # fmt: skip
    rows: Rows = []
    for name, one in found.items():
        sure, right = 100 * float(one.confidence.mean()), 100 * float(one.right.mean())
        rows.append([name, "all", len(one.right), sure, right, sure - right, one.error])
        for number, count, bin_sure, bin_right in _bin_rows(one):
            rows.append([name, _bin_name(number), count, bin_sure, bin_right, bin_sure - bin_right, None])
    return Table(columns, rows)


def _draw_reliability(found: dict[str, Reliability]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {"model": name, "bin": _bin_name(number), "examples": count, "sure": sure, "right": right}
        for name, one in found.items()
        for number, count, sure, right in _bin_rows(one)
    ]
    altair, least = import_altair(), 100 * min(int(one.bins.min()) for one in found.values()) / BINS
    lowest = min(least, *(10 * math.floor(row["right"] / 10) for row in rows))
    base = chart_of(rows).encode(
        x=altair.X("sure:Q", title="mean confidence (%)", scale=altair.Scale(domain=[least, 100])),
        y=altair.Y("right:Q", title="accuracy (%)", scale=altair.Scale(domain=[lowest, 100])),
        color=colour_models(rows),
        tooltip=tips(
            "model:N",
            ("bin:N", "confidence"),
            ("examples:Q", None, ","),
            ("sure:Q", "mean confidence (%)", ".1f"),
            ("right:Q", "accuracy (%)", ".1f"),
        ),
    )
    size = altair.Size("examples:Q", scale=altair.Scale(range=[30, 400]), legend=None)
    even = diagonal("sure", "right", least, 100, "perfect calibration")
    return dict((base.mark_line(strokeWidth=1.5) + even + base.mark_point().encode(size=size)).to_dict())
