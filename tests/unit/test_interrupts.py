"""Signals end a command with one sentence and the right exit code. Real signals, in processes of their own."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bertvision.interrupts import SIGNALS, Interrupted, Terminated, interruption

HEAD = "import os, signal, sys\nfrom bertvision import interrupts\ninterrupts.listen()\n"


def run(code: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", HEAD + code], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize("number", SIGNALS)
def test_before_the_command_begins_the_process_ends_with_the_sentence(number: int) -> None:
    said = "Interrupted." if number == signal.SIGINT else "Terminated."
    assert run(f"os.kill(os.getpid(), {int(number)})\nsys.exit(3)") == (128 + number, f"\n{said}\n")


@pytest.mark.parametrize("number", SIGNALS)
def test_in_a_command_the_first_signal_is_an_exception_and_the_second_ends_the_process(number: int) -> None:
    code = f"""interrupts.orderly = interrupts.resumes = True
try:
    os.kill(os.getpid(), {int(number)})
except KeyboardInterrupt as error:
    print(type(error).__name__, error.number, file=sys.stderr)
try:
    os.kill(os.getpid(), {int(number)})
finally:
    print("not reached", file=sys.stderr)
"""
    kind, said = ("Interrupted",) * 2 if number == signal.SIGINT else ("Terminated",) * 2
    saved = "Progress is saved: run the same command again to resume."
    assert run(code) == (128 + number, f"{kind} {int(number)}\n\n{said}. {saved}\n")


def test_while_a_module_is_imported_the_process_ends_at_once(tmp_path: Path) -> None:
    code = f"""interrupts.orderly = True
sys.path.insert(0, {str(tmp_path)!r})
open(os.path.join({str(tmp_path)!r}, "slow_module.py"), "w").write("import os\\nos.kill(os.getpid(), 15)")
try:
    import slow_module
except BaseException:
    sys.exit(3)
"""
    assert run(code) == (143, "\nTerminated.\n")


def test_an_interrupt_that_a_destructor_would_lose_ends_the_process() -> None:
    code = """interrupts.orderly = True
class Held:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(10))
Held()
print("goes on", file=sys.stderr)
"""
    assert run(code) == (130, "\nInterrupted.\n")


def test_an_ignored_signal_stays_ignored() -> None:
    done = subprocess.run(
        ["sh", "-c", f'trap "" HUP; exec {sys.executable} -c "$0"', f"{HEAD}os.kill(os.getpid(), signal.SIGHUP)"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_signals_other_than_ctrl_c_are_terminations() -> None:
    assert not isinstance(interruption(), Terminated) and isinstance(interruption(signal.SIGTERM), Terminated)
    assert issubclass(Interrupted, KeyboardInterrupt)


def test_after_the_command_a_signal_changes_nothing() -> None:
    code = (
        "import atexit, os, signal\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"  # runs after what is registered later
        "from bertvision import interrupts\n"
        "interrupts.listen()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
