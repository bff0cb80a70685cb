"""Where the best head and the encoder itself disagree in being right: how often, whether by chance, and a table of
examples for reading."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertvision.data.examples import Example
from bertvision.evaluation.statistics import mcnemar
from bertvision.kinds import SCORE, Kind
from bertvision.kinds.base import Bool, Float
from bertvision.kinds.score import ScoreMarks
from bertvision.pipeline.finished import FinishedRun, Model
from bertvision.report.block import Block, Cell, Column, Frame
from bertvision.report.drawing import chart_of, import_altair
from bertvision.report.wording import ENCODER, gold_of, joined, show_p, stand_in_note, title_of
from bertvision.words import counted

MOST = 20  # examples of each direction in the table
WORDS = 60  # shown of a text at most
POINTS = 1000  # in the picture of scores
SEED = 0

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pair:
    """The encoder itself and the head it is compared with, one model each."""

    encoder: Model
    head: Model
    name: str
    """The head's, as people are shown it."""
    note: str
    """Which seed it is, where there are several."""


def pair_of(evidence: FinishedRun) -> Pair | None:
    """The encoder and the best head on it, of several seeds the first that was trained to the end."""
    best = evidence.best_head(evidence.last)
    if best is None:
        return None
    return Pair(evidence.encoder(evidence.last).trained[0], best.trained[0], title_of(best), stand_in_note([best]))


def right_of(model: Model, split: str) -> Bool:
    """Whether it got each example right; spans at the model's own threshold."""
    right = model.marks(split).right(model.threshold or 0.0)  # (example)
    assert right is not None, f"a {model.kind} is near or far, not right"
    return right


def draw_evenly(numbers: Numbers, most: int, seed: int = SEED) -> list[int]:
    """At most so many of them, one from each of as many equal stretches."""
    if len(numbers) <= most:
        return [int(number) for number in numbers]
    draw = np.random.default_rng(seed)
    return [int(draw.choice(part)) for part in np.array_split(numbers, most)]


def disagreements(evidence: FinishedRun, split: str) -> Block | None:
    """How often only one of them was right (of scores: closer), and examples of both."""
    pair = pair_of(evidence)
    if pair is None or (evidence.kind is not SCORE and pair.head.marks(split).right() is None):
        return None
    parts = _parts_of_scores(pair, split) if evidence.kind is SCORE else _parts_of_rights(pair, split)
    examples, frame, note = evidence.examples(split), None, ""
    if examples is None:
        note = "The data of this split are no longer there: examples can't be shown."
    elif parts.ours or parts.theirs:
        frame, note = _frame_of(evidence, split, pair, examples, parts.ours, parts.theirs), parts.note
    return Block(
        f"disagreements_{split}",
        "Where head and encoder disagree",
        parts.sentences,
        frame,
        parts.picture,
        parts.alt,
        joined(evidence.kind.right_note, note, parts.sampled, pair.note),
        folded=True,
    )


@dataclass(frozen=True)
class _Parts:
    """What differs between kinds of task."""

    sentences: list[str]
    picture: dict[str, Any]
    alt: str
    note: str
    """How the examples of the table were chosen."""
    ours: list[int]
    """Numbers of the examples to show where the head does better."""
    theirs: list[int]
    sampled: str = ""
    """How those of the picture were, where it has not all."""


# ---------------------------------------------------------------------- right or wrong


def _parts_of_rights(pair: Pair, split: str) -> _Parts:
    ours, theirs = right_of(pair.head, split), right_of(pair.encoder, split)  # (example), (example)
    return _Parts(
        _told_of_right(pair, ours, theirs),
        _draw_square(pair, ours, theirs),
        _square_in_words(pair, ours, theirs),
        f"Of each direction at most {MOST} examples are shown, drawn evenly over the split with seed {SEED}.",
        draw_evenly(np.flatnonzero(ours & ~theirs), MOST),
        draw_evenly(np.flatnonzero(theirs & ~ours), MOST),
    )


def _told_of_right(pair: Pair, ours: Bool, theirs: Bool) -> list[str]:
    name, total = pair.name, len(ours)
    if bool((ours == theirs).all()):
        return [f"The encoder itself and {name} got the same {int(ours.sum()):,} of {counted(total, 'example')} right."]
    found = mcnemar(ours, theirs)
    alone = (
        f"Of {counted(total, 'example')} {name} alone got {found.only_ours:,} right, the encoder itself alone "
        f"{found.only_theirs:,}; both {int((ours & theirs).sum()):,}, neither {int((~ours & ~theirs).sum()):,}."
    )
    if found.only_ours == found.only_theirs:
        return [alone, f"Neither is ahead (McNemar's exact test: {show_p(found.p)})."]
    ahead = name if found.only_ours > found.only_theirs else "the encoder itself"
    verdict = "chance would seldom give as much" if found.p < 0.05 else "chance alone could have given it"
    lead = abs(found.only_ours - found.only_theirs)
    return [alone, f"That puts {ahead} ahead by {lead:,}: {verdict} (McNemar's exact test: {show_p(found.p)})."]


def _cells(ours: Bool, theirs: Bool) -> list[dict[str, Any]]:
    words = {True: "right", False: "wrong"}
    return [
        {
            "encoder": words[first],
            "head": words[second],
            "examples": int(((theirs == first) & (ours == second)).sum()),
            "share": round(float(((theirs == first) & (ours == second)).mean()), 4),
        }
        for second in (True, False)
        for first in (True, False)
    ]


def _draw_square(pair: Pair, ours: Bool, theirs: Bool) -> dict[str, Any]:
    altair, rows, name = import_altair(), _cells(ours, theirs), pair.name
    order = ["right", "wrong"]
    # Shades of one colour, none so full that the number on it can't be read, on a light page or a dark one.
    shades = altair.Scale(domain=[0, max(row["examples"] for row in rows)], range=[0.06, 0.5])
    base = chart_of(rows, 220).encode(
        x=altair.X("encoder:N", sort=order, title="encoder itself", axis=altair.Axis(labelAngle=0, orient="top")),
        y=altair.Y("head:N", sort=order, title=name),
        tooltip=[
            altair.Tooltip("encoder:N", title="encoder itself"),
            altair.Tooltip("head:N", title=name),
            altair.Tooltip("examples:Q", title="examples", format=","),
            altair.Tooltip("share:Q", title="share", format=".1%"),
        ],
    )
    squares = base.mark_rect().encode(opacity=altair.Opacity("examples:Q", scale=shades, legend=None))
    numbers = base.mark_text(fontSize=20).encode(text=altair.Text("examples:Q", format=","))
    return dict((squares + numbers).to_dict())


def _square_in_words(pair: Pair, ours: Bool, theirs: Bool) -> str:
    name = pair.name
    counts = {(row["encoder"], row["head"]): row["examples"] for row in _cells(ours, theirs)}
    return (
        f"A square of four counts. Both right: {counts['right', 'right']:,}; only the encoder itself: "
        f"{counts['right', 'wrong']:,}; only {name}: {counts['wrong', 'right']:,}; neither: "
        f"{counts['wrong', 'wrong']:,}."
    )


# ---------------------------------------------------------------------- near or far


def _parts_of_scores(pair: Pair, split: str) -> _Parts:
    ours, theirs = _errors(pair.head, split), _errors(pair.encoder, split)  # (example), (example)
    gain = theirs - ours  # (example) by how much the head is closer
    order = np.argsort(-gain, kind="stable").tolist()  # (example)
    sampled = f"The picture has {POINTS:,} of {len(gain):,} examples, drawn evenly over the split with seed {SEED}."
    return _Parts(
        _told_of_errors(pair, ours, theirs),
        _draw_errors(pair, split, draw_evenly(np.arange(len(gain)), POINTS)),
        f"A point for each example: the error of the encoder itself (mean {theirs.mean():.2f}) along, that of "
        f"{pair.name} (mean {ours.mean():.2f}) upwards; below the line the head is closer.",
        f"Of each direction at most {MOST} examples are shown, those where the two errors differ most.",
        [number for number in order[:MOST] if gain[number] > 0],
        [number for number in order[::-1][:MOST] if gain[number] < 0],
        sampled if len(gain) > POINTS else "",
    )


def _errors(model: Model, split: str) -> Float:
    marks = model.marks(split)
    assert isinstance(marks, ScoreMarks), "errors are of scores"
    return np.abs(marks.value - marks.target)  # (example)


def _told_of_errors(pair: Pair, ours: Float, theirs: Float) -> list[str]:
    found, name = mcnemar(ours < theirs, theirs < ours), pair.name
    same = len(ours) - found.only_ours - found.only_theirs
    closer = (
        f"Of {counted(len(ours), 'example')} {name} was closer to the gold score on {found.only_ours:,}, the encoder "
        f"itself on {found.only_theirs:,}{f', both alike on {same:,}' if same else ''} (sign test: {show_p(found.p)})."
    )
    means = f"{ours.mean():.3f} for {name}, {theirs.mean():.3f} for the encoder itself"
    return [closer, f"The mean absolute error is {means}."]


def _draw_errors(pair: Pair, split: str, numbers: list[int]) -> dict[str, Any]:
    altair, name = import_altair(), pair.name
    ours, theirs = pair.head.marks(split), pair.encoder.marks(split)
    assert isinstance(ours, ScoreMarks) and isinstance(theirs, ScoreMarks)
    rows = [
        {
            "number": number,
            "gold": round(float(ours.target[number]), 3),
            "encoder": round(float(theirs.value[number]), 3),
            "head": round(float(ours.value[number]), 3),
            "encoder_error": round(abs(float(theirs.value[number] - theirs.target[number])), 4),
            "head_error": round(abs(float(ours.value[number] - ours.target[number])), 4),
        }
        for number in numbers
    ]
    highest = max(max(row["encoder_error"], row["head_error"]) for row in rows) or 1.0
    axis = {"scale": altair.Scale(domain=[0, highest], nice=True), "axis": altair.Axis(tickCount=6)}
    points = (
        chart_of(rows, 340)
        .mark_circle(size=26, opacity=0.55)
        .encode(
            x=altair.X("encoder_error:Q", title="absolute error of the encoder itself", **axis),
            y=altair.Y("head_error:Q", title=f"absolute error of {name}", **axis),
            tooltip=[
                altair.Tooltip("number:Q", title="number in the split"),
                altair.Tooltip("gold:Q", title="gold"),
                altair.Tooltip("encoder:Q", title="encoder itself said"),
                altair.Tooltip("head:Q", title=f"{name} said"),
            ],
        )
    )
    ends = [{"low": 0.0, "high": highest}]
    line = (
        chart_of(ends, 340)
        .mark_rule(strokeDash=[4, 4])
        .encode(x="low:Q", y="low:Q", x2="high:Q", y2="high:Q", tooltip=altair.value("equal errors"))
    )
    return dict((line + points).to_dict())


# ---------------------------------------------------------------------- the table for reading


def _frame_of(
    evidence: FinishedRun, split: str, pair: Pair, examples: list[Example], ours: list[int], theirs: list[int]
) -> Frame:
    """A row for each of these examples, first those that the head does better."""
    numbers = set(ours) | set(theirs)
    encoder, head = pair.encoder.said(split, numbers), pair.head.said(split, numbers)
    kind, name = evidence.kind, pair.name
    has_pair = any(examples[number].text_pair is not None for number in numbers)
    rows: list[list[Cell]] = []
    for number in [*ours, *theirs]:
        example, said = examples[number], (encoder[number], head[number])
        texts: list[Cell] = [cut(example.text)]
        if has_pair:
            texts.append(_second_text(example, kind, said))
        better = name if number in ours else ENCODER
        rows.append([example.id, *texts, gold_of(evidence, example), *_both_said(kind, said), better])
    return Frame(_columns(kind, has_pair, name), rows)


def _columns(kind: Kind, has_pair: bool, head: str) -> list[Column]:
    first, second = ("question", "passage") if kind.reads_answers else ("text", "second text")
    texts = [Column("id"), Column(first), *([Column(second)] if has_pair else []), Column("gold")]
    if kind is SCORE:
        said = [Column("encoder said", 2), Column("head said", 2, head)]
        return [*texts[:-1], Column("gold", 2), *said, Column("closer")]
    chance = f"What it gave this {'answer' if kind.reads_answers else kind}"
    said = [
        Column("encoder said"),
        Column("encoder's probability", 3, chance),
        Column("head said", note=head),
        Column("head's probability", 3, chance),
    ]
    return [*texts, *said, Column("right")]


def _both_said(kind: Kind, said: Sequence[dict[str, Any]]) -> list[Cell]:
    """What two rows of predictions.jsonl say, each with its probability where it has one."""
    if kind is SCORE:
        return [row["score"] for row in said]
    return [cell for row in said for cell in (kind.show_row(row), kind.probability_of(row))]


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
