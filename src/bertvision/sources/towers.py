"""States of pairs that are read as two towers: a text that several pairs of a batch share is encoded once."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from bertvision.data.packing import fill_batches
from bertvision.data.windows import Features, Towers
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import HiddenStates, Part, pack_tokens
from bertvision.sources.base import StateBatch, pack_targets
from bertvision.sources.streamed import StreamedSource


def encode_pairs(
    encoder: Encoder, towers: Towers, pairs: np.ndarray, keep: tuple[Part, ...], tokens: int
) -> HiddenStates:
    """Encode the texts of some pairs, about `tokens` tokens at a time. Return the states of the first texts, with those
    of the second."""
    needed = towers.needed(pairs)  # (text)
    states, order = _encode_texts(encoder, towers.texts, needed, keep, tokens)
    place = np.argsort(order)  # (text) where its states are
    sides = [torch.from_numpy(place[np.searchsorted(needed, side[pairs])]) for side in (towers.first, towers.second)]
    read: Any = keep
    return states.pair(sides[0], sides[1], *read)


def _encode_texts(
    encoder: Encoder, texts: Features, needed: np.ndarray, keep: tuple[Part, ...], tokens: int
) -> tuple[HiddenStates, np.ndarray]:
    """The states of the needed texts, and their order: longest first, so that neighbours need little padding."""
    order = np.argsort(-texts.lengths[needed], kind="stable")  # (text)
    found = []
    for some in fill_batches(texts.lengths, needed[order], tokens=tokens):
        with torch.no_grad():
            found.append(encoder(pack_tokens(texts, some), keep=keep))
    lengths = torch.cat([one.lengths for one in found])  # (text)
    parts: dict[str, Any] = {
        name: torch.cat([one.parts()[name] for one in found]) for name in keep
    }  # each (text or token, …)
    return HiddenStates(lengths, **parts, pooled=found[0].pooled), order


class TowersSource(StreamedSource):
    """The streamed source of two towers. Its encoder is not recorded on a GPU."""

    def batches(self, first: int = 0) -> Iterator[StateBatch]:
        for group in self._groups():
            if group.stop > first:
                yield from self._pairs_of(group, first)  # frees its states before the next group is encoded

    def _pairs_of(self, group: range, first: int) -> Iterator[StateBatch]:
        device, towers = self.encoder.device, self.features.towers
        parts = [self.plan[step][self.rank :: self.processes] for step in group]
        whole = np.concatenate(parts)
        states = HiddenStates(torch.zeros(0, dtype=torch.int64))
        if len(whole):
            states = encode_pairs(self.encoder, towers, whole, self.keep, self.encode_tokens)
        for step, pairs, cut in zip(group, parts, states.split([len(part) for part in parts]), strict=True):
            if step >= first:
                targets = pack_targets(self.features, pairs).to(device)
                yield StateBatch(pairs, cut, targets, len(self.plan[step]))
