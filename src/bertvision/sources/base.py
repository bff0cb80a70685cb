"""Source: an iterable of packed batches of hidden states with their targets, in the order of a plan.

Whoever trains or predicts cannot tell whether the states are streamed from the encoder, in memory or on disk.
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
    """What the windows of a batch should give."""

    start: Tensor  # (window) position of the answer's first token, 0 = no answer
    end: Tensor  # (window)
    value: Tensor  # (window) label or score

    def to(self, device: torch.device) -> "Targets":
        return Targets(*(tensor.to(device, non_blocking=True) for tensor in (self.start, self.end, self.value)))

    def pin(self) -> "Targets":
        """In memory that a GPU reads on its own, while the program goes on."""
        return Targets(*(tensor.pin_memory() for tensor in (self.start, self.end, self.value)))


@dataclass(frozen=True)
class StateBatch:
    windows: np.ndarray
    """Which windows of the features these are."""
    states: HiddenStates
    targets: Targets
    total: int | Tensor
    """Windows of this step over all processes: what the loss is divided by. Or the weight of each window (window),
    where some only fill the batch up."""


class Source(Protocol):
    @property
    def steps(self) -> int: ...

    def batches(self, first: int = 0) -> Iterator[StateBatch]:
        """The batches from step `first` on."""
        ...


def pack_targets(features: Features, windows: np.ndarray) -> Targets:
    return Targets(
        start=torch.from_numpy(features.start[windows].astype(np.int64)),
        end=torch.from_numpy(features.end[windows].astype(np.int64)),
        value=torch.from_numpy(features.target[windows].astype(np.float32)),
    )


def make_ahead(make: Callable[[Item], Made], items: Iterable[Item], count: int = 3) -> Generator[Made, None, None]:
    """`make(item)` of each item, in order, up to `count` of them made by a thread before they are asked for: while the
    GPU computes one batch, the next ones are prepared."""
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
