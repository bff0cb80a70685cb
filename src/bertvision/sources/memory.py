"""In-memory source: [CLS] and mean states are small, so they are encoded or read once and held in memory."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertvision.data.packing import fill_batches
from bertvision.data.windows import Features, Towers
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import HiddenStates, Part, pack_tokens
from bertvision.machine import Machine
from bertvision.progress import Bar
from bertvision.sources.base import StateBatch, Targets, pack_targets
from bertvision.sources.store.dtypes import from_stored
from bertvision.sources.store.reader import StateReader, Store

ROWS_AT_ONCE = 1024
"""Windows whose states are copied at once."""


class MemoryStates:
    """The pooled states of all windows: [CLS], and the mean, maximum or deviation over tokens.

    Of two towers, `parts` are the states of the texts, each once, and `towers` says which texts are a pair.
    """

    def __init__(self, parts: dict[Part, Tensor], pooled: bool, origin: str = "", towers: Towers | None = None) -> None:
        """`origin` explains where the states came from."""
        self.parts, self.pooled, self.origin = parts, pooled, origin  # each part (window or text, layer, hidden)
        self.texts: tuple[Tensor, ...] = ()  # each (pair): the index of its first text, and of its second
        if towers is not None:
            sides = towers.first, towers.second
            self.texts = tuple(torch.from_numpy(side).to(next(iter(parts.values())).device) for side in sides)

    def __len__(self) -> int:
        """The number of windows or, of two towers, of pairs."""
        return len(self.texts[0] if self.texts else next(iter(self.parts.values())))

    def read(self, index: Tensor, lengths: Tensor | None = None) -> HiddenStates:
        """The states of some windows or pairs. `index` is on the device of the states."""
        if lengths is None:
            lengths = torch.ones(len(index), dtype=torch.int64)  # (sequence) nothing depends on them
        sides = [self._take(side[index], lengths) for side in self.texts] or [self._take(index, lengths)]
        return sides[0] if len(sides) == 1 else replace(sides[0], second=sides[1])

    def _take(self, index: Tensor, lengths: Tensor) -> HiddenStates:
        parts: dict[str, Any] = {name: values[index] for name, values in self.parts.items()}
        return HiddenStates(lengths, **parts, pooled=self.pooled)

    def map(self, make: Callable[[HiddenStates], Tensor], index: Tensor | None = None) -> Tensor:
        """`make` applied to some windows or pairs (default: all), a part of them at a time: the states of two towers
        are copied for it."""
        if index is None:
            index = torch.arange(len(self), device=next(iter(self.parts.values())).device)  # (window)
        with torch.no_grad():
            return torch.cat([make(self.read(some)) for some in index.split(ROWS_AT_ONCE)])  # (window, …)

    @classmethod
    def encode(
        cls,
        encoder: Encoder,
        features: Features,
        keep: tuple[Part, ...],
        tokens: int = 8192,
        bar: Bar | None = None,
        towers: Towers | None = None,
        machine: Machine | None = None,
    ) -> "MemoryStates":
        """Run the frozen encoder over every window, longest first: this needs little padding, and if memory is too
        small, it fails at once. Of two `towers`, over every text. The processes of a `machine` divide the work."""
        features = features if towers is None else towers.texts
        order = np.argsort(-features.lengths, kind="stable")
        found: dict[Part, list[Tensor]] = {name: [] for name in keep}
        plan = fill_batches(features.lengths, order, tokens=tokens)
        mine = plan[machine.rank :: machine.processes] if machine else plan
        for windows in mine or plan[:1]:  # a process without a batch needs one to know its shape
            with torch.no_grad():
                states = encoder.eval()(pack_tokens(features, windows), keep=keep)
            for name in keep:
                found[name].append(states.parts()[name])
            if bar:
                bar.advance(int(features.lengths[windows].sum()))
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *mine])  # (window of this process)
        joined = {name: _join(parts, rows, len(order), machine) for name, parts in found.items()}
        return cls(joined, encoder.shape.pooled, "they are small, so they are encoded once", towers)

    @classmethod
    def load(
        cls, store: Store, keep: tuple[Part, ...], features: Features, device: torch.device, dtype: torch.dtype
    ) -> "MemoryStates":
        """Load all states of a store, shard by shard. Their checksums are verified."""
        found: dict[Part, list[Tensor]] = {name: [] for name in keep}
        reading, first = StateReader(store, keep, features.lengths), 0
        for shard in store.manifest.shards:
            store.check(shard)
            (stored,) = reading.fetch([np.arange(first, first + shard.windows)])
            for name in keep:
                found[name].append(from_stored(stored[name].to(device), dtype))
            first += shard.windows
        parts = {name: torch.cat(tensors) for name, tensors in found.items()}
        return cls(parts, store.contents.pooled, f"they are small, so they are read once from {store.location}")


def _join(parts: list[Tensor], rows: np.ndarray, count: int, machine: Machine | None) -> Tensor:
    """The states of all windows. `parts` are those of this process, for the windows in `rows`."""
    joined = torch.cat(parts)  # (own window, layer, hidden)
    whole = joined.new_zeros(count, *joined.shape[1:])  # (window, layer, hidden)
    whole[torch.from_numpy(rows).to(joined.device)] = joined[: len(rows)]
    return machine.sum_tensor(whole) if machine else whole


class MemorySource:
    def __init__(
        self, memory: MemoryStates, features: Features, plan: list[np.ndarray], share: tuple[int, int] = (0, 1)
    ) -> None:
        self.memory, self.features, self.plan = memory, features, plan
        self.rank, self.processes = share

    @property
    def steps(self) -> int:
        return len(self.plan)

    def batches(self, first: int = 0) -> Iterator[StateBatch]:
        device = next(iter(self.memory.parts.values())).device
        mine = [windows[self.rank :: self.processes] for windows in self.plan[first:]]
        # Indices and targets of all steps go to the device at once: no step waits for a copy.
        order = torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.int64), *mine])).to(device)  # (window of a step)
        targets = pack_targets(self.features, np.arange(len(self.features))).to(device)
        for whole, windows, index in zip(self.plan[first:], mine, order.split([len(w) for w in mine]), strict=True):
            lengths = torch.from_numpy(self.features.lengths[windows].astype(np.int64))  # (sequence)
            states = self.memory.read(index, lengths)
            own = Targets(targets.start[index], targets.end[index], targets.value[index])
            yield StateBatch(windows, states, own, len(whole))
