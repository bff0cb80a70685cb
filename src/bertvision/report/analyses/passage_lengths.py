"""How long the passages are of what only the encoder itself and only the best head got right (spans only)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from bertvision.kinds import SPAN
from bertvision.pipeline.finished import FinishedRun
from bertvision.report.analyses.disagreements import pair_of, right_of
from bertvision.report.analyses.thresholds import threshold_note
from bertvision.report.block import Block, Cell, Column, Frame
from bertvision.report.drawing import chart_of, import_altair
from bertvision.report.wording import ENCODER, joined, show_p
from bertvision.words import counted

FEWEST = 8  # questions on each side that a test of lengths needs
ROW = 36  # height of a range

Words = npt.NDArray[np.int64]


def passage_lengths(evidence: FinishedRun, split: str) -> Block | None:
    """How long the passages are of what only the encoder itself and only the best head got right."""
    pair = pair_of(evidence) if evidence.kind is SPAN else None
    examples = evidence.examples(split) if pair else None
    if pair is None or examples is None:
        return None
    words = np.array([len((example.text_pair or "").split()) for example in examples], dtype=np.int64)  # (example)
    ours, theirs = right_of(pair.head, split), right_of(pair.encoder, split)  # (example), (example)
    sets = {
        f"only {ENCODER}": words[theirs & ~ours],
        f"only {pair.name}": words[ours & ~theirs],
        "both": words[ours & theirs],
        "neither": words[~ours & ~theirs],
    }
    rows = [[title, len(found), *_ranges(found)] for title, found in sets.items()]
    columns = [Column("right"), Column("questions"), Column("median", 1), Column("lower quartile", 1)]
    columns += [Column("upper quartile", 1), Column("shortest"), Column("longest")]
    return Block(
        f"passage_lengths_{split}",
        "Passage length of what only one of them got right",
        _told_of_lengths(pair.name, *list(sets.values())[:2]),
        Frame(columns, rows),
        _draw_ranges(rows),
        _ranges_in_words(rows),
        joined(
            "Words of the passage, counted by white space; right: exact match.",
            threshold_note([pair.encoder, pair.head]),
            pair.note,
        ),
        folded=True,
    )


def _ranges(words: Words) -> list[Cell]:
    """Median, quartiles and ends; nothing of nothing."""
    if not len(words):
        return [None] * 5
    middle = [float(value) for value in np.percentile(words, [50, 25, 75])]
    return [*middle, int(words.min()), int(words.max())]


def _told_of_lengths(head: str, encoder_only: Words, head_only: Words) -> list[str]:
    told = []
    for name, words in ((f"the {ENCODER}", encoder_only), (head, head_only)):
        middle = f"{np.median(words):g} words in the median" if len(words) else "none"
        told.append(f"of what only {name} got right ({counted(len(words), 'question')}): {middle}")
    return [f"Passages {'; '.join(told)}.", _told_of_chance(encoder_only, head_only)]


def _told_of_chance(one: Words, other: Words) -> str:
    from scipy.stats import mannwhitneyu

    if min(len(one), len(other)) < FEWEST:
        return f"That is too few to test: it takes {FEWEST} questions on each side."
    p = float(mannwhitneyu(one, other).pvalue)
    verdict = "a difference that chance would seldom give" if p < 0.05 else "no more of a difference than chance gives"
    return f"Between the two there is {verdict} (Mann-Whitney: {show_p(p)})."


def _draw_ranges(rows: list[list[Cell]]) -> dict[str, Any]:
    """From the shortest to the longest, the middle half as a bar, the median as a tick."""
    altair = import_altair()
    keys = ("right", "questions", "median", "lower", "upper", "shortest", "longest")
    known: list[dict[str, Any]] = [dict(zip(keys, row, strict=True)) for row in rows if row[1]]
    base = chart_of(known, ROW * len(known) + ROW).encode(
        y=altair.Y("right:N", sort=[row["right"] for row in known], title="got right by"),
        tooltip=[altair.Tooltip(f"{key}:{'N' if key == 'right' else 'Q'}", title=key) for key in keys],
    )
    words = altair.X("shortest:Q", title="words of the passage", scale=altair.Scale(zero=False))
    whole = base.mark_rule(strokeWidth=1).encode(x=words, x2="longest:Q")
    middle = base.mark_bar(size=16, opacity=0.4, cornerRadiusEnd=0).encode(x="lower:Q", x2="upper:Q")
    tick = base.mark_tick(size=24, thickness=3).encode(x="median:Q")
    return dict((whole + middle + tick).to_dict())


def _ranges_in_words(rows: list[list[Cell]]) -> str:
    told = [f"{row[0]} {row[2]:g} ({row[3]:g} to {row[4]:g})" for row in rows if row[1]]
    return f"Ranges of passage lengths in words, with median and middle half: {'; '.join(told)}."
