"""Scoring: what every model of a run says of held-out and dev examples, and the figures of that."""

import dataclasses
from typing import Any

import numpy as np

from bertvision.disk import read_json, write_json, writing_folder
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import Part
from bertvision.errors import UserError
from bertvision.heads import load_head
from bertvision.kinds import Predictions, save_marks, save_predictions
from bertvision.kinds.base import MARKS
from bertvision.pipeline.folder import BASELINE, ENCODER, HELD_OUT, mark_done
from bertvision.pipeline.job import Job
from bertvision.pipeline.outputs import compute_outputs
from bertvision.pipeline.snapshot import load_snapshot
from bertvision.words import counted


@dataclasses.dataclass(frozen=True)
class Row:
    """One model at one snapshot: what its predictions are stamped with, and what it costs."""

    name: str
    stamp: str
    facts: dict[str, Any]


def evaluate(job: Job) -> dict[str, Any]:
    """Scores the baseline, the encoder at every snapshot and every head; writes scores.json and gives it back."""
    task, train = job.task, job.examples("train")
    baseline = {split: task.kind.baseline(task.metrics, train, job.examples(split)) for split in job.dev_splits}
    scores: dict[str, Any] = {
        "task": task.name,
        "kind": str(task.kind),
        "metrics": list(task.metrics),
        "snapshots": {},
    }
    for epochs in job.snapshots:
        rows = _rows(job, epochs)
        _predict_missing(job, epochs, rows)
        models = {BASELINE: {"scores": baseline, "parameters": 0, "seconds": 0.0}}
        for row in rows:
            models[row.name] = {
                **row.facts,
                "scores": {} if row.facts.get("failed") else read_scores(job, epochs, row.name),
            }
        scores["snapshots"][f"{epochs:g}"] = models
    if job.machine.is_main:
        write_json(job.folder.path / "scores.json", scores)
        _keep_lengths(job)
    return scores


def _keep_lengths(job: Job) -> None:
    """How many windows of each length there are, for those who ask later without a tokenizer at hand."""
    path = job.folder.path / "lengths.json"
    known, found = read_json(path) or {}, {}
    for split in ("train", *job.scored_splits):
        stamp = job.stamps.data(split)
        if known.get(split, {}).get("stamp") == stamp:
            found[split] = known[split]
        else:
            lengths, counts = np.unique(job.features(split).lengths, return_counts=True)
            found[split] = {"stamp": stamp, "lengths": lengths.tolist(), "windows": counts.tolist()}
    if found != known:
        write_json(path, found)


def _rows(job: Job, epochs: float) -> list[Row]:
    """The models to score at a snapshot: the encoder, and the heads where heads are trained."""
    found = read_json(job.folder.encoder(epochs) / "stamp.json")
    if found is None or found["stamp"] != job.stamps.finetune:
        raise UserError(
            f"'{job.folder.path}' has no encoder fine-tuned by these settings to {counted(epochs, 'epoch')}: "
            "run `bertvision finetune` (or `run`) with this config first."
        )
    whole = found["parameters"]
    facts = {key: found.get(key) for key in ("parameters", "seconds", "tokens", "memory")}
    if "trained_parameters" in found:  # not all of them learned
        facts["trained_parameters"] = found["trained_parameters"]
    rows = [Row(ENCODER, f"{found['stamp']}@{epochs:g}", {**facts, "share": 1.0})]
    for member in job.members if epochs in job.head_snapshots else []:
        stamp = job.stamps.member(epochs, member)
        found = read_json(job.folder.head(epochs, member.name) / "stamp.json")
        if found is None or found["stamp"] != stamp:
            job.reporter.say(
                f"head '{member.name}' is not trained by these settings: it is left out (`bertvision train`)."
            )
            continue
        keys = ("parameters", "seconds", "tokens", "memory", "states", "failed")
        own = {"share": found["parameters"] / whole, "head": member.head, "group": member.group, "seed": member.seed}
        own |= {"epochs": member.epochs, "data_fraction": member.data_fraction}
        own |= {"begun": True} if member.begin_stamp else {}
        rows.append(Row(member.name, stamp, {key: found.get(key) for key in keys} | own))
    return rows


def _predict_missing(job: Job, epochs: float, rows: list[Row]) -> None:
    """One pass a split for all models whose predictions are not there; held-out first, for the threshold."""
    parts: tuple[Encoder, Any] | None = None
    for split in job.scored_splits:
        todo = [row for row in rows if not row.facts.get("failed") and not _is_predicted(job, epochs, split, row)]
        if not todo:
            continue
        parts = parts or load_snapshot(job.folder.encoder(epochs), job.config.encoder, job.machine)
        encoder, output = parts
        models: dict[str, Any] = {}
        keep: set[Part] = set()
        for row in todo:
            model: Any = output if row.name == ENCODER else load_head(job.folder.head(epochs, row.name))[0]
            keep.update(output.keep if row.name == ENCODER else (model.reads,))
            models[row.name] = model.to(job.machine.device).eval()
        features = job.features(split)
        with job.reporter.bar(f"scoring {len(todo)} models on {split}", int(features.lengths.sum()), "tokens") as bar:
            outputs = compute_outputs(
                encoder, models, tuple(sorted(keep)), features, job.task.kind, job.machine,
                job.encode_tokens, bar,
            )  # fmt: skip
        if job.machine.is_main:
            for row in todo:
                _keep_predictions(job, epochs, split, row, outputs[row.name])
        job.machine.wait()


def _is_predicted(job: Job, epochs: float, split: str, row: Row) -> bool:
    folder = job.folder.predictions(epochs, split) / row.name
    return job.folder.is_done(folder, job.stamps.predictions(row.stamp, split)) and (folder / MARKS).is_file()


def _keep_predictions(job: Job, epochs: float, split: str, row: Row, outputs: np.ndarray) -> None:
    stamp = job.stamps.predictions(row.stamp, split)
    keep_scored(job, epochs, split, row.name, stamp, job.decode(outputs, split), outputs)


def keep_scored(
    job: Job,
    epochs: float,
    split: str,
    name: str,
    stamp: str,
    predictions: Predictions,
    outputs: np.ndarray | None = None,
) -> None:
    """Scores a model's predictions and keeps both; those on held-out questions come first, for the threshold."""
    kind, threshold = job.task.kind, None
    marks = kind.mark(predictions, job.examples(split))
    if kind.has_threshold and job.examples(HELD_OUT):
        if split == HELD_OUT:
            threshold = kind.pick_threshold(marks)
        else:
            chosen = read_json(job.folder.predictions(epochs, HELD_OUT) / name / "stamp.json")
            threshold = chosen["scores"]["threshold"] if chosen else 0.0
    scores = kind.score(job.task.metrics, marks, threshold)
    with writing_folder(job.folder.predictions(epochs, split) / name) as fresh:
        save_predictions(fresh, predictions, outputs, threshold or 0.0)
        save_marks(fresh, marks)
        mark_done(fresh, stamp, scores=scores)
    job.folder.log("scores", epochs=epochs, split=split, model=name, scores=scores)


def read_scores(job: Job, epochs: float, name: str) -> dict[str, Any]:
    """Split → figures of a model that was scored there."""
    place = job.folder.predictions
    found = {split: read_json(place(epochs, split) / name / "stamp.json") for split in job.scored_splits}
    return {split: stamp["scores"] for split, stamp in found.items() if stamp is not None}
