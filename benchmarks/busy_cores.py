"""How much busy neighbours slow us down on a CPU: prediction, a frozen pass and a small training loop, on an idle
machine and next to four busy programs.

    python benchmarks/busy_cores.py [--neighbours 4] [--rows "as installed" …] [--wait SECONDS]

| work        | what is timed                                                                |
|-------------|------------------------------------------------------------------------------|
| kit         | the shipped kit, all tasks, on one pair of texts                             |
| encode      | the embedded encoder over 300 short texts, all layers, and one small head    |
| small steps | 200 training steps of a head with 64 hidden units, 32 texts each, all layers |
| large steps | 30 training steps of a head with 386 hidden units, 300 texts each            |

Each row runs in its own process, because OpenMP reads its settings when torch is loaded. "as installed" is what a user
gets: the kit and the pass use the free cores, training all usable ones. "threads spin" is OpenMP's default, "threads
sleep at once" its passive policy only. "torch first" imports torch before bertvision; only the number of threads can
still be changed then. Seconds are medians. "strangers" are the cores that programs other than ours used during the idle
and the busy measurement: above 0.2, repeat the row. With --wait, each row first waits for an idle machine.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time

import psutil

from bertvision.threads import measure_use

CODE = """
import json, statistics, sys, time
if "torch first" in sys.argv: import torch
import bertvision as bv
import torch
from bertvision.machine import using_threads
pair = ("Who wrote the first program?", "In 1843 Ada Lovelace wrote what many call the first computer program.")
words = [word.split() for word in ("old new red odd big", "house car dog", "fine awful great poor")]
texts = [f"the {a} {b} number {n} was {c} for all of us"
         for n in range(5) for a in words[0] for b in words[1] for c in words[2]]
kit = bv.load("default")

def train(rows, hidden, steps):
    generator = torch.Generator().manual_seed(0)
    states, labels = torch.randn(300, 7 * 384, generator=generator), torch.randint(0, 5, (300,), generator=generator)
    model = torch.nn.Sequential(torch.nn.Linear(7 * 384, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, 5))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(steps):
        batch = (torch.arange(rows) + rows * step) % 300
        torch.nn.functional.cross_entropy(model(states[batch]), labels[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()

def in_one_thread(work):
    with using_threads(1):
        work()

def small(): train(32, 64, 200)
def large(): train(300, 386, 30)

works = {
    "kit": (10, lambda: kit.predict([pair])),
    "encode": (3, lambda: kit.predict(texts, tasks=["sst2"])),
    "small steps": (3, small),
    "small steps, one thread": (3, lambda: in_one_thread(small)),
    "large steps": (3, large),
    "large steps, one thread": (3, lambda: in_one_thread(large)),
}
found = {}
for name, (times, work) in works.items():
    work()
    seconds, cpu = [], []
    for _ in range(times):
        started, spent = time.monotonic(), time.process_time()
        work()
        seconds.append(time.monotonic() - started)
        cpu.append(time.process_time() - spent)
    found[name] = [statistics.median(seconds), statistics.median(cpu)]
print(json.dumps(found))
"""
ROWS = {
    "as installed": {},
    "threads spin": {"OMP_WAIT_POLICY": "ACTIVE"},
    "threads sleep at once": {"OMP_WAIT_POLICY": "PASSIVE"},
    "torch first": {},
}
SETTINGS = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--neighbours", type=int, default=4)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--wait", type=float, default=0.0, help="seconds to wait for an idle machine before each row")
    options = parser.parse_args()
    neighbours = f"{options.neighbours} busy neighbours"
    columns = [
        f"{os.cpu_count()} cores",
        "work",
        "idle, s",
        f"{neighbours}, s",
        "ratio",
        "CPU s",
        f"CPU s, {neighbours}",
    ]
    print("| " + " | ".join([*columns, "strangers, cores"]) + " |\n|---|---|" + 6 * "---:|")
    for name in options.rows:
        wait_for_an_idle_machine(options.wait)
        idle, strangers = measure_next_to(name, 0)
        busy, more = measure_next_to(name, options.neighbours)
        for work, (seconds, cpu) in idle.items():
            figures = (
                f"{seconds:.3f} | {busy[work][0]:.3f} | {busy[work][0] / seconds:.1f} | {cpu:.3f} | {busy[work][1]:.3f}"
            )
            print(f"| {name} | {work} | {figures} | {strangers:.1f}, {more:.1f} |", flush=True)


def measure_next_to(name: str, neighbours: int) -> tuple[dict[str, list[float]], float]:
    """Wall and CPU seconds of each work next to busy programs, and the cores that any other program used meanwhile."""
    busy = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(neighbours)]
    for process in busy:
        process.start()
    try:
        before, ours = measure_use(), _cpu_seconds(busy)
        found = measure(name)
        now, spent = measure_use(), _cpu_seconds(busy) - ours
    finally:
        for process in busy:
            process.kill()
            process.join()
    return found, max(0.0, now.others_since(before) - spent / (now.moment - before.moment))


def measure(name: str) -> dict[str, list[float]]:
    environment = {key: value for key, value in os.environ.items() if key not in SETTINGS} | ROWS[name]
    done = subprocess.run([sys.executable, "-c", CODE, name], env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def _cpu_seconds(busy: list[multiprocessing.Process]) -> float:
    """CPU seconds of these processes and of the children that have ended."""
    times = [psutil.Process(process.pid).cpu_times() for process in busy]
    ended = os.times()
    return sum(own.user + own.system for own in times) + ended.children_user + ended.children_system


def wait_for_an_idle_machine(seconds: float) -> None:
    """Return once other programs have used less than a fifth of a core for three seconds, or after `seconds`."""
    until, quiet = time.monotonic() + seconds, 0
    while time.monotonic() < until and quiet < 3:
        before = measure_use()
        time.sleep(1)
        quiet = quiet + 1 if measure_use().others_since(before) < 0.2 else 0


def _spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    main()
