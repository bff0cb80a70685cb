"""One pass over some windows gives the raw outputs of every model: the encoder's own output layer and all heads."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertvision.data.packing import fill_batches
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import HiddenStates, Part
from bertvision.kinds import Kind
from bertvision.machine import Machine
from bertvision.progress import Bar
from bertvision.sources import StreamedSource
from bertvision.sources.base import find_tokens

MOST_WAITING = 64 << 20  # bytes of outputs on the device before they are fetched

Model = Callable[[HiddenStates], Tensor]


class Rows(NamedTuple):
    """Outputs of some windows."""

    windows: np.ndarray  # (window,)
    outputs: np.ndarray  # (model, token or window, output)


def compute_outputs(
    encoder: Encoder,
    models: Mapping[str, Model],
    keep: tuple[Part, ...],
    features: Features,
    kind: Kind,
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
    found = Collector()
    for batch in source.batches():
        with torch.no_grad():  # in the models' own float32: half precision would tie scores
            found.add(batch.windows, [model(batch.states) for model in models.values()])
        if bar:
            bar.advance(int(features.lengths[batch.windows].sum()))
    return put_in_order(machine.gather(found.fetch()), list(models), features, kind)


class Collector:
    """Outputs of several models, batch after batch. They wait on the device and come from it many at a time: each time
    the device must first have done all its work."""

    def __init__(self) -> None:
        self.waiting: list[tuple[np.ndarray, Tensor]] = []
        self.bytes, self.fetched = 0, list[Rows]()

    def add(self, windows: np.ndarray, outputs: list[Tensor]) -> None:
        """One batch: its windows, and each model's outputs for them (token or window, output)."""
        stacked = torch.stack([output.float() for output in outputs])  # (model, token or window, output)
        self.waiting.append((windows, stacked))
        self.bytes += stacked.nbytes
        if self.bytes > MOST_WAITING:
            self.fetch()

    def fetch(self) -> list[Rows]:
        """All that was added so far."""
        if self.waiting:
            windows, outputs = zip(*self.waiting, strict=True)
            joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
            self.fetched.append(Rows(np.concatenate(windows), joined.cpu().numpy()))
            self.waiting, self.bytes = [], 0
        return self.fetched


def put_in_order(rows: list[Rows], names: list[str], features: Features, kind: Kind) -> dict[str, np.ndarray]:
    """Outputs of each model in the features' order; the rows are used up."""
    shape = len(names), kind.rows_of(features), rows[0].outputs.shape[2]
    found = np.full(shape, np.nan, dtype=np.float32)  # (model, token or window, output)
    while rows:
        windows, outputs = rows.pop()
        found[:, find_tokens(features, windows) if kind.position == "token" else windows] = outputs
    return dict(zip(names, found, strict=True))
