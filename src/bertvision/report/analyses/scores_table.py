"""The scores of a run with their intervals and spreads: the first tables of a report."""

from typing import Any

from bertvision.evaluation.statistics import spread
from bertvision.kinds import Figure
from bertvision.pipeline.finished import Group
from bertvision.pipeline.score import begun_note
from bertvision.report.analysis import analysis
from bertvision.report.block import Block, block_key
from bertvision.report.certainty import DRAWS, Certainty
from bertvision.report.drawing import chart_of, colour_by, import_altair, off_zero, tips
from bertvision.report.ranking import baseline_figure, figure_columns, heading_of
from bertvision.report.wording import figure_name, in_text, joined, listed, opening, seeds_note, tuned
from bertvision.tables import Cell, Column, Table


@analysis("Scores", 10, subject="snapshots")
def scores_table(certainty: Certainty) -> Block:
    """Every model with its metrics: the mean and spread over seeds, and an interval for the main metrics."""
    run, split, epochs = certainty.run, certainty.split, certainty.epochs
    columns = figure_columns(run)
    certainty.prepare([one.key for one in columns if one.has_interval])
    several = any(len(group.models) > 1 for group in certainty.groups)
    baseline: list[Cell] = ["baseline", 0, None]
    for one in columns:
        baseline += [baseline_figure(run, split, one.key), *[None] * (several + 2 * one.has_interval)]
    rows = [baseline]
    for group in certainty.groups:
        share = None if group.first.share is None else 100 * group.first.share
        cells = [cell for one in columns for cell in _cells(certainty, group, one, several)]
        rows.append([group.title, group.first.parameters, share, *cells])
    return Block(
        block_key("scores", split, f"{epochs:g}"),
        f"Scores on {split}, encoder {tuned(epochs)}",
        _describe_scores(certainty),
        Table(_columns(columns, several), rows),
        _draw_intervals(certainty),
        note=_note(certainty),
        drawn=[f"{heading_of(run, run.main)}{end}" for end in ("", " from", " to")],
        only_in_files=["% of encoder", *_further_ends(columns, run.main)],
    )


def _further_ends(columns: list[Figure], main: str) -> list[str]:
    """The headings of all intervals but the main metric's."""
    return [f"{one.heading} {end}" for one in columns if one.has_interval and one.key != main for end in ("from", "to")]


def _columns(columns: list[Figure], several: bool) -> list[Column]:
    found = [Column("model"), Column("parameters"), Column("% of encoder", 3)]
    for one in columns:
        found.append(Column(one.heading, 2, one.meaning))
        if several:
            found.append(Column(f"± {one.heading}", 2, "standard deviation over the seeds"))
        if one.has_interval:
            found += [Column(f"{one.heading} from", 2), Column(f"{one.heading} to", 2)]
    return found


def _cells(certainty: Certainty, group: Group, one: Figure, several: bool) -> list[Cell]:
    found = group.figures(certainty.split, one.key)
    if not found:
        return [None] * (1 + several + 2 * one.has_interval)
    over = spread(found)
    ends = certainty.interval(group, one.key) if one.has_interval else ()
    return [over.mean, *([over.deviation] if several else []), *ends]


def _describe_scores(certainty: Certainty) -> list[str]:
    split, key = certainty.split, certainty.run.main
    scores = {in_text(group): round(group.mean(split, key) or 0.0, 2) for group in certainty.groups}
    high, low = max(scores.values()), min(scores.values())
    first, last = ([name for name, score in scores.items() if score == end] for end in (high, low))
    if high == low and len(scores) > 1:
        return [f"On {split}, all {len(scores)} models have the same {figure_name(key)}: {high:.2f}."]
    highest = f"On {split}, {_few(first)} share the highest {figure_name(key)}: {high:.2f}."
    if len(first) == 1:
        ends = certainty.interval(next(group for group in certainty.groups if in_text(group) == first[0]), key)
        around = "95 % interval {:.2f} to {:.2f}".format(*ends)
        highest = f"On {split}, {first[0]} has the highest {figure_name(key)}: {high:.2f} ({around})."
    verb = "has" if len(last) == 1 else "share"
    lowest = f"{opening(_few(last))} {verb} the lowest of the trained models: {low:.2f}."
    return [joined(highest, lowest if len(scores) > 1 else "")]


def _few(names: list[str]) -> str:
    return listed(names) if len(names) <= 3 else f"{len(names)} models"


def _note(certainty: Certainty) -> str:
    run, seeds = certainty.run, seeds_note(certainty.groups)
    return joined(
        run.kind.baseline_note,
        f"From … to: the 95 % interval of {heading_of(run, run.main)}, from {DRAWS['main']:,} bootstrap samples of the "
        "examples. It reflects the choice of examples, not of seeds. The files also have the intervals of the other "
        f"metrics ({DRAWS['other']:,} samples).",
        seeds,
        "A seed changes the initial weights and the dropout of a head." if seeds else "",
        begun_note([group.title for group in certainty.groups if group.first.begun]),
    )


def _draw_intervals(certainty: Certainty) -> dict[str, Any]:
    altair, key = import_altair(), certainty.run.main
    rows = []
    for group in certainty.groups:
        low, high = certainty.interval(group, key)
        mean = group.mean(certainty.split, key)
        rows.append({"model": group.title, "role": group.role, "low": low, "score": mean, "high": high})
    base = chart_of(rows, 26 * len(rows) + 20).encode(y=altair.Y("model:N", sort=None, title=None))
    hover = {
        "color": colour_by("role", ("encoder", "control", "head", "ensemble", "peer"), "", rows),
        "tooltip": tips("model:N", *((f"{field}:Q", None, ".2f") for field in ("score", "low", "high"))),
    }
    x = off_zero("X", "low:Q", heading_of(certainty.run, key))
    bars = base.mark_rule(strokeWidth=3, opacity=0.45).encode(x=x, x2="high:Q", **hover)
    points = base.mark_point(filled=True, size=90, opacity=1).encode(x="score:Q", **hover)
    return dict((bars + points).to_dict())
