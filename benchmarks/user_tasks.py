"""A user's own texts, six tasks: `fit` compared with common methods on the same encoder, by test accuracy and CPU
seconds.

    pip install --no-deps --target MODEL2VEC "model2vec==0.10.0" "skeletoken>=0.6,<0.7"
    BERTVISION_REAL_DATA=… python benchmarks/user_tasks.py --results user_tasks.jsonl --model2vec MODEL2VEC
    python benchmarks/user_tasks.py --results user_tasks.jsonl --table

Options: --tasks trec subj …, --methods tfidf fit …, --seeds 3, --limit ROWS (a sample of train and of test, to try it).
`--no-deps`: model2vec requires an older transformers than ours, but also works with ours.

| method | what it does |
|---|---|
| tfidf | TF-IDF of words and word pairs, logistic regression |
| last | mean over the tokens of the last layer, standardised, logistic regression |
| best_layer | the same for every layer; the layer is chosen too |
| model2vec | a static model distilled from the encoder (its defaults), standardised, logistic regression |
| finetune | full fine-tuning: output layer on the mean over tokens, 3 epochs, batches of 32, 2e-4, output layer 2e-3 |
| fit | `bertvision fit` with its defaults; the saved model predicts |

Logistic regression is scikit-learn's. Its strength and the layer are chosen on a held-out tenth of train, and the model
is then fitted on all of train. Files named valid or dev are not read. Test is scored once. Only `finetune` and `fit`
depend on the seed.

Each measurement runs in its own process. CPU seconds are its user and system time from start to exit. They include
imports, the distillation of model2vec, and predicting test. OpenMP threads of all methods wait as BERTVision's do
(bertvision/threads.py), so that spinning does not count against the others. Measurements are appended to the results
file, one JSON object per line. Finished ones are skipped; after a change to the code, use a new file.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from user_methods import DATA, METHODS, SEEDED, TASKS

TITLES = {
    "trec": "TREC", "subj": "SUBJ", "snips": "SNIPS", "sst5": "SST-5", "hwu64": "HWU64", "banking77": "Banking77",
    "tfidf": "TF-IDF", "last": "last layer", "best_layer": "best single layer", "model2vec": "Model2Vec",
    "finetune": "fine-tuned", "fit": "fit",
}  # fmt: skip
ROWS = 10_000
LEAST_SECONDS = 20
"""`fit` may spend as long on fitting and choosing as on encoding, but at least this."""


One = TypeVar("One", bound=Any)
"""A named tuple that says what is measured."""


class Measurement(NamedTuple):
    task: str
    method: str
    seed: int
    limit: int | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="only print the tables of the results file")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--model2vec", type=Path, help="folder that model2vec is installed in")
    arguments = parser.parse_args()
    methods = arguments.methods
    wanted = [
        Measurement(task, method, seed, arguments.limit)
        for seed in range(arguments.seeds)
        for method in methods
        for task in arguments.tasks
        if seed == 0 or method in SEEDED
    ]
    failed = [] if arguments.table else measure_all(wanted, arguments.results, arguments.model2vec)
    print_tables(read_results(arguments.results, Measurement), wanted, arguments.tasks, methods)
    sys.exit(f"failed: {', '.join(f'{one.task} {one.method} {one.seed}' for one in failed)}" if failed else 0)


# ---------------------------------------------------------------------- measuring


def measure_all(wanted: list[Measurement], results: Path, model2vec: Path | None) -> list[Measurement]:
    """Append what is missing to the results file. Return the measurements that failed."""
    if DATA not in os.environ:
        sys.exit(f"{DATA} is not set: the folder with user/trec, user/subj …")
    missing = [one for one in wanted if one not in read_results(results, Measurement)]
    if model2vec is None and any(one.method == "model2vec" for one in missing):
        print("Model2Vec is left out: install it as in the first lines of this file and give --model2vec FOLDER.")
        missing = [one for one in missing if one.method != "model2vec"]
    if not missing:
        return []
    # Importing bertvision also sets how the threads of all processes wait.
    from bertvision.encoder.loading import resolve

    encoder = resolve("embedded")

    def describe(found: dict[str, Any]) -> str:
        chosen = f", {found['chosen']}" if "chosen" in found else ""
        return f"{found['accuracy']:.1f}, {found['cpu']:.0f} CPU s, {found['wall']:.0f} s{chosen}"

    return append_all(missing, results, lambda one: measure(one, encoder, model2vec), describe)


def append_all(
    missing: Sequence[One],
    results: Path,
    measure: Callable[[One], dict[str, Any] | str],
    describe: Callable[[dict[str, Any]], str],
) -> list[One]:
    """Append each measurement to the results file as it ends. Return those that failed."""
    failed: list[One] = []
    for number, one in enumerate(missing, start=1):
        found = measure(one)
        shown = f"[{number}/{len(missing)}] {' '.join(str(part) for part in one if part is not None)}"
        if isinstance(found, str):
            print(f"{shown}: failed\n{found}", flush=True)
            failed.append(one)
            continue
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**one._asdict(), **found}) + "\n")
        print(f"{shown}: {describe(found)}", flush=True)
    return failed


def measure(one: Measurement, encoder: str, model2vec: Path | None) -> dict[str, Any] | str:
    """Run a measurement in a process of its own. Return its result, or the end of its error messages."""
    paths = {}
    if one.method == "model2vec":
        paths["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(model2vec)]))
    return run_alone("user_methods.py", {**one._asdict(), "encoder": encoder}, environment=paths)


def run_alone(
    script: str,
    given: dict[str, Any],
    python: str = sys.executable,
    environment: dict[str, str] | None = None,
    option: str | None = None,
) -> dict[str, Any] | str:
    """Run a script of this folder in a process of its own, offline and without a GPU: CPU seconds are compared. Return
    the JSON object in the last line of its output, with the seconds, or the end of its error messages."""
    hidden = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    before, started = children_seconds(), time.monotonic()
    done = subprocess.run(
        [python, str(Path(__file__).with_name(script)), *([option] if option else []), json.dumps(given)],
        env={**os.environ, **hidden, **(environment or {})}, capture_output=True, text=True,
    )  # fmt: skip
    wall, cpu = time.monotonic() - started, children_seconds() - before
    if done.returncode:
        return done.stderr[-3000:]
    return {"cpu": round(cpu, 2), "wall": round(wall, 2), **json.loads(done.stdout.splitlines()[-1])}


def children_seconds() -> float:
    """User and system seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read_results(path: Path, kind: type[One]) -> dict[One, dict[str, Any]]:
    """The rows of a results file by their measurement, which is of this kind."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rows = [json.loads(line) for line in lines]
    return {kind(*(row[key] for key in kind._fields)): row for row in rows}


# ---------------------------------------------------------------------- tables


class Results:
    """The wanted results, by task, method and seed."""

    def __init__(self, found: dict[Measurement, dict[str, Any]], wanted: list[Measurement], tasks: list[str]) -> None:
        self.found = {one: found[one] for one in wanted if one in found}
        self.tasks = tasks

    def rows(self, method: str, task: str | None = None) -> list[dict[str, Any]]:
        return [row for one, row in self.found.items() if one.method == method and task in (None, one.task)]

    def values(self, key: str, method: str, task: str) -> list[float]:
        """One value per seed."""
        return [row[key] for row in self.rows(method, task)]

    def means(self, key: str, method: str) -> list[float]:
        """The mean over the tasks, one per seed that every task has; empty if there is none."""
        seeds = sorted({one.seed for one in self.found if one.method == method})
        by_seed = [[row[key] for row in self.rows(method) if row["seed"] == seed] for seed in seeds]
        return [float(np.mean(values)) for values in by_seed if len(values) == len(self.tasks)]


def print_tables(
    found: dict[Measurement, dict[str, Any]], wanted: list[Measurement], tasks: list[str], methods: list[str]
) -> None:
    results = Results(found, wanted, tasks)
    shown = [method for method in methods if results.rows(method)]
    for title, key, digits in (("test accuracy", "accuracy", 1), ("CPU seconds", "cpu", 0)):
        rows = [[TITLES[task], *(show(results.values(key, one, task), digits) for one in shown)] for task in tasks]
        rows.append(["mean", *(show(results.means(key, one), digits) for one in shown)])
        print_table([title, *(TITLES[method] for method in shown)], rows)
    if results.rows("fit"):
        print_fit(results)
        print_summary(results)


def print_fit(results: Results) -> None:
    """What `fit` chose, and whether it kept to its time."""
    rows = []
    for task in results.tasks:
        found = results.rows("fit", task)
        if found:
            chosen = ", ".join(str(row["chosen"]) for row in found)
            keys = ("encode_seconds", "choose_seconds", "try_seconds")
            seconds = [show([row[key] for row in found], 1) for key in keys]
            seconds += [show([row["cpu_fit"] for row in found], 0)]
            rows.append([TITLES[task], f"{found[0]['rows']:,}", chosen, *seconds])
    seconds = ["encoding, s", "fitting and choosing, s", "of which trying, s", "CPU s without test"]
    print_table(["`fit`", "rows", "chosen, by seed", *seconds], rows)


def print_summary(results: Results) -> None:
    means = results.means("accuracy", "fit")
    print(f"- fit, mean: {show(means, 2) if means else 'not complete'} (at least 86.6, aim 87.7).")
    cpu = {method: results.means("cpu", method) for method in ("fit", "finetune")}
    if all(cpu.values()):
        ratio = np.mean(cpu["fit"]) / np.mean(cpu["finetune"])
        print(f"- CPU seconds, fit / fine-tuned: {ratio:.2f} (aim 0.20).")
    rows = results.rows("fit")
    late = [row for row in rows if row["choose_seconds"] > max(LEAST_SECONDS, row["encode_seconds"])]
    encode, choose = (np.mean([row[key] for row in rows]) for key in ("encode_seconds", "choose_seconds"))
    print(
        f"- fit, seconds on average: encoding {encode:.1f}, fitting and choosing {choose:.1f}, which includes loading "
        f"and tokenizing. {len(late)} of {len(rows)} fits took longer to fit and choose than to encode and than "
        f"{LEAST_SECONDS} s" + (f": {', '.join(sorted({row['task'] for row in late}))}." if late else ".")
    )
    worst = max(rows, key=lambda row: row["cpu_fit"] / row["rows"])
    large = [row["cpu_fit"] * ROWS / row["rows"] for row in rows if row["rows"] >= ROWS]
    print(
        f"- fit, worst CPU seconds per {ROWS:,} rows, test not counted: {worst['cpu_fit'] * ROWS / worst['rows']:.0f} "
        f"({TITLES[worst['task']]}, {worst['rows']:,} rows)"
        + (f"; {max(large):.0f} among tasks with at least {ROWS:,} rows" if large else "")
        + " (at most 120)."
    )


def show(values: list[float], digits: int) -> str:
    if not values:
        return "–"
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    print(f"\n| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print()


if __name__ == "__main__":
    main()
