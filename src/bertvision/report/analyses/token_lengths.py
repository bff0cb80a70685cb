"""How long the texts are, in tokens."""

import math
from typing import Any

import numpy as np

from bertvision.pipeline.finished import FinishedRun
from bertvision.report.analysis import analysis
from bertvision.report.block import Block
from bertvision.report.drawing import chart_of, colour_by, import_altair, tips
from bertvision.tables import Column, Row, Table, counted

BINS = 32  # of the histogram, about

Lengths = dict[str, np.ndarray]
"""Split → (window) tokens."""


@analysis("How it came about", 40, "Lengths in tokens")
def length_histogram(run: FinishedRun, split: str) -> Block | None:
    """How long the windows of train and of a split are, in tokens."""
    counts = {name: run.lengths[name] for name in ("train", split) if name in run.lengths}
    found = {name: np.repeat(*map(np.array, pair)) for name, pair in counts.items() if sum(pair[1])}  # each (window)
    if not found:
        return None
    limit = int(run.config.get("data", {}).get("max_length") or run.task.max_length)
    width = _bin_width(max(int(lengths.max()) for lengths in found.values()))
    return Block(
        sentences=[*(_describe_lengths(*pair) for pair in found.items()), _describe_limit(run, found, limit)],
        table=Table.of(_row_of(*pair, limit) for pair in found.items()),
        picture=_draw_lengths(found, width),
        drawn=["median", "longest"],
        note="Lengths are of windows as the encoder sees them, special tokens included. Bars are "
        f"{counted(width, 'token')} wide.",
    )


def _middle(lengths: np.ndarray, share: float) -> int:
    """The shortest length that this share of the windows does not exceed."""
    return int(np.quantile(lengths, share, method="inverted_cdf"))


def _bin_width(longest: int) -> int:
    """A power of two that makes about as many bins as a picture can show."""
    return int(2 ** max(0, math.ceil(math.log2(longest / BINS))))


def _describe_lengths(name: str, lengths: np.ndarray) -> str:
    return (
        f"Of {counted(len(lengths), 'window')} of {name} half have at most {_middle(lengths, 0.5)} tokens and 95 % at "
        f"most {_middle(lengths, 0.95)}; the longest has {int(lengths.max())}."
    )


def _describe_limit(run: FinishedRun, found: Lengths, limit: int) -> str:
    full = {name: int((lengths >= limit).sum()) for name, lengths in found.items()}
    if not any(full.values()):
        return f"None is as long as a window may be ({counted(limit, 'token')}): no text was cut."
    counts = " and ".join(
        f"{number:,} of {name} ({100 * number / len(found[name]):.1f} %)" for name, number in full.items()
    )
    what = "longer passages go on in further windows" if run.task.windowed else "their text may have been cut"
    return f"As long as a window may be ({counted(limit, 'token')}) are {counts}: {what}."


def _row_of(name: str, lengths: np.ndarray, limit: int) -> Row:
    full = int((lengths >= limit).sum())
    return {
        "split": name,
        "windows": len(lengths),
        Column("mean", 1): float(lengths.mean()),
        "median": _middle(lengths, 0.5),
        "95th percentile": _middle(lengths, 0.95),
        "longest": int(lengths.max()),
        Column("at the limit", None, f"Windows of {limit} tokens, the most there can be"): full,
        Column("at the limit (%)", 1): 100 * full / len(lengths),
    }


def _draw_lengths(found: Lengths, width: int) -> dict[str, Any]:
    rows = []
    for name, lengths in found.items():
        for number, count in enumerate(np.bincount((lengths - 1) // width).tolist()):  # a bin holds left + 1 to right
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
