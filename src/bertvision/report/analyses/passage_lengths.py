"""Lengths of the passages where only the encoder alone or only the best head is right (spans only)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from bertvision.kinds.span import SpanResults
from bertvision.pipeline.finished import FinishedRun
from bertvision.report.analysis import a_best_head, analysis, gives, texts
from bertvision.report.block import Block
from bertvision.report.curves import EPOCHS
from bertvision.report.drawing import ROW, chart_of, drawn_values, import_altair, off_zero, tips
from bertvision.report.ranking import Pair, pair_of, right_of
from bertvision.report.snapshots import BAR, NUMBERS, begin, described_snapshots, label_bars, shown_snapshots
from bertvision.report.wording import ENCODER, joined, listed, opening, show_p, threshold_note
from bertvision.tables import Column, Row, Table, counted

FEWEST = 8  # questions needed on each side to test the difference in length
TITLE = "passage length (words)"
OUTCOMES = (f"only {ENCODER}", "only the best head", "both", "neither")
KEYS = ("right", "questions", "median", "lower", "upper", "shortest", "longest")
"""The cells of a row in a picture."""

Words = npt.NDArray[np.int64]


@analysis(
    "Predictions", 50, "Passage lengths where only one model is right",
    [gives(SpanResults), a_best_head, texts],
)  # fmt: skip
def passage_lengths(run: FinishedRun, split: str) -> Block:
    """Passage lengths of the questions that only the encoder alone, only the best head, both or neither get right, at
    every snapshot with heads."""
    examples = run.examples(split) or []
    words = np.array([len((example.text_pair or "").split()) for example in examples], dtype=np.int64)  # (example)
    pairs = {at: pair_of(run, at) for at in shown_snapshots(run) if run.best_head(at) is not None}
    shots, several = list(pairs), len(pairs) > 1
    found = {at: _lengths_by_outcome(pair, split, words) for at, pair in pairs.items()}
    rows = {at: [_row_of(title, one) for title, one in sets.items()] for at, sets in found.items()}
    where: dict[float, Row] = {at: {EPOCHS: at} if several else {} for at in shots}
    table = Table.of(where[at] | row for at, some in rows.items() for row in some)
    return Block(
        sentences=[
            sentence
            for at in described_snapshots(shots)
            for sentence in _describe_lengths(pairs[at].name, found[at], at, shots)
        ],
        table=table,
        picture=_draw_beside(rows) if several else _draw_ranges(rows[shots[0]]),
        drawn=[*(["epochs"] if several else []), "median", "lower quartile", "upper quartile"],
        note=joined(
            "Lengths are in words, split at white space. Only an exact match counts as right.",
            threshold_note([model for pair in pairs.values() for model in (pair.encoder, pair.head)]),
            *dict.fromkeys(pair.note for pair in pairs.values()),
        ),
        folded=True,
    )


def _lengths_by_outcome(pair: Pair, split: str, words: Words) -> dict[str, Words]:
    """Who is right → the lengths of those passages."""
    ours, theirs = right_of(pair.head, split), right_of(pair.encoder, split)  # (example), (example)
    return {
        f"only {ENCODER}": words[theirs & ~ours],
        f"only {pair.name}": words[ours & ~theirs],
        "both": words[ours & theirs],
        "neither": words[~ours & ~theirs],
    }


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


def _describe_lengths(head: str, found: dict[str, Words], epochs: float, shots: list[float]) -> list[str]:
    """At one snapshot; of several, in one paragraph each."""
    encoder_only, head_only, *_ = found.values()
    sides = ((f"the {ENCODER}", encoder_only), (head, head_only))
    medians = [
        f"{counted(float(np.median(words)), 'word')} where only {name} is right ({counted(len(words), 'question')})"
        for name, words in sides
        if len(words)
    ]
    missing = [f"there are no questions that only {name} gets right." for name, words in sides if not len(words)]
    first, *more = [*([f"the median passage has {listed(medians)}."] if medians else []), *missing]
    text = joined(begin(first, epochs, shots), *map(opening, more))
    chance = describe_chance(encoder_only, head_only)
    return [text, chance] if len(shots) == 1 else [joined(text, chance)]


def describe_chance(one: Words, other: Words) -> str:
    from scipy.stats import mannwhitneyu

    if min(len(one), len(other)) < FEWEST:
        return f"These are too few questions for a test, which needs at least {FEWEST} on each side."
    p = float(mannwhitneyu(one, other).pvalue)
    verdict = "is unlikely to be due to chance" if p < 0.05 else "could be due to chance"
    return f"The difference in length {verdict} (Mann-Whitney U test: {show_p(p)})."


def _draw_ranges(rows: list[Row]) -> dict[str, Any]:
    """A line from the shortest to the longest, a bar for the middle half, a tick for the median."""
    known = [_named_cells(row) for row in rows if row["questions"]]
    base = chart_of(known, ROW * len(known) + ROW).encode(
        y=import_altair().Y("right:N", sort=[row["right"] for row in known], title="right"),
        tooltip=tips(*((f"{key}:{'N' if key == 'right' else 'Q'}", key) for key in KEYS)),
    )
    return dict(_ranges(base, 16, 24).to_dict())


def _draw_beside(rows: dict[float, list[Row]]) -> dict[str, Any]:
    """The same with the snapshots of each outcome side by side; the best head may differ between them."""
    altair, order = import_altair(), [f"{epochs:g}" for epochs in rows]
    known = [
        {"model": outcome, "epochs": epochs, **_named_cells(row)}
        for epochs, some in rows.items()
        for outcome, row in zip(OUTCOMES, some, strict=True)
        if row["questions"]
    ]
    names = drawn_values(known, "model", OUTCOMES)
    base = chart_of(known, (BAR + 4) * (len(rows) + 1) * len(names)).encode(
        y=altair.Y("model:N", sort=names, title="right"),
        yOffset=altair.YOffset("epochs:N", sort=order),
        tooltip=tips("epochs:Q", *((f"{key}:{'N' if key == 'right' else 'Q'}", key) for key in KEYS)),
    )
    ends = [{**row, "end": row["longest"]} for row in known]
    return dict(label_bars(_ranges(base, 10, 14, [TITLE, NUMBERS]), ends, names, "epochs", order).to_dict())


def _named_cells(row: Row) -> dict[str, Any]:
    return dict(zip(KEYS, row.values(), strict=True))


def _ranges(base: Any, bar: int, tick: int, title: str | list[str] = TITLE) -> Any:
    whole = base.mark_rule(strokeWidth=1).encode(x=off_zero("X", "shortest:Q", title), x2="longest:Q")
    middle = base.mark_bar(size=bar, opacity=0.4, cornerRadiusEnd=0).encode(x="lower:Q", x2="upper:Q")
    return whole + middle + base.mark_tick(size=tick, thickness=3).encode(x="median:Q")
