"""Save a fit as a folder that is like that of a run on an untouched encoder, so that `report`, `predict` and `kit` read
it.

model.json                                          format, leaderboard, choice, trust; marks a fitted model
README.md                                           the model card
suspects.csv                                        rows whose label may be wrong
config.json task.json scores.json …                 as in a run (pipeline/folder.py)
snapshots/epoch_0/encoder/                          a reference to the encoder, and the last layer with its regression
snapshots/epoch_0/heads/<name>/                     the heads that were fitted on all rows
snapshots/epoch_0/tfidf/                            TF-IDF, if it was fitted on all rows
snapshots/epoch_0/predictions/held_out/<name>/      out-of-fold predictions
snapshots/epoch_20/                                 the same of a tuned encoder, with its weights, if it is used

"The encoder alone" of such a folder is `last_lr`: the last layer with logistic or ridge regression.
"""

import csv
import dataclasses
import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertvision import __version__
from bertvision.config import DataConfig, EncoderConfig, FinetuneConfig, RunConfig, resolve
from bertvision.disk import digest_of, fingerprint, mark_done, write_sealed, write_text, writing_folder
from bertvision.encoder.output_layer import OutputLayer
from bertvision.errors import UserError
from bertvision.heads import count_parameters, save_head
from bertvision.heads.linear import LinearHead
from bertvision.kinds.label import LabelResults
from bertvision.machine import describe_environment
from bertvision.models.candidates import Trial
from bertvision.models.card import build_card
from bertvision.models.fit import Fit, decode_rows
from bertvision.models.folder import FILE, FOLDER_NAMES, FORMAT, TFIDF_FOLDER, TUNED_LAST
from bertvision.models.table_rows import most_tokens
from bertvision.models.tfidf import Tfidf
from bertvision.models.tuned import tuning_config
from bertvision.pipeline.folder import BASELINE, ENCODER, HELD_OUT, HELD_OUT_ROWS, write_task_file
from bertvision.pipeline.job import Job
from bertvision.pipeline.lengths import keep_lengths
from bertvision.pipeline.score import keep_scored, read_scores
from bertvision.pipeline.snapshot import save_snapshot
from bertvision.progress import Reporter
from bertvision.tasks.config import TASKS, TaskConfig
from bertvision.tasks.own_table import OwnTable

FIT_VERSION, SUSPECTS = 1, "suspects.csv"
MOST_SUSPECTS = 1000
UNLIKELY = 0.25
"""Rows are suspected only if the probability of their label is below this."""


def check_free(to: Path, overwrite: bool, other: str = " with --to", replace: str = "--overwrite") -> None:
    """Refuse a folder that exists, unless it is a fitted model to be replaced, or empty. `other` and `replace` are how
    a user chooses another folder, or to replace this one."""
    above = next(parent for parent in to.resolve().parents if parent.exists())
    if not above.is_dir():
        raise UserError(f"'{to}' can't be created, because '{above}' is a file: choose another folder{other}.")
    if not os.access(above, os.W_OK):
        raise UserError(f"no permission to write to '{above}': choose another folder{other}.")
    if not to.exists() or (to.is_dir() and not any(to.iterdir())):
        return
    if not to.is_dir():
        raise UserError(f"'{to}' is a file: choose a folder for the model{other}.")
    if not (to / FILE).is_file():
        raise UserError(f"'{to}' exists and is not a fitted model: choose another folder{other}.")
    if not overwrite:
        raise UserError(f"'{to}' exists: choose another folder{other}, or replace the model with {replace}.")


def save_fit(fit: Fit, to: Path, source: str | None = None, dev: str | None = None, overwrite: bool = False) -> Path:
    """Write the model folder. `source` and `dev` are the files that the tables were read from."""
    check_free(to, overwrite)
    name = task_name(to.resolve().name)
    with writing_folder(to.resolve(), "--to") as fresh:
        job = _job(fit, fresh, name, source, dev)
        _save_encoders(job, fit)
        entries: dict[float, dict[str, Any]] = {}
        for trial in fit.trials:
            # Ctrl-C may have ended the fitting before a model that is not needed.
            is_scored = trial.role == "baseline" or fit.dev is None or trial.name in fit.dev_outputs
            if is_scored and (trial.role != "tuned" or fit.is_tuned):
                entries.setdefault(_epochs(fit, trial), {})[_name(trial)] = _save_trial(job, fit, trial)
        baseline = entries[0.0].pop(BASELINE)
        keep_lengths(job)
        chosen = _name(fit.chosen)
        snapshots = {f"{at:g}": {BASELINE: baseline} | found for at, found in sorted(entries.items())}
        write_sealed(
            fresh / "scores.json",
            {
                "task": name, "kind": str(fit.task.kind), "metrics": list(job.task.metrics),
                "snapshots": snapshots, "chosen": chosen, "chosen_by": fit.board.where,
            },
        )  # fmt: skip
        write_sealed(
            fresh / "config.json", dataclasses.replace(job.config, run=str(to)).with_absolute_paths().to_dict()
        )
        write_task_file(fresh, job.task)
        write_sealed(fresh / "environment.json", describe_environment(fit.machine))
        write_sealed(fresh / HELD_OUT_ROWS, {"rows": fit.split.judged.tolist(), "also_train": fit.split.how == "cv"})
        facts = describe(fit, to, job)
        suspects = find_suspects(fit)
        if suspects:
            write_text(fresh / SUSPECTS, _to_csv(suspects))
            facts["files"] = {SUSPECTS: digest_of(fresh / SUSPECTS)}
        write_sealed(fresh / FILE, facts)
        write_text(fresh / "README.md", build_card(facts, fit))
    return to


def describe(fit: Fit, to: Path, job: Job) -> dict[str, Any]:
    """The contents of model.json."""
    return {
        "format": FORMAT,
        "bertvision": __version__,
        "model": str(to.resolve().name),
        "task": job.task.name,
        "kind": str(fit.task.kind),
        "labels": list(fit.task.labels),
        "pairs": fit.task.takes_pairs,
        "max_length": most_tokens(fit.encoder),
        "encoder": fit.options.encoder,
        "encoder_stamp": job.stamps.encoder,
        **summary(fit),
        "trust": fit.task.kind.measure_trust(fit.results, fit.task.labels),
        "columns": dataclasses.asdict(fit.table.columns),
        "seed": fit.options.seed,
    }


def summary(fit: Fit) -> dict[str, Any]:
    """What `fit --json` prints, without the folder."""
    board = fit.board
    return {
        "kind": str(fit.task.kind),
        "metric": board.metric,
        "rows": len(fit.examples),
        "encoder": fit.options.encoder,
        "choice": {"how": board.how, "folds": board.folds if board.how == "cv" else 1, "rows": board.rows},
        "chosen": board.chosen,
        "leaderboard": [line.to_dict() for line in board.lines],
        "gain": board.gain(),
        "notes": fit.notes,
        "tuned": describe_tuning(fit),
        "seconds": round(fit.seconds, 3),
    }


def describe_tuning(fit: Fit) -> dict[str, Any] | None:
    """What was tuned, if the model reads a tuned encoder."""
    if fit.tuning is None or not fit.is_tuned:
        return None
    final = fit.tuning.final
    return {
        "epochs": tuning_config(len(fit.examples), fit.read).epochs, "seconds": final.usage.seconds,
        "folds_seconds": round(fit.tuning.seconds, 2), "trained_parameters": final.trained,
    }  # fmt: skip


def task_name(stem: str) -> str:
    """A name for the task of a model folder, different from those of the built-in tasks."""
    name = re.sub(r"[^\w.-]+", "_", stem).strip("._-") or "own"
    return f"{name}_own" if name in TASKS else name


# ---------------------------------------------------------------------- parts


def _job(fit: Fit, folder: Path, name: str, source: str | None, dev: str | None) -> Job:
    """A job with the data of the fit, for the functions that save the parts of a run."""
    columns, task = fit.table.columns, dataclasses.replace(fit.task, name=name)
    config = RunConfig(
        TaskConfig(
            "files", train=source, dev=dev, kind=str(task.kind), text=columns.text, text_pair=columns.text_pair,
            label=columns.label, labels=list(task.labels) or None,
        ),
        data=DataConfig(max_length=most_tokens(fit.encoder), hold_out=len(fit.split.judged) / len(fit.examples) / 2),
        encoder=EncoderConfig(name=fit.options.encoder, device=fit.options.device),
        finetune=tuning_config(len(fit.examples), fit.read) if fit.is_tuned else FinetuneConfig(epochs=0.0),
        heads=[trial.name for trial in fit.trials if trial.role == "head"],
        seed=fit.options.seed,
        run=str(folder),
    )  # fmt: skip
    job = Job(resolve(config), Reporter())
    job.__dict__.update(task=task, machine=fit.machine, tokenizer=fit.encoder.tokenizer, members=[])
    job.__dict__["dev_splits"] = ["dev"] if fit.dev is not None else []
    held = set(fit.split.judged.tolist())
    train = fit.examples if fit.split.how == "cv" else [e for row, e in enumerate(fit.examples) if row not in held]
    job._examples = {"train": train, HELD_OUT: fit.judged}
    if fit.dev is not None:
        job._examples["dev"], job._features["dev"] = fit.dev
    return job


def _save_encoders(job: Job, fit: Fit) -> None:
    """The untouched encoder and, if the model reads it, the tuned one. Each has the regression on its last layer."""
    last = next(trial.name for trial in fit.trials if trial.role == "encoder")
    tokens = int(fit.features.lengths.sum())
    facts: dict[str, Any] = {"seconds": round(fit.encode_seconds, 3), "tokens": tokens}
    facts["memory"] = fit.machine.peak_memory()
    save_snapshot(job, 0.0, fit.encoder, _output_layer(fit, last), job.stamps.finetune, facts)
    if fit.tuning is not None and fit.is_tuned:
        encoder, _, usage, trained = fit.tuning.final
        facts = {**dataclasses.asdict(usage), "trained_parameters": trained}
        save_snapshot(
            job, job.config.finetune.epochs, encoder, _output_layer(fit, TUNED_LAST), job.stamps.finetune, facts
        )


def _output_layer(fit: Fit, name: str) -> OutputLayer:
    last = fit.fitted[name].model
    assert isinstance(last, LinearHead)
    output = OutputLayer(fit.task.kind, fit.read, fit.encoder.shape.hidden, last.target.outputs, dropout=0.0)
    output.linear.load_state_dict(last.output.state_dict())
    return output


def _save_trial(job: Job, fit: Fit, trial: Trial) -> dict[str, Any]:
    """Save a model's head and predictions. Return its entry in scores.json."""
    name, fitted, epochs = _name(trial), fit.fitted.get(trial.name), _epochs(fit, trial)
    stamp = fingerprint("fit", FIT_VERSION, job.stamps.finetune, trial.name, trial.settings, fit.options.seed)
    facts: dict[str, Any] = {"parameters": trial.parameters, "seconds": round(trial.seconds, 3)}
    if trial.role == "baseline":
        return {**facts, "scores": _baseline(job, fit)}
    if name == ENCODER:
        facts["parameters"] = count_parameters(fit.encoder) + trial.parameters
    elif trial.role in ("head", "tuned") and fitted is not None and fitted.member is not None:
        folder = job.folder.head(epochs, name)
        assert isinstance(fitted.model, torch.nn.Module)
        save_head(folder, fitted.model, fitted.member)
        mark_done(folder, stamp, encoder=job.stamps.finetune, layers=None, states="memory", **facts, failed=False)
    if fitted is not None and isinstance(fitted.model, Tfidf):
        fitted.model.save(job.folder.snapshot(0.0) / TFIDF_FOLDER, stamp)
    _save_predictions(job, fit, trial, epochs, stamp)
    return {**facts, **_describe(trial, fit), "scores": read_scores(job, epochs, name)}


def _save_predictions(job: Job, fit: Fit, trial: Trial, epochs: float, stamp: str) -> None:
    splits = {HELD_OUT: trial.outputs.numpy()}
    if fit.dev is not None:
        splits["dev"] = fit.dev_outputs[trial.name]
    for split, outputs in splits.items():
        outputs = np.ascontiguousarray(outputs, dtype=np.float32)  # (row, output)
        predictions = decode_rows(job.task, outputs, job.examples(split))
        keep_scored(job, epochs, split, _name(trial), job.stamps.predictions(stamp, split), predictions, outputs)


def _describe(trial: Trial, fit: Fit) -> dict[str, Any]:
    if _name(trial) == ENCODER:
        return {"share": 1.0}
    if trial.role == "peer":
        return {"peer": True, "group": trial.name}
    share = trial.parameters / count_parameters(fit.encoder)
    found = {"share": share, "group": trial.name, "seed": fit.options.seed, "states": "memory", "data_fraction": 1.0}
    if trial.members:
        epochs = _epochs(fit, trial)
        members = [{"run": None, "epochs": epochs, "name": FOLDER_NAMES.get(name, name)} for name in trial.members]
        return {**found, "ensemble": list(trial.members), "voices": members, "method": "mean", "weights": None}
    layer = {"layer": trial.settings["layer"]} if "layer" in trial.settings else {}
    return {**found, "head": trial.settings["head"], **layer}


def _baseline(job: Job, fit: Fit) -> dict[str, Any]:
    """The scores of the trivial baseline on dev or, without one, on the judged rows."""
    split = "dev" if fit.dev is not None else HELD_OUT
    return {split: job.task.kind.baseline(job.task.metrics, job.examples("train"), job.examples(split))}


def _name(trial: Trial) -> str:
    return {"baseline": BASELINE, "encoder": ENCODER}.get(trial.role, FOLDER_NAMES.get(trial.name, trial.name))


def _epochs(fit: Fit, trial: Trial) -> float:
    """Of tuning the encoder that a model reads; 0: it is untouched."""
    return tuning_config(len(fit.examples), fit.read).epochs if trial.role == "tuned" else 0.0


# ---------------------------------------------------------------------- rows that may be mislabelled


@dataclasses.dataclass(frozen=True)
class Suspect:
    """A row whose label may be wrong."""

    place: str
    id: str
    label: str
    predicted: str
    probability_of_label: float
    probability_of_predicted: float
    text: str


def find_suspects(fit: Fit) -> list[Suspect]:
    """Rows for which the chosen model, which had not read them, is surer of another label than it usually is of that
    label. Most suspicious first. None where the model is more often wrong than right: it knows too little."""
    results = fit.results
    if not isinstance(results, LabelResults) or (results.predicted == results.target).mean() < 0.5:
        return []
    rows = np.arange(len(results))  # (example)
    own = results.probabilities[rows, results.target]  # (example) probability of the given label
    # Confident learning (Northcutt et al. 2021): the mean probability of a label among the rows that have it.
    usual = np.array(
        [own[results.target == label].mean() if (results.target == label).any() else 1.0
         for label in range(len(fit.task.labels))]
    )  # (label) # fmt: skip
    top, judged = results.predicted, fit.split.judged.tolist()  # (example)
    highest = results.probabilities[rows, top]  # (example)
    suspicious = np.flatnonzero((top != results.target) & (highest >= usual[top]) & (own < UNLIKELY))  # (suspect)
    order = suspicious[np.argsort(own[suspicious] - highest[suspicious], kind="stable")][:MOST_SUSPECTS]
    table, labels = fit.table, fit.task.labels
    return [
        Suspect(
            _place(table, judged[at]), table.ids[judged[at]], labels[results.target[at]], labels[top[at]],
            round(float(own[at]), 4), round(float(highest[at]), 4), table.texts[judged[at]],
        )
        for at in order
    ]  # fmt: skip


def _place(table: OwnTable, row: int) -> str:
    """Where a row is, without the path of the file: "train.csv, line 3"."""
    return ", ".join(filter(None, [table.name, table.places[row].rpartition(", ")[2]]))


def _to_csv(suspects: list[Suspect]) -> str:
    """Without the texts: a model folder may be shared, and its training data may not."""
    columns = [item.name for item in dataclasses.fields(Suspect) if item.name != "text"]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([[getattr(suspect, column) for column in columns] for suspect in suspects])
    return file.getvalue()
