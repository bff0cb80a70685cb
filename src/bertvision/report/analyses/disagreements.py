"""Examples that only one of the best head and the encoder alone gets right: how many, a test, and a table of them."""

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

MOST = 20  # most examples in each direction in the table
WORDS = 60  # most words shown of a text
POINTS = 1000  # most points in the picture of scores
SEED = 0

Numbers = npt.NDArray[np.int64]


def draw_evenly(numbers: Numbers, most: int, seed: int = SEED) -> list[int]:
    """Draw at most `most` of the numbers, one from each of equally long stretches."""
    if len(numbers) <= most:
        return [int(number) for number in numbers]
    draw = np.random.default_rng(seed)
    return [int(draw.choice(part)) for part in np.array_split(numbers, most)]


@analysis("Predictions", 90, "Where the best head and the encoder alone disagree", [a_best_head])
def disagreements(run: FinishedRun, split: str) -> Block | None:
    """How often only one of them is right (for scores: closer), with examples of both cases."""
    pair, examples = pair_of(run), run.examples(split)
    is_near = gives(ScoreResults)(run, split)
    if not is_near and pair.head.results(split).right() is None:
        return None
    block, ours, theirs, chosen = (_compare_errors if is_near else _compare_rights)(pair, split)
    table, note = None, ""
    if examples is None:
        note = "No examples are shown, because the data of this split is no longer available."
    elif ours or theirs:
        table, note = _table_of(run, split, pair, examples, ours, theirs, is_near), chosen
    return dataclasses.replace(block, table=table, note=joined(run.kind.right_note, note, block.note, pair.note))


Compared = tuple[Block, list[int], list[int], str]
"""Sentences and a picture; indices of the examples to show where the head does better and where the encoder does; a
sentence on how these were chosen."""


# ---------------------------------------------------------------------- right or wrong


def _compare_rights(pair: Pair, split: str) -> Compared:
    ours, theirs = right_of(pair.head, split), right_of(pair.encoder, split)  # (example), (example)
    cells = _count_cells(ours, theirs)
    both, head, encoder, neither = (cell["examples"] for cell in cells)
    block = Block(
        sentences=_describe_rights(pair, ours, theirs),
        picture=_draw_square(pair.name, cells),
        alt=f"Two-by-two table of counts. Both right: {both:,}; only the encoder alone right: {encoder:,}; only "
        f"{pair.name} right: {head:,}; neither right: {neither:,}.",
        folded=True,
    )
    only_ours, only_theirs = (draw_evenly(np.flatnonzero(some), MOST) for some in (ours & ~theirs, theirs & ~ours))
    chosen = f"At most {MOST} examples are shown in each direction, drawn evenly across the split (seed {SEED})."
    return block, only_ours, only_theirs, chosen


def _describe_rights(pair: Pair, ours: Bool, theirs: Bool) -> list[str]:
    name, total = pair.name, len(ours)
    if bool((ours == theirs).all()):
        return [f"The encoder alone and {name} get the same {int(ours.sum()):,} of {counted(total, 'example')} right."]
    found = mcnemar(ours, theirs)
    counts = (
        f"Of {counted(total, 'example')}, both models get {int((ours & theirs).sum()):,} right and "
        f"{int((~ours & ~theirs).sum()):,} wrong. Only {name} is right on {found.only_ours:,}, and only the encoder "
        f"alone on {found.only_theirs:,}."
    )
    test = f"(McNemar's exact test: {show_p(found.p)})"
    if found.only_ours == found.only_theirs:
        return [counts, f"Neither is ahead {test}."]
    ahead = name if found.only_ours > found.only_theirs else "The encoder alone"
    verdict = "is unlikely to be due to chance" if found.p < 0.05 else "could be due to chance"
    lead = abs(found.only_ours - found.only_theirs)
    return [counts, f"{ahead} is ahead by {counted(lead, 'example')}. This {verdict} {test}."]


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
    # Shades of one colour, light enough for the numbers to be legible on a light or a dark page.
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


# ---------------------------------------------------------------------- closer or farther


def _compare_errors(pair: Pair, split: str) -> Compared:
    head, encoder = results_of(pair.head, split, ScoreResults), results_of(pair.encoder, split, ScoreResults)
    ours, theirs = head.errors(), encoder.errors()  # (example), (example)
    gain = theirs - ours  # (example) by how much the head is closer
    order = np.argsort(-gain, kind="stable").tolist()  # (example)
    sampled = f"The picture shows {POINTS:,} of {len(gain):,} examples, drawn evenly across the split (seed {SEED})."
    block = Block(
        sentences=_describe_errors(pair, ours, theirs),
        picture=_draw_errors(pair.name, head, encoder),
        alt=f"One point per example: the error of the encoder alone (mean {theirs.mean():.2f}) on the horizontal axis, "
        f"that of {pair.name} (mean {ours.mean():.2f}) on the vertical axis. Below the diagonal, the head is closer.",
        note=sampled if len(gain) > POINTS else "",
        folded=True,
    )
    closer = [number for number in order[:MOST] if gain[number] > 0]
    farther = [number for number in order[::-1][:MOST] if gain[number] < 0]
    chosen = f"At most {MOST} examples are shown in each direction: those where the two errors differ most."
    return block, closer, farther, chosen


def _describe_errors(pair: Pair, ours: Float, theirs: Float) -> list[str]:
    found, name = mcnemar(ours < theirs, theirs < ours), pair.name
    same = len(ours) - found.only_ours - found.only_theirs
    equal = f"; the errors are equal on {same:,}" if same else ""
    closer = (
        f"{name} is closer to the gold score on {found.only_ours:,} of {counted(len(ours), 'example')} and the encoder "
        f"alone on {found.only_theirs:,}{equal} (sign test: {show_p(found.p)})."
    )
    means = f"{ours.mean():.3f} for {name} and {theirs.mean():.3f} for the encoder alone"
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
            ("number:Q", "index in the split"),
            ("gold:Q", "gold"),
            ("encoder:Q", ENCODER),
            ("head:Q", name),
        ),
    )
    line = chart_of([{"low": 0.0, "high": highest}], 340).mark_rule(strokeDash=[4, 4])
    line = line.encode(x="low:Q", y="low:Q", x2="high:Q", y2="high:Q", tooltip=altair.value("equal errors"))
    return dict((line + points).to_dict())


# ---------------------------------------------------------------------- the table of examples


def _table_of(
    run: FinishedRun,
    split: str,
    pair: Pair,
    examples: Sequence[Example],
    ours: list[int],
    theirs: list[int],
    is_near: bool,
) -> Table:
    """One row per example, first those where the head does better."""
    numbers = [*ours, *theirs]
    encoder, head = (model.said(split, set(numbers)) for model in (pair.encoder, pair.head))
    has_pair = any(examples[number].text_pair is not None for number in numbers)
    rows = []
    for number in numbers:
        example, predictions = examples[number], (encoder[number], head[number])
        texts = [cut(example.text), *([_second_text(example, run.kind, predictions)] if has_pair else [])]
        better = pair.name if number in ours else ENCODER
        cells = [cell for row in predictions for cell in _prediction_cells(run.kind, row, is_near)]
        rows.append([example.id, *texts, gold_of(run, example), *cells, better])
    return Table(_columns(run.kind, has_pair, pair.name, is_near), rows)


def _columns(kind: Kind, has_pair: bool, head: str, is_near: bool) -> list[Column]:
    first, second = ("question", "passage") if kind.reads_answers else ("text", "second text")
    texts = [Column("id"), Column(first), *([Column(second)] if has_pair else [])]
    if is_near:
        return [
            *texts, Column("gold", 2), Column("encoder's prediction", 2), Column("head's prediction", 2, head),
            Column("closer", note="The model whose prediction is closer to the gold score"),
        ]  # fmt: skip
    chance = f"Probability of the predicted {'answer' if kind.reads_answers else kind}"
    predictions = [
        Column("encoder's prediction"),
        Column("encoder's probability", 3, chance),
        Column("head's prediction", note=head),
        Column("head's probability", 3, chance),
    ]
    return [*texts, Column("gold"), *predictions, Column("right", note="The model that is right")]


def _prediction_cells(kind: Kind, row: dict[str, Any], is_near: bool) -> list[Cell]:
    """The prediction in a row of predictions.jsonl, with its probability if predictions are right or wrong."""
    return [kind.value_of(row)] if is_near else [kind.show_row(row), kind.probability_of(row)]


def _second_text(example: Example, kind: Kind, predictions: Sequence[dict[str, Any]]) -> str:
    """The second text. A passage is cut around the gold answer, or around a predicted one if there is no answer."""
    passage = example.text_pair or ""
    if not kind.reads_answers:
        return cut(passage)
    places = [(answer.start, answer.start + len(answer.text)) for answer in example.answers or ()]
    places += [(row["start"], row["end"]) for row in predictions if row["start"] is not None]
    return cut(passage, *(places[0] if places else (0, 0)))


def cut(text: str, start: int = 0, end: int = 0, words: int = WORDS) -> str:
    """Cut a text to at most `words` words around the characters `start` to `end`; … marks what is left out."""
    places = [found.span() for found in re.finditer(r"\S+", text)]
    if len(places) <= words:
        return text.strip()
    inside = [number for number, (low, high) in enumerate(places) if low < end and high > start] or [0]
    spare = max(0, words - (inside[-1] - inside[0] + 1))
    first = min(max(0, inside[0] - spare // 2), len(places) - words)
    last = first + words - 1
    shown = text[places[first][0] : places[last][1]]
    return f"{'… ' if first else ''}{shown}{' …' if last < len(places) - 1 else ''}"
