"""Heads on untouched encoders, compared with the fine-tuned encoder alone."""

from typing import Any, NamedTuple

from bertvision.heads import CONTROL
from bertvision.pipeline.folder import BASELINE, ENCODER
from bertvision.report.block import Block
from bertvision.report.drawing import chart_of, import_altair
from bertvision.report.wording import listed, signed
from bertvision.tables import Cell, Column, Table, counted
from paper.judging import best_of_the_papers, best_place
from paper.kept import LOWER, Experiment, Experiments, Place, compared_seconds, show_rate
from paper.names import AUC, FORCED, LABELS, SPAN_NOTES, colour_by_place, in_passes, title_of
from paper.sentences import glue_experiments
from paper.spans import head_names

FIGURES = {
    "F1": "f1",
    "F1*": "at_threshold.f1",
    "answerable-only EM": "forced_exact",
    "answerable-only F1": FORCED,
    "AUC": AUC,
}
TUNED, LINEAR, THEIRS, OURS = "encoder", "control", "the papers' best", "ladder"
AXES = {FORCED: "answerable-only F1", AUC: "AUC (50: chance)"}
ENDS = {FORCED: [0, 100], AUC: [50, 100]}
PLACES = {TUNED: 0, LINEAR: 1, THEIRS: 4, OURS: 5}
"""The same colours as in the fine-tuning curves."""


class Row(NamedTuple):
    kind: str | None
    """Its colour; None: in the table only."""
    title: str
    place: Place


class Tuned(NamedTuple):
    """The encoder alone after 1 epoch, for comparison."""

    name: str
    words: str
    place: Place


def untouched_blocks(experiments: Experiments, lower: Experiments, encoders: dict[str, str]) -> list[Block]:
    found = [untouched_block(experiments, lower, short, encoder) for short, encoder in encoders.items()]
    return [block for block in [*found, glue_untouched(experiments)] if block is not None]


# ---------------------------------------------------------------------- spans


def untouched_block(experiments: Experiments, lower: Experiments, short: str, encoder: str) -> Block | None:
    own, curve = experiments.get(f"untouched_{short}"), experiments.get(f"squad2_{short}")
    best = own.best_head(0.0, FORCED) if own is not None else None
    if own is None or curve is None or best is None:
        return None
    tuned = _tuned(curve, experiments.get(f"squad2_{short}_full1"), lower.get(f"squad2_{short}"))
    rows = _rows(own, curve, experiments.get(f"untouched_{short}_kernels"), tuned) + _low_rank(
        experiments.get(f"squad2_{short}_lora")
    )
    one_epoch = curve.tokens(1.0, ENCODER)
    return Block(
        key=f"untouched_{short}",
        title=f"{encoder}: spans without fine-tuning",
        sentences=[_score(Place(own, 0.0, best), tuned), _costs(Place(own, 0.0, best), curve, rows)],
        table=Table(_columns(tuned), [_cells(row, tuned, one_epoch) for row in rows]),
        picture=_draw([(None, key, [row for row in rows if row.kind is not None]) for key in AXES]),
        alt=f"Bars of answerable-only F1 and AUC for heads on the untouched {encoder} and for the fine-tuned encoder. "
        "All values are in the table.",
        note="The best head is chosen by answerable-only F1 on held-out questions. Percentages and differences are of "
        "the means. Only the control and the ladders were trained for more than one pass.",
    )


def _tuned(curve: Experiment, decayed: Experiment | None, lower: Experiment | None) -> list[Tuned]:
    found = [Tuned("decayed", "learning rate decayed to 0", Place(decayed, 1.0, ENCODER))] if decayed else []
    words = f"stopped at 1 of {counted(curve.snapshots[-1], 'epoch')}"
    found.append(Tuned("stopped", words, Place(curve, 1.0, ENCODER)))
    rate = show_rate(LOWER)
    return [*found, *([Tuned(rate, f"{words}, at {rate}", Place(lower, 1.0, ENCODER))] if lower else [])]


def _rows(own: Experiment, curve: Experiment, kernels: Experiment | None, tuned: list[Tuned]) -> list[Row]:
    passes = own.tokens(0.0, CONTROL) / curve.tokens(1.0, ENCODER)
    longer = in_passes(passes)
    found = [Row(None, title_of(BASELINE), Place(own, 0.0, BASELINE))]
    found.append(Row(None, "encoder alone, untouched (random output layer)", Place(own, 0.0, ENCODER)))
    found.append(Row(LINEAR, f"{title_of(CONTROL)}, {longer}", Place(own, 0.0, CONTROL)))
    once = [(THEIRS, curve, best_of_the_papers(curve, 0.0, FORCED))]
    once += [(THEIRS, kernels, head) for head in head_names(kernels, 0.0) if head != CONTROL] if kernels else []
    for kind, where, head in [*once, (OURS, curve, _ladder(curve))]:
        if head is not None:
            found.append(Row(kind, f"{head}, 1 pass", Place(where, 0.0, head)))
    heads = [name for name in own.models(0.0) if name.startswith("ladder")]
    found += [Row(OURS, f"{name}, {longer}", Place(own, 0.0, name)) for name in heads]
    found += [Row(TUNED, f"encoder alone, 1 epoch, {one.words}", one.place) for one in tuned]
    last = curve.snapshots[-1]
    return [*found, Row(TUNED, f"encoder alone, {counted(last, 'epoch')}", Place(curve, last, ENCODER))]


def _low_rank(lora: Experiment | None) -> list[Row]:
    """LoRA, in the table only."""
    if lora is None:
        return []
    last = lora.snapshots[-1]
    return [Row(None, f"LoRA, {counted(last, 'epoch')}", Place(lora, last, ENCODER))]


def _ladder(curve: Experiment) -> str | None:
    """The best ladder of the run whose heads took one pass."""
    names = [name for name in curve.models(0.0) if name.startswith("ladder")]
    return curve.best_head(0.0, FORCED, names)


def share_of(place: Place, other: Place, key: str = FORCED) -> float | None:
    """The score in % of another model's."""
    own, whole = place.mean(key), other.mean(key)
    return None if own is None or whole is None else 100 * own.mean / whole.mean


def above(place: Place, other: Place, key: str = AUC) -> float | None:
    own, theirs = place.mean(key), other.mean(key)
    return None if own is None or theirs is None else own.mean - theirs.mean


def show_gap(gap: float | None) -> str | None:
    return None if gap is None else signed(gap)


def _columns(tuned: list[Tuned]) -> list[Column]:
    passes = "of the training set through the encoder: forward counts 1, backward 2"
    columns = [Column("model"), Column("seeds"), Column("parameters"), Column("% of encoder", 3)]
    columns += [Column("passes", 1, passes), *[Column(name, None, SPAN_NOTES[name]) for name in FIGURES]]
    for one in tuned:
        note = f"compared with the encoder alone after 1 epoch, {one.words}"
        columns.append(Column(f"answerable-only F1, % of 1 epoch ({one.name})", 1, note))
        columns.append(Column(f"AUC over 1 epoch ({one.name})", None, note))
    return columns


def _cells(row: Row, tuned: list[Tuned], one_epoch: int) -> list[Cell]:
    place = row.place
    whole = place.experiment.entry(place.epochs, ENCODER).parameters
    own = place.trained_parameters
    cells: list[Cell] = [row.title, place.seeds("f1"), own, 100 * own / whole, place.passes(one_epoch)]
    cells += [place.show(key) for key in FIGURES.values()]
    for one in tuned:
        cells += [share_of(place, one.place), show_gap(above(place, one.place))]
    return cells


def _score(head: Place, tuned: list[Tuned]) -> str:
    share = 100 * head.parameters / head.experiment.entry(0.0, ENCODER).parameters
    parts = []
    for one in tuned:
        forced, auc = share_of(head, one.place), above(head, one.place)
        if forced is not None and auc is not None:
            parts.append(f"{forced:.1f} % and {signed(auc)} points ({one.words})")
    text = f"{head.model}, with {share:.1f} % of the encoder's parameters, has answerable-only F1 {head.mean(FORCED)} "
    text += f"and AUC {head.mean(AUC)}. Compared with the encoder alone after 1 epoch, its answerable-only F1 and AUC "
    return f"{text}are at {listed(parts)}."


def _costs(head: Place, curve: Experiment, rows: list[Row]) -> str:
    """What fine-tuning reaches at the same cost, at a higher cost, and with LoRA."""
    text, work = "", head.experiment.compute(0.0, head.model) or 0
    within = [epochs for epochs in curve.snapshots if epochs and (curve.compute(epochs, ENCODER) or 0) <= work]
    if within:
        text += "It is not cheaper to train: with no more passes through the encoder, fine-tuning reaches "
        text += f"{counted(within[-1], 'epoch')} and answerable-only F1 {curve.mean(within[-1], ENCODER, FORCED)}. It "
        text += "saves a copy of the encoder, or a pass through it, for each additional task. "
    last = Place(curve, curve.snapshots[-1], ENCODER)
    times = compared_seconds(head, last)
    if times:
        text += f"It took {times[0]:.0f} s on the GPU; {last.epochs:g} epochs of fine-tuning took {times[1]:.0f} s. "
    text += (
        f"It reaches {share_of(head, last):.1f} % of the answerable-only F1 of fine-tuning for {last.epochs:g} epochs"
    )
    for row in (row for row in rows if row.title.startswith("LoRA")):
        text += f"; {row.title} ({row.place.trained_parameters:,} parameters), has answerable-only F1 "
        text += f"{row.place.show(FORCED)} and AUC {row.place.show(AUC)}"
    return text + "."


def _draw(panels_of: list[tuple[str | None, str, list[Row]]]) -> dict[str, Any]:
    """Bars in panels, given as (title, metric, rows); all panels have the same rows."""
    altair, panels = import_altair(), list[Any]()
    colour, _ = colour_by_place("kind", PLACES, list(PLACES))
    for heading, key, rows in panels_of:
        order, ends = [row.title for row in rows], ENDS[key]
        means = [(row, row.place.mean(key)) for row in rows]
        data = [
            {"model": row.title, "kind": row.kind, "score": mean.mean, "low": ends[0], "shown": f"{mean.mean:.1f}"}
            for row, mean in means
            if mean is not None
        ]
        axis = altair.Axis(labelLimit=300) if not panels else None
        base = chart_of(data, 24 * len(order)).encode(
            x=altair.X("score:Q", title=AXES[key], scale=altair.Scale(domain=ends), axis=altair.Axis(tickCount=5)),
            y=altair.Y("model:N", sort=order, title=None, axis=axis),
        )
        bars = base.mark_bar().encode(x2="low:Q", color=colour.legend(None))
        chart = bars + base.mark_text(align="left", dx=4).encode(text="shown:N")
        panels.append(chart.properties(width=220, **({"title": heading} if heading else {})))
    return dict(altair.hconcat(*panels).to_dict())


# ---------------------------------------------------------------------- the main page


def bars_of(experiments: Experiments, short: str) -> list[Row]:
    """The best head of each kind on the untouched encoder, and the fine-tuned encoder."""
    own, curve = experiments.get(f"untouched_{short}"), experiments.get(f"squad2_{short}")
    if own is None or curve is None:
        return []
    kernels, decayed = (experiments.get(name) for name in (f"untouched_{short}_kernels", f"squad2_{short}_full1"))
    longer = in_passes(own.tokens(0.0, CONTROL) / curve.tokens(1.0, ENCODER))
    heads = [
        (LINEAR, f"control, {longer}", own, CONTROL),
        (THEIRS, "papers' best, one token, 1 pass", curve, best_of_the_papers(curve, 0.0, FORCED)),
        (THEIRS, "papers' best, kernels, 1 pass", kernels, kernels.best_head(0.0, FORCED) if kernels else None),
        (OURS, "ladder, 1 pass", curve, _ladder(curve)),
        (OURS, f"ladder, {longer}", own, own.best_head(0.0, FORCED)),
    ]
    rows = [Row(kind, title, Place(where, 0.0, head)) for kind, title, where, head in heads if where and head]
    rows += [Row(TUNED, "fine-tuned, 1 epoch", Place(decayed, 1.0, ENCODER))] if decayed else []
    last = curve.snapshots[-1]
    return [*rows, Row(TUNED, f"fine-tuned, {counted(last, 'epoch')}", Place(curve, last, ENCODER))]


def draw_bars(encoders: dict[str, list[Row]]) -> dict[str, Any]:
    """Answerable-only F1, one panel per encoder."""
    return _draw([(title, FORCED, rows) for title, rows in encoders.items()])


# ---------------------------------------------------------------------- sentences


def glue_untouched(experiments: Experiments) -> Block | None:
    """One row per task: the best head on the untouched encoder, and the fine-tuned encoder alone."""
    found = glue_experiments(experiments)
    rows = [_glue_row(title, one, more) for title, one, more in found if 0.0 in one.head_snapshots]
    if not rows:
        return None
    note = "by the task's first metric on held-out data, ladders included"
    columns = [Column("task"), Column("seeds"), Column("metric"), Column("baseline"), Column("control, untouched")]
    columns += [Column("best head, untouched", None, note), Column("its parameters"), Column("its score")]
    passes = "of the training set through the encoder (1: its states were held in memory for all epochs); 3 epochs of "
    columns.append(Column("its passes", 1, f"{passes}fine-tuning count as 9"))
    columns += [Column("encoder, 1 epoch"), Column("encoder, 3 epochs")]
    columns += [Column("head over 1 epoch", None, "points"), Column("head over 3 epochs", None, "points")]
    return Block(
        key="untouched_glue",
        title="Sentence tasks without fine-tuning, all-MiniLM-L6-v2",
        table=Table(columns, rows),
        note="Official dev sets. The learning rate decays to 3 epochs, so encoders at 1 epoch were stopped early; on "
        "CoLA some had learned nothing by then. This encoder was trained to compare sentences that it reads "
        "separately: on STS-B, the cosine of their mean states, without a head, beats these heads (kits.md).",
    )


def _glue_row(title: str, one: Experiment, more: Experiment | None) -> list[Cell]:
    metric = one.first["metrics"][0]
    head = best_place(one, more, 0.0, metric, theirs=False) or Place(one, 0.0, CONTROL)
    tuned = [Place(one, epochs, ENCODER) for epochs in (1.0, 3.0)]
    levels = [Place(one, 0.0, name).show(metric) for name in (BASELINE, CONTROL)]
    ends = [place.show(metric) for place in tuned]
    gaps = [show_gap(above(head, place, metric)) for place in tuned]
    shown = [title, len(one.seeds), LABELS.get(metric, metric), *levels]
    passes = head.passes(one.entry(1.0, ENCODER).tokens)
    return [*shown, head.model, head.parameters, head.show(metric), passes, *ends, *gaps]
