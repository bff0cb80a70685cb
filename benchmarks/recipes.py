"""The defaults of `bertvision run`: a config with a task and its files and nothing else, compared with the last layer.

    BERTVISION_REAL_DATA=… python benchmarks/recipes.py --results recipes.jsonl
    python benchmarks/recipes.py --results recipes.jsonl --table

Options: --tasks trec cola …, --seeds 0 1 2, --limit ROWS (of train and of dev, to try it), --set section.key=value …
(to compare other settings; use a results file for each).

Each run trains what the task's recipe names on the untouched embedded encoder. The model is the one that `predict`
would use, chosen on held-out training data. It is compared with two others of the same run: `last_lr`, logistic or
ridge regression on the last layer, and the control, a linear layer on it that is trained in steps. A user's tasks are
scored on test, GLUE tasks on dev, once. The 10 k samples are parts of the official training sets.

The standard error is that of the difference on the same examples (200 draws of the examples). CPU seconds are those of
the process, from start to exit. Measurements are appended to the results file, one JSON object per line. Finished ones
are skipped; after a change to the code, use a new file.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from user_methods import DATA, path_of
from user_methods import TASKS as OWN
from user_tasks import TITLES, append_all, print_table, read_results, run_alone, show

GLUE = {"cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "stsb": "STS-B", "rte": "RTE"}
SAMPLES = {"qnli": "QNLI", "qqp": "QQP", "mnli": "MNLI"}
NAMES = {**TITLES, **GLUE, **{task: f"{name}, 10 k sample" for task, name in SAMPLES.items()}}
TASKS = (*OWN, *GLUE, *SAMPLES)
DRAWS = 200


class Measurement(NamedTuple):
    task: str
    seed: int
    limit: int | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--table", action="store_true", help="only print the table of the results file")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--set", nargs="+", default=[], metavar="section.key=value")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(**json.loads(arguments.one))))
        return
    if arguments.results is None:
        parser.error("--results FILE is missing")
    failed: list[Measurement] = []
    if not arguments.table:
        wanted = [Measurement(task, seed, arguments.limit) for seed in arguments.seeds for task in arguments.tasks]
        failed = measure_all(wanted, arguments.results, arguments.set)
    print_tables(read_results(arguments.results, Measurement))
    sys.exit(f"failed: {', '.join(f'{one.task} {one.seed}' for one in failed)}" if failed else 0)


# ---------------------------------------------------------------------- measuring


def measure(task: str, seed: int, limit: int | None, settings: list[str]) -> dict[str, Any]:
    """One run without settings, and its scores on dev."""
    import bertvision as bv
    from bertvision.config import build_config
    from bertvision.pipeline.finished import FinishedRun

    limits = {} if limit is None else {"data": {"limit_train": limit, "limit_dev": limit}}
    with tempfile.TemporaryDirectory() as work:
        config = build_config({"task": describe(task), "seed": seed, "run": f"{work}/run", **limits}, settings)
        run = FinishedRun(bv.run(config).folder)
        split, key, epochs = run.splits[0], run.kind.main(run.metrics, False), run.last
        best = run.best_model(epochs)
        control, last = (run.best_seed(run.best_of(some)) for some in _compared(run, epochs))  # type: ignore[arg-type]
        rows = {
            group.name: [group.mean("held_out", key), group.mean(split, key)] for group in run.groups(epochs)
            if group.role != "encoder"
        }  # fmt: skip
        assert best is not None
        found = {"metric": key, "chosen": best.name, "dev": best.scores(split)[key], "rows": rows}
        for name, other in (("last", last), ("control", control)):
            found[name] = other.scores(split)[key]
            found[f"{name}_error"] = standard_error(run, key, best, other, split)
        found["examples"] = best.scores(split)["total"]
    return found


def _compared(run: Any, epochs: float) -> tuple[list[Any], list[Any]]:
    """The controls that are trained in steps, and those that are solved: on the joined pair and, if there are pairs, on
    two towers."""
    from bertvision.heads import CONTROL

    found = run.groups(epochs, "control")
    return [one for one in found if one.first.head == CONTROL], [one for one in found if one.first.head != CONTROL]


def standard_error(run: Any, key: str, one: Any, other: Any, split: str) -> float:
    """Of the difference between two models on the same examples."""
    from dataclasses import fields, replace

    random, results = np.random.default_rng(0), [model.results(split) for model in (one, other)]
    differences = []
    for _ in range(DRAWS):
        drawn = random.integers(0, len(results[0]), len(results[0]))  # (example)
        scores = [
            run.kind.score(
                [key], replace(each, **{item.name: getattr(each, item.name)[drawn] for item in fields(each)})
            )
            for each in results
        ]
        differences.append(scores[0][key] - scores[1][key])
    return float(np.std(differences))


def describe(task: str) -> dict[str, Any]:
    """What a user writes: the task and its files."""
    data = Path(os.environ[DATA])
    if task in OWN:
        train, test = (str(path_of(task, split)) for split in ("train", "test"))
        return {"name": "files", "train": train, "dev": test, "label": OWN[task][1]}
    if task in GLUE:
        return {"name": task, "data": str(data / "glue" / GLUE[task])}
    folder = data / "glue_sample" / SAMPLES[task]
    return {"name": task, "train": str(folder / "train.tsv.gz"), "dev": str(folder / "dev.tsv.gz")}


def measure_all(wanted: list[Measurement], results: Path, settings: list[str]) -> list[Measurement]:
    """Append what is missing to the results file. Return the measurements that failed."""
    if DATA not in os.environ:
        sys.exit(f"{DATA} is not set: the folder with user/trec, glue/RTE …")
    missing = [one for one in wanted if one not in read_results(results, Measurement)]

    def run(one: Measurement) -> dict[str, Any] | str:
        return run_alone(Path(__file__).name, {**one._asdict(), "settings": settings}, option="--one")

    def describe(found: dict[str, Any]) -> str:
        return f"{found['dev']:.1f} ({found['chosen']}), last layer {found['last']:.1f}"

    return append_all(missing, results, run, describe)


# ---------------------------------------------------------------------- tables


def print_tables(found: dict[Measurement, dict[str, Any]]) -> None:
    keys = ("control", "last", "dev")
    rows, means = [], []
    for task in [task for task in TASKS if any(one.task == task for one in found)]:
        own = [row for one, row in found.items() if one.task == task]
        values = {key: [row[key] for row in own] for key in keys}
        means.append([float(np.mean(values[key])) for key in keys])
        better = [
            f"{means[-1][2] - mean:+.1f} ({np.mean([row[f'{key}_error'] for row in own]):.1f})"
            for key, mean in zip(keys, means[-1], strict=False) if key != "dev"
        ]  # fmt: skip
        chosen = ", ".join(row["chosen"] for row in own)
        shown = [show(values[key], 1) for key in keys]
        rows.append(
            [f"{NAMES[task]}, {own[0]['metric']}", *shown, *better, chosen, show([row["cpu"] for row in own], 0)]
        )
    if means:
        average = np.mean(means, axis=0)  # (model)
        gains = [f"{average[2] - average[0]:+.1f}", f"{average[2] - average[1]:+.1f}"]
        rows.append([f"mean of {len(means)}", *(f"{mean:.1f}" for mean in average), *gains, "", ""])
    heads = [
        "task", "control", "last layer", "recipe", "over the control (error)", "over the last layer (error)",
        "chosen, by seed", "CPU s",
    ]  # fmt: skip
    print_table(heads, rows)


if __name__ == "__main__":
    main()
