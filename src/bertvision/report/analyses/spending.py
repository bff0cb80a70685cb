"""What each model cost beside what it scores: parameters, seconds, tokens through the encoder, memory and disk; and
what the encoder alone reaches for the compute of a head."""

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

BACKWARD = 2  # what a backward pass costs, in forward passes
LONG = 12  # rows of a table that is folded away
MILLION = 1e6


# ---------------------------------------------------------------------- one model


@dataclass(frozen=True)
class Cost:
    """What a model took, fine-tuning of its encoder included; None where the run does not say."""

    seconds: float | None
    own_seconds: float | None
    """Of the pass over the states; None for the encoder."""
    forward: int | None
    """Tokens through the encoder."""
    backward: int | None

    @property
    def compute(self) -> float | None:
        """In tokens of a forward pass."""
        if self.forward is None or self.backward is None:
            return None
        return float(self.forward + BACKWARD * self.backward)


def _cost_of(run: FinishedRun, group: Group) -> Cost:
    """The cost of one model of a group; seeds share a pass."""
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
    """What a model's files take, without its card; None where there is no folder."""
    if not folder.is_dir():
        return None
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and file.name != "README.md")


def _disk_of(run: FinishedRun, group: Group) -> int | None:
    """Bytes of one model; an encoder as it came lies elsewhere and takes nothing more."""
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
    """The most in use at once, in fine-tuning the encoder or in the model's own pass."""
    known = [model.memory for model in (run.encoder(group.epochs).first, group.trained[0])]
    return max((value for value in known if value), default=None)


def _in_millions(number: float | None) -> float | None:
    return None if number is None else number / MILLION


# ---------------------------------------------------------------------- the table


@analysis("What it cost", 20, "What each model cost")
def costs_table(run: FinishedRun, split: str) -> Block | None:
    """Every model's main score beside all that it cost."""
    groups = _all_groups(run)
    if not groups:
        return None
    note = (
        "Seconds and tokens of a head include the fine-tuning of its encoder; its own pass is shown apart, and is one "
        "for all heads that were trained together. Tokens are those that went through the encoder; a head adds forward "
        "passes only. Memory is the most that was in use at once, in fine-tuning or in the heads' pass. Disk is what "
        "the model's files take; an encoder that was not fine-tuned adds none."
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
        Column("±", 2, "Standard deviation over the seeds"): deviation,
        "parameters": model.parameters,
        Column("% of encoder", 3): None if model.share is None else 100 * model.share,
        Column("seconds", 1, "Fine-tuning so far, and a head's pass"): cost.seconds,
        Column("of these in the pass", 1, "One pass for all heads that were trained together"): cost.own_seconds,
        Column("forward (M tokens)", 3, "Tokens through the encoder, forward"): _in_millions(cost.forward),
        Column("backward (M tokens)", 3, "Tokens through the encoder, backward"): _in_millions(cost.backward),
        Column("memory (MB)", 0, "The most in use at once"): _in_millions(_memory(run, group)),
        Column("disk (MB)", 3, "Files of this model"): _in_millions(_disk_of(run, group)),
    }


def _describe_costs(run: FinishedRun, split: str) -> list[str]:
    head, encoder = best_or_control(run, run.last), run.encoder(run.last)
    if head is None:
        return [f"The encoder alone has {counted(encoder.first.parameters, 'parameter')}; there are no heads."]
    told = [_describe_size(run, split, head, encoder)]
    cost, tokens = _cost_of(run, head), head.trained[0].tokens
    if cost.own_seconds is not None:
        # Members of one pass have its seconds, to the millisecond.
        heads = [model for model in run.models(run.last) if model.role in ("head", "control")]
        together = sum(model.seconds == cost.own_seconds for model in heads)
        shared = f", which {together} models shared," if together > 1 else ""
        before = "" if cost.seconds is None else f", after {cost.seconds - cost.own_seconds:.1f} s of fine-tuning"
        millions = "" if tokens is None else f"{tokens / MILLION:.2f} million tokens"
        sent = f", and sent {millions} through the encoder, forward" if millions else ""
        told.append(f"Its pass{shared} took {cost.own_seconds:.1f} s{before}{sent}.")
    return told


def _describe_size(run: FinishedRun, split: str, head: Group, encoder: Group) -> str:
    model = head.trained[0]
    share = "" if model.share is None else f" ({100 * model.share:.3f} % of the encoder's)"
    text = f"{opening(in_text(head))} has {counted(model.parameters, 'parameter')}{share}"
    ours, theirs = head.figures(split, run.main), encoder.figures(split, run.main)
    if not ours or not theirs:
        return f"{text}."
    return f"{text} and scores {with_spread(ours)} where the encoder alone scores {with_spread(theirs)}."


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


@analysis("What it cost", 10, "Scores against compute")
def score_against_compute(run: FinishedRun, split: str) -> Block | None:
    """Scores against tokens through the encoder; what the encoder alone reaches for as much."""
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
        "Compute: tokens that went through the encoder forward, plus twice those that went backward, since a backward "
        "pass costs about twice a forward one; a head's own arithmetic, small beside it, is not counted. The encoder's "
        "snapshots lie on one schedule, whose learning rate ends with the last of them: fine-tuned for just an earlier "
        "one's compute it might do better."
    )
    hidden = f"The picture shows the best heads on {judged_on(run)}; the table has all."
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
    """The encoder's own snapshots next to this compute: the dearest that is no dearer, the cheapest that is no cheaper.
    What lies between them is not known; learning curves are no straight lines."""
    below = [one for one in curve if one.compute <= compute]
    above = [one for one in curve if one.compute >= compute]
    return (
        max(below, key=lambda one: one.compute, default=None),
        min(above, key=lambda one: one.compute, default=None),
    )


def _describe_compute(run: FinishedRun, curve: list[_Priced], others: list[_Priced]) -> list[str]:
    told = []
    for epochs in run.head_snapshots:
        best = best_or_control(run, epochs)
        for one in others:
            if best and one.group.epochs == epochs and one.group.name == best.name:
                told.append(_describe_one(curve, one))
    return told or [f"The encoder alone is known for {counted(len(curve), 'amount')} of compute, and no head is."]


def _describe_one(curve: list[_Priced], one: _Priced) -> str:
    text = (
        f"With {one.compute / MILLION:,.2f} million tokens of compute {in_text(one.group)} on the encoder after "
        f"{counted(one.group.epochs, 'epoch')} scores {one.score:.2f}"
    )
    below, above = _encoder_around(curve, one.compute)
    told = []
    if below is not None:
        told.append(f"{_at(below)} for {'as much' if below is above else 'less'}")
    if above is not None and above is not below:
        told.append(f"{_at(above)} for more")
    elif above is None:
        told.append("nothing is known of it for more")
    return f"{text}; the encoder alone reaches {', and '.join(told)}."


def _at(one: _Priced) -> str:
    return f"{one.score:.2f} ({one.compute / MILLION:,.2f} million)"


def _compute_row(curve: list[_Priced], name: str, one: _Priced) -> Row:
    below, above = (None, None) if one.is_encoder else _encoder_around(curve, one.compute)
    return {
        "model": title_of(one.group),
        EPOCHS: one.group.epochs,
        Column("compute (M tokens)", 3, "Forward, and backward twice"): one.compute / MILLION,
        Column("seconds", 1): one.seconds,
        Column(name, 2): one.score,
        Column("encoder for no more", 2, "Its dearest snapshot that took no more compute"): None
        if below is None
        else below.score,
        Column("encoder for no less", 2, "Its cheapest snapshot that took no less"): None
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
        """From the encoder that a model stands on."""
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
