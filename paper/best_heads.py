"""The best head of every task and snapshot, compared with the encoder alone and the control."""

from typing import Any, NamedTuple

from bertvision.heads import CONTROL
from bertvision.pipeline.folder import ENCODER
from bertvision.report.block import Block
from bertvision.report.drawing import chart_of, import_altair
from bertvision.tables import Cell, Column, Table, counted
from paper.judging import best_place, compare, signed_mean, spans
from paper.kept import Experiment, Experiments, Mean, Place, by_encoder
from paper.names import AUC, FORCED, LABELS, colour_by_place
from paper.sentences import glue_experiments

PLACES = {"encoder": 0, "control": 1}
"""Colours, as in the other pictures."""
TICKS = [sign * size for size in (0, 1, 2, 5, 10, 20, 50) for sign in (-1, 1)]


class Row(NamedTuple):
    """The best head of a snapshot, by one metric of its task."""

    task: str
    metric: str
    head: Place
    over: dict[str, Mean]
    """Points above the encoder and the control, by their names."""

    @property
    def label(self) -> str:
        return LABELS.get(self.metric, self.metric)

    def other(self, model: str) -> Place:
        """Another model of the same run and snapshot."""
        return Place(self.head.experiment, self.head.epochs, model)

    def show_gap(self, model: str) -> str | None:
        return signed_mean(self.over[model]) if model in self.over else None

    @property
    def cells(self) -> list[Cell]:
        head, gaps = self.head, [self.show_gap(model) for model in (ENCODER, CONTROL)]
        shown: list[Cell] = [self.task, head.epochs, head.model, head.seeds(self.metric), self.label]
        return [*shown, head.show(self.metric), *gaps]


def best_rows(experiments: Experiments) -> list[Row]:
    """A row for each task, snapshot and metric."""
    rows = []
    for title, one in spans(experiments):
        rows += _rows(f"spans, {title}", one, experiments.get(f"{one.name}_kernels"), [FORCED, AUC])
    answerable = [(f"answerability, {title}", one, None) for title, one in by_encoder(experiments, "answerable_{}")]
    for title, one, zoo in [*answerable, *glue_experiments(experiments)]:
        rows += _rows(title, one, zoo, one.first["metrics"][:1])
    return rows


def _rows(task: str, one: Experiment, more: Experiment | None, metrics: list[str]) -> list[Row]:
    """Every snapshot except 0 epochs, where the encoder's own output layer is random."""
    found = []
    for epochs in (epochs for epochs in one.head_snapshots if epochs > 0):
        head = best_place(one, more, epochs, metrics[0], theirs=False)
        if head is not None:
            levels = {other: Place(head.experiment, epochs, other) for other in (ENCODER, CONTROL)}
            others = {other: compare("", head, place, metrics) for other, place in levels.items()}
            for metric in metrics:
                gaps = {other: gap.gaps[metric] for other, gap in others.items() if gap and metric in gap.gaps}
                found.append(Row(task, metric, head, gaps))
    return found


def best_heads_block(rows: list[Row]) -> Block:
    columns = [Column("task"), Column("epochs", None, "of fine-tuning before the head"), Column("head")]
    columns += [Column("seeds"), Column("metric"), Column("score"), Column("over the encoder")]
    return Block(
        key="best_heads",
        title="The best head of each snapshot",
        sentences=_describe(rows),
        table=Table([*columns, Column("over the control")], [row.cells for row in rows]),
        picture=draw_gaps(rows),
        alt="Dots with error bars: points of the best head above the encoder alone (left) and above the control "
        "(right), one row per task and snapshot. All values are in the table.",
        note="The best head on held-out data by the task's first metric, among the heads that all seeds have, "
        "including ladders and heads that read means. Heads of a second experiment (its name ends in _zoo or "
        "_kernels) count if it has the same seeds. Points, mean ± standard deviation over seeds. The picture shows "
        "each task's first metric; its axis is logarithmic beyond 1 point.",
    )


def _describe(rows: list[Row]) -> list[str]:
    """How often the head is above, at the first and at the last snapshot of each task."""
    by_metric: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_metric.setdefault((row.task, row.metric), []).append(row)
    lines = []
    for end, words in ((0, "first"), (-1, "last")):
        ends = [found[end] for found in by_metric.values()]
        epochs = sorted({row.head.epochs for row in ends})
        counts = {}
        for other in (ENCODER, CONTROL):
            gaps = [row.over[other] for row in ends if other in row.over]
            always = sum(min(gap.values) > 0 for gap in gaps)
            counts[other] = f"{sum(gap.mean > 0 for gap in gaps)} of {len(ends)} scores ({always} with every seed)"
        lines.append(
            f"At the {words} snapshot of each task ({epochs[0]:g} to {epochs[-1]:g} epochs), the best head is above "
            f"the encoder alone in {counts[ENCODER]}, and above the control in {counts[CONTROL]}."
        )
    return lines


def first_metrics(rows: list[Row]) -> list[Row]:
    """The rows of each task's first metric."""
    firsts = {row.task: row.metric for row in reversed(rows)}
    return [row for row in rows if row.metric == firsts[row.task]]


def draw_gaps(rows: list[Row]) -> dict[str, Any]:
    """Points of the best head above the encoder and above the control, in two panels."""
    altair, shown = import_altair(), first_metrics(rows)
    order = [f"{row.task}, {counted(row.head.epochs, 'epoch')}" for row in shown]
    ends = _ends([gap for row in shown for gap in row.over.values()])
    ticks = sorted({tick for tick in TICKS if ends[0] <= tick <= ends[1]})
    colour, _ = colour_by_place("other", PLACES, list(PLACES))
    panels: list[Any] = []
    for other, name in ((ENCODER, "encoder"), (CONTROL, "control")):
        gaps = [(place, row.over[other]) for place, row in zip(order, shown, strict=True) if other in row.over]
        data = [
            {"place": place, "other": name, "gap": gap.mean, "low": gap.mean - spread, "high": gap.mean + spread}
            for place, gap in gaps
            for spread in [gap.deviation or 0.0]
        ]
        axis = altair.Axis(labelLimit=300) if not panels else None
        title = f"points above the {name}"
        scale = altair.Scale(type="symlog", constant=1, domain=ends, nice=False)
        across = altair.X("gap:Q", title=title, scale=scale, axis=altair.Axis(values=ticks, tickCount=len(ticks)))
        base = chart_of(data, 18 * len(order)).encode(
            x=across, y=altair.Y("place:N", sort=order, title=None, axis=axis), color=colour.legend(None)
        )
        zero = altair.Chart(altair.Data(values=[{"gap": 0}])).mark_rule(strokeDash=[4, 3]).encode(x=across)
        spreads = base.mark_rule().encode(x=altair.X("low:Q", title=title), x2="high:Q")
        panels.append((zero + spreads + base.mark_point(size=45, opacity=1, filled=True)).properties(width=250))
    return dict(altair.hconcat(*panels).to_dict())


def _ends(gaps: list[Mean]) -> list[float]:
    """The ends of the axis, with room beyond the outermost error bars."""
    spreads = [(gap.mean, gap.deviation or 0.0) for gap in gaps]
    lowest, highest = min(mean - spread for mean, spread in spreads), max(mean + spread for mean, spread in spreads)
    return [1.2 * min(-1.0, lowest), 1.2 * max(1.0, highest)]
