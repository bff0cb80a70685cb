"""Alternatives to heads (full fine-tuning, LoRA, BitFit), by passes through the encoder, seconds and trained
parameters."""

import math
from typing import NamedTuple

from bertvision.heads import CONTROL
from bertvision.pipeline.folder import BASELINE, ENCODER
from bertvision.report.block import Block
from bertvision.report.drawing import chart_of, import_altair
from bertvision.report.wording import listed
from bertvision.tables import Cell, Column, Table, counted
from paper.kept import LOWER, Experiment, Experiments, Place, compared_seconds, show_rate, show_seconds
from paper.labels import HEIGHT, Row, place_labels
from paper.names import SECONDS, SPAN_NOTES, colour_by_place, in_passes, title_of

KEY, HEADING, HEADING_FIRST = "forced_f1", "answerable-only F1", "Answerable-only F1"
FIGURES = {"F1": "f1", "F1*": "at_threshold.f1", HEADING: KEY, "AUC": "no_answer_auc"}
FULL, DECAYED = "full, stopped early", "full, fully decayed"
AT_LOWER = f"full at {show_rate(LOWER)}, fully decayed"
HEADS, UNTOUCHED = "a head on fine-tuned states", "a head on the untouched encoder"
PEERS = {"lora": "LoRA", "bitfit": "BitFit"}
PLACES = {FULL: 0, DECAYED: 2, AT_LOWER: 3, HEADS: 4, UNTOUCHED: 5, "LoRA": 6, "BitFit": 7}
"""Colours: in every picture the encoder alone has the first, the control the second, the ladder the sixth."""
LEAST = 40.0
"""Scores below this are left out of the pictures."""
JOINED = (FULL, HEADS, "LoRA", "BitFit")
"""The families whose points are joined by a line."""
TICKS = [base * 10.0**power for power in range(-1, 9) for base in (1, 2, 5)]
AXES = {
    "work": "passes of the training set through the encoder (forward 1, backward 2)",
    "seconds": "seconds",
    "learned": "trained parameters",
}
WORK_NOTE = (
    "The heads' own computation is not counted (for the ladders on the untouched encoder, about a fifth of a forward "
    "pass of gte-small or a third of one of all-MiniLM-L6-v2 in arithmetic, far more in seconds), nor is the "
    "computation that LoRA and BitFit save in a backward pass."
)


class Way(NamedTuple):
    family: str | None
    """Its colour; None: in the table only."""
    title: str
    place: Place
    learned: int
    """Trained parameters in total."""

    def label(self, one_epoch: int) -> str:
        """The label of its point: epochs of fine-tuning, or passes of the head."""
        return f"{self.place.epochs:g}" if self.place.epochs else in_passes(self.place.passes(one_epoch) or 0.0)

    @property
    def spent(self) -> float:
        """Comparable seconds; infinite if there are none."""
        return next(iter(compared_seconds(self.place)), math.inf)


def peer_blocks(experiments: Experiments, lower: Experiments, name: str, encoder: str) -> list[Block]:
    if name not in experiments or not any(f"{name}_{end}" in experiments for end in ("full1", *PEERS)):
        return []
    own = experiments[name]
    one_epoch = own.tokens(1.0, ENCODER)
    ways = [*_levels(own), *_full(own), *_decayed(experiments, lower, name), *_peers(experiments, name), *_heads(own)]
    untouched = experiments.get(name.replace("squad2", "untouched"))
    ways += _heads(untouched) if untouched is not None else []
    rows = [_row(way, one_epoch) for way in ways]
    return [
        Block(
            f"{name}_peers", f"{encoder}: all alternatives", table=Table(_columns(), rows),
            note="Heads: those of the main and the untouched runs with the best answerable-only F1 on held-out "
            "questions at each snapshot, among the heads that all seeds have. Heads with kernels along tokens "
            "(best_heads.md) are left out, since only upper bounds of their seconds are known, and so are heads on "
            "fully decayed encoders (learning_rates.md). Runs stopped early were scheduled for 3 epochs: their "
            "learning rate had not decayed to 0. Learning rates were chosen on held-out questions for decay to 1 "
            f"epoch, LoRA and BitFit; decay to 2 epochs was run at {show_rate(LOWER)} only. Some seconds come from "
            "runs at another rate, which take equally long.",
        ),
        *_budgets(name, encoder, ways, lower.get(f"{name}_full1")),
        *_pictures(name, encoder, [way for way in ways if _is_shown(way)], one_epoch),
    ]  # fmt: skip


def _levels(experiment: Experiment) -> list[Way]:
    """The levels to compare with: never answering, and the control."""
    found = [Way(None, title_of(BASELINE), Place(experiment, 1.0, BASELINE), 0)]
    for epochs in (epochs for epochs in (0.0, 1.0) if epochs in experiment.head_snapshots):
        found.append(_head(experiment, epochs, CONTROL, None))
    return found


def _full(experiment: Experiment) -> list[Way]:
    """The snapshots of full fine-tuning; only the last is fully decayed."""
    last = experiment.snapshots[-1]
    return [
        _tuned(experiment, epochs, DECAYED if epochs == last else FULL) for epochs in experiment.snapshots if epochs
    ]


def _decayed(experiments: Experiments, lower: Experiments, name: str) -> list[Way]:
    """Full fine-tuning with decay to 0 within 1 epoch, and at the lower learning rate within 1, 2 and 3."""
    ends = [(DECAYED, experiments.get(f"{name}_full1")), (AT_LOWER, lower.get(f"{name}_full1"))]
    ends += [(AT_LOWER, experiments.get(f"{name}_full2")), (AT_LOWER, lower.get(name))]
    return [_tuned(one, one.snapshots[-1], family) for family, one in ends if one is not None]


def _peers(experiments: Experiments, name: str) -> list[Way]:
    found = {family: experiments.get(f"{name}_{end}") for end, family in PEERS.items()}
    return [_tuned(one, epochs, family) for family, one in found.items() if one is not None for epochs in one.snapshots]


def _tuned(experiment: Experiment, epochs: float, family: str) -> Way:
    place = Place(experiment, epochs, ENCODER)
    end = "decay to" if epochs == experiment.snapshots[-1] else "stopped at"
    way = {FULL: "full", DECAYED: "full", AT_LOWER: f"full at {show_rate(LOWER)}"}.get(family, family)
    return Way(family, f"{way}, {end} {counted(epochs, 'epoch')}", place, place.trained_parameters)


def _heads(experiment: Experiment) -> list[Way]:
    """The best head on held-out data at each snapshot."""
    found = [(epochs, experiment.best_head(epochs, KEY)) for epochs in experiment.snapshots]
    return [
        _head(experiment, epochs, head, HEADS if epochs else UNTOUCHED) for epochs, head in found if head is not None
    ]


def _head(experiment: Experiment, epochs: float, model: str, family: str | None) -> Way:
    place = Place(experiment, epochs, model)
    tuned = experiment.entry(epochs, ENCODER).parameters if epochs else 0
    where = f"states of {counted(epochs, 'epoch')}" if epochs else "the untouched encoder"
    return Way(family, f"{title_of(model)} on {where}", place, tuned + place.parameters)


def _is_shown(way: Way) -> bool:
    mean = way.place.mean(KEY)
    return way.family is not None and mean is not None and mean.mean >= LEAST


# ---------------------------------------------------------------------- table and pictures


def _columns() -> list[Column]:
    work = "of the training set through the encoder: forward counts 1, backward 2; heads' own computation not included"
    seconds = f"of fine-tuning, plus the pass that all heads of the run share; {SECONDS}"
    columns = [Column("method"), Column("seeds"), Column("passes", 1, work), Column("seconds", 1, seconds)]
    columns.append(Column("trained parameters"))
    return [*columns, *[Column(heading, None, SPAN_NOTES[heading]) for heading in FIGURES]]


def _row(way: Way, one_epoch: int) -> list[Cell]:
    costs: list[Cell] = [way.place.passes(one_epoch), show_seconds(way.place.seconds, 1), way.learned]
    return [way.title, way.place.seeds("f1"), *costs, *[way.place.show(key) for key in FIGURES.values()]]


def _budgets(name: str, encoder: str, ways: list[Way], one_head: Experiment | None) -> list[Block]:
    """The best of each family in the seconds that full fine-tuning takes."""
    limits = _limits(ways)
    families = {family: [way for way in ways if way.family == family] for family in PLACES}
    families[title_of(CONTROL)] = [way for way in ways if way.place.model == CONTROL]
    if not limits or not families[HEADS]:
        return []
    columns = [Column("method"), *[Column(f"in {limit:.1f} s") for limit in limits.values()]]
    rows: list[list[Cell]] = []
    for family, found in families.items():
        best = [_best_within(found, limit) for limit in limits.values()]
        if any(best):
            rows.append([family, *[f"{way.place.show(KEY)} ({way.title})" if way else None for way in best]])
    firsts = [(limit, _best_within(ways, limit)) for limit in limits.values()]
    best_ways = [f"“{way.title}” in {limit:.1f} s ({way.place.show(KEY)} on dev)" for limit, way in firsts if way]
    epochs = listed([f"{epochs:g}" for epochs in limits])
    note = f"{HEADING_FIRST} that each method reaches in the seconds of full fine-tuning to {epochs} epochs, "
    note += "chosen on held-out questions; never answering has none. The seconds of a head include fine-tuning and the "
    note += f"pass that all heads of the run share; a single head takes less{_alone(one_head)}."
    title, sentence = f"{encoder}: scores in equal time", f"Best on held-out questions: {listed(best_ways)}."
    return [Block(f"{name}_budgets", title, [sentence], Table(columns, rows), note=note)]


def _limits(ways: list[Way]) -> dict[float, float]:
    """Epochs of fully decayed full fine-tuning → its seconds, or those of the run stopped there, if more."""
    tuned = [way for way in ways if way.family in (FULL, DECAYED, AT_LOWER)]
    ends = sorted({way.place.epochs for way in tuned if way.family != FULL})
    found = {epochs: max(way.spent for way in tuned if way.place.epochs == epochs) for epochs in ends}
    return {epochs: limit for epochs, limit in found.items() if math.isfinite(limit)}


def _best_within(ways: list[Way], limit: float) -> Way | None:
    return max((way for way in ways if way.spent <= limit), key=_held_out, default=None)


def _alone(one_head: Experiment | None) -> str:
    """The seconds of a pass in which only the control was trained."""
    if one_head is None:
        return ""
    times = compared_seconds(*[Place(one_head, one_head.snapshots[-1], model) for model in (CONTROL, ENCODER)])
    return f" (the control alone: {times[0] - times[1]:.1f} s)" if times else ""


def _held_out(way: Way) -> float:
    mean = way.place.experiment.mean(way.place.epochs, way.place.model, KEY, "held_out")
    assert mean is not None, "there are held-out questions"
    return mean.mean


def _pictures(name: str, encoder: str, ways: list[Way], one_epoch: int) -> list[Block]:
    data = []
    for way in ways:
        mean, work, seconds = way.place.mean(KEY), way.place.passes(one_epoch), way.place.seconds
        assert mean is not None and work is not None and seconds is not None, "fine-tuned or trained"
        costs = {"work": work, "seconds": seconds.value, "learned": way.learned}
        shown = {"way": way.family, "what": way.title, "score": mean.mean, "label": way.label(one_epoch)}
        data.append({**shown, **costs, "alone": seconds.alone})
    note = f"{_describe_labels(ways, one_epoch)} {_describe_seeds(ways)} Scores below {LEAST:g} are left out."
    timed = "All heads of a run were trained together; the whole time counts for each."
    if not all(row["alone"] for row in data):
        timed += " Hollow: upper bounds that can't be ranked, since a varying number of runs shared the GPU."
    stopped = [way.title for way in ways if way.family not in (HEADS, UNTOUCHED) and "stopped" in way.title]
    ends = [row for row in data if row["what"] not in stopped]
    return [
        _draw(f"{name}_work", f"{encoder}: score by passes through the encoder", data, "work", f"{note} {WORK_NOTE}"),
        _draw(f"{name}_seconds", f"{encoder}: score by seconds", data, "seconds", f"{note} {timed}"),
        _draw(
            f"{name}_parameters", f"{encoder}: score by trained parameters", ends, "learned",
            f"{note} So are encoders stopped early, but not the heads on them. The encoder's parameters count if it "
            "was fine-tuned.",
        ),
    ]  # fmt: skip


def _describe_labels(ways: list[Way], one_epoch: int) -> str:
    heads = [f"{way.label(one_epoch)} is {way.place.model}" for way in ways if way.family == UNTOUCHED]
    text = "Labels: epochs of fine-tuning"
    return f"{text}; on the untouched encoder {listed(heads)}." if heads else f"{text}."


def _describe_seeds(ways: list[Way]) -> str:
    """The number of seeds behind each point, and which families have fewer."""
    counts = {way.title: way.place.seeds(KEY) for way in ways}
    most = max(counts.values())
    fewer: dict[int, dict[str, None]] = {}
    for way in ways:
        if counts[way.title] < most:
            fewer.setdefault(counts[way.title], {})[str(way.family)] = None
    parts = [f"{listed(list(families))}: {counted(count, 'seed')}" for count, families in sorted(fewer.items())]
    return "; ".join([f"Means over {counted(most, 'seed')}", *parts]) + "."


def _draw(key: str, title: str, data: list[Row], field: str, note: str) -> Block:
    altair = import_altair()
    shown = [family for family in PLACES if any(row["way"] == family for row in data)]
    colour, shape = colour_by_place("way", PLACES, shown)
    across, up = _ends(data, field)
    ticks = [tick for tick in TICKS if across[0] <= tick <= across[1]]
    axis = altair.Axis(values=ticks, format="~g", labelOverlap=False)
    if field == "learned":
        axis = altair.Axis(values=[tick for tick in ticks if f"{tick:.0f}"[0] == "1"], format="~s")
    joined = [family for family in JOINED if field != "learned"]
    bound = field == "seconds"
    rows = [{**row, "filled": row["alone"] or not bound} for row in place_labels(data, field, across, up, joined)]
    chart = chart_of(rows, int(HEIGHT)).encode(
        x=altair.X(
            f"{field}:Q", title=AXES[field], scale=altair.Scale(type="log", nice=False, domain=across), axis=axis
        ),
        y=altair.Y("score:Q", title=HEADING, scale=altair.Scale(zero=False, nice=False, domain=up)),
        color=colour,
    )
    layers, points = [], chart.encode(shape=shape)
    if joined:
        layers.append(chart.transform_filter(altair.FieldOneOfPredicate("way", joined)).mark_line(strokeWidth=1))
    for filled in sorted({row["filled"] for row in rows}):  # Vega warns of a layer without data
        marks = points.transform_filter("datum.filled" if filled else "!datum.filled")
        layers.append(marks.mark_point(size=45, strokeWidth=1.5, opacity=1, filled=filled))
    sides = {end: altair.expr(f"datum.{end}") for end in ("align", "dx", "dy")}
    layers.append(chart.mark_text(fontSize=10, baseline="middle", **sides).encode(text="label:N"))
    alt = f"{HEADING_FIRST} against {AXES[field]}, one point per method. All values are in the first table."
    return Block(key, title, picture=dict(altair.layer(*layers).to_dict()), alt=alt, note=note)


def _ends(data: list[Row], field: str) -> tuple[list[float], list[float]]:
    """The ends of both axes, with room for marks and labels beyond the outermost points."""
    lowest, highest = (end(row[field] for row in data) for end in (min, max))
    least, most = (end(row["score"] for row in data) for end in (min, max))
    margin, above = max(1.1, (highest / lowest) ** 0.07), max(0.5, 0.05 * (most - least))
    return [lowest / margin, highest * margin], [least - above, most + above]
