"""When an attempt is good: it succeeds, or says in plain sentences what is wrong, at once and in little memory."""

import contextlib
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bertvision.errors import ConfigError, UserError
from tests.reliability.trials import Outcome

SECONDS, PATIENCE, MEGABYTES, CHARACTERS = 10, 90, 500, 800
"""Seconds of this process, and on the clock: other programs may have the cores."""
PYTHON = re.compile(r"Traceback|<function |object at 0x|NoneType|PosixPath|\b\w+(Error|Exception)\b")
"""What a message must not show."""
PEAK, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class HangError(BaseException):
    pass


def judge(case: str, what: str, act: Callable[[], Any], plain: tuple[type[Exception], ...] = ()) -> Outcome:
    """Act and judge what comes. `what` says how to see it again; `plain` are other errors than UserError that may
    come."""
    try:
        with within(SECONDS, MEGABYTES) as grown:
            try:
                act()
                result, detail = "success", ""
            except (UserError, *plain) as error:
                result, detail = "refused", wrong_with(error)
            except MemoryError:
                result, detail = "memory", "MemoryError"
            except Exception as error:
                result, detail = "traceback", f"{type(error).__name__}: {str(error)[:200]}"
    except HangError:
        return Outcome(case, "hang", False, f"{what}: more than {SECONDS} s")
    if grown:
        result, detail = "memory", f"{grown[0]:.0f} MB more"
    return Outcome(case, result, not detail, f"{what}: {detail}" if detail else "")


def wrong_with(error: Exception) -> str:
    """What is wrong with a message; '' if nothing is."""
    text = str(error)
    lines = error.mistakes if isinstance(error, ConfigError) else [text]
    if not text.strip():
        return "an empty message"
    if longest := max((len(line) for line in lines if len(line) > CHARACTERS), default=0):
        return f"a message of {longest} characters: {text[:150]}"
    found = PYTHON.search(text)
    return f"a message with '{found[0]}': {text[:300]}" if found else ""


@contextlib.contextmanager
def within(seconds: float, megabytes: float) -> Iterator[list[float]]:
    """Raise HangError after some seconds. Afterwards the list holds the MB taken, if they are too many."""
    grown: list[float] = []

    def stop(*_: Any) -> None:
        raise HangError

    timers = ((signal.ITIMER_PROF, signal.SIGPROF, seconds), (signal.ITIMER_REAL, signal.SIGALRM, PATIENCE))
    before, handlers = _peak(reset=True), [signal.signal(name, stop) for _, name, _ in timers]
    pending = [signal.setitimer(timer, limit) for timer, _, limit in timers]  # such as that of pytest-timeout
    try:
        yield grown
    finally:
        for (timer, name, _), handler, left in zip(timers, handlers, pending, strict=True):
            signal.setitimer(timer, *left)
            signal.signal(name, handler)
    taken = _peak() - before
    if taken > megabytes:
        grown.append(taken)


def _peak(reset: bool = False) -> float:
    """The largest memory of this process in MB, since the last reset; 0 where the system does not say."""
    try:
        if reset:
            RESET.write_text("5")
        found = re.search(r"VmHWM:\s+(\d+) kB", PEAK.read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1e3 if found else 0.0


def resident() -> float:
    """The memory that this process has now, in MB."""
    import psutil

    return float(psutil.Process().memory_info().rss) / 1e6
