"""The cost of each model next to its score (parameters, seconds, tokens through the encoder, memory, disk), and what
the encoder alone scores with the compute of a head."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.report.analysis import analysis
from bertvision.report.block import Block
from bertvision.report.curves import EPOCHS, draw_curve
from bertvision.report.drawing import import_altair, off_zero, tips
from bertvision.report.ranking import SERIES, best_or_control, judged_on, names_drawn
from bertvision.report.wording import (
    ENCODER,
    after_tuning,
    deviation_of,
    figure_name,
    in_text,
    joined,
    opening,
    seeds_note,
    title_of,
    with_spread,
)
from bertvision.tables import Column, Row, Table, counted

BACKWARD = 2  # cost of a backward pass, in forward passes
LONG = 12  # a table with more rows is folded
MILLION = 1e6


# ---------------------------------------------------------------------- one model


@dataclass(frozen=True)
class Cost:
    """The cost of a model, including the fine-tuning of its encoder; None if the run did not record it."""

    seconds: float | None
    own_seconds: float | None
    """Seconds of the pass over the states; None for the encoder."""
    forward: int | None
    """Tokens through the encoder, forward."""
    backward: int | None

    @property
    def compute(self) -> float | None:
        """In tokens of a forward pass; a backward pass counts BACKWARD times."""
        if self.forward is None or self.backward is None:
            return None
        return float(self.forward + BACKWARD * self.backward)


def _cost_of(run: FinishedRun, group: Group) -> Cost:
    """The cost of one model of a group; its seeds share a pass."""
    encoder = run.encoder(group.epochs).first
    seconds, tokens = encoder.seconds, encoder.tokens
    if group.role == "encoder":
        return Cost(seconds, None, tokens, tokens)
    if not group.is_local:
        return Cost(None, None, None, None)
    own = group.trained[0]
    return Cost(_add(seconds, own.seconds), own.seconds, _add(tokens, own.tokens), tokens)


def _add(one: Any, other: Any) -> Any:
    return None if one is None or other is None else one + other


def _bytes_of(folder: Path) -> int | None:
    """Size of a model's files without its card; None if the folder does not exist."""
    if not folder.is_dir():
        return None
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and file.name != "README.md")


def _disk_of(run: FinishedRun, group: Group) -> int | None:
    """Bytes of one model. An untouched encoder is stored outside the run and counts as 0."""
    if group.role == "encoder":
        folder = run.folder.encoder(group.epochs)
        return 0 if (folder / "reference.json").is_file() else _bytes_of(folder)
    if group.role != "ensemble":
        return _bytes_of(run.head_folder(group.trained[0]))
    if not group.is_local:
        return None
    sizes = [_disk_of(run, member) for member in run.members_of(group)]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _memory(run: FinishedRun, group: Group) -> int | None:
    """Peak memory during fine-tuning of the encoder or the model's own pass."""
    known = [model.memory for model in (run.encoder(group.epochs).first, group.trained[0])]
    return max((value for value in known if value), default=None)


def _in_millions(number: float | None) -> float | None:
    return None if number is None else number / MILLION


def _show_millions(number: float) -> str:
    """12.34; 0.0051: small numbers keep two digits."""
    millions = number / MILLION
    return f"{millions:,.2f}" if millions >= 0.1 or not millions else f"{millions:.2g}"


# ---------------------------------------------------------------------- the table


@analysis("Cost", 20, "Cost of each model")
def costs_table(run: FinishedRun, split: str) -> Block | None:
    """The main score and all costs of every model."""
    groups = _all_groups(run)
    if not groups:
        return None
    note = (
        "The seconds and tokens of a head include the fine-tuning of its encoder. The head's own pass is also listed "
        "separately; all heads trained together share one pass. Tokens are those that went through the encoder; a head "
        "adds forward passes only. Memory is the peak during fine-tuning or the heads' pass. Disk is the size of the "
        "model's files; an encoder that was not fine-tuned adds none."
    )
    return Block(
        sentences=_describe_costs(run, split),
        table=Table.of(_cost_row(run, split, group) for group in groups).without_empty(),
        note=joined(note, seeds_note(groups)),
        folded=len(groups) > LONG,
    )


def _all_groups(run: FinishedRun) -> list[Group]:
    return [group for epochs in run.snapshots for group in run.groups(epochs)]


def _cost_row(run: FinishedRun, split: str, group: Group) -> Row:
    cost, model = _cost_of(run, group), group.trained[0]
    deviation = deviation_of(group.figures(split, run.main))
    return {
        "model": title_of(group),
        EPOCHS: group.epochs,
        Column(figure_name(run.main), 2): group.mean(split, run.main),
        Column("±", 2, "Standard deviation over seeds"): deviation,
        "parameters": model.parameters,
        Column("% of encoder", 3): None if model.share is None else 100 * model.share,
        Column("seconds", 1, "Fine-tuning up to this snapshot, plus the head's pass"): cost.seconds,
        Column("seconds in pass", 1, "All heads trained together share one pass"): cost.own_seconds,
        Column("forward (M tokens)", 3, "Tokens through the encoder, forward"): _in_millions(cost.forward),
        Column("backward (M tokens)", 3, "Tokens through the encoder, backward"): _in_millions(cost.backward),
        Column("memory (MB)", 0, "Peak memory"): _in_millions(_memory(run, group)),
        Column("disk (MB)", 3, "Size of the model's files"): _in_millions(_disk_of(run, group)),
    }


def _describe_costs(run: FinishedRun, split: str) -> list[str]:
    head, encoder = best_or_control(run, run.last), run.encoder(run.last)
    if head is None:
        return [f"The encoder alone has {counted(encoder.first.parameters, 'parameter')}. The run has no heads."]
    sentences = [_describe_size(run, split, head, encoder)]
    cost, tokens = _cost_of(run, head), head.trained[0].tokens
    if cost.own_seconds is not None:
        # Members of one pass have the same seconds, to the millisecond.
        heads = [model for model in run.models(run.last) if model.role in ("head", "control")]
        together = sum(model.seconds == cost.own_seconds for model in heads)
        shared = f", shared by {together} models," if together > 1 else ""
        tuning = None if cost.seconds is None or not head.epochs else cost.seconds - cost.own_seconds
        before = "" if tuning is None else f" after {tuning:.1f} s of fine-tuning"
        sent = (
            "" if tokens is None else f" and sent {_show_millions(tokens)} million tokens forward through the encoder"
        )
        sentences.append(f"Its training pass{shared} took {cost.own_seconds:.1f} s{before}{sent}.")
    return sentences


def _describe_size(run: FinishedRun, split: str, head: Group, encoder: Group) -> str:
    model = head.trained[0]
    share = "" if model.share is None else f" ({100 * model.share:.3f} % of the encoder's)"
    text = f"{opening(in_text(head))} has {counted(model.parameters, 'parameter')}{share}"
    ours, theirs = head.figures(split, run.main), encoder.figures(split, run.main)
    if not ours or not theirs:
        return f"{text}."
    return f"{text} and scores {with_spread(ours)}; the encoder alone scores {with_spread(theirs)}."


# ---------------------------------------------------------------------- compute


@dataclass(frozen=True)
class _Priced:
    """A model with its score and its compute."""

    group: Group
    compute: float
    score: float
    seconds: float | None

    @property
    def is_encoder(self) -> bool:
        return self.group.role == "encoder"


@analysis("Cost", 10, "Scores against compute")
def score_against_compute(run: FinishedRun, split: str) -> Block | None:
    """Scores against compute, and what the encoder alone scores with as much."""
    groups = _all_groups(run)
    priced = [one for group in groups if (one := _price(run, split, group)) is not None]
    curve = [one for one in priced if one.is_encoder]
    others = [one for one in priced if not one.is_encoder]
    if not curve or len(priced) < 2:
        return None
    names = names_drawn(run, [one.group for one in reversed(others) if one.group.is_whole], SERIES - 1)
    shown = [*curve, *(one for name in names for one in others if one.group.name == name)]
    name = figure_name(run.main)
    note = (
        "Compute is the number of tokens that went forward through the encoder plus twice the number that went "
        "backward, because a backward pass costs about twice as much as a forward pass. A head's own computation is "
        "small in comparison and not counted. All snapshots of the encoder come from one learning-rate schedule that "
        "ends at the last snapshot, so an encoder fine-tuned on a shorter schedule might score higher than an early "
        "snapshot."
    )
    hidden = f"The picture shows the best heads on {judged_on(run)}; the table has all models."
    return Block(
        sentences=_describe_compute(run, curve, others),
        table=Table.of(_compute_row(curve, name, one) for one in priced),
        picture=_draw_compute(name, shown),
        drawn=["compute (M tokens)", name],
        drawn_rows=Table.of(_compute_row(curve, name, one) for one in shown),
        note=joined(note, hidden if len(shown) < len(priced) else "", seeds_note(groups)),
        folded=True,
    )


def _price(run: FinishedRun, split: str, group: Group) -> _Priced | None:
    cost, score = _cost_of(run, group), group.mean(split, run.main)
    if cost.compute is None or score is None:
        return None
    return _Priced(group, cost.compute, score, cost.seconds)


def _encoder_around(curve: list[_Priced], compute: float) -> tuple[_Priced | None, _Priced | None]:
    """The encoder's snapshots on either side of this compute: the most expensive one that costs no more, and the
    cheapest one that costs no less. Scores are not interpolated, because learning curves are not linear."""
    below = [one for one in curve if one.compute <= compute]
    above = [one for one in curve if one.compute >= compute]
    return (
        max(below, key=lambda one: one.compute, default=None),
        min(above, key=lambda one: one.compute, default=None),
    )


def _describe_compute(run: FinishedRun, curve: list[_Priced], others: list[_Priced]) -> list[str]:
    sentences = []
    for epochs in run.head_snapshots:
        best = best_or_control(run, epochs)
        for one in others:
            if best and one.group.epochs == epochs and one.group.name == best.name:
                sentences.append(_describe_one(curve, one))
    return sentences or [
        f"Compute is known for {counted(len(curve), 'snapshot')} of the encoder alone, but not for the best head."
    ]


def _describe_one(curve: list[_Priced], one: _Priced) -> str:
    below, above = _encoder_around(curve, one.compute)
    scores = []
    if below is not None:
        scores.append(_at(below, "the same" if below is above else "less"))
    if above is not None and above is not below:
        scores.append(_at(above, "more"))
    return joined(
        f"{opening(after_tuning(one.group.epochs))}, {in_text(one.group)} scores {one.score:.2f} with "
        f"{_show_millions(one.compute)} million tokens of compute; the encoder alone scores {' and '.join(scores)}.",
        "It has no snapshot with more compute." if above is None else "",
    )


def _at(one: _Priced, compute: str) -> str:
    return f"{one.score:.2f} with {compute} ({_show_millions(one.compute)} million)"


def _compute_row(curve: list[_Priced], name: str, one: _Priced) -> Row:
    below, above = (None, None) if one.is_encoder else _encoder_around(curve, one.compute)
    return {
        "model": title_of(one.group),
        EPOCHS: one.group.epochs,
        Column("compute (M tokens)", 3, "Tokens forward plus twice the tokens backward"): one.compute / MILLION,
        Column("seconds", 1): one.seconds,
        Column(name, 2): one.score,
        Column("encoder, up to same compute", 2, "Its most expensive snapshot that used no more compute"): None
        if below is None
        else below.score,
        Column("encoder, at least same compute", 2, "Its cheapest snapshot that used no less compute"): None
        if above is None
        else above.score,
    }


def _draw_compute(name: str, shown: list[_Priced]) -> dict[str, Any]:
    altair, start = import_altair(), {one.group.epochs: one for one in shown if one.is_encoder}
    rows: list[dict[str, Any]] = []
    for one in shown:
        before = start.get(one.group.epochs, one)
        place = {"compute": one.compute / MILLION, "score": one.score, "seconds": one.seconds}
        origin = {"from_compute": before.compute / MILLION, "from_score": before.score}
        rows.append({"model": title_of(one.group), "epochs": one.group.epochs, **place, **origin})

    def draw_ways(base: Any) -> Any:
        """Lines from the encoder to the models trained on it."""
        ways = base.transform_filter(f"datum.model != '{ENCODER}'").mark_rule(strokeWidth=1, opacity=0.4)
        return ways.encode(x=altair.X("from_compute:Q"), x2="compute:Q", y=altair.Y("from_score:Q"), y2="score:Q")

    x = altair.X("compute:Q", title="compute (million tokens through the encoder; backward counts twice)")
    tooltip = tips(
        "model:N",
        ("epochs:Q", "epochs of fine-tuning"),
        ("compute:Q", "compute (M tokens)", ",.2f"),
        ("seconds:Q", None, ",.1f"),
        ("score:Q", name, ".2f"),
    )
    return draw_curve(rows, x, off_zero("Y", "score:Q", name), tooltip, line=ENCODER, between=[draw_ways])
