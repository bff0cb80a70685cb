"""What an export takes of a run, a fitted model or a kit: the encoder, and each task's heads and rules."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bertvision.config import build_config
from bertvision.data.examples import Example
from bertvision.data.windows import Features, build_features
from bertvision.disk import read_json
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import identify
from bertvision.errors import UserError
from bertvision.evaluation.trust import Trust
from bertvision.kinds import Decoding
from bertvision.kits.folder import find_kit, is_kit
from bertvision.kits.kit import Kit
from bertvision.models.folder import is_fitted
from bertvision.models.predict import FittedPredictor
from bertvision.pipeline.folder import HELD_OUT, HELD_OUT_ROWS
from bertvision.pipeline.job import HeldOutFile, Job
from bertvision.pipeline.predict import Predictor
from bertvision.pipeline.snapshot import reads_towers
from bertvision.progress import Reporter
from bertvision.tasks import Task, build_task


@dataclass(frozen=True)
class Part:
    """A task of an export."""

    task: Task
    models: dict[str, Any]
    """Its head or output layer; several for an ensemble."""
    method: str | None
    weights: tuple[float, ...] | None
    max_length: int
    overlap: int
    how: Decoding
    threshold: float
    trust: Trust | None
    unanswerable: float | None
    held_out: Callable[[str | None], "list[Example] | str"]
    """The examples that the choice was made on, read from the given place or from where the run says; or why there are
    none."""

    @property
    def towers(self) -> bool:
        return any(map(reads_towers, self.models.values()))

    def build_features(self, encoder: Encoder, examples: list[Example]) -> Features:
        assert encoder.tokenizer is not None
        task = self.task
        return build_features(examples, encoder.tokenizer, task.kind, task.windowed, self.max_length, self.overlap)


@dataclass(frozen=True)
class Source:
    """What is exported."""

    name: str
    is_kit: bool
    encoder: Encoder
    encoder_name: str
    encoder_stamp: str
    parts: dict[str, Part]


def open_source(name: str, head: str | None, tasks: list[str] | None, reporter: Reporter) -> Source:
    """Open a run, a fitted model or a kit on the CPU, in float32."""
    if is_kit(name):
        if head is not None:
            raise UserError("--head is for runs and fitted models: a kit has one head for each task.")
        return _open_kit(Kit(find_kit(name), tasks, device="cpu", dtype="float32", reporter=reporter))
    if tasks is not None:
        raise UserError(f"--tasks is for kits, and '{name}' is not one: leave it out.")
    return _open_model(name, head, reporter)


# ---------------------------------------------------------------------- kits


def _open_kit(kit: Kit) -> Source:
    parts = {}
    for name, own in kit.tasks.items():
        facts = own.facts
        parts[name] = Part(
            own.task, {facts["head"]: own.head}, None, None, facts["max_length"], facts["overlap"],
            Decoding(facts["n_best"], facts["max_answer_tokens"]), own.threshold, facts["trust"], None,
            partial(_held_out_of_kit, kit, name),
        )  # fmt: skip
    return Source(kit.name, True, kit.encoder, kit.encoder_name, identify(kit.encoder_name), parts)


def _held_out_of_kit(kit: Kit, name: str, data: str | None) -> list[Example] | str:
    if data is None:
        return f"a kit does not know where its data is: name it with --data {name}=FOLDER"
    facts = kit.tasks[name].facts
    place = {"train" if Path(data).is_file() else "data": data}
    tables: dict[str, Any] = {"task": {"name": name, **place}, "seed": facts["seed"], "finetune": {"epochs": 0}}
    if "hold_out" in facts:
        tables["data"] = {"hold_out": facts["hold_out"]}
    found = list(Job(build_config(tables), kit.reporter).examples(HELD_OUT))
    known = facts["scores"].get(HELD_OUT, {}).get("total")
    if known is not None and known != len(found):
        return f"{known:,} examples were held out in training, and {len(found):,} are in '{data}': it is other data"
    return found


# ---------------------------------------------------------------------- runs and fitted models


def _open_model(name: str, head: str | None, reporter: Reporter) -> Source:
    open_one = FittedPredictor if is_fitted(name) else Predictor
    predictor: Any = open_one(name, head, reporter=reporter, encoder={"device": "cpu", "dtype": "float32"})
    model, task = predictor.model, predictor.task
    if model.role == "peer":
        raise UserError(
            f"'{name}' uses {model.name}, which has no encoder, so there is no graph to export: choose a head with "
            "--head, or share the folder itself."
        )
    encoder = predictor.encoder
    part = Part(
        task, predictor.models, model.method if len(predictor.models) > 1 else None,
        None if model.weights is None else tuple(model.weights), predictor._max_length, predictor.data.overlap,
        Decoding(predictor.evaluate.n_best, predictor.evaluate.max_answer_tokens, are_logs=len(predictor.models) > 1),
        predictor.threshold, predictor.trust(predictor.threshold), predictor.evaluate.unanswerable,
        partial(_held_out_of_run, predictor),
    )  # fmt: skip
    folder = Path(name).resolve()
    return Source(folder.name, False, encoder, encoder.name, identify(encoder.name), {task.name: part})


def _held_out_of_run(predictor: Any, data: str | None) -> list[Example] | str:
    run, own = predictor.run, predictor.task_config
    if data is not None and own.name == "files":  # rows that the model has not seen
        return list(build_task(dataclasses.replace(own, train=data, dev=None, data=None)).read("train"))
    if data is not None:
        job = run.job
        moved = dataclasses.replace(job.config, task=dataclasses.replace(own, data=data))
        return list(Job(moved, predictor.reporter).examples(HELD_OUT))
    kept = read_json(run.folder.file(HELD_OUT_ROWS), HeldOutFile)
    if kept is not None and kept["also_train"]:
        return "the model has learned from all of its rows: name a file of other labelled rows with --data"
    found = run.examples(HELD_OUT)
    if found is None:
        return "the data it was trained on is not here: name it with --data"
    return list(found) or "nothing was held out: name labelled data with --data"
