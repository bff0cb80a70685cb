"""Which heads of a run were kept, which layers they read, and how layers are named."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bertvision.disk import read_json
from bertvision.encoder.encoder import Encoder
from bertvision.heads import Head
from bertvision.pipeline.finished import FinishedRun, Group, Model
from bertvision.pipeline.snapshot import load_snapshot

POOLED = "pooled output"


def saved_groups(run: FinishedRun) -> list[Group]:
    """Control and heads at the last snapshot that has any, as far as their weights are there; of those trained on
    shares of the data only the ones on all of it, where there are such."""
    groups = []
    for group in run.groups(run.last, "control", "head"):
        there = [model for model in group.trained if (run.head_folder(model) / "head.safetensors").is_file()]
        groups += [Group(there)] if there else []
    whole = [group for group in groups if group.is_whole]
    return whole or groups


def layers_of(run: FinishedRun, model: Model) -> list[int] | None:
    """The layers whose states a head was trained on; None: all. The config may have been given others since."""
    found: list[int] | None = (read_json(run.head_folder(model) / "stamp.json") or {}).get("layers")
    return found


def name_layers(layers: Sequence[int], pooled: bool = False) -> list[str]:
    names = ["embeddings" if layer == 0 else f"layer {layer}" for layer in layers]
    return [*names, POOLED] if pooled else names


def the_layer(name: str) -> str:
    """A layer's name inside a sentence."""
    return name if name.startswith("layer ") else f"the {name}"


def names_read(head: Head, layers: Sequence[int] | None) -> list[str]:
    """The states that a head finds at each position, the lowest layer first."""
    numbers = range(head.shape.layers) if layers is None else layers
    return name_layers(numbers, pooled=head.layers > head.shape.layers)


def open_encoder(run: FinishedRun, model: Model) -> Encoder:
    """The frozen encoder under a head, which gives the layers that the head was trained on."""
    job = run.job
    settings = dataclasses.replace(job.config.encoder, layers=layers_of(run, model))
    return load_snapshot(job.folder.encoder(model.epochs), settings, job.machine)[0]


def upper_half(count: int) -> slice:
    """The upper half of so many states; the middle one of an odd number is not of it."""
    return slice(count - count // 2, count)


def order_names(found: Sequence[Sequence[str]]) -> list[str]:
    """All names that occur, from below; only the pooled output is not everywhere, and it comes last."""
    names = dict.fromkeys(name for names in found for name in names)
    return [name for name in names if name != POOLED] + [name for name in names if name == POOLED]


def heads_were_kept(run: FinishedRun, split: str) -> bool:
    """The need of analyses that load heads."""
    return bool(saved_groups(run))


def predictions_stamp(model: Model, split: str) -> str:
    """Hash of what a model's predictions depend on: its weights, the data, the settings of scoring."""
    found: dict[str, Any] = read_json(model.predictions(split) / "stamp.json")
    return str(found["stamp"])
