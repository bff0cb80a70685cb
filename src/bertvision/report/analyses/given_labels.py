"""Labels that models give: which are taken for which, and whether a model is as often right as it is sure."""

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
from bertvision.report.wording import in_text, joined, opening, stand_in_note, title_of
from bertvision.tables import Column, Headings, Rows, Table, counted

BINS = 10
WORDED = 8  # labels at most whose cells carry their numbers
CELL = 56  # height of a cell

Counts = npt.NDArray[np.int64]


# ---------------------------------------------------------------------- which label for which


@analysis("What the models say", 60, "Which labels are taken for which", [gives(LabelResults)])
def confusion_matrix(run: FinishedRun, split: str) -> Block:
    """How often each true label was given each label, by the best head and by the encoder alone."""
    groups, labels = main_models(run), list(run.task.labels)
    found = {
        title_of(group): count_labels(results_of(group.trained[0], split, LabelResults), len(labels))
        for group in groups
    }
    spoken = groups[-1]
    name, matrix = title_of(spoken), found[title_of(spoken)]  # (true, given)
    shown = f"The picture shows {in_text(spoken)}; the table has the others too." if len(groups) > 1 else ""
    return Block(
        sentences=[_describe_right(groups, list(found.values())), _describe_mistake(labels, matrix)],
        table=_matrix_table(labels, found),
        picture=_draw_matrix(labels, matrix),
        drawn=[f"{name} (%)"],
        note=joined("Shares are of all examples with the true label.", shown, stand_in_note(groups)),
        folded=True,
    )


def count_labels(results: LabelResults, labels: int) -> Counts:
    """(true label, given label): how many examples."""
    pairs = results.target * labels + results.predicted  # (example)
    return np.bincount(pairs, minlength=labels * labels).reshape(labels, labels)


def _describe_right(groups: list[Group], matrices: list[Counts]) -> str:
    rights = [int(matrix.trace()) for matrix in matrices]
    total = int(matrices[0].sum())
    *others, (name, right) = zip(map(in_text, groups), rights, strict=True)
    start = f"{opening(name)} gives {right:,} of {counted(total, 'example')} the right label"
    rest = [f"{other} {number:,} ({100 * number / total:.1f} %)" for other, number in others]
    return f"{'; '.join([f'{start} ({100 * right / total:.1f} %)', *rest])}."


def _describe_mistake(labels: list[str], matrix: Counts) -> str:
    wrong = matrix * (1 - np.eye(len(labels), dtype=np.int64))  # (true, given)
    most = int(wrong.max())
    if not most:
        return "It makes no mistake."
    true, given = np.unravel_index(int(wrong.argmax()), wrong.shape)
    share = 100 * most / int(matrix[true].sum())
    return (
        f"No mistake of it is more frequent than '{labels[given]}' for what is '{labels[true]}': "
        f"{counted(most, 'time')}, {share:.1f} % of the examples with that label."
    )


def _share(matrix: Counts, true: int, given: int) -> float | None:
    """In percent of the examples with the true label; None where there are none."""
    total = int(matrix[true].sum())
    return 100 * int(matrix[true, given]) / total if total else None


def _matrix_table(labels: list[str], found: dict[str, Counts]) -> Table:
    columns = [Column("true label"), Column("given label")]
    for name in found:
        columns += [Column(name, None, "Examples"), Column(f"{name} (%)", 1, "Share of the true label's examples")]
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
        x=altair.X("given:N", sort=labels, title="label given", axis=axis),
        y=altair.Y("true:N", sort=labels, title="true label"),
        tooltip=tips(
            ("true:N", "true label"),
            ("given:N", "label given"),
            ("count:Q", "examples", ","),
            ("share:Q", "share of the true label (%)", ".1f"),
        ),
    )
    # Strength is told by opacity, not by a ramp: the page shows through, and the words stay legible on any cell.
    opacity = altair.Opacity("strength:Q", scale=altair.Scale(domain=[0, 100], range=[0.04, 0.55]), legend=None)
    cells = base.mark_rect().encode(opacity=opacity)
    return dict((cells + base.mark_text().encode(text="words:N") if few else cells).to_dict())


# ---------------------------------------------------------------------- as right as it is sure


@dataclass(frozen=True)
class Reliability:
    """How sure a model is of the labels it gives, and how often they are right, in equal bins of confidence."""

    confidence: npt.NDArray[np.float64]  # (example) 0 to 1
    right: npt.NDArray[np.bool_]  # (example)

    @property
    def bins(self) -> npt.NDArray[np.int64]:
        """The bin of each example: 0 for confidences up to 0.1 …; a bin's lower end belongs to it."""
        # Rounded, since 0.7 / 0.1 is a little less than 7.
        return np.minimum(np.floor(np.round(self.confidence * BINS, 9)), BINS - 1).astype(np.int64)  # (example)

    @property
    def error(self) -> float:
        """Expected calibration error in percent: the mean distance of confidence and accuracy, by examples in a bin."""
        distance = self.confidence - self.right  # (example)
        sums = np.bincount(self.bins, weights=distance, minlength=BINS)  # (bin)
        return 100 * float(np.abs(sums).sum()) / len(self.right)


def measure_reliability(results: LabelResults) -> Reliability:
    return Reliability(results.probabilities.max(axis=1), results.right())


@analysis("What the models say", 70, "Is a model as often right as it is sure?", [gives(LabelResults)])
def reliability_curve(run: FinishedRun, split: str) -> Block:
    """Confidence of the given label against how often it is right: encoder, control and best head."""
    groups = main_models(run)
    found = {
        title_of(group): measure_reliability(results_of(group.trained[0], split, LabelResults)) for group in groups
    }  # fmt: skip
    names = [in_text(group) for group in groups]
    errors = [f"{name} {one.error:.1f}" for name, one in zip(names, found.values(), strict=True)]
    compared = [f"Expected calibration errors, lower being better: {', '.join(errors)}."] if len(errors) > 1 else []
    note = (
        f"Confidence is the probability of the label that is given, in {BINS} equal bins. The expected calibration "
        "error (ECE) is the mean distance of confidence and accuracy over the bins, weighted by their examples. Points "
        "of the picture grow with the examples of their bin."
    )
    return Block(
        sentences=[_describe_sureness(names[-1], found[title_of(groups[-1])]), *compared],
        table=_reliability_table(found),
        picture=_draw_reliability(found),
        drawn=["mean confidence (%)", "accuracy (%)"],
        note=joined(note, stand_in_note(groups)),
        folded=True,
    )


def _describe_sureness(name: str, found: Reliability) -> str:
    sure, right = 100 * float(found.confidence.mean()), 100 * float(found.right.mean())
    gap = float(f"{sure - right:.1f}")
    apart = f"{abs(gap):.1f} points {'too sure' if gap > 0 else 'less sure than right'}"
    what = apart if gap else "as sure as it is right"
    return (
        f"{opening(name)} is on average {what}: mean confidence {sure:.1f} %, accuracy {right:.1f} %, "
        f"expected calibration error {found.error:.1f} points."
    )


def _bin_rows(found: Reliability) -> list[tuple[int, int, float, float]]:
    """(bin, examples, mean confidence in percent, accuracy in percent) of each bin that has examples."""
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
        Column("confidence − accuracy", 1, "Above 0: too sure"),
        Column("ECE", 2, "Expected calibration error in points"),
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
    even = diagonal("sure", "right", least, 100, "as often right as sure")
    return dict((base.mark_line(strokeWidth=1.5) + even + base.mark_point().encode(size=size)).to_dict())
