"""Runs what the page wants and was not kept yet, several at a time, and keeps it:
python -m paper.run_missing [EXPERIMENT …] [--at-once 6]

Data and encoders lie where the experiments say. Each run writes its own log beside its folder; what was stopped goes
on. Runs that share a GPU tell nothing about seconds: the page marks theirs as upper bounds.
"""

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from bertvision.errors import UserError, suggest
from paper.experiments import page_experiments
from paper.kept import ROOT, kept_seeds

RUNS = ROOT / "runs" / "results"


def missing(names: list[str]) -> list[tuple[str, int]]:
    """(experiment, seed) of what was not kept, of some experiments or of all, in the order of experiments.toml."""
    wanted, there = page_experiments(), kept_seeds()
    for name in names:
        if name not in wanted:
            raise UserError(f"the results page has no experiment '{name}': {suggest(name, wanted)}")
    chosen = [name for name in wanted if name in (names or [name])]
    return [(name, seed) for name in chosen for seed in range(wanted[name].seeds) if seed not in there.get(name, [])]


def run(name: str, seed: int) -> bool:
    """One run and what is kept of it, each a process of its own; their output goes into the log."""
    folder, began = RUNS / f"{name}_seed{seed}", time.monotonic()
    log = folder.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    running = ["paper.experiments", "run", name, f"--seed={seed}", f"run={folder}"]
    with log.open("w", encoding="utf-8") as file:
        for command in (running, ["paper.keep", str(folder)]):
            whole = [sys.executable, "-m", *command]
            done = subprocess.run(whole, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False)
            if done.returncode != 0:
                break
    said = log.read_text(encoding="utf-8").splitlines() or ["it said nothing"]
    end = "kept" if done.returncode == 0 else f"failed ({said[-1].strip()}); all it said is in {log}"
    print(f"{folder.name}: {end}, {time.monotonic() - began:.0f} s", flush=True)
    return done.returncode == 0


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="EXPERIMENT", help="experiments of the page; all without any")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="runs at a time (default: 1)")
    given = parser.parse_args(words)
    jobs = missing(given.names)
    if not jobs:
        print("nothing is missing.")
    with ThreadPoolExecutor(max(1, given.at_once)) as pool:
        ended = list(pool.map(lambda job: run(*job), jobs))
    return 0 if all(ended) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
