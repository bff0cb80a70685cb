"""Learned layer weights of the heads that take a weighted mean of the layers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertvision.heads import load_head
from bertvision.heads.blocks import LearnedPooling
from bertvision.kinds.base import Float
from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.report.analysis import analysis
from bertvision.report.block import Block
from bertvision.report.drawing import chart_of, colour_by, import_altair, tips
from bertvision.report.saved_heads import layers_of, names_read, order_names, saved_groups, the_layer, upper_half
from bertvision.report.wording import deviation_of, in_text, joined, seeds_note
from bertvision.tables import Column, Table, counted

NAMED = 4  # most heads described in a sentence each


@dataclass(frozen=True)
class _LearnedWeights:
    """The weights that the heads of a group learned for the states they read."""

    group: Group
    names: list[str]
    shares: Float  # (seed, layer) in percent

    @property
    def title(self) -> str:
        return self.group.title

    @property
    def mean(self) -> Float:
        found: Float = self.shares.mean(axis=0)
        return found  # (layer)

    @property
    def even(self) -> float:
        """The weight of each state if all were equal, in percent."""
        return 100 / len(self.names)


@analysis("Layers", 20, "Learned layer weights")
def layer_weights(run: FinishedRun, split: str) -> Block | None:
    """The weight of each layer, for heads with a learned weighted mean of the layers. The same for every split."""
    found = [weights for group in saved_groups(run) if (weights := _read_weights(run, group)) is not None]
    if not found:
        return None
    table = Table.of(
        {
            "head": one.title,
            "layer": name,
            Column("weight, %", 2): float(one.mean[layer]),
            Column("± seeds", 2, "Standard deviation over seeds"): deviation_of(one.shares[:, layer].tolist()),
            Column("equal weight, %", 2, "The weight if all states had the same"): one.even,
        }
        for one in found
        for layer, name in enumerate(one.names)
    )
    return Block(
        "layer_weights",
        sentences=_describe_weights(found),
        table=table,
        picture=_draw_weights(found),
        drawn=["weight, %"],
        note=joined(
            "Softmax weights of the heads that take a learned weighted mean of the layers. The dashed line marks equal "
            "weights. A weight alone does not measure how much a layer contributes, because the states of different "
            "layers also differ in size.",
            seeds_note(one.group for one in found),
        ),
        folded=True,
    )


def _read_weights(run: FinishedRun, group: Group) -> _LearnedWeights | None:
    shares: list[Float] = []
    for model in group.models:
        head, _ = load_head(run.head_folder(model))
        pooling = next((module for module in head.modules() if isinstance(module, LearnedPooling)), None)
        if pooling is None:
            return None
        shares.append(100 * torch.softmax(pooling.weights.detach().double(), dim=0).numpy())  # (layer)
    return _LearnedWeights(group, names_read(head, layers_of(run, group.models[0])), np.stack(shares))


def _describe_weights(found: list[_LearnedWeights]) -> list[str]:
    sentences = []
    for one in found[:NAMED]:
        top, half = int(one.mean.argmax()), upper_half(len(one.names))
        sentences.append(
            f"{in_text(one.group)} puts the largest weight on {the_layer(one.names[top])}: {one.mean[top]:.1f} %, "
            f"compared with {one.even:.1f} % for equal weights. The upper half of the "
            f"{counted(len(one.names), 'state')} it reads has {one.mean[half].sum():.1f} % of the weight "
            f"({one.even * (half.stop - half.start):.1f} % for equal weights)."
        )
    if len(found) > NAMED:
        sentences.append(f"The picture and the table show {counted(len(found) - NAMED, 'more head')}.")
    return sentences


def _draw_weights(found: list[_LearnedWeights]) -> dict[str, Any]:
    altair, order = import_altair(), order_names([one.names for one in found])
    rows = [
        {"head": one.title, "layer": name, "weight": round(float(value), 3)}
        for one in found
        for name, value in zip(one.names, one.mean, strict=True)
    ]
    evens = [
        {"share": round(100 / count, 3), "means": f"equal weights for {count} states"}
        for count in sorted({len(one.names) for one in found})
    ]
    lines = chart_of(rows).mark_line(point=True)
    lines = lines.encode(
        x=altair.X("layer:N", sort=order, title=None, axis=altair.Axis(labelAngle=-40)),
        y=altair.Y("weight:Q", title="weight, %", scale=altair.Scale(zero=False, padding=8)),
        color=colour_by("head", [one.title for one in found]),
        tooltip=tips("head:N", "layer:N", ("weight:Q", "weight, %", ".2f")),
    )
    even = chart_of(evens).mark_rule(strokeDash=[4, 4])
    even = even.encode(y="share:Q", tooltip=tips(("means:N", "line"), ("share:Q", "%", ".2f")))
    return dict((even + lines).to_dict())
