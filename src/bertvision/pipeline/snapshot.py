"""Snapshots: save and load the encoder after a given number of epochs of fine-tuning, and run it.

`compute_outputs` runs the encoder over some windows and returns the outputs of every model: output layer and heads.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertvision.config import EncoderConfig
from bertvision.data.packing import fill_batches
from bertvision.data.windows import Features
from bertvision.disk import check_files, mark_done, write_json, writing_folder
from bertvision.encoder.encoder import Encoder, RouteError, check_route
from bertvision.encoder.loading import identify, load_encoder
from bertvision.encoder.output_layer import restore_output_layer
from bertvision.encoder.states import HiddenStates, PackedTokens, Part, pack_tokens
from bertvision.errors import UserError
from bertvision.heads import count_parameters
from bertvision.kinds import Kind
from bertvision.machine import Machine
from bertvision.pipeline.job import REFERENCE, Job, read_reference
from bertvision.progress import Bar
from bertvision.sources import encode_pairs
from bertvision.sources.base import make_ahead

# Below this many operations, compiling the layers takes longer than it saves (LOG.md): a minute or two on a large GPU.
LONG_WORK = 2e16


def load_snapshot(
    folder: Path, settings: EncoderConfig, machine: Machine, load: Callable[..., Encoder] = load_encoder
) -> tuple[Encoder, Any]:
    """Load the frozen encoder of a snapshot, in the machine's precision, and its output layer."""
    check_files(folder)
    reference = read_reference(folder)
    name = reference["name"] if reference else str(folder)
    if reference and identify(name) != reference["stamp"]:
        raise UserError(
            f"the encoder '{name}' has changed since this run used it: restore the original, or start a new run."
        )
    encoder = load(name, machine.device, machine.dtype, settings.attention, layers=settings.layers)
    output = restore_output_layer(folder).to(machine.device)
    return encoder.eval().requires_grad_(False), output.eval()


def save_snapshot(job: Job, epochs: float, encoder: Encoder, output: Any, stamp: str, facts: dict[str, Any]) -> None:
    with writing_folder(job.folder.encoder(epochs)) as fresh:
        if epochs == 0:  # the untouched encoder: a reference is enough
            path = Path(os.path.expanduser(job.config.encoder.name))
            name = str(path.absolute()) if path.is_dir() else job.config.encoder.name
            write_json(fresh / REFERENCE, {"name": name, "stamp": job.stamps.encoder})
        else:
            encoder.save(fresh)
        output.save(fresh)
        parameters = count_parameters(encoder) + count_parameters(output)
        mark_done(fresh, stamp, epochs=epochs, parameters=parameters, **facts)
    job.folder.log("snapshot", epochs=epochs, **facts)


def report_route(job: Job, encoder: Encoder) -> None:
    """Print the device and the attention route, after comparing the route's output with the padded one on a few
    sequences."""
    features = job.features("train")
    try:
        with job.machine.autocast():
            check_route(encoder, pack_tokens(features, np.arange(min(4, len(features)))))
    except RouteError as error:
        encoder.take_route("padded")
        job.reporter.say(f"{error} This run uses padding.")
    line = f"device: {job.machine.describe()}; attention: {encoder.route} ({encoder.route_reason})."
    job.reporter.say_if_new("route", line)


def compile_if_long(job: Job, encoder: Encoder, tokens: float) -> None:
    """Compile the encoder's layers if a forward pass over this many tokens is enough work to pay for it."""
    wanted = job.config.encoder.compile
    if wanted == "off" or (wanted == "auto" and encoder.work * tokens < LONG_WORK):
        return
    if encoder.compile_layers():
        job.reporter.say("compiling the encoder's layers during the first batch (encoder.compile).")
    elif wanted == "on":
        job.reporter.say("not compiling the encoder's layers: encoder.compile has no effect with padding.")


def check_length(job: Job, encoder: Encoder) -> None:
    """Raise UserError if windows can be longer than the encoder allows, before a long text turns up during training."""
    if encoder.max_length is not None and job.max_length > encoder.max_length:
        raise UserError(
            f"'{encoder.name}' takes at most {encoder.max_length} tokens, but data.max_length is {job.max_length}: "
            "lower it."
        )


# ---------------------------------------------------------------------- outputs

MOST_WAITING = 64 << 20  # bytes of outputs on the device before they are fetched

POOLED_BATCHES = 16
"""Batches of tokens whose pooled states are held at once, when pairs are read as two towers."""

Model = Callable[[HiddenStates], Tensor]


class Rows(NamedTuple):
    """Outputs of some windows."""

    windows: np.ndarray  # (window,)
    outputs: np.ndarray  # (model, token or window, output)


def compute_outputs(
    encoder: Encoder,
    models: Mapping[str, Model],
    features: Features,
    kind: Kind,
    machine: Machine,
    tokens: int = 8192,
    bar: Bar | None = None,
) -> dict[str, np.ndarray]:
    """Return each model's float32 outputs in the features' order: (token, 2) for spans, else (window, output). Models
    that read two towers have a pass of their own."""
    passes = {alone: [name for name in models if reads_towers(models[name]) == alone] for alone in (False, True)}
    passes = {alone: names for alone, names in passes.items() if names}
    found: dict[str, np.ndarray] = {}
    for alone, names in passes.items():
        some = [models[name] for name in names]
        keep, outputs = parts_kept(some), Collector()
        # Longest first: memory runs out at once or never, and neighbours need little padding.
        order = np.argsort(-features.lengths, kind="stable")
        plan = fill_batches(features.lengths, order, tokens=tokens)
        if alone:
            plan = _plan_pairs(features, keep, tokens)
        mine = plan[machine.rank :: machine.processes]
        batches = _pair_batches(encoder, features, mine, keep, tokens) if alone else None
        for windows, states in batches or encode_batches(encoder, features, mine, keep):
            with torch.no_grad():  # in the models' own float32: half precision would produce ties
                outputs.add(windows, [model(states) for model in some])
            if bar:
                bar.advance(int(features.lengths[windows].sum()) // len(passes))
        found |= put_in_order(machine.gather(outputs.fetch()), names, features, kind)
    return {name: found[name] for name in models}


def reads_towers(model: Any) -> bool:
    return bool(getattr(model, "towers", False))


def parts_kept(models: Iterable[Any]) -> tuple[Part, ...]:
    """The parts of the states that output layers and heads read."""
    return tuple(sorted({part for model in models for part in getattr(model, "keep", None) or model.reads}))


def _plan_pairs(features: Features, keep: tuple[Part, ...], tokens: int) -> list[np.ndarray]:
    """Batches of pairs, those with the same first text next to each other: a batch encodes a text once. Pooled states
    are small, so batches are larger."""
    order = np.argsort(features.towers.first, kind="stable")  # (pair)
    return fill_batches(features.lengths, order, tokens=tokens if "tokens" in keep else POOLED_BATCHES * tokens)


def _pair_batches(
    encoder: Encoder, features: Features, plan: list[np.ndarray], keep: tuple[Part, ...], tokens: int
) -> Iterator[tuple[np.ndarray, HiddenStates]]:
    encoder.eval()
    for pairs in plan:
        yield pairs, encode_pairs(encoder, features.towers, pairs, keep, tokens)


def encode_batches(
    encoder: Encoder, features: Features, plan: list[np.ndarray], keep: tuple[Part, ...]
) -> Iterator[tuple[np.ndarray, HiddenStates]]:
    """Yield the windows of each batch and their states. On a GPU, the next batches are packed in the background."""
    on_gpu = encoder.device.type == "cuda"

    def prepare(windows: np.ndarray) -> tuple[np.ndarray, PackedTokens]:
        tokens = pack_tokens(features, windows)
        return windows, tokens.pin() if on_gpu else tokens

    encoder.eval()
    for windows, tokens in make_ahead(prepare, plan) if on_gpu else map(prepare, plan):
        with torch.no_grad():
            states = encoder(tokens, keep=keep)
        yield windows, states


class Collector:
    """Collects outputs of several models, batch by batch. They stay on the device and are fetched many at a time,
    because each fetch waits until the device is idle."""

    def __init__(self) -> None:
        self.waiting: list[tuple[np.ndarray, Tensor]] = []
        self.bytes, self.fetched = 0, list[Rows]()

    def add(self, windows: np.ndarray, outputs: list[Tensor]) -> None:
        """Add one batch: its windows, and each model's outputs for them (token or window, output)."""
        stacked = torch.stack([output.float() for output in outputs])  # (model, token or window, output)
        self.waiting.append((windows, stacked))
        self.bytes += stacked.nbytes
        if self.bytes > MOST_WAITING:
            self.fetch()

    def fetch(self) -> list[Rows]:
        """Return everything added so far."""
        if self.waiting:
            windows, outputs = zip(*self.waiting, strict=True)
            joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
            self.fetched.append(Rows(np.concatenate(windows), joined.cpu().numpy()))
            self.waiting, self.bytes = [], 0
        return self.fetched


def put_in_order(rows: list[Rows], names: list[str], features: Features, kind: Kind) -> dict[str, np.ndarray]:
    """Return the outputs of each model in the features' order. Empties `rows`."""
    shape = len(names), kind.rows_of(features), rows[0].outputs.shape[2]
    found = np.full(shape, np.nan, dtype=np.float32)  # (model, token or window, output)
    while rows:
        windows, outputs = rows.pop()
        found[:, features.find_tokens(windows) if kind.position == "token" else windows] = outputs
    return dict(zip(names, found, strict=True))
