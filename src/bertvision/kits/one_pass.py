"""Run the windows of several tasks through one encoder. A sequence that several tasks share is encoded only once."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bertvision.data.packing import fill_batches
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import HiddenStates, Part
from bertvision.heads import Head
from bertvision.pipeline.snapshot import encode_batches
from bertvision.progress import Reporter


@dataclass(frozen=True)
class HeadWindows:
    """A task's head and the windows it reads."""

    head: Head
    features: Features

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


def join_features(parts: Sequence[Features]) -> Features:
    """Concatenate the windows of all parts."""
    names = [item.name for item in dataclasses.fields(Features)]
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
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
    joined = join_features([one.features for one in asked.values()])
    first = find_first(joined)  # (window,)
    tasks = np.cumsum([len(one.features) for one in asked.values()])[:-1]  # first window of each task after the first
    keep: tuple[Part, ...] = tuple(sorted({part for one in asked.values() for part in one.head.reads}))
    outputs = {name: one.allocate() for name, one in asked.items()}
    sequences = np.unique(first)  # (sequence,)
    order = sequences[np.argsort(-joined.lengths[sequences], kind="stable")]  # (sequence,)
    plan = fill_batches(joined.lengths, order, tokens=8192)
    with reporter.bar("predicting", int(joined.lengths[sequences].sum()), "tokens") as bar:
        for some, states in encode_batches(encoder, joined, plan, keep):
            row_of = np.full(len(joined), -1, dtype=np.int64)  # (window,) its row in this batch
            row_of[some] = np.arange(len(some))
            for (name, one), rows in zip(asked.items(), np.split(row_of[first], tasks), strict=True):
                one.fill(outputs[name], states, rows)
            bar.advance(int(joined.lengths[some].sum()))
    return outputs
