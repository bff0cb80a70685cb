"""Lengths of the passages where only the encoder alone or only the best head is right (spans only)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from bertvision.kinds.span import SpanResults
from bertvision.pipeline.finished import FinishedRun
from bertvision.report.analysis import a_best_head, analysis, gives, texts
from bertvision.report.block import Block
from bertvision.report.drawing import ROW, chart_of, import_altair, off_zero, tips
from bertvision.report.ranking import pair_of, right_of
from bertvision.report.wording import ENCODER, joined, listed, show_p, threshold_note
from bertvision.tables import Column, Row, Table, counted

FEWEST = 8  # questions needed on each side to test the difference in length

Words = npt.NDArray[np.int64]


@analysis(
    "Predictions", 50, "Passage lengths where only one model is right",
    [gives(SpanResults), a_best_head, texts],
)  # fmt: skip
def passage_lengths(run: FinishedRun, split: str) -> Block:
    """Passage lengths of the questions that only the encoder alone, only the best head, both or neither get right."""
    pair, examples = pair_of(run), run.examples(split) or []
    words = np.array([len((example.text_pair or "").split()) for example in examples], dtype=np.int64)  # (example)
    ours, theirs = right_of(pair.head, split), right_of(pair.encoder, split)  # (example), (example)
    sets = {
        f"only {ENCODER}": words[theirs & ~ours],
        f"only {pair.name}": words[ours & ~theirs],
        "both": words[ours & theirs],
        "neither": words[~ours & ~theirs],
    }
    rows = [_row_of(title, found) for title, found in sets.items()]
    return Block(
        sentences=_describe_lengths(pair.name, *list(sets.values())[:2]),
        table=Table.of(rows),
        picture=_draw_ranges(rows),
        drawn=["median", "lower quartile", "upper quartile"],
        note=joined(
            "Lengths are in words, split at white space. Only an exact match counts as right.",
            threshold_note([pair.encoder, pair.head]),
            pair.note,
        ),
        folded=True,
    )


def _row_of(title: str, words: Words) -> Row:
    """Median, quartiles, shortest and longest; None if there are no questions."""
    middle, lower, upper = map(float, np.percentile(words, [50, 25, 75])) if len(words) else (None, None, None)
    return {
        "right": title,
        "questions": len(words),
        Column("median", 1): middle,
        Column("lower quartile", 1): lower,
        Column("upper quartile", 1): upper,
        "shortest": int(words.min()) if len(words) else None,
        "longest": int(words.max()) if len(words) else None,
    }


def _describe_lengths(head: str, encoder_only: Words, head_only: Words) -> list[str]:
    sides = ((f"the {ENCODER}", encoder_only), (head, head_only))
    medians = [
        f"{counted(float(np.median(words)), 'word')} where only {name} is right ({counted(len(words), 'question')})"
        for name, words in sides
        if len(words)
    ]
    text = joined(
        f"The median passage has {listed(medians)}." if medians else "",
        *(f"There are no questions that only {name} gets right." for name, words in sides if not len(words)),
    )
    return [text, describe_chance(encoder_only, head_only)]


def describe_chance(one: Words, other: Words) -> str:
    from scipy.stats import mannwhitneyu

    if min(len(one), len(other)) < FEWEST:
        return f"These are too few questions for a test, which needs at least {FEWEST} on each side."
    p = float(mannwhitneyu(one, other).pvalue)
    verdict = "is unlikely to be due to chance" if p < 0.05 else "could be due to chance"
    return f"The difference in length {verdict} (Mann-Whitney U test: {show_p(p)})."


def _draw_ranges(rows: list[Row]) -> dict[str, Any]:
    """A line from the shortest to the longest, a bar for the middle half, a tick for the median."""
    keys = ("right", "questions", "median", "lower", "upper", "shortest", "longest")
    known: list[dict[str, Any]] = [dict(zip(keys, row.values(), strict=True)) for row in rows if row["questions"]]
    base = chart_of(known, ROW * len(known) + ROW).encode(
        y=import_altair().Y("right:N", sort=[row["right"] for row in known], title="right"),
        tooltip=tips(*((f"{key}:{'N' if key == 'right' else 'Q'}", key) for key in keys)),
    )
    whole = base.mark_rule(strokeWidth=1).encode(
        x=off_zero("X", "shortest:Q", "passage length (words)"), x2="longest:Q"
    )
    middle = base.mark_bar(size=16, opacity=0.4, cornerRadiusEnd=0).encode(x="lower:Q", x2="upper:Q")
    tick = base.mark_tick(size=24, thickness=3).encode(x="median:Q")
    return dict((whole + middle + tick).to_dict())
