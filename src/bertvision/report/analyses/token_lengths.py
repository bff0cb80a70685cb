"""Text lengths in tokens."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertvision.pipeline.finished import FinishedRun
from bertvision.report.analysis import analysis
from bertvision.report.block import Block
from bertvision.report.drawing import chart_of, colour_by, import_altair, tips
from bertvision.report.wording import joined
from bertvision.tables import Column, Row, Table, counted

BINS = 32  # approximate number of bins in the histogram
UNCUT: list[Column | str] = [
    Column("uncut texts", None, "Questions with their passages, before they are cut into windows"),
    Column("uncut mean", 1),
    "uncut 98th percentile",
    "uncut 99th percentile",
    "uncut longest",
]


@dataclass(frozen=True)
class Counted:
    """Lengths in tokens of windows, or of texts before they are cut, and how often each occurs."""

    values: np.ndarray  # (length)
    times: np.ndarray  # (length)

    def __len__(self) -> int:
        return int(self.times.sum())

    @property
    def mean(self) -> float:
        return float((self.values * self.times).sum() / self.times.sum())

    @property
    def longest(self) -> int:
        return int(self.values.max())

    def middle(self, share: float) -> int:
        """The shortest length that this fraction of the windows or texts does not exceed."""
        return int(np.quantile(self.values, share, method="inverted_cdf", weights=self.times))


Lengths = dict[str, Counted]
"""By split."""


@analysis("Training", 40, "Text lengths in tokens")
def length_histogram(run: FinishedRun, split: str) -> Block | None:
    """Lengths in tokens of the windows of train and of a dev split, and of texts before they were cut into windows."""
    found, uncut = _of_splits(run.lengths, split), _of_splits(run.uncut_lengths, split)
    if not found:
        return None
    limit = run.settings.data.max_length or run.task.max_length
    width = _bin_width(max(lengths.longest for lengths in found.values()))
    return Block(
        sentences=[
            *(_describe_lengths(*pair) for pair in found.items()),
            _describe_limit(run, found, limit),
            *([_describe_uncut(uncut)] if uncut else []),
        ],
        table=Table.of(
            _row_of(*pair, limit) | _uncut_cells(uncut.get(pair[0])) for pair in found.items()
        ).without_empty(),
        picture=_draw_lengths(found, width),
        drawn=["median", "longest"],
        note=joined(
            "Lengths are those of the windows that the encoder reads, including special tokens. Bars are "
            f"{counted(width, 'token')} wide.",
            "Uncut: question and passage before they are cut into windows." if uncut else "",
        ),
    )


def _of_splits(counts: dict[str, tuple[list[int], list[int]]], split: str) -> Lengths:
    """The lengths of train and a dev split, where there are any."""
    there = {name: counts[name] for name in ("train", split) if name in counts}
    return {name: Counted(*map(np.array, pair)) for name, pair in there.items() if sum(pair[1])}


def _bin_width(longest: int) -> int:
    """The power of two that leads to at most BINS bins."""
    return int(2 ** max(0, math.ceil(math.log2(longest / BINS))))


def _describe_lengths(name: str, lengths: Counted) -> str:
    return (
        f"{name} has {counted(len(lengths), 'window')}. The median length is {lengths.middle(0.5)} tokens, the 95th "
        f"percentile {lengths.middle(0.95)} and the maximum {lengths.longest}."
    )


def _describe_limit(run: FinishedRun, found: Lengths, limit: int) -> str:
    full = {name: int(lengths.times[lengths.values >= limit].sum()) for name, lengths in found.items()}
    if not any(full.values()):
        return f"No window reaches the limit of {counted(limit, 'token')}, so no text was cut."
    counts = " and ".join(
        f"{number:,} of {name} ({100 * number / len(found[name]):.1f} %)" for name, number in full.items()
    )
    effect = "Longer passages continue in another window" if run.task.windowed else "Their text may have been cut"
    return f"Windows at the limit of {counted(limit, 'token')}: {counts}. {effect}."


def _describe_uncut(uncut: Lengths) -> str:
    parts = [
        f"{counted(len(lengths), 'text')} of {name} have {lengths.mean:.1f} tokens on average, 98 % of them at most "
        f"{lengths.middle(0.98)} and 99 % at most {lengths.middle(0.99)}"
        for name, lengths in uncut.items()
    ]
    return f"Before they are cut into windows, {'; '.join(parts)}."


def _row_of(name: str, lengths: Counted, limit: int) -> Row:
    full = int(lengths.times[lengths.values >= limit].sum())
    return {
        "split": name,
        "windows": len(lengths),
        Column("mean", 1): lengths.mean,
        "median": lengths.middle(0.5),
        "95th percentile": lengths.middle(0.95),
        "longest": lengths.longest,
        Column("at the limit", None, f"Windows with the maximum of {limit} tokens"): full,
        Column("at the limit (%)", 1): 100 * full / len(lengths),
    }


def _uncut_cells(lengths: Counted | None) -> Row:
    """Of the texts before they were cut; None where that was not recorded."""
    if lengths is None:
        return dict.fromkeys(UNCUT)
    ranks = [lengths.middle(rank) for rank in (0.98, 0.99)]
    return dict(zip(UNCUT, [len(lengths), lengths.mean, *ranks, lengths.longest], strict=True))


def _fill_bins(lengths: Counted, width: int) -> list[int]:
    bins = (lengths.values - 1) // width  # (length)
    return [int(count) for count in np.bincount(bins, weights=lengths.times)]


def _draw_lengths(found: Lengths, width: int) -> dict[str, Any]:
    rows = []
    for name, lengths in found.items():
        for number, count in enumerate(_fill_bins(lengths, width)):  # a bin holds left + 1 to right
            left = width * number
            place = {"from": left + 1, "to": left + width, "left": left, "right": left + width}
            if count:
                rows.append({"split": name, **place, "share": 100 * count / len(lengths), "windows": count})
    altair = import_altair()
    chart = chart_of(rows).encode(
        x=altair.X("left:Q", title="tokens"),
        x2="right:Q",
        y=altair.Y("share:Q", title="windows (%)", scale=altair.Scale(zero=True)),
        y2=altair.datum(0),
        color=colour_by("split", list(found)),
        tooltip=tips(
            "split:N",
            ("from:Q", "from (tokens)"),
            ("to:Q", "to (tokens)"),
            ("windows:Q", None, ","),
            ("share:Q", "share (%)", ".1f"),
        ),
    )
    return dict(chart.mark_rect(opacity=0.5).to_dict())
