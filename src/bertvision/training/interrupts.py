"""Ctrl-C and SIGTERM wait until a step is whole: what is kept then is a state that training can go on from."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def held_interrupts() -> Iterator[list[int]]:
    """Inside, the first interrupt is only noted in the list that is given; a second one raises at once.

    The loop looks at the list after each step, keeps its state and raises KeyboardInterrupt.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked  # only the main thread gets signals
        return

    def note(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
