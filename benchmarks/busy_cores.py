"""How much busy neighbours slow down prediction: the shipped kit on one pair of texts, on an idle machine and next to
four busy programs.

    python benchmarks/busy_cores.py [NEIGHBOURS]

Each row runs in its own process, because OpenMP reads its settings when torch is loaded. "as installed" is what a user
gets. "threads spin" is OpenMP's default, "threads sleep at once" its passive policy only. "torch first" imports torch
before bertvision; only the number of threads can still be changed then.
"""

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time

CODE = """
import json, sys, time
if "torch first" in sys.argv: import torch
import bertvision as bv
kit = bv.load("default")
pair = ("Who wrote the first program?", "In 1843 Ada Lovelace wrote what many call the first computer program.")
kit.predict([pair])
found = []
for _ in range(int(sys.argv[1])):
    started = time.monotonic(); kit.predict([pair]); found.append(time.monotonic() - started)
print(json.dumps(found))
"""
ROWS = {
    "as installed": {},
    "threads spin": {"OMP_WAIT_POLICY": "ACTIVE"},
    "threads sleep at once": {"OMP_WAIT_POLICY": "PASSIVE"},
    "torch first": {},
}
SETTINGS = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
WARM_UP = 60.0  # seconds until the neighbours show up in the load average


def main() -> None:
    neighbours = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    idle = {name: measure(name, settings, 10) for name, settings in ROWS.items()}
    busy = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(neighbours)]
    for process in busy:
        process.start()
    time.sleep(WARM_UP)
    crowded = {name: measure(name, settings, 5) for name, settings in ROWS.items()}
    for process in busy:
        process.kill()
    print(f"| {os.cpu_count()} cores, median seconds per pair | idle | {neighbours} busy neighbours |\n|---|---:|---:|")
    for name in ROWS:
        print(f"| {name} | {idle[name]:.3f} | {crowded[name]:.3f} |")


def measure(name: str, settings: dict[str, str], times: int) -> float:
    environment = {key: value for key, value in os.environ.items() if key not in SETTINGS} | settings
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(times), name], env=environment, capture_output=True, text=True, check=True
    )
    return statistics.median(json.loads(done.stdout))


def _spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    main()
