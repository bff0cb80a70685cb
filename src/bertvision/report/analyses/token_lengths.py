"""How long the texts are, in tokens."""

import math
from typing import Any

import numpy as np

from bertvision.pipeline.finished import FinishedRun
from bertvision.report.block import Block, Cell, Column, Frame
from bertvision.report.drawing import chart_of, colour_by, import_altair
from bertvision.words import counted

BINS = 32  # of the histogram, about


def length_histogram(evidence: FinishedRun, split: str) -> Block | None:
    """How long the windows of train and of a split are, in tokens."""
    found = {
        name: np.repeat(*map(np.array, evidence.lengths[name])) for name in ("train", split) if name in evidence.lengths
    }
    found = {name: lengths for name, lengths in found.items() if len(lengths)}  # each (window)
    if not found:
        return None
    limit = int(evidence.config.get("data", {}).get("max_length") or evidence.task.max_length)
    width = _bin_width(max(int(lengths.max()) for lengths in found.values()))
    what = "Lengths are of windows as the encoder sees them, special tokens included."
    return Block(
        f"length_histogram_{split}",
        "Lengths in tokens",
        [_tell_lengths(name, lengths) for name, lengths in found.items()] + [_tell_limit(evidence, found, limit)],
        _lengths_frame(found, limit),
        _draw_lengths(found, width),
        f"Histogram of window lengths: {'; '.join(_lengths_in_words(*pair) for pair in found.items())}.",
        f"{what} Bars are {counted(width, 'token')} wide.",
    )


def _middle(lengths: np.ndarray, share: float) -> int:
    """The shortest length that this share of the windows does not exceed."""
    return int(np.quantile(lengths, share, method="inverted_cdf"))


def _bin_width(longest: int) -> int:
    """A power of two that makes about as many bins as a picture can show."""
    return int(2 ** max(0, math.ceil(math.log2(longest / BINS))))


def _tell_lengths(name: str, lengths: np.ndarray) -> str:
    return (
        f"Of {counted(len(lengths), 'window')} of {name} half have at most {_middle(lengths, 0.5)} tokens and 95 % at "
        f"most {_middle(lengths, 0.95)}; the longest has {int(lengths.max())}."
    )


def _tell_limit(evidence: FinishedRun, found: dict[str, np.ndarray], limit: int) -> str:
    full = {name: int((lengths >= limit).sum()) for name, lengths in found.items()}
    if not any(full.values()):
        return f"None is as long as a window may be ({counted(limit, 'token')}): no text was cut."
    counts = " and ".join(
        f"{number:,} of {name} ({100 * number / len(found[name]):.1f} %)" for name, number in full.items()
    )
    what = "longer passages go on in further windows" if evidence.task.windowed else "their text may have been cut"
    return f"As long as a window may be ({counted(limit, 'token')}) are {counts}: {what}."


def _lengths_frame(found: dict[str, np.ndarray], limit: int) -> Frame:
    columns = [Column("split"), Column("windows"), Column("mean", 1), Column("median"), Column("95th percentile")]
    columns += [Column("longest"), Column("at the limit", None, f"Windows of {limit} tokens, the most there can be")]
    rows: list[list[Cell]] = []
    for name, lengths in found.items():
        middles = [_middle(lengths, 0.5), _middle(lengths, 0.95)]
        full = int((lengths >= limit).sum())
        figures: list[Cell] = [float(lengths.mean()), *middles, int(lengths.max()), full, 100 * full / len(lengths)]
        rows.append([name, len(lengths), *figures])
    return Frame([*columns, Column("at the limit (%)", 1)], rows)


def _draw_lengths(found: dict[str, np.ndarray], width: int) -> dict[str, Any]:
    longest = max(int(lengths.max()) for lengths in found.values())
    edges = np.arange(0, longest + width + 1, width)  # (edge); a bin holds from + 1 to its end
    rows = []
    for name, lengths in found.items():
        counts = np.bincount((lengths - 1) // width, minlength=len(edges) - 1)  # (bin)
        rows += [
            {
                "split": name,
                "from": int(start) + 1,
                "to": int(start) + width,
                "left": int(start),
                "right": int(start) + width,
                "share": 100 * int(count) / len(lengths),
                "windows": int(count),
            }
            for start, count in zip(edges, counts, strict=False)
            if count
        ]
    altair = import_altair()
    chart = chart_of(rows).encode(
        x=altair.X("left:Q", title="tokens"),
        x2="right:Q",
        y=altair.Y("share:Q", title="windows (%)", scale=altair.Scale(zero=True)),
        y2=altair.datum(0),
        color=colour_by("split", list(found)),
        tooltip=[
            altair.Tooltip("split:N"),
            altair.Tooltip("from:Q", title="from (tokens)"),
            altair.Tooltip("to:Q", title="to (tokens)"),
            altair.Tooltip("windows:Q", format=","),
            altair.Tooltip("share:Q", title="share (%)", format=".1f"),
        ],
    )
    return dict(chart.mark_rect(opacity=0.5).to_dict())


def _lengths_in_words(name: str, lengths: np.ndarray) -> str:
    return f"{name} with a median of {_middle(lengths, 0.5)} and at most {int(lengths.max())} tokens"
