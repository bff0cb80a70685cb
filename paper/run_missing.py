"""Run the experiments of the results page that have no kept scores, and keep their scores:
python -m paper.run_missing [EXPERIMENT …] [--at-once 6]

Data and encoders are read from the paths in the experiments. Each run writes a log next to its folder; interrupted
runs resume. Seconds of runs that share a GPU are upper bounds and marked as such.
"""

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from bertvision.errors import UserError, suggest
from paper.experiments import load_experiments
from paper.kept import ROOT, kept_seeds

RUNS = ROOT / "runs" / "results"


def missing(names: list[str]) -> list[tuple[str, int]]:
    """(experiment, seed) of the missing runs of the named experiments (default: all), in file order."""
    wanted, there = load_experiments(), kept_seeds()
    for name in names:
        if name not in wanted:
            raise UserError(f"the results page has no experiment '{name}': {suggest(name, wanted)}")
    chosen = [name for name in wanted if name in (names or [name])]
    return [(name, seed) for name in chosen for seed in range(wanted[name].seeds) if seed not in there.get(name, [])]


def run(name: str, seed: int) -> bool:
    """Run one experiment and keep its scores, in two processes that write to one log."""
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
    lines = log.read_text(encoding="utf-8").splitlines() or ["no output"]
    end = "kept" if done.returncode == 0 else f"failed ({lines[-1].strip()}); see {log}"
    print(f"{folder.name}: {end}, {time.monotonic() - began:.0f} s", flush=True)
    return done.returncode == 0


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="EXPERIMENT", help="experiments of the page (default: all)")
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
