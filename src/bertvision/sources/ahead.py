"""Work done ahead of its turn: while the GPU computes one batch, a thread prepares the next ones."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def make_ahead(make: Callable[[Item], Made], items: Iterable[Item], count: int = 3) -> Iterator[Made]:
    """`make(item)` of each item, in order, up to `count` of them before they are asked for."""
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
        finally:  # whoever asked has stopped asking: what is not begun is not made
            for future in coming:
                future.cancel()
