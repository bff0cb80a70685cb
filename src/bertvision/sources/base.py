"""Source: an iterable of packed batches of hidden states with their targets, in the order of a plan.

Training and prediction use every source the same way: streamed from the encoder, in memory or on disk.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from bertvision.data.windows import Features
from bertvision.encoder.states import HiddenStates

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Targets:
    """The targets of the windows of a batch."""

    start: Tensor  # (window) position of the answer's first token, 0 = no answer
    end: Tensor  # (window)
    value: Tensor  # (window) label or score

    def to(self, device: torch.device) -> "Targets":
        return Targets(*(tensor.to(device, non_blocking=True) for tensor in (self.start, self.end, self.value)))

    def pin(self) -> "Targets":
        """Copy to pinned memory, for asynchronous transfer to a GPU."""
        return Targets(*(tensor.pin_memory() for tensor in (self.start, self.end, self.value)))


@dataclass(frozen=True)
class StateBatch:
    windows: np.ndarray
    """Indices of the batch's windows in the features."""
    states: HiddenStates
    targets: Targets
    total: int | Tensor
    """Number of windows in this step over all processes, which the loss is divided by. In a batch with padding: the
    weight of each window, (window)."""


class Source(Protocol):
    @property
    def steps(self) -> int: ...

    def batches(self, first: int = 0) -> Iterator[StateBatch]:
        """Yield the batches from step `first` on."""
        ...


def pack_targets(features: Features, windows: np.ndarray) -> Targets:
    return Targets(
        start=torch.from_numpy(features.start[windows].astype(np.int64)),
        end=torch.from_numpy(features.end[windows].astype(np.int64)),
        value=torch.from_numpy(features.target[windows].astype(np.float32)),
    )


def make_ahead(make: Callable[[Item], Made], items: Iterable[Item], count: int = 3) -> Generator[Made, None, None]:
    """Yield `make(item)` for each item, in order. A thread computes up to `count` results ahead, so the next batches
    are prepared while the GPU computes the current one."""
    if count == 0:
        yield from map(make, items)
        return
    coming: deque[Future[Made]] = deque()
    left = iter(items)
    with ThreadPoolExecutor(1, "ahead") as thread:
        try:
            while True:
                coming.extend(thread.submit(make, item) for item in islice(left, count - len(coming)))
                if not coming:
                    return
                yield coming.popleft().result()
        finally:  # the consumer stopped: cancel pending work
            for future in coming:
                future.cancel()
