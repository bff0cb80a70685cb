"""How long the passages are of what only the encoder alone and only the best head got right (spans only)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from bertvision.kinds.span import SpanResults
from bertvision.pipeline.finished import FinishedRun
from bertvision.report.analysis import a_best_head, analysis, gives, texts
from bertvision.report.block import Block
from bertvision.report.drawing import ROW, chart_of, import_altair, off_zero, tips
from bertvision.report.ranking import pair_of, right_of
from bertvision.report.wording import ENCODER, joined, show_p, threshold_note
from bertvision.tables import Column, Row, Table, counted

FEWEST = 8  # questions on each side that a test of lengths needs

Words = npt.NDArray[np.int64]


@analysis(
    "What the models say", 50, "Passage length of what only one of them got right",
    [gives(SpanResults), a_best_head, texts],
)  # fmt: skip
def passage_lengths(run: FinishedRun, split: str) -> Block:
    """How long the passages are of what only the encoder alone and only the best head got right."""
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
            "Words of the passage, counted by white space; right: exact match.",
            threshold_note([pair.encoder, pair.head]),
            pair.note,
        ),
        folded=True,
    )


def _row_of(title: str, words: Words) -> Row:
    """Median, quartiles and ends; nothing of nothing."""
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
    told = []
    for name, words in ((f"the {ENCODER}", encoder_only), (head, head_only)):
        middle = f"{np.median(words):g} words in the median" if len(words) else "none"
        told.append(f"of what only {name} got right ({counted(len(words), 'question')}): {middle}")
    return [f"Passages {'; '.join(told)}.", describe_chance(encoder_only, head_only)]


def describe_chance(one: Words, other: Words) -> str:
    from scipy.stats import mannwhitneyu

    if min(len(one), len(other)) < FEWEST:
        return f"That is too few to test: it takes {FEWEST} questions on each side."
    p = float(mannwhitneyu(one, other).pvalue)
    verdict = "a difference that chance would seldom give" if p < 0.05 else "no more of a difference than chance gives"
    return f"Between the two there is {verdict} (Mann-Whitney: {show_p(p)})."


def _draw_ranges(rows: list[Row]) -> dict[str, Any]:
    """From the shortest to the longest, the middle half as a bar, the median as a tick."""
    keys = ("right", "questions", "median", "lower", "upper", "shortest", "longest")
    known: list[dict[str, Any]] = [dict(zip(keys, row.values(), strict=True)) for row in rows if row["questions"]]
    base = chart_of(known, ROW * len(known) + ROW).encode(
        y=import_altair().Y("right:N", sort=[row["right"] for row in known], title="got right by"),
        tooltip=tips(*((f"{key}:{'N' if key == 'right' else 'Q'}", key) for key in keys)),
    )
    whole = base.mark_rule(strokeWidth=1).encode(x=off_zero("X", "shortest:Q", "words of the passage"), x2="longest:Q")
    middle = base.mark_bar(size=16, opacity=0.4, cornerRadiusEnd=0).encode(x="lower:Q", x2="upper:Q")
    tick = base.mark_tick(size=24, thickness=3).encode(x="median:Q")
    return dict((whole + middle + tick).to_dict())
