"""Save a fit on questions as the folder of a fitted model (models/save.py), so that `report`, `predict` and `kit` read
it.

"The encoder alone" of such a folder is the control, `last_linear`: a linear layer on the last layer.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from bertvision import __version__
from bertvision.config import DataConfig, EncoderConfig, FinetuneConfig, RunConfig, resolve
from bertvision.disk import fingerprint, mark_done, write_sealed, write_text, writing_folder
from bertvision.encoder.output_layer import OutputLayer
from bertvision.heads import count_parameters, save_head
from bertvision.heads.last_linear import LastLinear
from bertvision.machine import describe_environment
from bertvision.models.folder import FILE, FORMAT
from bertvision.models.save import check_free, task_name
from bertvision.models.spans.card import build_card
from bertvision.models.spans.fit import SpanFit, overlap_of
from bertvision.models.spans.trial import Trial
from bertvision.pipeline.folder import BASELINE, ENCODER, HELD_OUT, HELD_OUT_ROWS, write_task_file
from bertvision.pipeline.job import Job
from bertvision.pipeline.lengths import keep_lengths
from bertvision.pipeline.score import keep_scored, read_scores
from bertvision.pipeline.snapshot import save_snapshot
from bertvision.progress import Reporter
from bertvision.tasks.config import TaskConfig

FIT_VERSION = 1


def save_span_fit(
    fit: SpanFit, to: Path, source: str | None = None, dev: str | None = None, overwrite: bool = False
) -> Path:
    """Write the model folder. `source` and `dev` are the files that the questions were read from."""
    check_free(to, overwrite)
    name = task_name(to.resolve().name)
    with writing_folder(to.resolve(), "--to") as fresh:
        job = _job(fit, fresh, name, source, dev)
        _save_encoder(job, fit)
        entries = {BASELINE: {"parameters": 0, "seconds": 0.0, "scores": _baseline(job, fit)}}
        entries |= {_name(trial): _save_trial(job, fit, trial) for trial in fit.trials}
        keep_lengths(job)
        write_sealed(
            fresh / "scores.json",
            {
                "task": name, "kind": str(fit.task.kind), "metrics": list(job.task.metrics),
                "snapshots": {"0": entries}, "chosen": _name(fit.chosen), "chosen_by": fit.board.where,
            },
        )  # fmt: skip
        write_sealed(
            fresh / "config.json", dataclasses.replace(job.config, run=str(to)).with_absolute_paths().to_dict()
        )
        write_task_file(fresh, job.task)
        write_sealed(fresh / "environment.json", describe_environment(fit.asked.machine))
        write_sealed(fresh / HELD_OUT_ROWS, {"rows": fit.split.judged.tolist(), "also_train": fit.split.how == "cv"})
        facts = describe(fit, to, job)
        write_sealed(fresh / FILE, facts)
        write_text(fresh / "README.md", build_card(facts, fit))
    return to


def describe(fit: SpanFit, to: Path, job: Job) -> dict[str, Any]:
    """The contents of model.json."""
    chosen = fit.chosen
    return {
        "format": FORMAT,
        "bertvision": __version__,
        "model": str(to.resolve().name),
        "task": job.task.name,
        "labels": [],
        "pairs": True,
        "max_length": job.max_length,
        "encoder_stamp": job.stamps.encoder,
        **summary(fit),
        "threshold": chosen.threshold,
        "trust": fit.task.kind.measure_trust(chosen.results, [], chosen.threshold),
        "seed": fit.options.seed,
    }


def summary(fit: SpanFit) -> dict[str, Any]:
    """What `fit --json` prints, without the folder."""
    board = fit.board
    return {
        "kind": str(fit.task.kind),
        "metric": "f1",
        "rows": len(fit.questions),
        "encoder": fit.options.encoder,
        "choice": {
            "how": board.how, "folds": board.folds if board.how == "cv" else 1, "rows": board.questions,
            "unit": board.unit,
        },
        "chosen": board.chosen,
        "leaderboard": [line.to_dict() for line in board.lines],
        "gain": board.gain(),
        "notes": fit.notes,
        "seconds": round(fit.seconds, 3),
    }  # fmt: skip


# ---------------------------------------------------------------------- parts


def _job(fit: SpanFit, folder: Path, name: str, source: str | None, dev: str | None) -> Job:
    """A job with the data of the fit, for the functions that save the parts of a run."""
    task = dataclasses.replace(fit.task, name=name)
    heads = [
        {"head": trial.member.head, "name": trial.name, **trial.member.settings}
        for trial in fit.trials
        if trial.role == "head" and trial.member is not None
    ]
    config = RunConfig(
        TaskConfig("files", train=source, dev=dev, kind=str(task.kind)),
        data=DataConfig(
            max_length=task.max_length, overlap=overlap_of(task),
            hold_out=len(fit.split.judged) / len(fit.questions) / 2, limit_train=fit.limit,
        ),
        encoder=EncoderConfig(name=fit.options.encoder, device=fit.options.device),
        finetune=FinetuneConfig(epochs=0.0),
        heads=heads,
        seed=fit.options.seed,
        run=str(folder),
    )  # fmt: skip
    job = Job(resolve(config), Reporter())
    job.__dict__.update(task=task, machine=fit.asked.machine, tokenizer=fit.asked.encoder.tokenizer, members=[])
    job.__dict__["dev_splits"] = ["dev"] if fit.dev is not None else []
    held, asked = set(fit.split.judged.tolist()), fit.asked
    train = [one for row, one in enumerate(asked.examples) if fit.split.how == "cv" or row not in held]
    job._examples = {"train": train, HELD_OUT: asked.judged_examples}
    job._features = {HELD_OUT: asked.judged_features}
    if fit.dev is not None:
        job._examples["dev"], job._features["dev"] = fit.dev
    return job


def _save_encoder(job: Job, fit: SpanFit) -> None:
    last = fit.fitted[next(trial.name for trial in fit.trials if trial.role == "encoder")][0]
    assert isinstance(last, LastLinear)
    output = OutputLayer(fit.task.kind, "tokens", fit.asked.encoder.shape.hidden, last.target.outputs)
    output.linear.load_state_dict(last.output.state_dict())
    tokens = int(fit.asked.features.lengths.sum())
    facts = {"seconds": round(fit.encode_seconds, 3), "tokens": tokens, "memory": fit.asked.machine.peak_memory()}
    save_snapshot(job, 0.0, fit.asked.encoder, output, job.stamps.finetune, facts)


def _save_trial(job: Job, fit: SpanFit, trial: Trial) -> dict[str, Any]:
    """Save a model's head and predictions. Return its entry in scores.json."""
    assert trial.member is not None
    name, whole = _name(trial), count_parameters(fit.asked.encoder)
    stamp = fingerprint("fit spans", FIT_VERSION, job.stamps.finetune, trial.member.identity(), fit.options.seed)
    facts: dict[str, Any] = {"parameters": trial.parameters, "seconds": round(trial.seconds, 3)}
    if trial.role == "encoder":
        facts["parameters"] += whole
    elif trial.name in fit.fitted:
        folder, (head, member) = job.folder.head(0.0, name), fit.fitted[trial.name]
        save_head(folder, head, member)
        mark_done(folder, stamp, encoder=job.stamps.finetune, layers=None, states="memory", **facts, failed=False)
    _save_predictions(job, fit, trial, name, stamp)
    return {**facts, **_describe(trial, whole), "scores": read_scores(job, 0.0, name)}


def _save_predictions(job: Job, fit: SpanFit, trial: Trial, name: str, stamp: str) -> None:
    splits = {HELD_OUT: trial.outputs}
    if fit.dev is not None:
        splits["dev"] = fit.dev_outputs[trial.name]
    for split, outputs in splits.items():
        outputs = np.ascontiguousarray(outputs, dtype=np.float32)  # (token, 2)
        stamp_there = job.stamps.predictions(stamp, split)
        keep_scored(job, 0.0, split, name, stamp_there, job.decode(outputs, split), outputs)


def _describe(trial: Trial, whole: int) -> dict[str, Any]:
    if trial.role == "encoder":
        return {"share": 1.0}
    assert trial.member is not None
    found = {
        "share": trial.parameters / whole, "group": trial.name, "seed": trial.member.seed, "states": "memory",
        "data_fraction": 1.0, "head": trial.member.head, "epochs": trial.member.epochs,
    }  # fmt: skip
    return {**found, "begun": True} if trial.member.begin_stamp else found


def _baseline(job: Job, fit: SpanFit) -> dict[str, Any]:
    """The scores of never answering, on dev or, without one, on the judged questions."""
    split = "dev" if fit.dev is not None else HELD_OUT
    return {split: job.task.kind.baseline(job.task.metrics, job.examples("train"), job.examples(split))}


def _name(trial: Trial) -> str:
    return ENCODER if trial.role == "encoder" else trial.name
