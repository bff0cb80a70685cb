"""The page's part on peers: other ways to the same scores, against seconds and against parameters that learned."""

from typing import Any, NamedTuple

from bertvision.analysis.block import Block, Cell, Column, Frame
from bertvision.analysis.drawing import chart_of, import_altair
from bertvision.results import counted
from bertvision.stages import ENCODER
from results.kept import Experiment

KEY, HEADING = "forced_f1", "forced F1"
FULL, HEADS, UNTOUCHED = "full, stopped early", "a head on fine-tuned states", "a head on untouched states"
METHODS = {"full1": "full, decay to 1 epoch", "full2": "full, decay to 2 epochs", "lora": "LoRA", "bitfit": "BitFit"}
LEAST = 40.0
"""Points below are left out of the pictures."""


class Point(NamedTuple):
    family: str
    method: str
    seconds: float
    learned: int
    """Parameters that learned, in all."""
    score: str
    value: float
    auc: str


def peer_blocks(experiments: dict[str, Experiment], name: str, encoder: str) -> list[Block]:
    peers = {title: experiments[f"{name}_{end}"] for end, title in METHODS.items() if f"{name}_{end}" in experiments}
    if not peers or name not in experiments:
        return []
    points = [*_own(experiments[name]), *[point for title, one in peers.items() for point in _of_peer(title, one)]]
    note = "of fine-tuning, and for a head of the pass as well, in which all heads of the run learned at once"
    columns = [Column("way"), Column("seconds", 1, note)]
    columns += [Column("parameters that learned"), Column(HEADING), Column("AUC")]
    rows: list[list[Cell]] = [[one.method, one.seconds, one.learned, one.score, one.auc] for one in points]
    data = [
        {"way": one.family, "what": one.method, "seconds": one.seconds, "learned": one.learned, "score": one.value}
        for one in points
        if one.value >= LEAST
    ]
    return [
        Block(f"{name}_peers", f"{encoder}: other ways to the same scores", frame=Frame(columns, rows)),
        _draw(f"{name}_seconds", f"{encoder}: score against seconds", data, "seconds", "seconds"),
        _draw(f"{name}_parameters", f"{encoder}: score against parameters that learned", data, "learned", "parameters"),
    ]


def _own(experiment: Experiment) -> list[Point]:
    """Full fine-tuning along one line of decay, and on each of its snapshots the best head by held-out data."""
    found = []
    for epochs in experiment.snapshots:
        if epochs > 0:
            whole = experiment.facts(epochs, ENCODER)["parameters"]
            found.append(
                _point(experiment, epochs, ENCODER, FULL, f"full, stopped at {counted(epochs, 'epoch')}", whole)
            )
    for epochs in experiment.head_snapshots:
        head = experiment.best_head(epochs, "at_threshold.f1")
        if head is not None:
            parameters = experiment.facts(epochs, head)["parameters"]
            whole = experiment.facts(epochs, ENCODER)["parameters"] if epochs else 0
            where = "the untouched encoder" if epochs == 0 else f"states of {counted(epochs, 'epoch')}"
            found.append(
                _point(
                    experiment, epochs, head, HEADS if epochs else UNTOUCHED, f"{head} on {where}", whole + parameters
                )
            )
    return [point for point in found if point is not None]


def _of_peer(title: str, experiment: Experiment) -> list[Point]:
    found = []
    for epochs in experiment.snapshots:
        facts = experiment.facts(epochs, ENCODER)
        learned = facts.get("trained_parameters", facts["parameters"])
        several = len(experiment.snapshots) > 1
        shown = f"{title}, {counted(epochs, 'epoch')}" if several else title
        found.append(_point(experiment, epochs, ENCODER, title, shown, learned))
    return [point for point in found if point is not None]


def _point(experiment: Experiment, epochs: float, model: str, family: str, title: str, learned: int) -> Point | None:
    mean, auc = experiment.mean(epochs, model, KEY), experiment.mean(epochs, model, "no_answer_auc")
    seconds = experiment.seconds(epochs, model)
    if mean is None or auc is None or seconds is None:
        return None
    return Point(family, title, seconds, learned, str(mean), mean.mean, str(auc))


def _draw(key: str, title: str, data: list[dict[str, Any]], field: str, axis: str) -> Block:
    altair = import_altair()
    order = list(dict.fromkeys(row["way"] for row in data))
    chart = chart_of(data, 360).encode(
        x=altair.X(f"{field}:Q", title=axis, scale=altair.Scale(type="log")),
        y=altair.Y("score:Q", title=HEADING, scale=altair.Scale(zero=False)),
        color=altair.Color("way:N", scale=altair.Scale(domain=order), legend=altair.Legend(title=None)),
    )
    told = "; ".join(f"{row['what']} {row['score']:.1f} at {row[field]:,.0f}" for row in data)
    lines = chart.mark_line(strokeWidth=1, opacity=0.6)
    return Block(key, title, picture=dict((lines + chart.mark_point()).to_dict()), alt=f"{HEADING}: {told}")
