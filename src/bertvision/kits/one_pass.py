"""Run the windows of several tasks through one encoder. A sequence that several tasks share is encoded only once: also
a text that one task reads alone, and another as part of a pair of two towers."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertvision.data.packing import fill_batches
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import HiddenStates, Part
from bertvision.heads import Head
from bertvision.pipeline.snapshot import encode_batches
from bertvision.progress import Reporter
from bertvision.sources import MemoryStates

MOST_BYTES = 1 << 30
"""Of the states of texts that are kept during a pass."""


@dataclass(frozen=True)
class HeadWindows:
    """A task's head and the windows it reads."""

    head: Head
    features: Features

    @property
    def sequences(self) -> Features:
        """What the encoder reads: the windows or, for two towers, each text alone."""
        return self.features.towers.texts if self.head.towers else self.features

    @property
    def shares_pass(self) -> bool:
        """Whether the head can take part in a pass with others. Two towers need the states of their texts until the
        end of the pass, so these must be small."""
        if not self.head.towers:
            return True
        size = 4 * len(self.sequences) * self.head.layers * self.head.shape.hidden
        return "tokens" not in self.head.reads and size <= MOST_BYTES

    def allocate(self) -> np.ndarray:
        """(token or window, output) an uninitialised array for the outputs of all windows."""
        target = self.head.target
        return np.empty((target.kind.rows_of(self.features), target.outputs), dtype=np.float32)

    def fill(self, outputs: np.ndarray, states: HiddenStates, rows: np.ndarray) -> None:
        """Compute the outputs of the windows in a batch and write them into `outputs`. `rows` (window,) is each
        window's index among the batch's sequences, -1 for windows that are not in the batch."""
        windows = np.flatnonzero(rows >= 0)  # (window,)
        if not len(windows):
            return
        picked = torch.from_numpy(rows[windows])  # (window,)
        found = self.head(states.pick(picked, *self.head.reads))  # (token or window, output)
        on_tokens = self.head.target.kind.position == "token"
        outputs[self.features.find_tokens(windows) if on_tokens else windows] = found.float().cpu().numpy()


class TextStates:
    """The states of the texts of a head that reads two towers, collected batch by batch."""

    def __init__(self, one: HeadWindows) -> None:
        self.one, self.parts = one, dict[Part, Tensor]()  # each part (text, layer, hidden)

    def fill(self, states: HiddenStates, rows: np.ndarray) -> None:
        """Keep the states of the texts in a batch. `rows` are as in `HeadWindows.fill`."""
        texts = torch.from_numpy(np.flatnonzero(rows >= 0)).to(states.device)  # (text of the batch)
        picked = torch.from_numpy(rows[rows >= 0]).to(states.device)  # (text of the batch)
        for part in self.one.head.reads:
            found = states.read(part)  # (sequence, layer, hidden)
            if part not in self.parts:
                self.parts[part] = found.new_empty(len(rows), *found.shape[1:])
            self.parts[part][texts] = found[picked]

    def outputs(self) -> np.ndarray:
        """(pair, output) once all texts are there."""
        head = self.one.head
        memory = MemoryStates(self.parts, head.shape.pooled, towers=self.one.features.towers)
        return memory.map(head).float().cpu().numpy()


def join_features(parts: Sequence[Features]) -> Features:
    """Concatenate the windows of all parts."""
    names = [item.name for item in dataclasses.fields(Features) if item.name != "make_towers"]
    joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    joined["starts"] = np.cumsum(joined["lengths"], dtype=np.int64) - joined["lengths"]  # (window,)
    return Features(**joined)


def find_first(features: Features) -> np.ndarray:
    """(window,) the first window with the same sequence, that is, with equal token and segment ids."""
    known: dict[bytes, int] = {}
    slices = map(features.tokens_of, range(len(features)))
    keys = (features.input_ids[tokens].tobytes() + features.type_ids[tokens].tobytes() for tokens in slices)
    return np.array([known.setdefault(key, window) for window, key in enumerate(keys)], dtype=np.int64)


@torch.no_grad()
def compute_in_one_pass(
    encoder: Encoder, asked: Mapping[str, HeadWindows], reporter: Reporter
) -> dict[str, np.ndarray]:
    """Return each head's outputs for its windows, as float32: (token, 2) for spans, (window, output) otherwise."""
    sequences = {name: one.sequences for name, one in asked.items()}
    joined = join_features(list(sequences.values()))
    first = find_first(joined)  # (window,)
    ends = np.cumsum([len(some) for some in sequences.values()])[:-1]  # first window of each task after the first
    keep: tuple[Part, ...] = tuple(sorted({part for one in asked.values() for part in one.head.reads}))
    outputs = {name: one.allocate() for name, one in asked.items() if not one.head.towers}
    texts = {name: TextStates(one) for name, one in asked.items() if one.head.towers}
    different = np.unique(first)  # (sequence,)
    order = different[np.argsort(-joined.lengths[different], kind="stable")]  # (sequence,)
    plan = fill_batches(joined.lengths, order, tokens=8192)
    with reporter.bar("predicting", int(joined.lengths[different].sum()), "tokens") as bar:
        for some, states in encode_batches(encoder, joined, plan, keep):
            row_of = np.full(len(joined), -1, dtype=np.int64)  # (window,) its row in this batch
            row_of[some] = np.arange(len(some))
            for (name, one), rows in zip(asked.items(), np.split(row_of[first], ends), strict=True):
                if name in texts:
                    texts[name].fill(states, rows)
                else:
                    one.fill(outputs[name], states, rows)
            bar.advance(int(joined.lengths[some].sum()))
    return outputs | {name: some.outputs() for name, some in texts.items()}
