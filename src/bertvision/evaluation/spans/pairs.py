"""Find the best (start, end) pairs of every window, many windows at once, on a CPU or a GPU.

Pairs with equal scores are ordered by start, then by end. Sums and comparisons in float64 are the same on every device,
so are the pairs. In float32, additional pairs would tie.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertvision.evaluation.combining import LOWEST
from bertvision.evaluation.spans.layout import SpanLayout, Sums
from bertvision.evaluation.spans.passages import Int64

GROUP = {"cpu": 256, "cuda": 4096}  # windows searched at once: few enough for a CPU's cache, enough to fill a GPU
THREADS = 4  # maximum number of threads on a CPU: more would wait for the interpreter lock

Array = npt.NDArray[Any]


class Group(NamedTuple):
    """Windows of similar length, cut to the tokens that an answer can contain and padded to the longest."""

    windows: Tensor  # (window,)
    place: Tensor  # (window, token) index into the packed arrays
    hidden: Tensor  # (window, token) whether spans must not start or end here
    repeats: bool
    """Whether several spans of a window can cover the same characters."""


class _Pairs(NamedTuple):
    """The best (start, end) pairs of each window, best first; the score is -inf if a window has fewer."""

    score: Tensor  # (window, pair)
    start: Tensor  # (window, pair) token
    end: Tensor  # (window, pair) token


def find_pairs(
    layout: SpanLayout,
    logits: Sequence[Array],
    sums: Sequence[Sums],
    n_best: int,
    longest: int,
    device: torch.device | str = "cpu",
) -> tuple[Array, Array, Array]:
    """Return score, start token and end token (window, pair) of each window's best pairs, given its start and end
    logits.

    Pairs are sorted by score, best first, and span at most `longest` tokens. If a window has fewer pairs, the rest have
    score -inf. Windows in which two pairs can cover the same characters get 2 · `n_best` pairs.
    """
    found = _Search(layout, logits, sums, n_best, longest, torch.device(device)).run()
    return found.score.cpu().numpy(), found.start.cpu().numpy(), found.end.cpu().numpy()


def groups_on(layout: SpanLayout, device: torch.device) -> list[Group]:
    """Return all windows of a layout in padded groups on a device. The groups stay there for the next model."""
    if device not in layout.groups:
        layout.groups[device] = [
            _group(layout, some, repeats, device)
            for repeats in (False, True)
            for some in _like_lengths(layout, np.flatnonzero(layout.repeats == repeats), GROUP[device.type])
        ]
    return layout.groups[device]


def _like_lengths(layout: SpanLayout, windows: Int64, size: int) -> list[Int64]:
    first, last = layout.ends
    ordered = windows[np.argsort((last - first)[windows], kind="stable")]  # (window,)
    return [ordered[place : place + size] for place in range(0, len(ordered), size)]


def _group(layout: SpanLayout, windows: Int64, repeats: bool, device: torch.device) -> Group:
    first, last = (ends[windows, None] for ends in layout.ends)  # (window, 1), (window, 1)
    place = first + np.arange(max(1, int((last - first).max())))  # (window, token)
    inside = place < last  # (window, token)
    place = np.where(inside, place, 0)
    hidden = ~(inside & layout.visible[place])  # (window, token)
    parts = [torch.from_numpy(part).to(device) for part in (windows, place, hidden)]
    return Group(parts[0], parts[1], parts[2], repeats)


class _Search:
    """Finds the best pairs of every window, many windows at once, without synchronising with the device in between."""

    def __init__(
        self,
        layout: SpanLayout,
        logits: Sequence[Array],
        sums: Sequence[Sums],
        n_best: int,
        longest: int,
        device: torch.device,
    ) -> None:
        # Apple GPUs do not support float64, and other devices are untested.
        self.device = device if device.type == "cuda" else torch.device("cpu")
        self.layout, self.n_best, self.longest = layout, n_best, longest
        self.logits = [self._place(np.ascontiguousarray(side)) for side in logits]  # start, end: each (token,)
        self.sums = [[self._place(part) for part in one] for one in sums]  # start, end: highest, total (window,)

    def _place(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def run(self) -> _Pairs:
        groups = groups_on(self.layout, self.device)
        windows, most = len(self.layout.starts), max((self._count(group) for group in groups), default=self.n_best)
        result = _Pairs(
            torch.full((windows, most), -torch.inf, dtype=torch.float64, device=self.device),
            torch.zeros((windows, most), dtype=torch.int64, device=self.device),
            torch.zeros((windows, most), dtype=torch.int64, device=self.device),
        )
        with _threads(self.device) as pool:
            ties = list(pool.map(lambda group: self._search(group, result, in_order=False), groups))  # each (window,)
        sizes = [len(group.windows) for group in groups]
        ties_by_group = torch.cat(ties).cpu().split(sizes) if ties else ()  # synchronises with the device
        for group, tied in zip(groups, ties_by_group, strict=True):
            if tied.any():
                rows = tied.nonzero()[:, 0].to(self.device)  # (window,)
                some = Group(group.windows[rows], group.place[rows], group.hidden[rows], group.repeats)
                self._search(some, result, in_order=True)
        return result

    def _count(self, group: Group) -> int:
        # Twice as many if two pairs can cover the same characters: duplicates are removed later.
        return 2 * self.n_best if group.repeats else self.n_best

    def _search(self, group: Group, result: _Pairs, in_order: bool) -> Tensor:
        """Write a group's pairs into the result. Return (window,) whether pairs tie; unless `in_order`, the order of
        tied pairs is arbitrary."""
        starts, ends = (self._scores(side, group) for side in (0, 1))  # (window, token), (window, token)
        width, count = starts.shape[1], self._count(group)
        reach = min(self.longest, width)
        ends = torch.nn.functional.pad(ends, (0, reach), value=-torch.inf)  # (window, token + reach)
        # Keep only the starts with the best possible pairs; no other start can contribute.
        value, kept = _top(starts + _highest_ahead(ends, reach)[:, :width], min(count + 1, width), in_order)
        tied = _ties(value[:, count - 1 :])  # (window,)
        kept = kept[:, :count].sort(dim=1)[0] if in_order else kept[:, :count]  # (window, start)
        row = torch.arange(len(kept), device=kept.device)[:, None]
        pairs = ends.unfold(1, reach, 1)[row, kept]  # (window, start, length)
        pairs += starts.gather(1, kept)[:, :, None]
        value, best = _top(pairs.flatten(1), min(count + 1, kept.shape[1] * reach), in_order)
        tied |= _ties(value)
        value, best = value[:, :count], best[:, :count]  # (window, pair), (window, pair)
        start = kept.gather(1, best // reach)  # (window, pair)
        end = (start + best % reach).clamp(max=width - 1)  # (window, pair): pairs beyond the width score -inf
        for whole, part in zip(result, (value, group.place.gather(1, start), group.place.gather(1, end)), strict=True):
            whole[group.windows, : part.shape[1]] = part
        return tied

    def _scores(self, side: int, group: Group) -> Tensor:
        """(window, token) log-probabilities, -inf where a span must not start or end."""
        highest, total = (part[group.windows, None] for part in self.sums[side])  # (window, 1), (window, 1)
        scores = self.logits[side][group.place].double().sub_(highest).sub_(total).clamp_(min=LOWEST)
        return scores.masked_fill_(group.hidden, -torch.inf)


@contextmanager
def _threads(device: torch.device) -> Iterator[ThreadPoolExecutor]:
    """Create threads that each search whole groups, and limit torch to one thread meanwhile. Split across torch's own
    threads, every small operation would wait for the slowest one: ten times as long if another program uses a core."""
    before = torch.get_num_threads()
    with ThreadPoolExecutor(min(before, THREADS) if device.type == "cpu" else 1) as pool:
        torch.set_num_threads(1)
        try:
            yield pool
        finally:
            torch.set_num_threads(before)


def _top(values: Tensor, count: int, in_order: bool) -> tuple[Tensor, Tensor]:
    """(row, count), (row, count) the highest values of each row and their indices, best first. With `in_order`, ties
    are sorted by index, which takes several times as long."""
    if not in_order:
        return values.topk(count, dim=1)
    value, place = values.sort(dim=1, descending=True, stable=True)
    return value[:, :count], place[:, :count]


def _ties(values: Tensor) -> Tensor:
    """(row,) whether a row of descending values contains finite ties."""
    return ((values[:, 1:] == values[:, :-1]) & (values[:, 1:] > -torch.inf)).any(dim=1)


def _highest_ahead(values: Tensor, reach: int) -> Tensor:
    """(row, index) the highest of the `reach` values from each index on, by doubling. The result is `reach` - 1 shorter
    than the input."""
    size, found = 1, values
    while size < reach:
        step = min(size, reach - size)
        found = torch.maximum(found[:, :-step], found[:, step:])
        size += step
    return found
