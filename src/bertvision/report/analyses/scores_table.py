"""The scores of a run with all that says how sure they are: the first tables of a report."""

from typing import Any

from bertvision.evaluation.statistics import spread
from bertvision.kinds import Figure
from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.pipeline.scoreboard import begun_note, score_figures
from bertvision.report.block import Block, Cell, Column, Frame
from bertvision.report.certainty import DRAWS, Certainty
from bertvision.report.drawing import chart_of, colour_by, import_altair
from bertvision.report.ranking import baseline_figure
from bertvision.report.wording import figure_name, in_text, joined, seeds_note
from bertvision.words import counted


def figure_columns(evidence: FinishedRun) -> list[Figure]:
    """The figures of a run, the main one first."""
    known = [evidence.encoder(evidence.last).models[0].scores(evidence.splits[0])]
    return sorted(score_figures(evidence.kind, evidence.task.metrics, known), key=lambda one: one.key != evidence.main)


def heading_of(evidence: FinishedRun, key: str) -> str:
    return next((one.heading for one in figure_columns(evidence) if one.key == key), key)


def scores_table(certainty: Certainty) -> Block:
    """Every model with its figures; the mean and spread over seeds, and an interval for the main figures."""
    evidence, split, epochs = certainty.evidence, certainty.split, certainty.epochs
    columns = figure_columns(evidence)
    sure = [one.key for one in columns if one.has_interval]
    certainty.prepare(sure)
    several = any(len(group.models) > 1 for group in certainty.groups)
    rows = [_baseline_row(evidence, split, columns, several)]
    for group in certainty.groups:
        rows.append([group.title, group.first.parameters, _share(group)])
        for one in columns:
            rows[-1] += _cells(certainty, group, one.key, one.has_interval, several)
    frame = Frame(_headings(columns, several), rows)
    return Block(
        f"scores_{split}_{epochs:g}".replace(".", "_"),
        f"Scores on {split}, encoder fine-tuned for {counted(epochs, 'epoch')}",
        _score_sentences(certainty),
        frame,
        _intervals_picture(certainty),
        _intervals_alt(certainty),
        _score_note(certainty),
    )


def _headings(columns: list[Figure], several: bool) -> list[Column]:
    found = [Column("model"), Column("parameters"), Column("% of encoder", 3)]
    for one in columns:
        found.append(Column(one.heading, 2, one.meaning))
        if several:
            found.append(Column(f"± {one.heading}", 2, "standard deviation over the seeds"))
        if one.has_interval:
            found += [Column(f"{one.heading} from", 2), Column(f"{one.heading} to", 2)]
    return found


def _cells(certainty: Certainty, group: Group, key: str, sure: bool, several: bool) -> list[Cell]:
    found = group.figures(certainty.split, key)
    if not found:
        return [None] * (1 + several + 2 * sure)
    over = spread(found)
    return [over.mean, *([over.deviation] if several else []), *(certainty.interval(group, key) if sure else ())]


def _baseline_row(evidence: FinishedRun, split: str, columns: list[Figure], several: bool) -> list[Cell]:
    row: list[Cell] = ["baseline", 0, None]
    for one in columns:
        row += [baseline_figure(evidence, split, one.key), *([None] * (several + 2 * one.has_interval))]
    return row


def _share(group: Group) -> float | None:
    return None if group.first.share is None else 100 * group.first.share


def _score_sentences(certainty: Certainty) -> list[str]:
    evidence, split, key = certainty.evidence, certainty.split, certainty.evidence.main
    ranked = sorted(certainty.groups, key=lambda group: group.mean(split, key) or 0.0, reverse=True)
    first, name = ranked[0], figure_name(evidence.main)
    low, high = certainty.interval(first, key)
    sentences = [
        f"Seen on {split} itself, the highest {name} is that of {in_text(first)}: {first.mean(split, key):.2f} "
        f"(95 % interval {low:.2f} to {high:.2f})."
    ]
    if len(ranked) > 1:
        last = ranked[-1]
        sentences.append(f"The lowest of the trained models is that of {in_text(last)}: {last.mean(split, key):.2f}.")
    return sentences


def _score_note(certainty: Certainty) -> str:
    seeds = seeds_note(certainty.groups)
    return joined(
        certainty.evidence.kind.baseline_note,
        f"From … to: the 95 % interval, by {DRAWS['other']:,} draws of the examples with replacement "
        f"({heading_of(certainty.evidence, certainty.evidence.main)}: {DRAWS['main']:,}); it says what other examples "
        "could have given, not other seeds.",
        seeds,
        "A seed changes a head's start and dropout." if seeds else "",
        begun_note([group.title for group in certainty.groups if group.first.begun]),
    )


def _intervals_picture(certainty: Certainty) -> dict[str, Any]:
    altair, key = import_altair(), certainty.evidence.main
    name = heading_of(certainty.evidence, key)
    rows = []
    for group in certainty.groups:
        low, high = certainty.interval(group, key)
        mean = group.mean(certainty.split, key)
        rows.append({"model": group.title, "role": group.role, "low": low, "score": mean, "high": high})
    base = chart_of(rows, 26 * len(rows) + 20).encode(y=altair.Y("model:N", sort=None, title=None))
    tips = [altair.Tooltip("model:N")]
    tips += [altair.Tooltip(f"{field}:Q", format=".2f") for field in ("score", "low", "high")]
    colour = colour_by("role", ("encoder", "control", "head", "ensemble"), "")
    bars = base.mark_rule(strokeWidth=3, opacity=0.45).encode(
        x=altair.X("low:Q", title=name, scale=altair.Scale(zero=False)), x2="high:Q", color=colour, tooltip=tips
    )
    points = base.mark_point(filled=True, size=90, opacity=1).encode(x="score:Q", color=colour, tooltip=tips)
    return dict((bars + points).to_dict())


def _intervals_alt(certainty: Certainty) -> str:
    key, split = certainty.evidence.main, certainty.split
    told = [f"{group.title} {group.mean(split, key):.1f}" for group in certainty.groups]
    return f"{figure_name(certainty.evidence.main)} of each model with its 95 % interval: {', '.join(told)}."
