"""Scoring: predictions of every model on held-out and dev examples, their scores, and tables of these."""

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from bertvision.disk import mark_done, read_stamp, write_sealed, writing_folder
from bertvision.encoder.encoder import Encoder
from bertvision.errors import UserError
from bertvision.heads import load_head
from bertvision.kinds import Figure, Kind, Predictions, save_predictions, save_results
from bertvision.pipeline.finished import SCORES, Entry, FinishedRun, Group, ScoresFile, read_figure
from bertvision.pipeline.folder import BASELINE, ENCODER, HELD_OUT
from bertvision.pipeline.job import Job
from bertvision.pipeline.lengths import keep_lengths
from bertvision.pipeline.snapshot import compute_outputs, load_snapshot
from bertvision.pipeline.stamps import EncoderStamp, HeadStamp, PredictionsStamp
from bertvision.tables import Column, Headings, Table, counted


@dataclasses.dataclass(frozen=True)
class Row:
    """One model at one snapshot: its stamp, and facts such as its cost."""

    name: str
    stamp: str
    facts: dict[str, Any]


def evaluate(job: Job) -> ScoresFile:
    """Score the baseline, the encoder at every snapshot and every head. Write scores.json and return its contents."""
    task, train = job.task, job.examples("train")
    baseline = {split: task.kind.baseline(task.metrics, train, job.examples(split)) for split in job.dev_splits}
    scores: ScoresFile = {
        "task": task.name,
        "kind": str(task.kind),
        "metrics": list(task.metrics),
        "snapshots": {},
    }
    for epochs in job.snapshots:
        rows = _rows(job, epochs)
        _predict_missing(job, epochs, rows)
        models: dict[str, Any] = {BASELINE: {"scores": baseline, "parameters": 0, "seconds": 0.0}}
        for row in rows:
            models[row.name] = {
                **row.facts,
                "scores": {} if row.facts.get("failed") else read_scores(job, epochs, row.name),
            }
        scores["snapshots"][f"{epochs:g}"] = models
    if job.machine.is_main:
        write_sealed(job.folder.path / SCORES, {**scores})
        keep_lengths(job)
    return scores


def _rows(job: Job, epochs: float) -> list[Row]:
    """The models to score at a snapshot: the encoder, and the heads if any were trained on it."""
    found = read_stamp(job.folder.encoder(epochs), EncoderStamp)
    if found is None or found["stamp"] != job.stamps.finetune:
        raise UserError(
            f"'{job.folder.path}' has no encoder fine-tuned for {counted(epochs, 'epoch')} with these settings: "
            "run `bertvision finetune` (or `run`) with this config first."
        )
    whole = found["parameters"]
    facts = {key: found.get(key) for key in ("parameters", "seconds", "tokens", "memory")}
    if "trained_parameters" in found:  # only some were trained
        facts["trained_parameters"] = found["trained_parameters"]
    rows = [Row(ENCODER, f"{found['stamp']}@{epochs:g}", {**facts, "share": 1.0})]
    for member in job.members if epochs in job.head_snapshots else []:
        stamp = job.stamps.member(epochs, member)
        trained = read_stamp(job.folder.head(epochs, member.name), HeadStamp)
        if trained is None or trained["stamp"] != stamp:
            job.reporter.say(
                f"skipping head '{member.name}': it has not been trained with these settings (run `bertvision train`)."
            )
            continue
        keys = ("parameters", "seconds", "tokens", "memory", "states", "failed")
        own: dict[str, Any] = {
            "share": trained["parameters"] / whole,
            "head": member.head,
            "group": member.group,
            "seed": member.seed,
        }
        if member.settings.get("layer") is not None:
            own["layer"] = member.settings["layer"]
        own |= {"epochs": member.epochs, "data_fraction": member.data_fraction}
        own |= {"begun": True} if member.begin_stamp else {}
        rows.append(Row(member.name, stamp, {key: trained.get(key) for key in keys} | own))
    return rows


def _predict_missing(job: Job, epochs: float, rows: list[Row]) -> None:
    """Run one pass per split for all models whose predictions are missing; held-out data first, for the threshold."""
    loaded: tuple[Encoder, Any] | None = None
    for split in job.scored_splits:
        missing = job.machine.first(partial(_find_missing, job, epochs, split, rows))
        todo = [row for row in rows if row.name in missing]
        if not todo:
            continue
        loaded = loaded or load_snapshot(job.folder.encoder(epochs), job.config.encoder, job.machine)
        encoder, output = loaded
        models: dict[str, Any] = {}
        for row in todo:
            model: Any = output if row.name == ENCODER else load_head(job.folder.head(epochs, row.name))[0]
            models[row.name] = model.to(job.machine.device).eval()
        features = job.features(split)
        title = f"scoring {counted(len(todo), 'model')} on {split}"
        with job.reporter.bar(title, int(features.lengths.sum()), "tokens") as bar:
            outputs = compute_outputs(encoder, models, features, job.task.kind, job.machine, job.encode_tokens, bar)
        if job.machine.is_main:
            for row in todo:
                _keep_predictions(job, epochs, split, row, outputs[row.name])
        job.machine.wait()


def _find_missing(job: Job, epochs: float, split: str, rows: list[Row]) -> list[str]:
    """The names of the models without predictions."""
    return [row.name for row in rows if not row.facts.get("failed") and not _is_predicted(job, epochs, split, row)]


def _is_predicted(job: Job, epochs: float, split: str, row: Row) -> bool:
    folder = job.folder.predictions(epochs, split, row.name)
    return job.folder.is_done(folder, job.stamps.predictions(row.stamp, split))


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
    """Score a model's predictions and save both. Held-out data must come first, for the threshold."""
    kind, threshold = job.task.kind, None
    results = kind.example_results(predictions, job.examples(split))
    if kind.has_threshold and job.examples(HELD_OUT):
        if split == HELD_OUT:
            threshold = kind.pick_threshold(results, job.config.evaluate.unanswerable)
        else:
            chosen = read_stamp(job.folder.predictions(epochs, HELD_OUT, name), PredictionsStamp)
            threshold = read_figure(chosen["scores"], "threshold") if chosen else 0.0
    scores = kind.score(job.task.metrics, results, threshold)
    with writing_folder(job.folder.predictions(epochs, split, name)) as fresh:
        save_predictions(fresh, predictions, outputs, threshold or 0.0)
        save_results(fresh, results)
        mark_done(fresh, stamp, scores=scores)
    job.folder.log("scores", epochs=epochs, split=split, model=name, scores=scores)


def read_scores(job: Job, epochs: float, name: str) -> dict[str, Any]:
    """Return split → scores of a model, for the splits it was scored on."""
    folder = job.folder.predictions
    found = {split: read_stamp(folder(epochs, split, name), PredictionsStamp) for split in job.scored_splits}
    return {split: stamp["scores"] for split, stamp in found.items() if stamp is not None}


# ---------------------------------------------------------------------- tables, for the terminal and summary.md

SECONDS = Column(
    "seconds", note="seconds: fine-tuning up to this snapshot (encoder), or the pass that trains all heads (heads)."
)
FIRST_TO_GO = ("answerable-only EM", "HasAns F1", "NoAns F1", "seconds", "% of encoder", "answerable-only F1")
SEEDS_NOTE = (
    "±: standard deviation over the seeds, which set a head's initial weights and dropout; the data order is the same."
)
BEGUN = "began with the weights of a trained head, whose training data and time are not counted here."


def score_tables(run: FinishedRun) -> list[Table]:
    """Build a table for each dev split and snapshot with heads, and a fine-tuning curve if there are several
    snapshots."""
    tables = []
    with_heads = [epochs for epochs in run.snapshots if len(run.models(epochs)) > 2]
    for split in run.splits:
        tables += [_model_table(run, epochs, split) for epochs in with_heads or run.snapshots[-1:]]
        if len(run.snapshots) > 1:
            tables.append(_curve_table(run, split))
    return tables


def _model_table(run: FinishedRun, epochs: float, split: str) -> Table:
    columns, groups = _score_figures(run, epochs, split), run.rows(epochs)
    headings: Headings = ["model", "parameters", "% of encoder", *columns_of(columns), SECONDS]
    tuned = f"fine-tuned for {counted(epochs, 'epoch')}" if epochs else "not fine-tuned"
    title = f"{run.task_name} {split}, encoder {tuned}"
    spread = [SEEDS_NOTE] if any(len(group.models) > 1 for group in groups) else []
    begun = begun_note([group.name for group in groups if group.first.begun])
    notes = [run.kind.baseline_note, *spread, *([begun] if begun else []), *expected_note(run)]
    rows = [_model_row(group, split, columns) for group in groups]
    return Table(headings, rows, title, " ".join(notes), FIRST_TO_GO)


def _model_row(group: Group, split: str, columns: list[Figure]) -> list[str]:
    share = "" if group.first.share is None else f"{100 * group.first.share:.3f}"
    figures = [_spread(group.figures(split, one.key)) for one in columns] if group.trained else ["stopped"]
    figures += [""] * (len(columns) - len(figures))
    return [group.title, f"{group.first.parameters:,}", share, *figures, _seconds(group.first)]


def expected_note(run: FinishedRun) -> list[str]:
    """A note on thresholds that were not chosen for the share of unanswerable questions in training."""
    if not run.folder.file("config.json").is_file():  # scores that are in no folder
        return []
    share = run.settings.evaluate.unanswerable
    if share is None:
        return []
    return [f"Thresholds were chosen as if {100 * share:g} % of the held-out questions had no answer."]


def begun_note(names: list[str]) -> str:
    """A note about heads that started from trained weights; empty if there are none."""
    return f"{', '.join(names)} {BEGUN}" if names else ""


def _curve_table(run: FinishedRun, split: str) -> Table:
    columns = _score_figures(run, run.snapshots[-1], split)
    rows = []
    for epochs in run.snapshots:
        encoder = run.encoder(epochs).first
        figures = [figure(encoder.scores(split), one.key) for one in columns]
        rows.append([f"{epochs:g}", *figures, _seconds(encoder)])
    title = f"{run.task_name} {split}, fine-tuning curve of the encoder alone"
    return Table(["epochs", *columns_of(columns), SECONDS], rows, title, first_to_go=FIRST_TO_GO)


def _score_figures(run: FinishedRun, epochs: float, split: str) -> list[Figure]:
    return score_figures(run.kind, run.metrics, [model.scores(split) for model in run.models(epochs)])


def score_figures(kind: Kind, metrics: Sequence[str], found: list[dict[str, Any]]) -> list[Figure]:
    """The metrics to show as columns: those for which at least one model has a score."""
    return [one for one in kind.figures(metrics) if any(figure(scores, one.key) for scores in found)]


def columns_of(figures: Iterable[Figure]) -> list[Column]:
    """Table columns for these metrics, with the notes that appear under the table."""
    return [Column(one.heading, note=one.note) for one in figures]


def figure(scores: dict[str, Any], key: str) -> str:
    """One score as shown in a table; empty if it is missing."""
    value = read_figure(scores, key)
    return "" if value is None else _spread([value])


def _spread(values: list[float]) -> str:
    """One score, or the mean and standard deviation of several."""
    if len(values) < 2:
        return f"{values[0]:.2f}" if values else ""
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def _seconds(model: Entry) -> str:
    """For the encoder, seconds of fine-tuning up to the snapshot; for a head, of the pass shared by all heads."""
    return f"{model.seconds:.1f}" if model.parameters and model.seconds is not None else ""
