"""Several tasks' windows through one encoder, each sequence once, however many tasks ask about it."""

from collections.abc import Mapping
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
class Asked:
    """A task's head and the windows that it is asked about."""

    head: Head
    features: Features

    def make_room(self) -> np.ndarray:
        """(token or window, output) for the outputs of all windows."""
        target = self.head.target
        return np.empty((target.kind.rows_of(self.features), target.outputs), dtype=np.float32)

    def read(self, states: HiddenStates, place: np.ndarray, found: np.ndarray) -> None:
        """Puts the outputs of those windows that are in a batch into `found`; `place` (window,) is where each one is
        among the batch's sequences, -1 where it is not."""
        windows = np.flatnonzero(place >= 0)  # (window,)
        if not len(windows):
            return
        rows = torch.from_numpy(place[windows])  # (window,)
        outputs = self.head(states.pick(rows, self.head.reads))  # (token or window, output)
        on_tokens = self.head.target.kind.position == "token"
        found[self.features.find_tokens(windows) if on_tokens else windows] = outputs.float().cpu().numpy()


@dataclass(frozen=True)
class Sequences:
    """All sequences that any task has, once each, and where each task's windows are among them."""

    features: Features
    places: dict[str, np.ndarray]  # (window,) each


def join_sequences(features: Mapping[str, Features]) -> Sequences:
    """Windows are the same sequence where their tokens and segments are."""
    known: dict[bytes, int] = {}
    firsts: list[tuple[Features, int]] = []
    places = {}
    for name, own in features.items():
        place = np.empty(len(own), dtype=np.int64)  # (window,)
        for window in range(len(own)):
            tokens = own.tokens_of(window)
            key = own.input_ids[tokens].tobytes() + own.type_ids[tokens].tobytes()
            if key not in known:
                known[key] = len(firsts)
                firsts.append((own, window))
            place[window] = known[key]
        places[name] = place
    return Sequences(_gather(firsts), places)


def _gather(firsts: list[tuple[Features, int]]) -> Features:
    lengths = np.array([own.lengths[window] for own, window in firsts], dtype=np.int32)  # (sequence,)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths  # (sequence,)
    nothing = np.zeros(len(lengths), dtype=np.int32)  # (sequence,)
    return Features(
        input_ids=np.concatenate([own.input_ids[own.tokens_of(window)] for own, window in firsts]),
        type_ids=np.concatenate([own.type_ids[own.tokens_of(window)] for own, window in firsts]),
        lengths=lengths,
        starts=starts,
        example=np.arange(len(lengths), dtype=np.int32),
        offsets=np.full((int(lengths.sum()), 2), -1, dtype=np.int32),
        start=nothing,
        end=nothing,
        target=np.full(len(lengths), np.nan, dtype=np.float32),
    )


@torch.no_grad()
def compute_all(
    encoder: Encoder, asked: Mapping[str, Asked], reporter: Reporter, tokens: int = 8192
) -> dict[str, np.ndarray]:
    """Each head's outputs for its windows, float32: (token, 2) for spans, (window, output) otherwise."""
    joined = join_sequences({name: one.features for name, one in asked.items()})
    keep: tuple[Part, ...] = tuple(sorted({one.head.reads for one in asked.values()}))
    found = {name: one.make_room() for name, one in asked.items()}
    order = np.argsort(-joined.features.lengths, kind="stable")  # (sequence,)
    plan = fill_batches(joined.features.lengths, order, tokens=tokens)
    with reporter.bar("predicting", int(joined.features.lengths.sum()), "tokens") as bar:
        for some, states in encode_batches(encoder, joined.features, plan, keep):
            at = np.full(len(joined.features), -1, dtype=np.int64)  # (sequence,) its place in this batch
            at[some] = np.arange(len(some))
            for name, one in asked.items():
                one.read(states, at[joined.places[name]], found[name])
            bar.advance(int(joined.features.lengths[some].sum()))
    return found
