"""Keep the scores of finished runs for the results pages: python -m paper.keep RUN [RUN …] [--again]

A run folder is named after its experiment and seed: squad2_gte_seed1. Its settings must be those of the experiment;
only the paths of data and encoder may differ. A name such as squad2_gte_full1_lr0.0001_seed0 means another learning
rate of fine-tuning; such runs go to `kept/rates`. The per-example results must exist, since analyses need them; the
weights of encoder and heads are not needed.
With --again, runs that had the GPU to themselves are kept in `kept/again`: their seconds count, their scores don't.
"""

import dataclasses
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertvision.config import RunConfig, TrainConfig, build_config
from bertvision.disk import read_json, write_text
from bertvision.errors import UserError
from bertvision.heads import MemberConfig
from bertvision.kinds import SPAN
from bertvision.papers.fragments import merge
from bertvision.pipeline.finished import FinishedRun, Model
from bertvision.pipeline.members import build_members
from bertvision.report.analyses import answering as answers
from bertvision.report.analyses.comparisons import comparisons
from bertvision.report.analyses.layer_weights import layer_weights
from bertvision.report.analyses.passage_lengths import passage_lengths
from bertvision.report.block import Block
from bertvision.report.certainty import Certainty
from bertvision.tasks import TaskConfig
from bertvision.tasks.config import TASKS
from paper.experiments import find_experiment
from paper.kept import AGAIN, KEPT, RATES, to_text

ANALYSES: dict[str, Callable[[FinishedRun, str], Block | None]] = {
    "second_answer": answers.second_answer,
    "wrong_predictions": answers.wrong_predictions,
    "passage_lengths": passage_lengths,
    "layer_weights": layer_weights,
}
FREE = {
    "run", "heads", "task.data", "task.train", "task.dev", "encoder.name", "encoder.device", "encoder.dtype",
    "finetune.snapshots", "finetune.checkpoint_seconds", "train.checkpoint_seconds", "finetune.memory_tokens",
}  # fmt: skip
"""Settings that may differ: paths and devices. The last snapshot always exists, and tests check the others. Heads are
compared separately."""
NAME = re.compile(r"(?P<experiment>\w+?)(_lr(?P<lr>\d+(\.\d+)?(e-\d+)?))?_seed(?P<seed>\d+)")
COSTS = ("parameters", "trained_parameters", "seconds", "tokens", "memory")


def keep(run: Path, again: bool = False) -> Path:
    name = NAME.fullmatch(run.name)
    if name is None:
        raise UserError(f"'{run}': name the folder after experiment and seed, for example squad2_gte_seed1.")
    experiment, seed = name["experiment"], int(name["seed"])
    lr = float(name["lr"]) if name["lr"] else None
    evidence = FinishedRun(run)
    check_settings(evidence, experiment, seed, lr)
    environment = evidence.environment
    kept = {
        "config": experiment,
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


def check_settings(evidence: FinishedRun, experiment: str, seed: int, lr: float | None = None) -> None:
    """Raise if a run's settings differ from its experiment's. Its folder's name may set another learning rate."""
    tables = find_experiment(experiment).settings(seed)
    if lr is not None:
        tables["finetune"] |= {key: lr for key in ("lr", "output_lr") if key in tables["finetune"]}
    # Paths of data may differ, and the files may be gone.
    wanted = _fill_in(dataclasses.asdict(build_config(tables | {"task": {"name": tables["task"]["name"]}})))
    there, run = _fill_in(evidence.config), evidence.folder.path
    for section, expected in wanted.items():
        for key in expected:
            name, found = f"{section}.{key}".rstrip("."), there[section][key]
            if name not in FREE and found != expected[key]:
                where = "the folder's name" if lr is not None and name == "finetune.lr" else f"'{experiment}'"
                raise UserError(f"'{run}': {name} is {found}, but {expected[key]} in {where}.")
    members = [_members(config) for config in (there, wanted)]
    differing = [name for name in {**members[0], **members[1]} if members[0].get(name) != members[1].get(name)]
    if differing:
        raise UserError(f"'{run}': its heads differ from those of '{experiment}': {', '.join(differing)}.")


def _fill_in(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The sections of a config, with defaults filled in for settings it lacks. A setting outside of any section gets
    its own section, under the key ""."""
    task = TASKS[config["task"]["name"]]
    older = {"read": "cls", "output_lr": None if task.kind is SPAN else config["finetune"]["lr"]}
    older = {} if "read" in config["finetune"] else older  # runs from before these settings
    whole = merge(dataclasses.asdict(RunConfig(task=TaskConfig(task.name))), merge(config, {"finetune": older}))
    whole["data"]["max_length"] = whole["data"]["max_length"] or task.max_length
    if whole["train"]["snapshots"] is None:
        whole["train"]["snapshots"] = [whole["finetune"]["epochs"]]
    return {section: value if isinstance(value, dict) else {"": value} for section, value in whole.items()}


def _members(config: dict[str, dict[str, Any]]) -> dict[str, MemberConfig]:
    """The members that `heads` defines, each with all settings of its head."""
    kind = TASKS[config["task"]["name"]].kind
    assert kind is not None, "an experiment's task must have a kind"
    train = TrainConfig(**{item.name: config["train"][item.name] for item in dataclasses.fields(TrainConfig)})
    members = build_members(config["heads"][""], train, config["seed"][""], kind)
    return {
        member.name: dataclasses.replace(member, settings=dataclasses.asdict(member.head_config()))
        for member in members
    }


def shorten(models: list[Model]) -> dict[str, Any]:
    """Scores and costs of each model, rounded to four digits."""
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
    folders = [argument for argument in sys.argv[1:] if argument != "--again"]
    if not folders:
        raise SystemExit(__doc__)
    try:
        for folder in folders:
            print(keep(Path(folder), "--again" in sys.argv))
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
