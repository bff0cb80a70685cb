"""The saved heads of a run, the layers they read, and the names of layers."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bertvision.disk import DamagedError, read_json, read_stamp, repair_of
from bertvision.disk.forms import Facts
from bertvision.encoder.encoder import Encoder
from bertvision.errors import UserError
from bertvision.heads import Head
from bertvision.pipeline.finished import FinishedRun, Group, Model
from bertvision.pipeline.snapshot import load_snapshot
from bertvision.pipeline.stamps import HeadStamp
from bertvision.progress import Reporter

Known = TypeVar("Known")
POOLED = "pooled output"


def saved_groups(run: FinishedRun) -> list[Group]:
    """The control and the heads at the last snapshot whose weights were saved. Groups trained on a fraction of the data
    are included only if no group was trained on all of it."""
    groups = []
    for group in run.groups(run.last, "control", "head"):
        there = [model for model in group.trained if (run.head_folder(model) / "head.safetensors").is_file()]
        groups += [Group(there)] if there else []
    whole = [group for group in groups if group.is_whole]
    return whole or groups


def layers_of(run: FinishedRun, model: Model) -> list[int] | None:
    """The layers whose states a head was trained on; None means all. Read from the head's stamp, because the config may
    have changed since."""
    found = read_stamp(run.head_folder(model), HeadStamp)
    return found.get("layers") if found else None


def name_layers(layers: Sequence[int], pooled: bool = False) -> list[str]:
    names = ["embeddings" if layer == 0 else f"layer {layer}" for layer in layers]
    return [*names, POOLED] if pooled else names


def the_layer(name: str) -> str:
    """A layer's name as used in a sentence."""
    return name if name.startswith("layer ") else f"the {name}"


def names_read(head: Head, layers: Sequence[int] | None) -> list[str]:
    """Names of the states that a head reads at each position, lowest layer first."""
    numbers = range(head.shape.layers) if layers is None else layers
    return name_layers(numbers, pooled=head.layers > head.shape.layers)


def open_encoder(run: FinishedRun, model: Model) -> Encoder:
    """Load the frozen encoder that a head was trained on, set to return the same layers."""
    job = run.job
    settings = dataclasses.replace(job.config.encoder, layers=layers_of(run, model))
    return load_snapshot(job.folder.encoder(model.epochs), settings, job.machine)[0]


def upper_half(count: int) -> slice:
    """The upper half of `count` states; for an odd number, the middle one is not included."""
    return slice(count - count // 2, count)


def order_names(found: Sequence[Sequence[str]]) -> list[str]:
    """All layer names that occur, lowest first. Only the pooled output may be missing in some; it comes last."""
    names = dict.fromkeys(name for names in found for name in names)
    return [name for name in names if name != POOLED] + [name for name in names if name == POOLED]


def heads_were_kept(run: FinishedRun, split: str) -> bool:
    """Need of the analyses that load heads."""
    return bool(saved_groups(run))


ANALYSES = "analyses"
"""The folder of what reports compute once."""


def read_known(path: Path, stamp: str, parse: Callable[[Any], Known], reporter: Reporter) -> Known | None:
    """What an earlier report computed from the same things; None if that has to be computed again. `parse` raises
    ValueError if the file has another form."""
    try:
        found = read_json(path, Facts)
        return parse(found) if found is not None and found.get("stamp") == stamp else None
    except ValueError as error:
        if isinstance(error, UserError) and not isinstance(error, DamagedError):
            raise
        reporter.say(f"{path} is damaged, so it is computed again.")
        return None


def predictions_stamp(model: Model, split: str) -> str:
    """Hash of everything that affects a model's predictions: weights, data, scoring settings."""
    found = read_stamp(model.predictions(split))
    if found is None:
        raise UserError(f"{model.predictions(split)} is not complete: {repair_of(model.predictions(split))}")
    return str(found["stamp"])
