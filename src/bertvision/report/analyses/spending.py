"""What each model cost beside what it scores: parameters, seconds, tokens through the encoder, memory and disk; and
what the encoder itself reaches for the compute of a head."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.report.block import Block, Cell, Column, Frame
from bertvision.report.drawing import chart_of, colour_models, import_altair, without_empty
from bertvision.report.ranking import SERIES, best_or_control, judged_on
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
from bertvision.words import counted

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


def _cost_of(evidence: FinishedRun, group: Group) -> Cost:
    """The cost of one model of a group; seeds share a pass."""
    encoder = evidence.encoder(group.epochs).first
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


def _disk_of(evidence: FinishedRun, group: Group) -> int | None:
    """Bytes of one model; an encoder as it came lies elsewhere and takes nothing more."""
    if group.role == "encoder":
        folder = evidence.folder.encoder(group.epochs)
        return 0 if (folder / "reference.json").is_file() else _bytes_of(folder)
    if group.role != "ensemble":
        return _bytes_of(evidence.head_folder(group.trained[0]))
    if not group.is_local:
        return None
    sizes = [_disk_of(evidence, member) for member in evidence.members_of(group)]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _memory(evidence: FinishedRun, group: Group) -> int | None:
    """The most in use at once, in fine-tuning the encoder or in the model's own pass."""
    known = [model.memory for model in (evidence.encoder(group.epochs).first, group.trained[0])]
    return max((value for value in known if value), default=None)


def _in_millions(number: float | None) -> float | None:
    return None if number is None else number / MILLION


# ---------------------------------------------------------------------- the table


def costs_table(evidence: FinishedRun, split: str) -> Block | None:
    """Every model's main score beside all that it cost."""
    groups = [group for epochs in evidence.snapshots for group in evidence.groups(epochs)]
    if not groups:
        return None
    note = (
        "Seconds and tokens of a head include the fine-tuning of its encoder; its own pass is shown apart, and is one "
        "for all heads that were trained together. Tokens are those that went through the encoder; a head adds forward "
        "passes only. Memory is the most that was in use at once, in fine-tuning or in the heads' pass. Disk is what "
        "the model's files take; an encoder that was not fine-tuned adds none."
    )
    rows = [_cost_row(evidence, split, group) for group in groups]
    return Block(
        f"costs_table_{split}",
        "What each model cost",
        _tell_costs(evidence, split),
        without_empty(Frame(_cost_columns(evidence), rows)),
        note=joined(note, seeds_note(groups)),
        folded=len(rows) > LONG,
    )


def _cost_columns(evidence: FinishedRun) -> list[Column]:
    return [
        Column("model"),
        Column("epochs", None, "How far the encoder was fine-tuned"),
        Column(figure_name(evidence.main), 2),
        Column("±", 2, "Standard deviation over the seeds"),
        Column("parameters"),
        Column("% of encoder", 3),
        Column("seconds", 1, "Fine-tuning so far, and a head's pass"),
        Column("of these in the pass", 1, "One pass for all heads that were trained together"),
        Column("forward (M tokens)", 3, "Tokens through the encoder, forward"),
        Column("backward (M tokens)", 3, "Tokens through the encoder, backward"),
        Column("memory (MB)", 0, "The most in use at once"),
        Column("disk (MB)", 3, "Files of this model"),
    ]


def _cost_row(evidence: FinishedRun, split: str, group: Group) -> list[Cell]:
    cost, model = _cost_of(evidence, group), group.trained[0]
    return [
        title_of(group),
        group.epochs,
        group.mean(split, evidence.main),
        deviation_of(group.figures(split, evidence.main)),
        model.parameters,
        None if model.share is None else 100 * model.share,
        cost.seconds,
        cost.own_seconds,
        _in_millions(cost.forward),
        _in_millions(cost.backward),
        _in_millions(_memory(evidence, group)),
        _in_millions(_disk_of(evidence, group)),
    ]


def _tell_costs(evidence: FinishedRun, split: str) -> list[str]:
    head, encoder = best_or_control(evidence, evidence.last), evidence.encoder(evidence.last)
    if head is None:
        return [f"The encoder itself has {counted(encoder.first.parameters, 'parameter')}; there are no heads."]
    told = [_tell_size(evidence, split, head, encoder)]
    cost, tokens = _cost_of(evidence, head), head.trained[0].tokens
    if cost.own_seconds is not None:
        # Members of one pass have its seconds, to the millisecond.
        heads = [model for model in evidence.models(evidence.last) if model.role in ("head", "control")]
        together = sum(model.seconds == cost.own_seconds for model in heads)
        shared = f", which {together} models shared," if together > 1 else ""
        before = "" if cost.seconds is None else f", after {cost.seconds - cost.own_seconds:.1f} s of fine-tuning"
        sent = (
            "" if tokens is None else f", and sent {tokens / MILLION:.2f} million tokens through the encoder, forward"
        )
        told.append(f"Its pass{shared} took {cost.own_seconds:.1f} s{before}{sent}.")
    return told


def _tell_size(evidence: FinishedRun, split: str, head: Group, encoder: Group) -> str:
    model = head.trained[0]
    share = "" if model.share is None else f" ({100 * model.share:.3f} % of the encoder's)"
    text = f"{opening(in_text(head))} has {counted(model.parameters, 'parameter')}{share}"
    ours, theirs = head.figures(split, evidence.main), encoder.figures(split, evidence.main)
    if not ours or not theirs:
        return f"{text}."
    return f"{text} and scores {with_spread(ours)} where the encoder itself scores {with_spread(theirs)}."


# ---------------------------------------------------------------------- compute


@dataclass(frozen=True)
class _Priced:
    """A model with its score and its compute."""

    group: Group
    compute: float
    score: float
    seconds: float | None


def score_against_compute(evidence: FinishedRun, split: str) -> Block | None:
    """Scores against tokens through the encoder; what the encoder itself reaches for as much."""
    groups = [group for epochs in evidence.snapshots for group in evidence.groups(epochs)]
    priced = [one for group in groups if (one := _price(evidence, split, group)) is not None]
    curve = [one for one in priced if one.group.role == "encoder"]
    others = [one for one in priced if one.group.role != "encoder"]
    if not curve or len(priced) < 2:
        return None
    shown = [*curve, *(one for name in _shown_names(evidence, others) for one in others if one.group.name == name)]
    note = (
        "Compute: tokens that went through the encoder forward, plus twice those that went backward, since a backward "
        "pass costs about twice a forward one; a head's own arithmetic, small beside it, is not counted. The encoder's "
        "snapshots lie on one schedule, whose learning rate ends with the last of them: fine-tuned for just an earlier "
        "one's compute it might do better."
    )
    hidden = (
        f"The picture shows the best heads on {judged_on(evidence)}; the table has all."
        if len(shown) < len(priced)
        else ""
    )
    return Block(
        f"score_against_compute_{split}",
        "Scores against compute",
        _tell_compute(evidence, curve, others),
        _compute_frame(evidence, curve, priced),
        _draw_compute(evidence, shown),
        _compute_in_words(evidence, shown),
        joined(note, hidden, seeds_note(groups)),
        folded=True,
    )


def _price(evidence: FinishedRun, split: str, group: Group) -> _Priced | None:
    cost, score = _cost_of(evidence, group), group.mean(split, evidence.main)
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


def _shown_names(evidence: FinishedRun, others: list[_Priced]) -> list[str]:
    """The control, the best ensemble and the best heads: as many as a picture can hold."""
    ranked = evidence.ranked(one.group for one in reversed(others) if one.group.is_whole)
    names = list(dict.fromkeys(group.name for group in ranked))
    role = {one.group.name: one.group.role for one in others}
    heads = [name for name in names if role[name] == "head"]
    controls = [name for name in names if role[name] == "control"][:1]
    ensembles = [name for name in names if role[name] == "ensemble"][:1]
    return [*controls, *heads[: SERIES - 1 - len(controls) - len(ensembles)], *ensembles]


def _tell_compute(evidence: FinishedRun, curve: list[_Priced], others: list[_Priced]) -> list[str]:
    told = []
    for epochs in evidence.head_snapshots:
        best = best_or_control(evidence, epochs)
        for one in others:
            if best and one.group.epochs == epochs and one.group.name == best.name:
                told.append(_tell_one(curve, one))
    return told or [f"The encoder itself is known for {counted(len(curve), 'amount')} of compute, and no head is."]


def _tell_one(curve: list[_Priced], one: _Priced) -> str:
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
    return f"{text}; the encoder itself reaches {', and '.join(told)}."


def _at(one: _Priced) -> str:
    return f"{one.score:.2f} ({one.compute / MILLION:,.2f} million)"


def _compute_frame(evidence: FinishedRun, curve: list[_Priced], priced: list[_Priced]) -> Frame:
    name = figure_name(evidence.main)
    columns = [Column("model"), Column("epochs", None, "How far the encoder was fine-tuned")]
    columns += [Column("compute (M tokens)", 3, "Forward, and backward twice"), Column("seconds", 1), Column(name, 2)]
    columns += [Column("encoder for no more", 2, "Its dearest snapshot that took no more compute")]
    columns += [Column("encoder for no less", 2, "Its cheapest snapshot that took no less")]
    rows: list[list[Cell]] = []
    for one in priced:
        around = (None, None) if one.group.role == "encoder" else _encoder_around(curve, one.compute)
        cells: list[Cell] = [_in_millions(one.compute), one.seconds, one.score]
        rows.append(
            [title_of(one.group), one.group.epochs, *cells, *(None if near is None else near.score for near in around)]
        )
    return Frame(columns, rows)


def _draw_compute(evidence: FinishedRun, shown: list[_Priced]) -> dict[str, Any]:
    altair, start = import_altair(), {one.group.epochs: one for one in shown if one.group.role == "encoder"}
    rows: list[dict[str, Any]] = []
    for one in shown:
        before = start.get(one.group.epochs, one)
        place = {"compute": one.compute / MILLION, "score": one.score, "seconds": one.seconds}
        origin = {"from_compute": before.compute / MILLION, "from_score": before.score}
        rows.append({"model": title_of(one.group), "epochs": one.group.epochs, **place, **origin})
    order, name = list(dict.fromkeys(row["model"] for row in rows)), figure_name(evidence.main)
    base = chart_of(rows).encode(
        x=altair.X("compute:Q", title="compute (million tokens through the encoder; backward counts twice)"),
        y=altair.Y("score:Q", title=name, scale=altair.Scale(zero=False)),
        color=colour_models(order),
        tooltip=[
            altair.Tooltip("model:N"),
            altair.Tooltip("epochs:Q", title="epochs of fine-tuning"),
            altair.Tooltip("compute:Q", title="compute (M tokens)", format=",.2f"),
            altair.Tooltip("seconds:Q", format=",.1f"),
            altair.Tooltip("score:Q", title=name, format=".2f"),
        ],
    )
    line = base.transform_filter(f"datum.model == '{ENCODER}'").mark_line()
    ways = base.transform_filter(f"datum.model != '{ENCODER}'").mark_rule(strokeWidth=1, opacity=0.4)
    ways = ways.encode(x=altair.X("from_compute:Q"), x2="compute:Q", y=altair.Y("from_score:Q"), y2="score:Q")
    return dict((line + ways + base.mark_point()).to_dict())


def _compute_in_words(evidence: FinishedRun, shown: list[_Priced]) -> str:
    curve = [f"{one.score:.1f} at {one.compute / MILLION:,.2f}" for one in shown if one.group.role == "encoder"]
    others = [one.score for one in shown if one.group.role != "encoder"]
    text = f"Line of {figure_name(evidence.main)} of the encoder itself against million tokens: {', '.join(curve)}."
    return f"{text} Other models are points from {min(others):.1f} to {max(others):.1f}." if others else text
