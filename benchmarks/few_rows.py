"""Few rows of a user's own texts: `fit`, with the encoder untouched and tuned, compared with SetFit, by test accuracy
and CPU seconds.

    python -m venv SETFIT && SETFIT/bin/pip install torch==2.13.0 "setfit==1.2.*"
    BERTVISION_REAL_DATA=… python benchmarks/few_rows.py --results few_rows.jsonl --setfit SETFIT/bin/python
    python benchmarks/few_rows.py --results few_rows.jsonl --table

Options: --tasks trec sst5 …, --sizes 8 16 64 (rows of each label), --draws 0 1 2, --methods last fit ….

| method | what it does |
|---|---|
| setfit | SetFit with its default head, 20 iterations, 1 epoch, batches of 16 |
| last | mean over the tokens of the last layer, standardised, logistic regression |
| linear | `bertvision fit --heads linear`: logistic regression on all layers; the encoder is untouched |
| fit | `bertvision fit` with its defaults: the encoder is untouched |
| tune | `bertvision fit --tune` |

A draw is a random choice of rows of train, the same number for each label (all rows of a label that has fewer). Every
method reads the same rows, and predicts the task's test file once. No method reads any other row.

Each measurement runs in its own process. CPU seconds are its user and system time from start to exit, or to the fitted
model, without predicting test. OpenMP threads wait as BERTVision's do (bertvision/threads.py). Measurements are
appended to the results file, one JSON object per line. Finished ones are skipped; after a change to the code, use a new
file.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from few_methods import METHODS
from user_methods import DATA, TASKS
from user_tasks import TITLES, append_all, print_table, read_results, run_alone, show

NAMES = {
    **TITLES,
    "setfit": "SetFit",
    "last": "last layer",
    "linear": "fit --heads linear",
    "fit": "fit",
    "tune": "fit --tune",
}


class Measurement(NamedTuple):
    task: str
    size: int
    draw: int
    method: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="only print the tables of the results file")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["trec", "sst5", "snips", "subj"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[8, 16])
    parser.add_argument("--draws", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--setfit", help="the Python of the environment that SetFit is installed in")
    arguments = parser.parse_args()
    failed: list[Measurement] = []
    if not arguments.table:
        wanted = [
            Measurement(task, size, draw, method)
            for size in arguments.sizes
            for draw in arguments.draws
            for task in arguments.tasks
            for method in arguments.methods
        ]
        failed = measure_all(wanted, arguments.results, arguments.setfit)
    print_tables(read_results(arguments.results, Measurement))
    sys.exit(f"failed: {', '.join(' '.join(map(str, one)) for one in failed)}" if failed else 0)


# ---------------------------------------------------------------------- measuring


def measure_all(wanted: list[Measurement], results: Path, setfit: str | None) -> list[Measurement]:
    """Append what is missing to the results file. Return the measurements that failed."""
    if DATA not in os.environ:
        sys.exit(f"{DATA} is not set: the folder with user/trec, user/subj …")
    missing = [one for one in wanted if one not in read_results(results, Measurement)]
    if setfit is None and any(one.method == "setfit" for one in missing):
        print("SetFit is left out: install it as in the first lines of this file and give --setfit PYTHON.")
        missing = [one for one in missing if one.method != "setfit"]
    if not missing:
        return []
    # Importing bertvision also sets how the threads of all processes wait.
    from bertvision.encoder.loading import resolve

    encoder = resolve("embedded")

    def run(one: Measurement) -> dict[str, Any] | str:
        python = setfit if one.method == "setfit" and setfit else sys.executable
        return run_alone("few_methods.py", {**one._asdict(), "encoder": encoder}, python)

    def describe(found: dict[str, Any]) -> str:
        return f"{found['accuracy']:.1f}, {found['cpu_fit']:.0f} CPU s to fit, {found['cpu']:.0f} in all"

    return append_all(missing, results, run, describe)


# ---------------------------------------------------------------------- tables


def print_tables(found: dict[Measurement, dict[str, Any]]) -> None:
    """Means and standard deviations over the draws. The last row is the mean over the draws that all methods have."""
    methods = [method for method in METHODS if any(one.method == method for one in found)]
    cases = sorted({(one.size, one.task) for one in found})
    draws = sorted({(one.size, one.task, one.draw) for one in found})
    whole = [one for one in draws if all(_key(*one, method) in found for method in methods)]
    for title, key, digits in (
        ("test accuracy", "accuracy", 1), ("CPU s to fit", "cpu_fit", 0), ("CPU s with test", "cpu", 0),
    ):  # fmt: skip
        rows = []
        for size, task in cases:
            cells = [
                show([row[key] for one, row in found.items() if one == _key(size, task, one.draw, method)], digits)
                for method in methods
            ]
            rows.append([f"{NAMES[task]}, {size} a label", *cells])
        means = [np.mean([found[_key(*one, method)][key] for one in whole]) if whole else None for method in methods]
        shown = ["–" if mean is None else f"{mean:.{digits}f}" for mean in means]
        rows.append([f"mean of {len(whole)} draws that all have", *shown])
        print_table([title, *(NAMES[method] for method in methods)], rows)


def _key(size: int, task: str, draw: int, method: str) -> Measurement:
    return Measurement(task, size, draw, method)


if __name__ == "__main__":
    main()
