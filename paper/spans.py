"""Spans: tables for each encoder and snapshot, the fine-tuning curve, less data, layers."""

from statistics import median
from typing import Any

from scipy.stats import spearmanr

from bertvision.heads import CONTROL
from bertvision.pipeline.folder import BASELINE, ENCODER
from bertvision.report.block import Block
from bertvision.report.drawing import chart_of, import_altair
from bertvision.report.wording import ENCODER as ENCODER_ALONE
from bertvision.report.wording import listed, signed
from bertvision.tables import Cell, Column, Table, counted
from paper.kept import Experiment, Mean, Place, is_head, show_rate, show_seconds
from paper.names import RANDOM, SECONDS, SPAN_FIGURES, SPAN_NOTES, SQUAD, colour_by_place, title_of

CURVE = {"at_threshold.f1": "F1 at the chosen threshold", "forced_f1": "answerable-only F1", "no_answer_auc": "AUC"}
POOLING = "learned_pooling"
SHOWN = [ENCODER, CONTROL, POOLING, "adapter_64", "adapter_386_skip", "ladder_128_last4"]
SHORT = "datum.label == 'embeddings' ? '0' : replace(datum.label, 'layer ', '')"
"""Names of layers that fit under narrow bars."""
EARLIEST, TICKS = 0.3, [0.3, 0.5, 1, 2, 3]
DASHES = [4, 3]
SHARED = "adapter_386_skip"
"""The head that is also trained on less data."""


def span_blocks(experiment: Experiment, encoder: str) -> list[Block]:
    scores = [scores_block(experiment, encoder, epochs) for epochs in reversed(experiment.head_snapshots)]
    blocks = [_curve(experiment, encoder), *scores, _less_data(experiment, encoder)]
    blocks += [_chances(experiment, encoder), _mistakes(experiment, encoder), _layers(experiment, encoder)]
    return [block for block in blocks if block is not None]


def is_whole(experiment: Experiment, epochs: float, model: str) -> bool:
    return experiment.entry(epochs, model).data_fraction == 1


def scores_block(experiment: Experiment, encoder: str, epochs: float, which: str = "", folded: bool = False) -> Block:
    """All scores of all models at a snapshot."""
    columns = [Column("model"), Column("seeds"), Column("parameters")]
    columns += [Column(heading, None, SPAN_NOTES[heading]) for _, heading in SPAN_FIGURES]
    what = "fine-tuning up to here, plus the pass that all heads share"
    columns.append(Column("seconds", 0, f"{what}; {SECONDS}"))
    rows: list[list[Cell]] = []
    for model in experiment.models(epochs):
        if not is_whole(experiment, epochs, model):
            continue
        place = Place(experiment, epochs, model)
        seeds = max(place.seeds(key) for key, _ in SPAN_FIGURES)
        scores = [place.show(key) for key, _ in SPAN_FIGURES]
        rows.append([title_of(model), seeds, place.parameters, *scores, show_seconds(place.seconds, 0)])
    rate = [] if experiment.lr is None else [show_rate(experiment.lr)]
    return Block(
        key="_".join([experiment.name, *rate, f"{epochs:g}"]).replace(".", "_"),
        title=(f"{encoder} after {counted(epochs, 'epoch')}" if epochs else f"{encoder}, untouched") + which,
        table=Table(columns, rows),
        note=f"{SQUAD}: official dev set, 11,873 questions. {of_seeds(experiment)}" + ("" if epochs else f" {RANDOM}"),
        folded=folded,
    )


def folded_scores(run: Experiment, encoder: str) -> list[Block]:
    """All scores of another run, the last snapshot first."""
    which = f", heads of {run.title}"
    return [scores_block(run, encoder, epochs, which, folded=True) for epochs in reversed(run.head_snapshots)]


def of_seeds(experiment: Experiment) -> str:
    if len(experiment.seeds) == 1:
        return f"Seed {experiment.seeds[0]} only."
    return "Mean ± standard deviation over seeds."


def _curve(experiment: Experiment, encoder: str) -> Block:
    """The encoder at every snapshot as a table, and with its heads as a picture."""
    columns = [Column("epochs"), *[Column(heading, None, SPAN_NOTES[heading]) for _, heading in SPAN_FIGURES]]
    columns.append(Column("seconds", 1, f"of fine-tuning; {SECONDS}"))
    rows: list[list[Cell]] = []
    for epochs in experiment.snapshots:
        scores = [experiment.show(epochs, ENCODER, key) for key, _ in SPAN_FIGURES]
        rows.append([epochs, *scores, show_seconds(experiment.seconds(epochs, ENCODER), 1)])
    last = experiment.snapshots[-1]
    ends = [(heading, experiment.mean(last, ENCODER, key)) for key, heading in CURVE.items()]
    shown = ", ".join(f"{heading} {mean.mean:.1f}" for heading, mean in ends if mean is not None)
    trained = listed([f"{epochs:g}" for epochs in experiment.head_snapshots])
    return Block(
        key=f"{experiment.name}_curve",
        title=f"{encoder}: the fine-tuning curve and its heads",
        sentences=[f"The encoder alone after {counted(last, 'epoch')}: {shown}."],
        table=Table(columns, rows),
        picture=_draw_curve(experiment),
        alt=f"Three panels, {', '.join(CURVE.values())}: lines of encoder (solid), control and heads (dashed) against "
        f"epochs of fine-tuning of {encoder}, from {EARLIEST:g} epochs on.",
        note=f"The picture begins at {EARLIEST:g} epochs. Heads were trained at {trained} epochs only; dashed lines "
        "join these points. The table has the encoder alone, whose output layer is random at 0 epochs; the control is "
        f"in the tables below. Never answering has F1 {experiment.mean(last, BASELINE, 'f1')}. The learning rate "
        f"decays to {counted(last, 'epoch')}, so all earlier snapshots were stopped early.",
    )


def _draw_curve(experiment: Experiment) -> dict[str, Any]:
    altair, order = import_altair(), [title_of(model) for model in SHOWN]
    panels = []
    for key, heading in CURVE.items():
        rows = []
        for epochs in (epochs for epochs in experiment.snapshots if epochs >= EARLIEST):
            for model in (model for model in SHOWN if model in experiment.models(epochs)):
                mean = experiment.mean(epochs, model, key)
                if mean is not None:
                    rows.append({"epochs": epochs, "model": title_of(model), "score": mean.mean})
        base = chart_of(rows, 260).encode(
            x=altair.X(
                "epochs:Q",
                title="epochs",
                scale=altair.Scale(type="log", nice=False),
                axis=altair.Axis(values=TICKS, format="~g", tickCount=len(TICKS)),
            ),
            y=altair.Y("score:Q", title=heading, scale=altair.Scale(zero=False)),
            color=altair.Color("model:N", scale=altair.Scale(domain=order), legend=altair.Legend(title=None)),
        )
        own = f"datum.model == '{title_of(ENCODER)}'"
        dashed = base.transform_filter(f"!({own})").mark_line(strokeWidth=1, strokeDash=DASHES)
        solid = base.transform_filter(own).mark_line(strokeWidth=2)
        panels.append((dashed + solid + base.mark_point(size=35, filled=True, opacity=1)).properties(width=230))
    return dict(altair.hconcat(*panels).to_dict())


def data_shares(experiment: Experiment, epochs: float) -> dict[float, str]:
    """Fraction of the data → the model trained on it, in ascending order."""
    found = {}
    for model in experiment.models(epochs):
        entry = experiment.entry(epochs, model)
        if model == SHARED or (model.startswith(f"{SHARED}_data_fraction") and entry.head is not None):
            found[entry.data_fraction] = model
    return dict(sorted(found.items()))


def _less_data(experiment: Experiment, encoder: str) -> Block | None:
    shares = {epochs: data_shares(experiment, epochs) for epochs in experiment.head_snapshots if epochs > 0}
    shares = {epochs: found for epochs, found in shares.items() if len(found) > 1}
    if not shares:
        return None
    keys = {"F1": "f1", "F1*": "at_threshold.f1", "answerable-only F1": "forced_f1", "AUC": "no_answer_auc"}
    columns = [Column("epochs"), Column("model"), Column("fraction of the data"), *map(Column, keys)]
    rows: list[list[Cell]] = []
    for epochs, found in shares.items():
        whole = [(1.0, model) for model in (BASELINE, ENCODER, CONTROL) if model in experiment.models(epochs)]
        for share, model in [*found.items(), *whole]:
            shown = title_of(model.partition("_data_fraction")[0])
            rows.append([epochs, shown, share, *[experiment.show(epochs, model, key) for key in keys.values()]])
    return Block(
        key=f"{experiment.name}_less_data",
        title=f"{encoder}: {SHARED} on less data",
        table=Table(columns, rows),
        note="The head saw part of the training windows; the encoder was fine-tuned on all of them.",
    )


def _of_first_seed(experiment: Experiment, key: str) -> list[Any]:
    """The rows of an analysis of the first seed."""
    found: list[Any] = experiment.analyses(key).get(experiment.seeds[0], [])
    return found


def _chances(experiment: Experiment, encoder: str) -> Block | None:
    """The paired tests of the first seed, at the snapshots with heads."""
    drawn = "95 % confidence interval; both models are scored on the same draws of questions"
    columns = [Column("epochs"), Column("model"), Column("compared with"), Column("F1* above", 2)]
    columns += [Column("from", 2, drawn), Column("to", 2, drawn)]
    columns.append(Column("corrected p", 4, "paired bootstrap, Holm's correction over all models compared with it"))
    keys = ("compared with", "difference", "from", "to", "corrected p")
    rows: list[list[Cell]] = []
    for epochs in experiment.head_snapshots:
        found = _of_first_seed(experiment, f"comparisons_{epochs:g}")
        shown = [row for row in found if epochs > 0 or row["compared with"] != ENCODER_ALONE]  # random at 0 epochs
        rows += [[epochs, title_of(row["model"]), *[row[key] for key in keys]] for row in shown]
    if not rows:
        return None
    title = f"{encoder}: paired tests over the dev questions, one seed"
    note = (
        f"F1* of seed {experiment.seeds[0]} only. The tests cover the choice of questions, not of seeds: another seed "
        "may give another result. The ± in the tables above covers seeds."
    )
    return Block(f"{experiment.name}_chances", title, table=Table(columns, rows), note=note, folded=True)


def _mistakes(experiment: Experiment, encoder: str) -> Block | None:
    last = experiment.head_snapshots[-1]
    found = experiment.rows_at("wrong_predictions", last).get(experiment.seeds[0])
    if not found:
        return None
    headings = ["model", *[key for key in found[0] if key.startswith("% ")]]
    rows: list[list[Cell]] = [[title_of(row["model"]), *[row[key] for key in headings[1:]]] for row in found]
    columns = [Column(heading, None if heading == "model" else 1) for heading in headings]
    title = f"{encoder}: kinds of wrong predictions at {counted(last, 'epoch')}"
    note = "At the chosen threshold. % wrong is a percentage of all questions, the others of the wrong ones. "
    note += f"Seed {experiment.seeds[0]} only."
    return Block(f"{experiment.name}_mistakes", title, table=Table(columns, rows), note=note, folded=True)


def _layers(experiment: Experiment, encoder: str) -> Block | None:
    """Learned weights, and what heads lose without each layer."""
    found = [
        {row["layer"]: row["weight, %"] for row in rows if row["head"] == POOLING}
        for rows in experiment.analyses("layer_weights").values()
    ]
    weights = [own for own in found if own]
    if not weights:
        return None
    means = {name: Mean([own[name] for own in weights]).mean for name in weights[0]}
    return Block(
        key=f"{experiment.name}_layers",
        title=f"{encoder}: layer weights of learned pooling at {counted(experiment.head_snapshots[-1], 'epoch')}",
        sentences=[_describe_weights(means, weights)],
        table=_losses(experiment),
        picture=_draw_weights(means),
        alt="Bars, learned weight of each layer in %: "
        + ", ".join(f"{name} {value:.1f}" for name, value in means.items()),
        note=_losses_note(experiment),
    )


def _describe_weights(means: dict[str, float], weights: list[dict[str, float]]) -> str:
    """Which layer weighs most, and whether weights rise with depth."""
    top, values = max(means, key=lambda name: means[name]), list(means.values())
    ranks = Mean([rank_correlation([own[name] for name in means]) for own in weights])
    rise = "rise" if values == sorted(values) else "do not rise"
    return (
        f"The largest weight, {means[top]:.1f} %, is that of {top}; an even share would be {100 / len(means):.1f} % "
        f"(dashed). Weights {rise} from every layer to the next: rank correlation with depth {signed(ranks.mean)}, "
        f"mean of {counted(len(weights), 'seed')}."
    )


def rank_correlation(values: list[float]) -> float:
    """Spearman's rank correlation of values with their positions."""
    return float(spearmanr(values, range(len(values))).statistic)


def _draw_weights(means: dict[str, float]) -> dict[str, Any]:
    altair = import_altair()
    data = [{"layer": name, "weight": value, "head": POOLING} for name, value in means.items()]
    colour, _ = colour_by_place("head", {POOLING: SHOWN.index(POOLING)}, [])  # as in the curve
    chart = chart_of(data, 220).encode(
        x=altair.X(
            "layer:N", sort=list(means), title="layer (0: embeddings)", axis=altair.Axis(labelAngle=0, labelExpr=SHORT)
        ),
        y=altair.Y("weight:Q", title="weight, %"),
        color=colour.legend(None),
    )
    even = altair.Chart(altair.Data(values=[{"even": 100 / len(means)}]))
    return dict(altair.layer(chart.mark_bar(), even.mark_rule(strokeDash=[5, 4]).encode(y="even:Q")).to_dict())


def losses_by_head(experiment: Experiment) -> dict[str, list[dict[str, Any]]]:
    """Head → its scores without each layer, one entry per seed, for the heads that all seeds have with the same
    layers."""
    measured = [seed["heads"] for seed in experiment.analyses("layers").values()]
    if not measured:
        return {}
    layers = measured[0][0]["layers"]
    found = {
        head["name"]: [one for seed in measured for one in seed if one["name"] == head["name"]]
        for head in measured[0]
        if "_data_fraction" not in head["name"]
    }
    return {
        name: own
        for name, own in found.items()
        if len(own) == len(measured) and all(one["layers"] == layers for one in own)
    }


def lost_points(measured: list[dict[str, Any]]) -> list[Mean]:
    """Points a head loses without each layer, over seeds."""
    lost = [[one["score"] - score for score in one["without"]] for one in measured]  # (seed, layer)
    return [Mean(list(layer)) for layer in zip(*lost, strict=True)]


def _losses(experiment: Experiment) -> Table | None:
    """What heads lose without each layer, mean over seeds."""
    found = losses_by_head(experiment)
    if not found:
        return None
    names = next(iter(found.values()))[0]["layers"]
    columns = [Column("head"), Column("F1* with all", 2), *[Column(f"without {name}", 2) for name in names]]
    rows: list[list[Cell]] = []
    for head, own in found.items():
        whole = Mean([one["score"] for one in own]).mean
        rows.append([title_of(head), whole, *[mean.mean for mean in lost_points(own)]])
    return Table(columns, rows)


def _losses_note(experiment: Experiment) -> str:
    found = losses_by_head(experiment)
    if not found:
        return ""
    examples = next(iter(experiment.analyses("layers").values()))["examples"]
    seeds = len(next(iter(found.values())))
    # A head loses nothing without a layer it does not read: such zeros are left out.
    spreads = [mean.deviation for own in found.values() for mean in lost_points(own) if mean.deviation]
    text = f"Without a layer: points of F1* lost on {examples} dev questions when its states are set to zero (minus: "
    text += f"gained), mean of {counted(seeds, 'seed')}. The threshold stays the same, but the no-answer score shifts, "
    text += f"and with it how often a head answers. One question is {100 / examples:g} points"
    text += f", the median standard deviation over seeds {median(spreads):.1f}" if spreads else ""
    return f"{text}: differences of a point are noise."


def head_names(experiment: Experiment, epochs: float) -> list[str]:
    return [model for model in experiment.models(epochs) if is_head(experiment.entry(epochs, model))]
