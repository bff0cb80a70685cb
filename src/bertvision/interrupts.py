"""Ctrl-C and SIGTERM: one sentence, the state kept, and exit code 130 or 143.

On the command line, the first signal raises `Interrupted` in the main thread, so that files are cleaned up and training
can save a checkpoint. A second one ends the process at once. So does the first one while modules are being imported or
before the command begins: there is no state yet, and half an import can fail in any way.

This module imports next to nothing: it is the first to be loaded.
"""

import atexit
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
SAVED = " Progress is saved: run the same command again to resume."
SHOW_CURSOR = b"\x1b[?25h"  # progress bars hide it

received: list[int] = []
"""The signals that were raised as exceptions."""
orderly = False
"""Whether a signal raises an exception."""
resumes = False
"""Whether the command resumes where it was interrupted."""


class Interrupted(KeyboardInterrupt):
    """A signal, by default Ctrl-C, asks the process to end."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.number = number


class Terminated(Interrupted):
    """SIGTERM, or SIGHUP of a terminal that was closed. After Ctrl-C, `fit` goes on with the best model so far; here
    nobody is there to use it."""


def interruption(number: int = signal.SIGINT) -> Interrupted:
    return (Interrupted if number == signal.SIGINT else Terminated)(number)


def sentence(number: int) -> str:
    return ("Interrupted." if number == signal.SIGINT else "Terminated.") + (SAVED if resumes else "")


def exit_code(number: int) -> int:
    return 128 + number


def listen() -> None:
    """Handle signals until the process ends. A signal that is ignored (by nohup, for example) stays ignored."""
    global orderly, resumes
    received.clear()
    orderly = resumes = False
    try:
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, handle)
    except ValueError:  # not in the main thread, which alone gets signals
        return
    sys.unraisablehook = _report_unraisable
    atexit.register(_ignore)  # the first that is registered runs last


def _ignore() -> None:
    """The command has ended. Python drops the handlers while it shuts down, and a signal would kill it then."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_now(number: int) -> "NoReturn":
    """Print the sentence and end the process, without cleaning up."""
    try:
        if os.isatty(2):
            os.write(2, SHOW_CURSOR)
        os.write(2, f"\n{sentence(number)}\n".encode())
    except OSError:  # the terminal is closed
        pass
    finally:
        os._exit(exit_code(number))


def handle(number: int, frame: "FrameType | None") -> None:
    if not orderly or received or _is_importing(frame):
        end_now(number)
    received.append(number)
    raise interruption(number)


def _is_importing(frame: "FrameType | None") -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _report_unraisable(found: "Any") -> None:
    """Python drops exceptions of destructors and callbacks, and prints a traceback instead."""
    if isinstance(found.exc_value, KeyboardInterrupt):
        end_now(getattr(found.exc_value, "number", signal.SIGINT))
    sys.__unraisablehook__(found)
