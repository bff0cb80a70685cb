"""One pass over some windows gives the raw outputs of every model: the encoder's own output layer and all heads."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from bertvision.data.packing import fill_batches
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import HiddenStates, Part
from bertvision.machine import Machine
from bertvision.progress import Bar
from bertvision.sources import StreamedSource
from bertvision.tasks.base import TargetKind

Model = Callable[[HiddenStates], Tensor]


def compute_outputs(
    encoder: Encoder,
    models: Mapping[str, Model],
    keep: tuple[Part, ...],
    features: Features,
    kind: TargetKind,
    machine: Machine,
    tokens: int = 8192,
    bar: Bar | None = None,
) -> dict[str, np.ndarray]:
    """Outputs of each model, float32: (token, 2) for spans, (window, output) otherwise, in the features' order."""
    # Longest first: memory fails at once or never, and neighbours need little padding.
    order = np.argsort(-features.lengths, kind="stable")
    plan = fill_batches(features.lengths, order, tokens=tokens)
    mine = plan[machine.rank :: machine.processes]
    source = StreamedSource(encoder, features, mine, keep, encode_tokens=1)
    rows: list[tuple[np.ndarray, dict[str, np.ndarray]]] = []
    for batch in source.batches():
        with torch.no_grad():  # in the models' own float32: half precision would tie scores
            outputs = {name: model(batch.states).float().cpu().numpy() for name, model in models.items()}
        rows.append((batch.windows, outputs))
        if bar:
            bar.advance(int(features.lengths[batch.windows].sum()))
    return _in_order(machine.gather(rows), list(models), features, kind)


def _in_order(
    rows: list[tuple[np.ndarray, dict[str, np.ndarray]]], names: list[str], features: Features, kind: TargetKind
) -> dict[str, np.ndarray]:
    size = len(features.input_ids) if kind is TargetKind.SPAN else len(features)
    width = rows[0][1][names[0]].shape[1]
    found = {name: np.full((size, width), np.nan, dtype=np.float32) for name in names}
    for windows, outputs in rows:
        place = windows
        if kind is TargetKind.SPAN:
            place = np.concatenate([np.arange(*features.tokens_of(window).indices(size)) for window in windows])
        for name in names:
            found[name][place] = outputs[name]
    return found
