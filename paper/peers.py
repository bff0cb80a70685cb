"""The page's part on peers: other ways to the same scores, against what they took of the encoder, against seconds and
against parameters that learned."""

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

KEY, HEADING = "forced_f1", "answerable-only F1"
FIGURES = {"F1": "f1", "F1*": "at_threshold.f1", HEADING: KEY, "AUC": "no_answer_auc"}
FULL, DECAYED = "full, stopped early", "full, decay to its end"
AT_LOWER = f"full at {show_rate(LOWER)}, decay to its end"
HEADS, UNTOUCHED = "a head on fine-tuned states", "a head on the untouched encoder"
PEERS = {"lora": "LoRA", "bitfit": "BitFit"}
PLACES = {FULL: 0, DECAYED: 2, AT_LOWER: 3, HEADS: 4, UNTOUCHED: 5, "LoRA": 6, "BitFit": 7}
"""Colours: the encoder alone has the first in every picture, the control the second, the ladder the sixth."""
LEAST = 40.0
"""Points below are left out of the pictures."""
JOINED = (FULL, HEADS, "LoRA", "BitFit")
"""The families whose points are joined by a line."""
TICKS = [base * 10.0**power for power in range(-1, 9) for base in (1, 2, 5)]
AXES = {
    "work": "passes of the training set through the encoder (forward 1, backward 2)",
    "seconds": "seconds",
    "learned": "parameters that learned",
}
WORK_NOTE = (
    "What heads compute themselves is not counted (of the ladders on the untouched encoder, in arithmetic, about a "
    "fifth of a forward pass of gte-small, a third of all-MiniLM-L6-v2; in seconds far more), nor what LoRA and BitFit "
    "save of a backward pass."
)


class Way(NamedTuple):
    family: str | None
    """Its colour; None: in the table alone."""
    title: str
    place: Place
    learned: int
    """Parameters that learned, in all."""

    def label(self, one_epoch: int) -> str:
        """What stands beside its point: how long the encoder was fine-tuned, or how often the head saw the data."""
        return f"{self.place.epochs:g}" if self.place.epochs else in_passes(self.place.passes(one_epoch) or 0.0)

    @property
    def spent(self) -> float:
        """Seconds that can be compared with others; endless where there are none."""
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
            f"{name}_peers", f"{encoder}: other ways to the same scores", table=Table(_columns(), rows),
            note="Heads are those of the main and the untouched runs with the best answerable-only F1 on held-out questions at "
            "each snapshot, of those that all seeds have. Kernels along tokens (“In short”) are left out: of their "
            "seconds there are bounds only, and so are heads where the rate had decayed within 1 epoch (“The rate of "
            "fine-tuning”). What was stopped early was on its way to 3 epochs: its learning rate had not decayed to 0. "
            "Rates were chosen on held-out questions for decay to 1 epoch, LoRA and BitFit; decay to 2 epochs was run "
            f"at {show_rate(LOWER)} only. Seconds do not depend on the rate: some are of runs at another.",
        ),
        *_budgets(name, encoder, ways, lower.get(f"{name}_full1")),
        *_pictures(name, encoder, [way for way in ways if _is_shown(way)], one_epoch),
    ]  # fmt: skip


def _levels(experiment: Experiment) -> list[Way]:
    """What every way is to be held against: never answering, and the control."""
    found = [Way(None, title_of(BASELINE), Place(experiment, 1.0, BASELINE), 0)]
    for epochs in (epochs for epochs in (0.0, 1.0) if epochs in experiment.head_snapshots):
        found.append(_head(experiment, epochs, CONTROL, None))
    return found


def _full(experiment: Experiment) -> list[Way]:
    """Along one line of decay, whose end is the last snapshot."""
    last = experiment.snapshots[-1]
    return [
        _tuned(experiment, epochs, DECAYED if epochs == last else FULL) for epochs in experiment.snapshots if epochs
    ]


def _decayed(experiments: Experiments, lower: Experiments, name: str) -> list[Way]:
    """Full fine-tuning whose rate decays to 0 within 1 epoch, and at the lower rate within 1, 2 (whose experiment has
    that rate) and 3."""
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
    """On each snapshot the best head by held-out data."""
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
    work = "of the training set through the encoder: forward counts 1, backward 2; what heads compute comes on top"
    seconds = f"of fine-tuning, and for a head of the pass, which all heads of the run share; {SECONDS}"
    columns = [Column("way"), Column("seeds"), Column("passes", 1, work), Column("seconds", 1, seconds)]
    columns.append(Column("parameters that learned"))
    return [*columns, *[Column(heading, None, SPAN_NOTES[heading]) for heading in FIGURES]]


def _row(way: Way, one_epoch: int) -> list[Cell]:
    costs: list[Cell] = [way.place.passes(one_epoch), show_seconds(way.place.seconds, 1), way.learned]
    return [way.title, way.place.seeds("f1"), *costs, *[way.place.show(key) for key in FIGURES.values()]]


def _budgets(name: str, encoder: str, ways: list[Way], one_head: Experiment | None) -> list[Block]:
    """The best way of each family in the seconds that full fine-tuning takes."""
    limits = _limits(ways)
    families = {family: [way for way in ways if way.family == family] for family in PLACES}
    families[title_of(CONTROL)] = [way for way in ways if way.place.model == CONTROL]
    if not limits or not families[HEADS]:
        return []
    columns = [Column("way"), *[Column(f"in {limit:.1f} s") for limit in limits.values()]]
    rows: list[list[Cell]] = []
    for family, found in families.items():
        best = [_best_within(found, limit) for limit in limits.values()]
        if any(best):
            rows.append([family, *[f"{way.place.show(KEY)} ({way.title})" if way else None for way in best]])
    firsts = [(limit, _best_within(ways, limit)) for limit in limits.values()]
    told = [f"in {limit:.1f} s {way.title} ({way.place.show(KEY)} on dev)" for limit, way in firsts if way]
    epochs = listed([f"{epochs:g}" for epochs in limits])
    note = f"{HEADING} of what each way reaches in the seconds of full fine-tuning to {epochs} epochs, chosen on "
    note += "held-out questions; never answering has none. For a head, fine-tuning counts and the pass in which all "
    note += f"heads of the run learned; one alone takes less{_alone(one_head)}."
    title = f"{encoder}: in the same seconds"
    return [
        Block(
            f"{name}_budgets", title, [f"Best on held-out questions: {listed(told)}."], Table(columns, rows), note=note
        )
    ]


def _limits(ways: list[Way]) -> dict[float, float]:
    """Epochs of full fine-tuning that decays to its end → its seconds, or those of what was stopped there, if more."""
    tuned = [way for way in ways if way.family in (FULL, DECAYED, AT_LOWER)]
    ends = sorted({way.place.epochs for way in tuned if way.family != FULL})
    found = {epochs: max(way.spent for way in tuned if way.place.epochs == epochs) for epochs in ends}
    return {epochs: limit for epochs, limit in found.items() if math.isfinite(limit)}


def _best_within(ways: list[Way], limit: float) -> Way | None:
    return max((way for way in ways if way.spent <= limit), key=_held_out, default=None)


def _alone(one_head: Experiment | None) -> str:
    """What the pass takes in which the control learned alone."""
    if one_head is None:
        return ""
    times = compared_seconds(*[Place(one_head, one_head.snapshots[-1], model) for model in (CONTROL, ENCODER)])
    return f" (the control alone {times[0] - times[1]:.1f} s)" if times else ""


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
    said = f"{_describe_labels(ways, one_epoch)} {_describe_seeds(ways)} Scores below {LEAST:g} are left out."
    timed = "All heads of a run learned together, and what that took counts for each."
    if not all(row["alone"] for row in data):
        timed += " Hollow: upper bounds, other runs shared the GPU, and not always as many: these can't be ranked."
    stopped = [way.title for way in ways if way.family not in (HEADS, UNTOUCHED) and "stopped" in way.title]
    ends = [row for row in data if row["what"] not in stopped]
    return [
        _draw(f"{name}_work", f"{encoder}: score against work of the encoder", data, "work", f"{said} {WORK_NOTE}"),
        _draw(f"{name}_seconds", f"{encoder}: score against seconds", data, "seconds", f"{said} {timed}"),
        _draw(
            f"{name}_parameters", f"{encoder}: score against parameters that learned", ends, "learned",
            f"{said} So is what was stopped early, but heads on it are not. The encoder's parameters count where it "
            "was tuned.",
        ),
    ]  # fmt: skip


def _describe_labels(ways: list[Way], one_epoch: int) -> str:
    heads = [f"{way.label(one_epoch)} is {way.place.model}" for way in ways if way.family == UNTOUCHED]
    told = "Numbers beside points: epochs of fine-tuning"
    return f"{told}; on the untouched encoder {listed(heads)}." if heads else f"{told}."


def _describe_seeds(ways: list[Way]) -> str:
    """Over how many seeds points are means, and which families have fewer than most."""
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
    beside = {end: altair.expr(f"datum.{end}") for end in ("align", "dx", "dy")}
    layers.append(chart.mark_text(fontSize=10, baseline="middle", **beside).encode(text="label:N"))
    told = "; ".join(f"{row['what']} {row['score']:.1f} at {_brief(row[field])}" for row in data)
    return Block(key, title, picture=dict(altair.layer(*layers).to_dict()), alt=f"{HEADING}: {told}", note=note)


def _ends(data: list[Row], field: str) -> tuple[list[float], list[float]]:
    """Of both axes, with room for marks and labels beyond the outermost points."""
    lowest, highest = (end(row[field] for row in data) for end in (min, max))
    least, most = (end(row["score"] for row in data) for end in (min, max))
    margin, above = max(1.1, (highest / lowest) ** 0.07), max(0.5, 0.05 * (most - least))
    return [lowest / margin, highest * margin], [least - above, most + above]


def _brief(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"
