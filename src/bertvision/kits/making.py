"""Makes a kit of finished runs: of each the best head on held-out data, on the same encoder, which none of them
fine-tuned."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertvision.encoder.loading import weights_stamp
from bertvision.errors import UserError
from bertvision.evaluation.marks import load_marks
from bertvision.job import HELD_OUT
from bertvision.kits.kit import FILE
from bertvision.kits.trust import measure_trust
from bertvision.predictor import takes_pairs
from bertvision.rundir import RunFolder, read_json, write_json, writing_folder
from bertvision.stages import BASELINE, ENCODER
from bertvision.tasks import TaskConfig
from bertvision.tasks.base import restore_task

UNTOUCHED = "0"
HEAD_FILES = ("head.safetensors", "config.json")


def make_kit(runs: Sequence[Path], to: Path, heads: dict[str, str] | None = None) -> Path:
    """Writes the kit; `heads` may name the head of a task, absent: the best on held-out data."""
    if not runs:
        raise UserError("a kit is made of one run or more: give their folders.")
    tasks: dict[str, dict[str, Any]] = {}
    sources: dict[str, Path] = {}
    encoders = set()
    for run in runs:
        facts, folder, encoder = describe(RunFolder(run), heads or {})
        name = facts["task"]["name"]
        if name in tasks:
            raise UserError(f"two runs are of task '{name}': a kit has one head for each task.")
        tasks[name], sources[name] = facts, folder
        encoders.add(encoder)
    if len(encoders) > 1:
        raise UserError(f"a kit has one encoder, and the runs have {', '.join(sorted(encoders))}.")
    (encoder,) = encoders
    with writing_folder(to) as fresh:
        for name, source in sources.items():
            (fresh / name).mkdir(parents=True)
            for file in (*HEAD_FILES, *(["README.md"] if (source / "README.md").is_file() else [])):
                shutil.copyfile(source / file, fresh / name / file)
        kit = {"name": to.name, "encoder": encoder, "encoder_stamp": weights_stamp(encoder), "tasks": tasks}
        write_json(fresh / FILE, kit)
    return to


def describe(run: RunFolder, heads: dict[str, str]) -> tuple[dict[str, Any], Path, str]:
    """What a kit keeps of a run's task and head, the head's folder, and the encoder's name."""
    config, task, scores = (read_json(run.path / f"{name}.json") for name in ("config", "task", "scores"))
    if config is None or task is None or scores is None:
        raise UserError(f"'{run.path}' is not a finished run: expected config.json, task.json and scores.json in it.")
    models = scores["snapshots"].get(UNTOUCHED, {})
    found = {
        name: facts
        for name, facts in models.items()
        if name not in (BASELINE, ENCODER) and "ensemble" not in facts and not facts.get("failed")
    }
    if not found:
        raise UserError(f"'{run.path}' has no head on the encoder as it came: a kit needs train.snapshots = [0].")
    restored = restore_task(task)
    head = heads.get(task["name"]) or max(found, key=lambda name: _held_out(found[name], restored.metrics[0]))
    if head not in found:
        raise UserError(f"'{run.path}' has no head '{head}' at 0 epochs: it has {', '.join(found)}.")
    own = found[head]["scores"]
    threshold = float(own.get(HELD_OUT, {}).get("threshold", 0.0))
    marks = load_marks(run.predictions(0.0, HELD_OUT) / head, restored.kind)
    facts = {
        "task": {**task, "source": ""},  # where the data lay says nothing to others
        "pairs": takes_pairs(restored, TaskConfig(**config["task"])),
        "max_length": config["data"]["max_length"] or restored.max_length,
        "overlap": config["data"]["overlap"],
        "n_best": config["evaluate"]["n_best"],
        "max_answer_tokens": config["evaluate"]["max_answer_tokens"],
        "threshold": threshold,
        "head": head,
        "parameters": found[head]["parameters"],
        "scores": own,
        "trust": measure_trust(marks, threshold),
    }
    return facts, run.head(0.0, head), str(config["encoder"]["name"])


def _held_out(facts: dict[str, Any], metric: str) -> float:
    found = facts["scores"].get(HELD_OUT, {})
    return float(found.get("at_threshold", found).get(metric, 0.0))
