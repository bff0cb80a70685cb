"""One pass over some windows gives the raw outputs of every model: the encoder's own output layer and all heads."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertvision.data.packing import fill_batches
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import HiddenStates, PackedTokens, Part, pack_tokens
from bertvision.kinds import Kind
from bertvision.machine import Machine
from bertvision.progress import Bar
from bertvision.sources.base import make_ahead

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
    found = Collector()
    for windows, states in encode_batches(encoder, features, plan[machine.rank :: machine.processes], keep):
        with torch.no_grad():  # in the models' own float32: half precision would tie scores
            found.add(windows, [model(states) for model in models.values()])
        if bar:
            bar.advance(int(features.lengths[windows].sum()))
    return put_in_order(machine.gather(found.fetch()), list(models), features, kind)


def encode_batches(
    encoder: Encoder, features: Features, plan: list[np.ndarray], keep: tuple[Part, ...]
) -> Iterator[tuple[np.ndarray, HiddenStates]]:
    """The windows of each batch and their states. On a GPU the next batches are packed meanwhile."""
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
        found[:, features.find_tokens(windows) if kind.position == "token" else windows] = outputs
    return dict(zip(names, found, strict=True))
