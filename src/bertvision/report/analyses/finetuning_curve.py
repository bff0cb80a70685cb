"""Scores against epochs of fine-tuning: the encoder itself as a line, heads as points over it."""

from typing import Any

from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.report.block import Block, Cell, Column, Frame
from bertvision.report.drawing import (
    chart_of,
    colour_models,
    import_altair,
    level_line,
    score_rows,
    spread_rules,
    without_empty,
)
from bertvision.report.ranking import SERIES, baseline_figure, figure_keys, judged_on, whole_heads
from bertvision.report.wording import ENCODER, apart, deviation_of, figure_name, in_text, joined, seeds_note, title_of
from bertvision.words import counted


def finetuning_curve(evidence: FinishedRun, split: str) -> Block | None:
    """The encoder's scores against epochs of fine-tuning, and those of heads over it."""
    if len(evidence.snapshots) < 2:
        return None
    encoders = [evidence.encoder(epochs) for epochs in evidence.snapshots]
    keys, baseline = figure_keys(evidence), baseline_figure(evidence, split, evidence.main)
    drawn = _drawn_heads(evidence)
    groups = [*encoders, *(group for epochs in evidence.head_snapshots for group in whole_heads(evidence, epochs))]
    shown = [*encoders, *(group for name in drawn for group in groups if group.name == name)]
    left = len({group.name for group in groups if group.role == "head"} - set(drawn))
    unseen = (
        f"The picture leaves out {counted(left, 'head')} that did less well on {judged_on(evidence)}." if left else ""
    )
    return Block(
        f"finetuning_curve_{split}",
        "Scores against epochs of fine-tuning",
        [_tell_curve(evidence, split, encoders), *(_tell_head(evidence, split, e) for e in evidence.head_snapshots)],
        _curve_frame(groups, split, keys),
        _draw_curve(evidence, split, shown, baseline),
        _curve_in_words(evidence, split, encoders, shown, baseline),
        joined(
            "Heads and control stand at the snapshot whose states they were trained on.", unseen, seeds_note(groups)
        ),
        folded=True,
    )


def _drawn_heads(evidence: FinishedRun) -> list[str]:
    """The control, and the heads that do best on held-out data at the last snapshot that has them."""
    names: list[str] = []
    control = evidence.control(evidence.last)
    for epochs in reversed(evidence.head_snapshots):
        heads = [group for group in whole_heads(evidence, epochs) if group.role == "head"]
        names += [group.name for group in evidence.ranked(heads) if group.name not in names]
    return [*([control.name] if control else []), *names[: SERIES - 2]]


def _tell_curve(evidence: FinishedRun, split: str, encoders: list[Group]) -> str:
    found = [(group.epochs, group.mean(split, evidence.main)) for group in encoders]
    known = [(epochs, value) for epochs, value in found if value is not None]
    (first, early), (last, late) = known[0], known[-1]
    best, high = max(known, key=lambda pair: pair[1])
    text = (
        f"The encoder itself scores {early:.2f} ({figure_name(evidence.main)}) after {counted(first, 'epoch')} of "
        f"fine-tuning and {late:.2f} after {counted(last, 'epoch')}"
    )
    return f"{text}; it is highest, {high:.2f}, after {counted(best, 'epoch')}." if high > late else f"{text}."


def _tell_head(evidence: FinishedRun, split: str, epochs: float) -> str:
    """How the best head at a snapshot stands to the encoder, there and later."""
    heads = evidence.ranked(group for group in whole_heads(evidence, epochs) if group.role == "head")
    head = heads[0] if heads else evidence.control(epochs)
    value = head.mean(split, evidence.main) if head else None
    there = evidence.encoder(epochs).mean(split, evidence.main)
    if head is None or value is None or there is None:
        return f"After {counted(epochs, 'epoch')} no head has a score."
    best = f"the best head on {judged_on(evidence)}, " if heads else ""
    text = (
        f"After {counted(epochs, 'epoch')} {best}{in_text(head)}{',' if best else ''} scores {value:.2f}, "
        f"{apart(value - there)} the encoder itself there"
    )
    if round(value - there, 2) <= 0:
        return f"{text}."
    later = [other for other in evidence.snapshots if other > epochs]
    for other in later:
        reached = evidence.encoder(other).mean(split, evidence.main)
        if reached is not None and reached >= value:
            return f"{text}; the encoder itself first reaches that at its snapshot of {counted(other, 'epoch')}."
    return f"{text}; the encoder itself reaches that at none of its later snapshots." if later else f"{text}."


def _curve_frame(groups: list[Group], split: str, keys: list[str]) -> Frame:
    columns = [Column("epochs", None, "How far the encoder was fine-tuned"), Column("model")]
    columns += [Column(figure_name(key), 2) for key in keys]
    columns += [Column("±", 2, f"Standard deviation of {figure_name(keys[0])} over the seeds"), Column("seeds")]
    rows: list[list[Cell]] = []
    for group in sorted(groups, key=lambda group: group.epochs):
        figures: list[Cell] = [group.mean(split, key) for key in keys]
        deviation = deviation_of(group.figures(split, keys[0]))
        rows.append([group.epochs, title_of(group), *figures, deviation, len(group.trained)])
    return without_empty(Frame(columns, rows))


def _draw_curve(evidence: FinishedRun, split: str, groups: list[Group], baseline: float | None) -> dict[str, Any]:
    altair, rows = import_altair(), score_rows(groups, split, evidence.main)
    order = list(dict.fromkeys(row["model"] for row in rows))
    base = chart_of(rows).encode(
        x=altair.X("epochs:Q", title="epochs of fine-tuning"),
        y=altair.Y("score:Q", title=figure_name(evidence.main), scale=altair.Scale(zero=False)),
        color=colour_models(order),
        tooltip=[
            altair.Tooltip("model:N"),
            altair.Tooltip("epochs:Q"),
            altair.Tooltip("score:Q", title=figure_name(evidence.main), format=".2f"),
            altair.Tooltip("seeds:Q"),
        ],
    )
    line = base.transform_filter(f"datum.model == '{ENCODER}'").mark_line()
    chart = altair.layer(line, *spread_rules(base, rows), base.mark_point())
    return dict((chart if baseline is None else altair.layer(chart, level_line(baseline, "baseline"))).to_dict())


def _curve_in_words(
    evidence: FinishedRun, split: str, encoders: list[Group], shown: list[Group], baseline: float | None
) -> str:
    rows = score_rows(encoders, split, evidence.main)
    points = ", ".join(f"{row['score']:.1f} at {row['epochs']:g}" for row in rows)
    heads = sorted(row["score"] for row in score_rows(shown, split, evidence.main) if row["model"] != ENCODER)
    text = f"Line of {figure_name(evidence.main)} of the encoder itself against epochs: {points}."
    if heads:
        text += f" Heads and control are points from {heads[0]:.1f} to {heads[-1]:.1f}."
    return text if baseline is None else f"{text} The baseline is a line at {baseline:.1f}."
