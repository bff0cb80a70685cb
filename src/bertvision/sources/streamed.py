"""Streamed source: the frozen encoder runs as the batches are asked for, several steps' windows at a time."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import HiddenStates, Part
from bertvision.sources.base import StateBatch, pack_targets, pack_tokens


class StreamedSource:
    def __init__(
        self,
        encoder: Encoder,
        features: Features,
        plan: list[np.ndarray],
        keep: Iterable[Part],
        encode_tokens: int = 8192,
        share: tuple[int, int] = (0, 1),
        starts: Iterable[int] = (),
    ) -> None:
        """`plan` holds each step's windows; `keep` what of the states is wanted; `share` = (rank, processes); `starts`
        the steps that never go through the encoder with the one before them."""
        self.encoder, self.features, self.plan = encoder.eval(), features, plan
        self.keep, self.encode_tokens = tuple(keep), encode_tokens
        self.rank, self.processes = share
        self.starts = frozenset(starts)

    @property
    def steps(self) -> int:
        return len(self.plan)

    def batches(self, first: int = 0) -> Iterator[StateBatch]:
        for group in self._groups():
            if group.stop > first:
                yield from self._batches_of(group, first)  # its states go with it, before the next group's come

    def _batches_of(self, group: range, first: int) -> Iterator[StateBatch]:
        parts = [self.plan[step][self.rank :: self.processes] for step in group]
        # Steps are small and the encoder likes much at once, so a group goes through together and is cut again.
        cuts = self._encode(np.concatenate(parts)).split([len(part) for part in parts])
        for step, windows, cut in zip(group, parts, cuts, strict=True):
            if step >= first:
                targets = pack_targets(self.features, windows).to(self.encoder.device)
                yield StateBatch(windows, cut, targets, len(self.plan[step]))

    def _encode(self, windows: np.ndarray) -> HiddenStates:
        if not len(windows):  # a last batch with fewer windows than processes
            return HiddenStates(torch.zeros(0, dtype=torch.int64))
        with torch.no_grad():
            return self.encoder(pack_tokens(self.features, windows), keep=self.keep)

    def _groups(self) -> Iterator[range]:
        """Consecutive steps whose windows hold about `encode_tokens` tokens.

        They are counted from the first step wherever a pass begins, and end with an epoch: other neighbours would round
        the states otherwise, and a resumed or longer pass would end in other weights.
        """
        start = 0
        while start < self.steps:
            stop, tokens = start, 0
            while stop < self.steps and (stop == start or (tokens < self.encode_tokens and stop not in self.starts)):
                tokens += int(self.features.lengths[self.plan[stop]].sum())
                stop += 1
            yield range(start, stop)
            start = stop
