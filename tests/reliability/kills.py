"""SIGKILL in every command that writes: before or after an operation on files, or at a random moment, from a fork or
from a cold start. The command is then run until it ends, and must have written what an undisturbed one writes."""

import signal
import time
from pathlib import Path
from random import Random

from tests.reliability import processes
from tests.reliability.processes import CASES, Cold, Counting, Made, choose, finish, fork
from tests.reliability.trials import Outcome

NAME = "kills"
ABOUT = "SIGKILL in every command that writes; then the same command until it ends, and all files compared"
TRIALS, SLICE = 1200, 16
EVERY_COLD = 12
"""Each so many trials one is a cold start."""
prepare = processes.prepare


def attempt(made: Made, number: int, random: Random) -> Outcome:
    name = choose(random) if number >= len(CASES) else sorted(CASES)[number]
    is_cold = number % EVERY_COLD == EVERY_COLD - 1
    made.begin(name)
    how, killed = [], 0
    for _ in range(1 if is_cold else random.choice((1, 1, 2))):
        code, what = _kill(made, name, is_cold, random)
        how.append(what)
        killed += code == -signal.SIGKILL
        if code not in (-signal.SIGKILL, 0, 2 if name == "fit" else 0):
            return Outcome(_shown(name, is_cold), "wrong exit", False, f"{what}: exit {code}: {_said(made)}")
    wrong = finish(made, name)
    result = "wrong" if wrong else "identical" if killed else "ended before"
    return Outcome(_shown(name, is_cold), result, not wrong, f"{', '.join(how)}: {wrong}" if wrong else "")


def _kill(made: Made, name: str, is_cold: bool, random: Random) -> tuple[int | None, str]:
    words = CASES[name].words
    if is_cold:
        moment = random.uniform(0, 1) if random.random() < 0.4 else random.uniform(0, 1.2 * made.cold_seconds)
        return _kill_after(Cold(made, words), moment), f"cold, after {moment:.3f} s"
    if random.random() < 0.7:
        at, after = random.randint(1, made.operations[name]), random.random() < 0.5
        swaps = random.random() < 0.75
        code = fork(made, words, Counting(None, at, after, swaps)).wait()
        return code, f"{'after' if after else 'before'} operation {at}{'' if swaps else ' without exchange'}"
    moment = random.uniform(0, 0.9 * made.seconds[name])
    return _kill_after(fork(made, words), moment), f"after {moment:.3f} s"


def _kill_after(run: processes.Running, moment: float) -> int | None:
    end = time.monotonic() + moment
    while time.monotonic() < end:
        if (code := run.poll()) is not None:
            return code
        time.sleep(0.001)
    run.send(signal.SIGKILL)
    return run.wait()


def _shown(name: str, is_cold: bool) -> str:
    return f"{name}, cold start" if is_cold else name


def _said(made: Made) -> str:
    path: Path = made.work / "err"
    return path.read_text(errors="replace")[-600:] if path.is_file() else ""
