"""The page's beginning: how far the best head is above encoder and control, task by task."""

from typing import Any, NamedTuple

from bertvision.heads import CONTROL
from bertvision.pipeline.folder import ENCODER
from bertvision.report.block import Block
from bertvision.report.drawing import chart_of, import_altair
from bertvision.report.wording import listed, signed
from bertvision.tables import Cell, Column, Table, counted
from paper.claims import best_place, compare, signed_mean, spans
from paper.kept import Experiment, Experiments, Mean, Place, by_encoder, compared_seconds
from paper.names import AUC, ENCODERS, FORCED, LABELS, colour_by_place
from paper.rates import settings_of
from paper.sentences import glue_experiments
from paper.untouched import above, share_of

PLACES = {"encoder": 0, "control": 1}
"""Colours, as in the other pictures."""
TICKS = [sign * size for size in (0, 1, 2, 5, 10, 20, 50) for sign in (-1, 1)]
"""Of the axis of points."""


class Row(NamedTuple):
    """The best head of a snapshot, by one figure of its task."""

    task: str
    figure: str
    head: Place
    over: dict[str, Mean]
    """Points above encoder and control, by their names."""

    @property
    def cells(self) -> list[Cell]:
        head = self.head
        figure = LABELS.get(self.figure, self.figure)
        shown: list[Cell] = [self.task, head.epochs, head.model, head.seeds(self.figure), figure]
        gaps = [signed_mean(self.over[other]) if other in self.over else None for other in (ENCODER, CONTROL)]
        return [*shown, head.show(self.figure), *gaps]


def summary_block(experiments: Experiments, lower: Experiments) -> Block | None:
    rows = []
    for title, one in spans(experiments):
        rows += _rows(f"spans, {title}", one, experiments.get(f"{one.name}_kernels"), [FORCED, AUC])
    answerable = [(f"answerability, {title}", one, None) for title, one in by_encoder(experiments, "answerable_{}")]
    for title, one, zoo in [*answerable, *glue_experiments(experiments)]:
        rows += _rows(title, one, zoo, one.first["metrics"][:1])
    if not rows:
        return None
    columns = [
        Column("task"),
        Column("epochs", None, "of fine-tuning before the head"),
        Column("head"),
        Column("seeds"),
    ]
    columns += [Column("figure"), Column("its score"), Column("over the encoder"), Column("over the control")]
    return Block(
        key="short",
        title="The best head of each snapshot",
        sentences=[_compared(rows), *_rates(experiments, lower), *_untouched(experiments)],
        table=Table(columns, [row.cells for row in rows]),
        picture=_draw(rows),
        alt="Points above encoder and control: " + "; ".join(map(_in_words, _first_figures(rows))),
        note="Best on held-out training data, by the first of a task's figures here, of the heads that all seeds have; "
        "the ladder and heads that read means are among them. Heads of further runs (zoos, kernels) count where these "
        "have the seeds of the main run. Points, mean over seeds ± standard deviation; drawn for the first figure of "
        "each task, on an axis that is logarithmic beyond a point. Baselines are in the tables.",
    )


def _rows(task: str, one: Experiment, more: Experiment | None, figures: list[str]) -> list[Row]:
    """Of every snapshot but that of 0 epochs, where the encoder's own output layer is random."""
    found = []
    for epochs in (epochs for epochs in one.head_snapshots if epochs > 0):
        head = best_place(one, more, epochs, figures[0], theirs=False)
        if head is not None:
            levels = {other: Place(head.experiment, epochs, other) for other in (ENCODER, CONTROL)}
            others = {other: compare("", head, place, figures) for other, place in levels.items()}
            for figure in figures:
                gaps = {other: gap.gaps[figure] for other, gap in others.items() if gap and figure in gap.gaps}
                found.append(Row(task, figure, head, gaps))
    return found


def _compared(rows: list[Row]) -> str:
    """In how many figures the head is above, at either end of each task's snapshots."""
    by_figure: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_figure.setdefault((row.task, row.figure), []).append(row)
    parts = []
    for end, words in ((0, "least"), (-1, "most")):
        ends = [found[end] for found in by_figure.values()]
        epochs = sorted({row.head.epochs for row in ends})
        gaps = {other: [row.over[other] for row in ends if other in row.over] for other in (ENCODER, CONTROL)}
        means = {other: sum(gap.mean > 0 for gap in own) for other, own in gaps.items()}
        always = {other: sum(min(gap.values) > 0 for gap in own) for other, own in gaps.items()}
        parts.append(
            f"in {means[ENCODER]} of {counted(len(ends), 'figure')} ({always[ENCODER]} with every seed), and above the "
            f"control in {means[CONTROL]} ({always[CONTROL]}), where each task's encoder was fine-tuned {words} "
            f"({epochs[0]:g} to {epochs[-1]:g} epochs)"
        )
    return f"In the mean over seeds the best head is above the encoder alone {'; '.join(parts)}."


def _first_figures(rows: list[Row]) -> list[Row]:
    firsts = {row.task: row.figure for row in reversed(rows)}
    return [row for row in rows if row.figure == firsts[row.task]]


def _in_words(row: Row) -> str:
    gaps = [signed(row.over[other].mean) for other in (ENCODER, CONTROL) if other in row.over]
    return f"{row.task} at {counted(row.head.epochs, 'epoch')} {' and '.join(gaps)}"


def _draw(rows: list[Row]) -> dict[str, Any]:
    """How far the best head of each snapshot is above encoder and control, side by side."""
    altair, shown = import_altair(), _first_figures(rows)
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
    """Of the axis of points, with room beyond the outermost spreads."""
    spreads = [(gap.mean, gap.deviation or 0.0) for gap in gaps]
    lowest, highest = min(mean - spread for mean, spread in spreads), max(mean + spread for mean, spread in spreads)
    return [1.2 * min(-1.0, lowest), 1.2 * max(1.0, highest)]


def _rates(experiments: Experiments, lower: Experiments) -> list[str]:
    """What heads add after 1 epoch, the worse and the better the encoder was fine-tuned."""
    parts = []
    for short, title in ENCODERS.items():
        settings = [one for one in settings_of(experiments, lower, short) if one.head.epochs == 1]
        told = [
            f"{signed(one.gaps(ENCODER)[FORCED].mean)} to {one.other(ENCODER).show(FORCED)} ({one.words}, {one.rate})"
            for one in settings
        ]
        parts += [f"with {title} {listed(told)}"] if len(told) > 1 else []
    words = "To the answerable-only F1 of its own run's encoder, fine-tuned for 1 epoch worse or better, the best head adds "
    return [f"{words}{'; '.join(parts)}."] if parts else []


def _untouched(experiments: Experiments) -> list[str]:
    """What the ladder reaches on encoders as they came."""
    parts = []
    for short, title in ENCODERS.items():
        own, curve, ended = (
            experiments.get(name) for name in (f"untouched_{short}", f"squad2_{short}", f"squad2_{short}_full1")
        )
        best = own.best_head(0.0, FORCED) if own is not None else None
        if own is not None and curve is not None and best is not None:
            head, tuned = Place(own, 0.0, best), Place(curve, 1.0, ENCODER)
            forced, auc = share_of(head, tuned), above(head, tuned)
            if forced is not None and auc is not None:
                times = compared_seconds(head, tuned)
                spent = f"; {times[0]:.0f} s against {times[1]:.0f} s" if times else ""
                decayed = share_of(head, Place(ended, 1.0, ENCODER)) if ended is not None else None
                spent += "" if decayed is None else f"; {decayed:.0f} % where the rate had decayed to 0 by then"
                parts.append(f"{forced:.0f} % with {title} (AUC {signed(auc)}{spent})")
    words = (
        "On an encoder as it came the ladder's answerable-only F1 is, of that encoder's own when stopped at 1 epoch: "
    )
    return [f"{words}{', '.join(parts)}."] if parts else []
