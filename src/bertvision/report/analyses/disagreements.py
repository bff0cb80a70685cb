"""Where the best head and the encoder alone disagree in being right: how often, whether by chance, and a table of
examples for reading."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertvision.data.examples import Example
from bertvision.evaluation.statistics import mcnemar
from bertvision.kinds import Kind
from bertvision.kinds.base import Bool, Float
from bertvision.kinds.score import ScoreResults
from bertvision.pipeline.finished import FinishedRun
from bertvision.report.analysis import a_best_head, analysis, gives
from bertvision.report.block import Block
from bertvision.report.drawing import chart_of, import_altair, tips
from bertvision.report.ranking import Pair, pair_of, results_of, right_of
from bertvision.report.wording import ENCODER, gold_of, joined, show_p
from bertvision.tables import Cell, Column, Table, counted

MOST = 20  # examples of each direction in the table
WORDS = 60  # shown of a text at most
POINTS = 1000  # in the picture of scores
SEED = 0

Numbers = npt.NDArray[np.int64]


def draw_evenly(numbers: Numbers, most: int, seed: int = SEED) -> list[int]:
    """At most so many of them, one from each of as many equal stretches."""
    if len(numbers) <= most:
        return [int(number) for number in numbers]
    draw = np.random.default_rng(seed)
    return [int(draw.choice(part)) for part in np.array_split(numbers, most)]


@analysis("What the models say", 90, "Where head and encoder disagree", [a_best_head])
def disagreements(run: FinishedRun, split: str) -> Block | None:
    """How often only one of them was right (of scores: closer), and examples of both."""
    pair, examples = pair_of(run), run.examples(split)
    is_near = gives(ScoreResults)(run, split)
    if not is_near and pair.head.results(split).right() is None:
        return None
    block, ours, theirs, chosen = (_compare_errors if is_near else _compare_rights)(pair, split)
    table, note = None, ""
    if examples is None:
        note = "The data of this split are no longer there: examples can't be shown."
    elif ours or theirs:
        table, note = _table_of(run, split, pair, examples, ours, theirs, is_near), chosen
    return dataclasses.replace(block, table=table, note=joined(run.kind.right_note, note, block.note, pair.note))


Compared = tuple[Block, list[int], list[int], str]
"""Sentences and a picture; numbers of the examples to show where the head and where the encoder does better; how these
were chosen."""


# ---------------------------------------------------------------------- right or wrong


def _compare_rights(pair: Pair, split: str) -> Compared:
    ours, theirs = right_of(pair.head, split), right_of(pair.encoder, split)  # (example), (example)
    cells = _count_cells(ours, theirs)
    both, head, encoder, neither = (cell["examples"] for cell in cells)
    block = Block(
        sentences=_describe_rights(pair, ours, theirs),
        picture=_draw_square(pair.name, cells),
        alt=f"A square of four counts. Both right: {both:,}; only the encoder alone: {encoder:,}; only {pair.name}: "
        f"{head:,}; neither: {neither:,}.",
        folded=True,
    )
    only_ours, only_theirs = (draw_evenly(np.flatnonzero(some), MOST) for some in (ours & ~theirs, theirs & ~ours))
    chosen = f"Of each direction at most {MOST} examples are shown, drawn evenly over the split with seed {SEED}."
    return block, only_ours, only_theirs, chosen


def _describe_rights(pair: Pair, ours: Bool, theirs: Bool) -> list[str]:
    name, total = pair.name, len(ours)
    if bool((ours == theirs).all()):
        return [f"The encoder alone and {name} got the same {int(ours.sum()):,} of {counted(total, 'example')} right."]
    found = mcnemar(ours, theirs)
    alone = (
        f"Of {counted(total, 'example')} {name} alone got {found.only_ours:,} right, the encoder alone alone "
        f"{found.only_theirs:,}; both {int((ours & theirs).sum()):,}, neither {int((~ours & ~theirs).sum()):,}."
    )
    if found.only_ours == found.only_theirs:
        return [alone, f"Neither is ahead (McNemar's exact test: {show_p(found.p)})."]
    ahead = name if found.only_ours > found.only_theirs else "the encoder alone"
    verdict = "chance would seldom give as much" if found.p < 0.05 else "chance alone could have given it"
    lead = abs(found.only_ours - found.only_theirs)
    return [alone, f"That puts {ahead} ahead by {lead:,}: {verdict} (McNemar's exact test: {show_p(found.p)})."]


def _count_cells(ours: Bool, theirs: Bool) -> list[dict[str, Any]]:
    """Both right, only the head, only the encoder, neither."""
    words = {True: "right", False: "wrong"}
    cells = []
    for head in (True, False):
        for encoder in (True, False):
            some = (theirs == encoder) & (ours == head)  # (example)
            share = round(float(some.mean()), 4)
            cells.append({"encoder": words[encoder], "head": words[head], "examples": int(some.sum()), "share": share})
    return cells


def _draw_square(name: str, cells: list[dict[str, Any]]) -> dict[str, Any]:
    altair, order = import_altair(), ["right", "wrong"]
    # Shades of one colour, none so full that the number on it can't be read, on a light page or a dark one.
    shades = altair.Scale(domain=[0, max(cell["examples"] for cell in cells)], range=[0.06, 0.5])
    base = chart_of(cells, 220).encode(
        x=altair.X("encoder:N", sort=order, title=ENCODER, axis=altair.Axis(labelAngle=0, orient="top")),
        y=altair.Y("head:N", sort=order, title=name),
        tooltip=tips(
            ("encoder:N", ENCODER),
            ("head:N", name),
            ("examples:Q", "examples", ","),
            ("share:Q", "share", ".1%"),
        ),
    )
    squares = base.mark_rect().encode(opacity=altair.Opacity("examples:Q", scale=shades, legend=None))
    numbers = base.mark_text(fontSize=20).encode(text=altair.Text("examples:Q", format=","))
    return dict((squares + numbers).to_dict())


# ---------------------------------------------------------------------- near or far


def _compare_errors(pair: Pair, split: str) -> Compared:
    head, encoder = results_of(pair.head, split, ScoreResults), results_of(pair.encoder, split, ScoreResults)
    ours, theirs = head.errors(), encoder.errors()  # (example), (example)
    gain = theirs - ours  # (example) by how much the head is closer
    order = np.argsort(-gain, kind="stable").tolist()  # (example)
    sampled = f"The picture has {POINTS:,} of {len(gain):,} examples, drawn evenly over the split with seed {SEED}."
    block = Block(
        sentences=_describe_errors(pair, ours, theirs),
        picture=_draw_errors(pair.name, head, encoder),
        alt=f"A point for each example: the error of the encoder alone (mean {theirs.mean():.2f}) along, that of "
        f"{pair.name} (mean {ours.mean():.2f}) upwards; below the line the head is closer.",
        note=sampled if len(gain) > POINTS else "",
        folded=True,
    )
    closer = [number for number in order[:MOST] if gain[number] > 0]
    farther = [number for number in order[::-1][:MOST] if gain[number] < 0]
    chosen = f"Of each direction at most {MOST} examples are shown, those where the two errors differ most."
    return block, closer, farther, chosen


def _describe_errors(pair: Pair, ours: Float, theirs: Float) -> list[str]:
    found, name = mcnemar(ours < theirs, theirs < ours), pair.name
    same = len(ours) - found.only_ours - found.only_theirs
    closer = (
        f"Of {counted(len(ours), 'example')} {name} was closer to the gold score on {found.only_ours:,}, the encoder "
        f"itself on {found.only_theirs:,}{f', both alike on {same:,}' if same else ''} (sign test: {show_p(found.p)})."
    )
    means = f"{ours.mean():.3f} for {name}, {theirs.mean():.3f} for the encoder alone"
    return [closer, f"The mean absolute error is {means}."]


def _draw_errors(name: str, ours: ScoreResults, theirs: ScoreResults) -> dict[str, Any]:
    altair = import_altair()
    values = {"gold": ours.target, "encoder": theirs.value, "head": ours.value}  # each (example)
    errors = {"encoder_error": theirs.errors(), "head_error": ours.errors()}  # each (example)
    rows: list[dict[str, Any]] = [
        {
            "number": number,
            **{key: round(float(one[number]), 3) for key, one in values.items()},
            **{key: round(float(one[number]), 4) for key, one in errors.items()},
        }
        for number in draw_evenly(np.arange(len(ours)), POINTS)
    ]
    highest = max(max(row[key] for key in errors) for row in rows) or 1.0
    axis = {"scale": altair.Scale(domain=[0, highest], nice=True), "axis": altair.Axis(tickCount=6)}
    points = chart_of(rows, 340).mark_circle(size=26, opacity=0.55)
    points = points.encode(
        x=altair.X("encoder_error:Q", title="absolute error of the encoder alone", **axis),
        y=altair.Y("head_error:Q", title=f"absolute error of {name}", **axis),
        tooltip=tips(
            ("number:Q", "number in the split"),
            ("gold:Q", "gold"),
            ("encoder:Q", "encoder alone said"),
            ("head:Q", f"{name} said"),
        ),
    )
    line = chart_of([{"low": 0.0, "high": highest}], 340).mark_rule(strokeDash=[4, 4])
    line = line.encode(x="low:Q", y="low:Q", x2="high:Q", y2="high:Q", tooltip=altair.value("equal errors"))
    return dict((line + points).to_dict())


# ---------------------------------------------------------------------- the table for reading


def _table_of(
    run: FinishedRun,
    split: str,
    pair: Pair,
    examples: list[Example],
    ours: list[int],
    theirs: list[int],
    is_near: bool,
) -> Table:
    """A row for each of these examples, first those that the head does better."""
    numbers = [*ours, *theirs]
    encoder, head = (model.said(split, set(numbers)) for model in (pair.encoder, pair.head))
    has_pair = any(examples[number].text_pair is not None for number in numbers)
    rows = []
    for number in numbers:
        example, said = examples[number], (encoder[number], head[number])
        texts = [cut(example.text), *([_second_text(example, run.kind, said)] if has_pair else [])]
        better = pair.name if number in ours else ENCODER
        cells = [cell for row in said for cell in _said(run.kind, row, is_near)]
        rows.append([example.id, *texts, gold_of(run, example), *cells, better])
    return Table(_columns(run.kind, has_pair, pair.name, is_near), rows)


def _columns(kind: Kind, has_pair: bool, head: str, is_near: bool) -> list[Column]:
    first, second = ("question", "passage") if kind.reads_answers else ("text", "second text")
    texts = [Column("id"), Column(first), *([Column(second)] if has_pair else [])]
    if is_near:
        return [
            *texts, Column("gold", 2), Column("encoder said", 2), Column("head said", 2, head), Column("closer"),
        ]  # fmt: skip
    chance = f"What it gave this {'answer' if kind.reads_answers else kind}"
    said = [
        Column("encoder said"),
        Column("encoder's probability", 3, chance),
        Column("head said", note=head),
        Column("head's probability", 3, chance),
    ]
    return [*texts, Column("gold"), *said, Column("right")]


def _said(kind: Kind, row: dict[str, Any], is_near: bool) -> list[Cell]:
    """What a row of predictions.jsonl says, with its probability where answers are right or wrong."""
    return [kind.value_of(row)] if is_near else [kind.show_row(row), kind.probability_of(row)]


def _second_text(example: Example, kind: Kind, said: Sequence[dict[str, Any]]) -> str:
    """The second text; of a passage what is around the gold answer, or around the one that was given for none."""
    passage = example.text_pair or ""
    if not kind.reads_answers:
        return cut(passage)
    places = [(answer.start, answer.start + len(answer.text)) for answer in example.answers or ()]
    places += [(row["start"], row["end"]) for row in said if row["start"] is not None]
    return cut(passage, *(places[0] if places else (0, 0)))


def cut(text: str, start: int = 0, end: int = 0, words: int = WORDS) -> str:
    """At most so many words of a text, those around some of its characters, with … where something is left out."""
    places = [found.span() for found in re.finditer(r"\S+", text)]
    if len(places) <= words:
        return text.strip()
    inside = [number for number, (low, high) in enumerate(places) if low < end and high > start] or [0]
    spare = max(0, words - (inside[-1] - inside[0] + 1))
    first = min(max(0, inside[0] - spare // 2), len(places) - words)
    last = first + words - 1
    shown = text[places[first][0] : places[last][1]]
    return f"{'… ' if first else ''}{shown}{' …' if last < len(places) - 1 else ''}"
