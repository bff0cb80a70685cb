"""Keeps of finished runs what the results page is made of: python -m results.keep RUN [RUN …] [--again]

A run's folder is called as its config in configs/results, with its seed: squad2_gte_seed1. Its settings must be the
config's; where data and encoder lie may differ. A folder called squad2_gte_full1_lr0.0001_seed0 is of a run with
another learning rate of fine-tuning than the config's, and is kept apart from the others. Marks of each example must be
there (analyses need them); the weights of encoders and heads need not.
With --again the runs, which must have had the GPU to themselves, stand beside those of the same seed that were kept:
their seconds count, and not their scores.
"""

import dataclasses
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertvision.config import RunConfig
from bertvision.disk import read_json, write_text
from bertvision.errors import UserError
from bertvision.kinds import SPAN
from bertvision.pipeline.finished import FinishedRun, Model
from bertvision.report.analyses import answering as answers
from bertvision.report.analyses.comparisons import comparisons
from bertvision.report.analyses.layer_weights import layer_weights
from bertvision.report.analyses.passage_lengths import passage_lengths
from bertvision.report.block import Block
from bertvision.report.certainty import Certainty
from bertvision.tasks import TaskConfig
from results.kept import AGAIN, CONFIGS, KEPT, RATES, to_text

ANALYSES: dict[str, Callable[[FinishedRun, str], Block | None]] = {
    "second_answer": answers.second_answer,
    "wrong_predictions": answers.wrong_predictions,
    "passage_lengths": passage_lengths,
    "layer_weights": layer_weights,
}
FREE = {
    "run", "task.data", "task.train", "task.dev", "encoder.name", "encoder.device", "encoder.dtype",
    "finetune.snapshots", "finetune.checkpoint_seconds", "train.checkpoint_seconds", "finetune.memory_tokens",
}  # fmt: skip
"""What may be another: where things lie and run. (The last snapshot is always there; tests look at the rest.)"""
FILLED_IN = {"finetune.lr", "finetune.batch_rows", "train.batch_rows", "train.epochs", "train.snapshots"}
"""What a run fills in by its task where nothing is given."""
NAME = re.compile(r"(?P<config>\w+?)(_lr(?P<lr>\d+(\.\d+)?(e-\d+)?))?_seed(?P<seed>\d+)")
COSTS = ("parameters", "trained_parameters", "seconds", "tokens", "memory")


def keep(run: Path, again: bool = False) -> Path:
    name = NAME.fullmatch(run.name)
    if name is None:
        raise UserError(f"'{run}': a run is called as its config and its seed, such as squad2_gte_seed1.")
    config, seed = name["config"], int(name["seed"])
    lr = float(name["lr"]) if name["lr"] else None
    evidence = FinishedRun(run)
    check_settings(evidence, CONFIGS / f"{config}.toml", seed, lr)
    environment = evidence.environment
    kept = {
        "config": config,
        **({} if lr is None else {"lr": lr}),
        "seed": seed,
        "device": environment["device"],
        "packages": {name: environment["packages"][name] for name in ("torch", "transformers")},
        "task": evidence.task_name,
        "kind": str(evidence.kind),
        "metrics": list(evidence.metrics),
        "snapshots": {f"{epochs:g}": shorten(evidence.models(epochs)) for epochs in evidence.snapshots},
        "analyses": analyse(evidence),
    }
    path = (KEPT / AGAIN if again else KEPT if lr is None else KEPT / RATES) / f"{run.name}.json"
    write_text(path, to_text(kept))
    return path


def check_settings(evidence: FinishedRun, path: Path, seed: int, lr: float | None = None) -> None:
    """Refuses a run that was made with other settings than the config gives, but for the learning rate that its name
    tells, or than the defaults of all others."""
    if not path.is_file():
        raise UserError(f"'{evidence.folder.path}' is not called as a config of configs/results and its seed.")
    found: dict[str, Any] = evidence.config
    tables = tomllib.loads(path.read_text(encoding="utf-8")) | {"seed": seed}
    if lr is not None:
        tables["finetune"]["lr"] = lr
    for section, value in dataclasses.asdict(RunConfig(task=TaskConfig(tables["task"]["name"]))).items():
        wanted = value | tables.get(section, {}) if isinstance(value, dict) else {"": tables.get(section, value)}
        # A run that was made before there was a setting has its default.
        there = value | found[section] if isinstance(value, dict) else {"": found[section]}
        for key, expected in wanted.items():
            name = f"{section}.{key}".rstrip(".")
            if name in FREE or (name in FILLED_IN and key not in tables.get(section, {})):
                continue
            if there[key] != expected:
                where = "the folder's name" if lr is not None and name == "finetune.lr" else f"'{path.name}'"
                raise UserError(f"'{evidence.folder.path}': {name} is {there[key]}, and {expected} in {where}.")


def shorten(models: list[Model]) -> dict[str, Any]:
    """Scores and costs of each model, to four digits."""
    short = {}
    for model in models:
        some = {key: getattr(model, key) for key in COSTS if getattr(model, key) is not None}
        some |= {"head": model.head, "data_fraction": model.data_fraction} if model.head is not None else {}
        some |= {"ensemble": list(model.ensemble)} if model.ensemble else {}
        short[model.name] = round_off(some | {"scores": dict(model.figures)})
    return short


def analyse(evidence: FinishedRun) -> dict[str, Any]:
    found: dict[str, Any] = {}
    split = evidence.splits[0]
    for epochs in evidence.head_snapshots:
        block = comparisons(Certainty(evidence, epochs, split))
        if block is not None:
            found[f"comparisons_{epochs:g}"] = rows_of(block)
    if evidence.task.kind is SPAN:
        for name, analysis in ANALYSES.items():
            block = analysis(evidence, split)
            if block is not None:
                found[name] = rows_of(block)
    layers = read_json(evidence.folder.path / "analyses" / f"layers_{split}.json")
    if layers is not None:
        found["layers"] = round_off({key: layers[key] for key in ("examples", "heads")})
    return found


def rows_of(block: Block) -> Any:
    assert block.table is not None, f"'{block.key}' is a table"
    return round_off(block.table.records())


def round_off(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: round_off(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [round_off(inner) for inner in value]
    return value


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--again"]
    if not words:
        raise SystemExit(__doc__)
    try:
        for word in words:
            print(keep(Path(word), "--again" in sys.argv))
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
