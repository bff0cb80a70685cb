"""SIGKILL of workers, drivers and nodes of a Ray cluster, while a store is written or files are predicted.

    .venv/bin/python -m tests.cluster.kills [--trials 30] [--ledger FILE] [--only worker driver node]

The work must end with the bytes and rows of one process, each once, and without temporary files or processes. After the
death of a driver, the same command is run again. Trials that are in the ledger are not run again.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))

from tests import conftest  # noqa: F401  no hub, one thread
from tests.cluster.nodes import Made, Nodes, cluster_of, make_all, slow_down, start_nodes, workers_of
from tests.reliability.trials import Ledger, Outcome, random_of

VICTIMS = ("worker", "node", "driver")
WORKS = ("encode", "predict")
LEDGER = Path(__file__).parents[2] / "runs" / "cluster_kills.jsonl"
EXAMPLES, FILES, KILLS = 6000, 20, 3
PATIENCE = 240


class Trial:
    """A few kills of one kind while one thing is done."""

    def __init__(self, made: Made, nodes: Nodes, victim: str, number: int) -> None:
        self.made, self.nodes, self.victim = made, nodes, victim
        self.draw = random_of(f"cluster {victim}", number)
        self.work = WORKS[number % 2]
        self.results = len(made.shards) if self.work == "encode" else len(made.rows)
        self.moments = sorted((self.draw.randrange(self.results - 1), self.draw.uniform(0, 0.5)) for _ in range(KILLS))
        """Each kill comes when so many results are there, after a pause."""
        if self.draw.random() < 0.3:
            self.moments[0] = 0, self.draw.uniform(0, 8)  # while everything starts
        self.killed = 0

    def run(self) -> Outcome:
        shutil.rmtree(self.made.states, ignore_errors=True)
        shutil.rmtree(self.made.out, ignore_errors=True)
        case = f"{self.victim}, {self.work}"
        shown = ", ".join(f"{after} of {self.results} and {pause:.3f} s" for after, pause in self.moments)
        try:
            (self.kill_drivers if self.victim == "driver" else self.kill_others)()
        except Exception as error:
            return Outcome(case, "error", False, f"{shown}: {type(error).__name__}: {str(error)[:300]}")
        wrong = self.made.wrong_store() if self.work == "encode" else self.made.wrong_outputs()
        wrong = wrong or wait_for_workers()
        result = "wrong" if wrong else f"identical after {self.killed} kills"
        return Outcome(case, result, not wrong, f"{shown}: {wrong}" if wrong else "")

    def kill_others(self) -> None:
        done = threading.Event()

        def end_them() -> None:
            for after, pause in self.moments:
                self.killed += self.wait_and(self.end_victim, done, after, pause)

        thread = threading.Thread(target=end_them)
        thread.start()
        try:
            self.do_it()
        finally:
            done.set()
            thread.join()

    def end_victim(self) -> bool:
        if self.victim == "node":
            self.nodes.kill(self.draw.choice(self.nodes.others))
            self.nodes.add()
            return True
        if not (workers := workers_of()):
            return False
        self.draw.choice(sorted(workers, key=lambda one: one.pid)).kill()
        return True

    def kill_drivers(self) -> None:
        words = ["encode", str(self.made.config.with_suffix(".json"))]
        if self.work == "predict":
            words = ["predict", str(self.made.run), "--file", str(self.made.place / "in"), "--out", str(self.made.out)]
        words += ["--cluster", self.nodes.address, "--workers", "2", "--patience", str(PATIENCE)]
        for after, pause in self.moments:
            script = "from tests.cluster import nodes; nodes.slow_down(); from bertvision.__main__ import main; main()"
            said = self.made.place / "said"
            with said.open("wb") as file:
                run = [sys.executable, "-c", script, *words]
                running = subprocess.Popen(run, stdout=file, stderr=file, cwd=Path(__file__).parents[2])
            done = threading.Event()

            def end(running: subprocess.Popen[bytes] = running) -> bool:
                running.send_signal(signal.SIGKILL)
                return True

            watcher = threading.Thread(target=lambda running=running, done=done: (running.wait(), done.set()))
            watcher.start()
            self.killed += self.wait_and(end, done, after, pause)
            watcher.join()
            if running.returncode not in (-signal.SIGKILL, 0, 1):  # 1: rows with an error
                raise AssertionError(f"exit {running.returncode}: {said.read_text()[-300:]}")
            if wrong := wait_for_workers():
                raise AssertionError(wrong)
        self.do_it()

    def wait_and(self, act: Callable[[], bool], done: threading.Event, after: int, pause: float) -> bool:
        """Act at the chosen moment, unless the work is done before."""
        while self.count() < after:
            if done.wait(0.005):
                return False
        if done.wait(pause):
            return False
        while not act():  # no worker has started yet
            if done.wait(0.2):
                return False
        return True

    def count(self) -> int:
        place = self.made.states if self.work == "encode" else self.made.out
        return sum(1 for path in place.rglob("*") if path.name.startswith(("states-", "f")))

    def do_it(self) -> None:
        from bertvision.cluster.files import predict_files
        from bertvision.cluster.shards import encode

        if self.work == "encode":
            encode(self.made.job(), "train", cluster_of(2))
        else:
            predict_files(str(self.made.run), str(self.made.place / "in"), str(self.made.out), cluster_of(2))


def wait_for_workers(seconds: float = 60) -> str:
    """Actors end with the work. What is still there later, as a sentence."""
    end = time.monotonic() + seconds
    while alive := [one for one in workers_of() if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]:
        if time.monotonic() > end:
            return f"{len(alive)} workers are still running"
        time.sleep(0.2)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=VICTIMS, default=list(VICTIMS))
    parser.add_argument("--trials", type=int, default=12, help="of each victim, with three kills each")
    parser.add_argument("--ledger", type=Path, default=LEDGER)
    arguments = parser.parse_args()
    slow_down()
    ledger = Ledger(arguments.ledger)
    wanted = [(number, victim) for number in range(arguments.trials) for victim in arguments.only]
    wanted = [(number, victim) for number, victim in wanted if number not in ledger.done(f"cluster {victim}")]
    with tempfile.TemporaryDirectory() as place, start_nodes() as nodes:
        made = make_all(Path(place), EXAMPLES, FILES)
        for number, victim in wanted:
            started = time.monotonic()
            outcome = Trial(made, nodes, victim, number).run()
            ledger.add(f"cluster {victim}", number, outcome)
            print(
                f"{victim} {number}: {outcome.result}, {time.monotonic() - started:.0f} s {outcome.detail}", flush=True
            )
    print(ledger.table())
    sys.exit(1 if ledger.failures() else 0)


if __name__ == "__main__":
    main()
