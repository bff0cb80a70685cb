"""Layer ablation: the scores of heads when one of the layers they read is set to zero."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import numpy as np
from msgspec import Meta
from torch import Tensor

from bertvision.data.examples import Example
from bertvision.data.splits import draw
from bertvision.disk import as_form, fingerprint, write_sealed
from bertvision.disk.forms import Count, Name
from bertvision.encoder.states import HiddenStates, ReadPart
from bertvision.errors import UserError
from bertvision.heads import Head, load_head
from bertvision.kinds import Decoding, ExampleResults
from bertvision.kinds.base import Float, join_results
from bertvision.pipeline.finished import FinishedRun, Group, Model, read_figure
from bertvision.pipeline.snapshot import compute_outputs
from bertvision.progress import Reporter
from bertvision.report.analysis import analysis
from bertvision.report.block import Block
from bertvision.report.drawing import chart_of, import_altair, tips, two_sided
from bertvision.report.saved_heads import (
    ANALYSES,
    POOLED,
    heads_were_kept,
    layers_of,
    names_read,
    open_encoder,
    order_names,
    predictions_stamp,
    read_known,
    saved_groups,
    the_layer,
)
from bertvision.report.wording import joined, main_name, stand_in_note
from bertvision.tables import Column, Row, Table, counted

VERSION = 1  # of the saved losses: raise it when the same heads would lead to other values
EXAMPLES = 200  # on which losses are measured
PART = 64  # examples whose outputs are held in memory at once
SEED = 0
MATTERS = 1.0  # points of the score: a layer that costs less does not count as important
NAMED = 4  # most heads described in a sentence each


@dataclass(frozen=True)
class Without:
    """A head that reads one of its layers as zero."""

    head: Head
    layer: int

    @property
    def reads(self) -> tuple[ReadPart, ...]:
        return self.head.reads

    @property
    def towers(self) -> bool:
        return self.head.towers

    def __call__(self, states: HiddenStates) -> Tensor:
        """The head's outputs (position, output). The states are restored afterwards."""
        sides = [states] if states.second is None else [states, states.second]
        cut = [self._find(side) for side in sides]  # each (position, hidden), a view
        originals = [values.clone() for values in cut]
        for values in cut:
            values.zero_()
        try:
            outputs: Tensor = self.head(states)  # (position, output)
        finally:
            for values, original in zip(cut, originals, strict=True):
                values.copy_(original)
        return outputs

    def _find(self, states: HiddenStates) -> Tensor:
        """The layer, counted over all parts that the head reads, side by side."""
        layer, parts = self.layer, states.parts()
        for part in self.reads:
            if layer < parts[part].shape[1]:
                return parts[part][:, layer]
            layer -= parts[part].shape[1]
        raise IndexError(self.layer)


class HeadLosses(TypedDict):
    name: Name
    title: str
    role: str
    layers: list[str]
    score: float
    without: Annotated[list[float], Meta(min_length=1)]
    """The score without each of the layers."""


class LayersFile(TypedDict):
    """analyses/layers_<split>.json."""

    stamp: str
    split: str
    figure: str
    examples: Count
    of: Count
    heads: Annotated[list[HeadLosses], Meta(min_length=1)]


def measure_layers(run: FinishedRun, split: str, reporter: Reporter, examples: int = EXAMPLES) -> LayersFile:
    """Score each head on some examples, with all layers and with each layer it reads set to zero in turn.

    The result is saved in analyses/layers_<split>.json and reused as long as heads, data and settings are the same.
    """
    models = [group.models[0] for group in saved_groups(run)]
    assert models, "no saved heads"
    # Heads on other layers than the first one were trained after the run was scored.
    models = [model for model in models if layers_of(run, model) == layers_of(run, models[0])]
    path = run.folder.file(ANALYSES, f"layers_{split}.json")
    parts = [predictions_stamp(model, split) for model in models]
    stamp = fingerprint("layers", VERSION, parts, [model.name for model in models], examples, run.main)
    known = read_known(path, stamp, _read_losses, reporter)
    if known is not None:
        return known
    given = run.examples(split)
    if given is None:
        raise UserError(f"the examples of {split} that were scored are no longer available.")
    chosen = draw(given, examples, SEED)
    found: LayersFile = {
        "stamp": stamp, "split": split, "figure": run.main, "examples": len(chosen), "of": len(given),
        "heads": _measure(run, models, chosen, reporter),
    }  # fmt: skip
    write_sealed(path, {**found})
    return found


def _read_losses(value: Any) -> LayersFile:
    found = as_form(value, LayersFile)
    if any(len(one["layers"]) != len(one["without"]) for one in found["heads"]):
        raise ValueError("without: expected a score for each layer")
    return found


def _measure(run: FinishedRun, models: list[Model], chosen: Sequence[Example], reporter: Reporter) -> list[HeadLosses]:
    job, encoder = run.job, open_encoder(run, models[0])
    heads = {model.name: load_head(run.head_folder(model))[0].to(job.machine.device) for model in models}
    tried: dict[tuple[str, int | None], Callable[[HiddenStates], Tensor]] = {}
    for name, head in heads.items():
        tried[name, None] = head
        tried |= {(name, layer): Without(head, layer) for layer in range(head.layers)}
    results: dict[tuple[str, int | None], list[ExampleResults]] = {key: [] for key in tried}
    # A few examples at a time: the outputs of all heads without each layer would take much memory.
    some_of = [chosen[first : first + PART] for first in range(0, len(chosen), PART)]
    parts = [(some, job.build_features(some)) for some in some_of]
    how = Decoding(1, job.config.evaluate.max_answer_tokens)  # only the best answer is scored
    tokens = sum(int(features.lengths.sum()) for _, features in parts)
    with reporter.bar(f"layer ablation of {counted(len(heads), 'head')}", tokens, "tokens") as bar:
        for some, features in parts:
            outputs = compute_outputs(
                encoder, {str(key): model for key, model in tried.items()}, features, job.task.kind, job.machine,
                job.encode_tokens, bar,
            )  # fmt: skip
            for key in tried:
                predictions = job.task.kind.decode(job.task, outputs[str(key)], features, some, how)
                results[key].append(job.task.kind.example_results(predictions, some))
    return [
        {
            "name": model.name,
            "title": Group([model]).title,
            "role": model.role,
            "layers": names_read(heads[model.name], layers_of(run, model)),
            "score": _score(run, model, results[model.name, None]),
            "without": [_score(run, model, results[model.name, layer]) for layer in range(heads[model.name].layers)],
        }
        for model in models
    ]


def _score(run: FinishedRun, model: Model, parts: list[ExampleResults]) -> float:
    scores = run.kind.score(run.task.metrics, join_results(parts), model.threshold)
    found = read_figure(scores, run.main)
    assert found is not None, f"{run.main} is not among the scores"
    return float(found)


# ---------------------------------------------------------------------- the block


@dataclass(frozen=True)
class Loss:
    """The scores of one head without each of the states it reads."""

    title: str
    role: str
    names: list[str]
    score: float
    without: Float  # (layer)

    @property
    def drops(self) -> Float:
        return self.score - self.without  # (layer)

    @property
    def last(self) -> int:
        """Index of the last encoder layer, which is not the pooled output."""
        return len(self.names) - 1 - (self.names[-1] == POOLED)


@analysis("Layers", 30, "Layer ablation", [heads_were_kept], "states")
def layer_importance(run: FinishedRun, split: str, reporter: Reporter) -> Block:
    """How much each head depends on each layer: how far its score falls when the layer is set to zero."""
    found, figure = measure_layers(run, split, reporter), main_name(run)
    losses = [
        Loss(one["title"], one["role"], one["layers"], one["score"], np.array(one["without"])) for one in found["heads"]
    ]
    return Block(
        sentences=_describe_losses(losses, figure),
        table=Table.of(_row(one, layer, figure) for one in losses for layer in range(len(one.names))),
        picture=_draw_losses(losses, figure),
        alt="Points that each head loses without its most important layer",
        drawn=["points lost"],
        drawn_rows=Table.of(_row(one, int(one.drops.argmax()), figure) for one in losses),
        note=_note_of_losses(run, found),
        folded=True,
    )


def _row(one: Loss, layer: int, figure: str) -> Row:
    return {
        "head": one.title,
        "layer set to zero": one.names[layer],
        Column(f"{figure} with all layers", 2): one.score,
        Column(f"{figure} without it", 2): float(one.without[layer]),
        Column("points lost", 2, "Below 0: points gained"): float(one.drops[layer]),
    }


def _describe_losses(losses: list[Loss], figure: str) -> list[str]:
    heads = [one for one in losses if one.role == "head"]
    sentences = [_describe_worst(one, figure) for one in heads[:NAMED]]
    if len(heads) == 1:
        costly, count = int((heads[0].drops >= MATTERS).sum()), len(heads[0].names)
        verb = "costs" if costly <= 1 else "cost"
        sentences.append(
            f"{costly or 'None'} of the {counted(count, 'state')} it reads {verb} at least 1 point when only that one "
            "is set to zero."
        )
    elif heads:
        several = sum(int((one.drops >= MATTERS).sum()) > 1 for one in heads)
        verb = "has" if several <= 1 else "have"
        sentences.append(
            f"{several or 'None'} of the {len(heads)} heads {verb} more than one layer that costs at least 1 point "
            "when only that one is set to zero."
        )
    sentences += [_describe_control(one) for one in losses if one.role == "control"][:1]
    return sentences


def _describe_worst(one: Loss, figure: str) -> str:
    worst = int(one.drops.argmax())
    if one.drops[worst] <= 0:
        states = counted(len(one.names), "state")
        return f"{one.title} loses nothing if any one of the {states} it reads is set to zero."
    return (
        f"{one.title} loses most without {the_layer(one.names[worst])}: {figure} falls from {one.score:.1f} to "
        f"{one.without[worst]:.1f}, by {_points(one.drops[worst])}."
    )


def _describe_control(one: Loss) -> str:
    others = np.abs(np.delete(one.drops, one.last))  # (layer)
    lost = one.drops[one.last]
    without = f"loses {_points(lost)}" if lost > 0 else "loses nothing" if lost == 0 else f"gains {_points(-lost)}"
    if not others.any():
        rest = "Without any other layer its score stays the same, as expected: it reads only that one"
    else:
        changes = f"its score changes by up to {_points(others.max())}"
        rest = f"Without another layer {changes}, although it should read only that one"
    return f"The control {without} without {one.names[one.last]}. {rest}."


def _points(value: float) -> str:
    shown = f"{value:.1f}" if value >= 0.05 else f"{value:.2g}"
    return f"{shown} point{'' if shown == '1.0' else 's'}"


def _draw_losses(losses: list[Loss], figure: str) -> dict[str, Any]:
    altair, order = import_altair(), order_names([one.names for one in losses])
    rows: list[dict[str, Any]] = [
        {
            "head": one.title,
            "layer": name,
            "lost": round(float(one.drops[layer]), 3),
            "without": round(float(one.without[layer]), 3),
        }
        for one in losses
        for layer, name in enumerate(one.names)
    ]
    limit = max((abs(row["lost"]) for row in rows), default=0.0) or 1.0
    chart = chart_of(rows, 60 + 26 * len(losses)).mark_rect()
    chart = chart.encode(
        x=altair.X("layer:N", sort=order, title="layer set to zero", axis=altair.Axis(labelAngle=-40)),
        y=altair.Y("head:N", sort=[one.title for one in losses], title=None),
        color=altair.Color("lost:Q", title="points lost", scale=two_sided(limit, 1.0)),
        tooltip=tips(
            "head:N",
            ("layer:N", "layer set to zero"),
            ("without:Q", f"{figure} without it", ".2f"),
            ("lost:Q", "points lost", ".2f"),
        ),
    )
    return dict(chart.to_dict())


def _note_of_losses(run: FinishedRun, found: LayersFile) -> str:
    drawn = f" (drawn with seed {SEED})" if found["examples"] < found["of"] else ""
    some = f"{found['examples']:,} of {counted(found['of'], 'example')}" if drawn else f"all {found['of']:,} examples"
    has_pooled = any(POOLED in one["layers"] for one in found["heads"])
    return joined(
        f"Measured on {some} of {found['split']}{drawn}, with one layer at a time set to zero in the input of a head.",
        "The pooled output counts as a layer." if has_pooled else "",
        "The heads were not retrained: the loss shows how much a trained head depends on a layer, not how well a head "
        "trained without it would do.",
        stand_in_note(saved_groups(run)),
    )
