"""Pairs of texts, encoder untouched: each text alone (two towers) against both as one sequence.

    BERTVISION_REAL_DATA=… python benchmarks/pairs.py --results pairs.jsonl
    python benchmarks/pairs.py --results pairs.jsonl --table

Options: --tasks rte mrpc stsb qnli qqp, --seeds 3, --limit PAIRS, --encoder NAME, --states FOLDER (keep encoded
states, to encode them once), --fit (also the default `fit`, which encodes for itself).

Models of `bertvision fit` for pairs, fitted without a limit of time. Strengths and recipes are chosen on pairs of train
that a fit has not read, as `fit` does; the first score is for these pairs. dev is scored once. CPU seconds are the
process's, for choosing and fitting; those of encoding are in a row of their own. The seed sets the split and the
initial weights. qnli and qqp are 10 k samples of the official training sets, not the official dev sets.
"""

import argparse
import csv
import gzip
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.reading import Reading
from bertvision.encoder.shared import shared_encoder
from bertvision.encoder.states import HiddenStates
from bertvision.heads import Target
from bertvision.models.candidates import Candidate, Rows, average, average_outputs, best_by_loss
from bertvision.models.choose_heads import find_candidates
from bertvision.models.clock import Clock
from bertvision.models.fit import FIRST, Options, fit_table, results_of
from bertvision.models.split import choose_split
from bertvision.models.table_rows import (
    KEEP,
    build_task_of,
    encode,
    encode_towers,
    examples_of,
    features_of,
    joined_texts,
    targets_of,
    weights_of,
)
from bertvision.progress import Reporter
from bertvision.sources import MemoryStates
from bertvision.tasks import TaskConfig, build_task
from bertvision.tasks.base import Task
from bertvision.tasks.own_table import OwnTable, from_columns

DATA = "BERTVISION_REAL_DATA"
GLUE, SAMPLES = ("rte", "mrpc", "stsb"), {"qnli": "QNLI", "qqp": "QQP"}
JOINED = ("last_lr", "linear", "mlp_mean")
TOWERS = ("last_lr_towers", "cosine_lr", "linear_cosines", "linear_towers", "linear_towers_deviation", "mlp_towers")
BEST = "average"
READ: tuple[Reading, ...] = ("mean",)
METRICS = {"accuracy": "accuracy", "f1": "F1", "pearson": "Pearson"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="only print the table of the results file")
    parser.add_argument("--tasks", nargs="+", choices=[*GLUE, *SAMPLES], default=list(GLUE))
    parser.add_argument("--models", nargs="+", default=[*JOINED, *TOWERS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, help="pairs of train and of dev, to try it")
    parser.add_argument("--encoder", default="embedded")
    parser.add_argument("--states", type=Path, help="folder for encoded states")
    parser.add_argument("--fit", action="store_true", help="also the default `fit`")
    arguments = parser.parse_args()
    if not arguments.table:
        if DATA not in os.environ:
            sys.exit(f"{DATA} is not set: the folder with glue/RTE, glue/MRPC …")
        for name in arguments.tasks:
            measure(name, arguments)
    print_table(arguments.results)


# ---------------------------------------------------------------------- data


def read(name: str, split: str, limit: int | None) -> OwnTable:
    """A split as a user's table. Label names keep their order, so that F1 is that of the right label."""
    if name in SAMPLES:
        rows = read_sample(Path(os.environ[DATA]) / "glue_sample" / SAMPLES[name], split)[:limit]
        first, second, labels = zip(*rows, strict=True)
        return from_columns(list(first), list(labels), pairs=list(second), kind="label")
    task = build_task(TaskConfig(name, data=str(Path(os.environ[DATA]) / "glue")))
    examples = task.read(split)[:limit]
    targets: list[Any] = [f"{one.target}" if task.labels else one.target for one in examples]
    texts, pairs = [one.text for one in examples], [one.text_pair for one in examples]
    return from_columns(texts, targets, pairs=pairs, kind="label" if task.labels else "score")


def read_sample(folder: Path, split: str) -> list[tuple[str, str, str]]:
    with gzip.open(folder / f"{split}.tsv.gz", "rt", encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [(row[-3], row[-2], row[-1]) for row in rows[1:]]


def load_states(
    encoder: Encoder, features: Features, file: Path | None
) -> tuple[dict[str, torch.Tensor], MemoryStates, float]:
    """The states of joined pairs and of texts alone, and the CPU seconds of encoding them (0 if they were kept)."""
    started = time.process_time()
    if file is not None and file.is_file():
        found = load_file(file)
        alone: Any = {part: found[f"towers_{part}"] for part in KEEP}
        joined = {part: found[f"joined_{part}"] for part in KEEP}
        return joined, MemoryStates(alone, encoder.shape.pooled, towers=features.towers), 0.0
    joined, _ = encode(encoder, features, "pairs", Reporter())
    towers, _ = encode_towers(encoder, features, "texts", Reporter())
    seconds = time.process_time() - started
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = {f"joined_{part}": values for part, values in joined.items()}
        save_file(kept | {f"towers_{part}": values for part, values in towers.parts.items()}, file)
    return joined, towers, seconds


# ---------------------------------------------------------------------- measuring


def measure(name: str, arguments: argparse.Namespace) -> None:
    encoder, limit = shared_encoder(arguments.encoder), arguments.limit
    train, dev = (read(name, split, limit) for split in ("train", "dev"))
    task = build_task_of(train, None)
    examples, dev_examples = examples_of(train, task, "train"), examples_of(dev, task, "dev")
    states = {}
    seconds = 0.0
    for split, some in (("train", examples), ("dev", dev_examples)):
        file = None if arguments.states is None else arguments.states / f"states_{name}_{split}.safetensors"
        joined, towers, spent = load_states(encoder, features_of(encoder, task, some), file)
        states[split], seconds = (joined, towers), seconds + spent
    facts = {"task": name, "encoder": arguments.encoder, "rows": len(train), "limit": limit}
    if seconds:
        note(arguments.results, {**facts, "model": "(encoding)", "seed": 0, "cpu": seconds, "cv": {}, "dev": {}})
    for seed in range(arguments.seeds):
        labels = targets_of(examples, task).tolist() if task.labels else None
        split = choose_split(train.texts, labels, seed, train.pairs)
        rows = Rows(
            joined_texts(train), targets_of(examples, task), weights_of(train, task, examples, None),
            states["train"][0], encoder.shape, Target(task.kind, len(task.labels)), seed, states["train"][1],
        )  # fmt: skip
        trials, outputs = [], {}
        for candidate in candidates_of(arguments.models, task):
            started = time.process_time()
            trial = candidate.attempt(rows, split, Clock(None))
            model = trial.refit().model
            cpu = time.process_time() - started
            assert isinstance(model, torch.nn.Module)
            with torch.no_grad():
                outputs[trial.name] = predict(model.eval(), *states["dev"])  # (row, output)
            trials.append(trial)
            keep(arguments.results, facts, seed, trial.name, cpu, task, split, trial, outputs, examples, dev_examples)
        if len(trials) > 2:  # the three with the lowest loss on pairs of train, as `fit` averages them
            heads = [one for one in trials if one.role == "head" and one.name not in FIRST]
            best = best_by_loss(heads, rows, split.judged)[:3]
            outputs[BEST] = average_outputs([outputs[one.name] for one in best], rows.labels)
            joint = average(best, rows)
            keep(arguments.results, facts, seed, BEST, 0.0, task, split, joint, outputs, examples, dev_examples)
        if arguments.fit:
            started = time.process_time()
            found = fit_table(train, Options(encoder=arguments.encoder, seed=seed), dev)
            cpu = time.process_time() - started
            outputs["fit"] = torch.from_numpy(found.dev_outputs[found.board.chosen])
            trial, split = found.chosen, found.split
            note_facts = {**facts, "chose": found.board.chosen}
            keep(arguments.results, note_facts, seed, "fit", cpu, task, split, trial, outputs, examples, dev_examples)


def candidates_of(names: list[str], task: Task) -> Iterator[Candidate]:
    known = {one.name: one for one in find_candidates("auto", task.kind, None, READ, pairs=True)}
    for name in names:
        yield known[name] if name in known else find_candidates([name], task.kind, None, READ, pairs=True)[-1]


def predict(model: Any, joined: dict[str, Any], towers: MemoryStates) -> torch.Tensor:
    """(row, output)"""
    if model.towers:
        return towers.map(model)
    lengths = torch.ones(len(towers), dtype=torch.int64)  # (row)
    found: torch.Tensor = model(HiddenStates(lengths, **joined))
    return found


def keep(
    file: Path, facts: dict[str, Any], seed: int, name: str, cpu: float, task: Task, split: Any, trial: Any,
    outputs: dict[str, torch.Tensor], examples: list[Any], dev_examples: list[Any],
) -> None:  # fmt: skip
    judged = [examples[row] for row in split.judged.tolist()]
    cv, dev = score(task, trial.outputs, judged), score(task, outputs[name], dev_examples)
    note(file, {**facts, "model": name, "seed": seed, "cpu": cpu, "cv": cv, "dev": dev})


def score(task: Task, outputs: torch.Tensor, examples: list[Any]) -> dict[str, float]:
    """Scores in percent: accuracy and F1 of the second of two labels, or Pearson."""
    results = results_of(task, outputs.numpy(), examples)
    metrics = ("accuracy", "f1") if len(task.labels) == 2 else task.metrics[:1]
    scores = task.kind.score(metrics, results)
    return {metric: float(scores[metric]) for metric in metrics}


def note(file: Path, found: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(found) + "\n")
    shown = {key: found[key] for key in ("task", "model", "seed", "cpu", "cv", "dev", "chose") if key in found}
    print(json.dumps(shown), flush=True)


# ---------------------------------------------------------------------- table


def print_table(file: Path) -> None:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for task in dict.fromkeys(line["task"] for line in lines):
        print(f"\n{task}: cross-validated or held-out part of train · dev · CPU seconds; mean ± sd over seeds\n")
        for model in dict.fromkeys(line["model"] for line in lines if line["task"] == task):
            own = [line for line in lines if line["task"] == task and line["model"] == model]
            cells = [f"{METRICS[m]} {spread(own, 'cv', m)} · {spread(own, 'dev', m)}" for m in own[0]["cv"]]
            chose = ", ".join(line["chose"] for line in own if "chose" in line)
            cpu = np.mean([line["cpu"] for line in own])
            print(f"{model:24} {'   '.join(cells)}   {cpu:.0f} s {chose}")


def spread(lines: list[dict[str, Any]], split: str, metric: str) -> str:
    values = [line[split][metric] for line in lines]
    return f"{mean(values):.1f}" + (f" ± {pstdev(values):.1f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
