"""A run's scores as tables: on the terminal, and as summary.md in the run folder."""

import statistics
from collections.abc import Sequence
from typing import Any

from bertvision.pipeline.finished import Entry, FinishedRun, Group, read_figure
from bertvision.tables import Table
from bertvision.words import counted

NAMES = {
    "exact": "EM", "f1": "F1", "accuracy": "accuracy", "matthews": "Matthews", "pearson": "Pearson",
    "spearman": "Spearman", "f1_macro": "macro F1", "f1_no_answer": "F1 no answer", "f1_has_answer": "F1 has answer",
}  # fmt: skip
# (key in the scores, heading) of a span table; a dot leads into `at_threshold`.
SPAN_COLUMNS = [
    ("exact", "EM"), ("f1", "F1"), ("HasAns_f1", "F1 has"), ("NoAns_f1", "F1 no"),
    ("at_threshold.exact", "EM*"), ("at_threshold.f1", "F1*"),
    ("forced_exact", "forced EM"), ("forced_f1", "forced F1"), ("no_answer_auc", "AUC"),
]  # fmt: skip
FIRST_TO_GO = ("forced EM", "F1 has", "F1 no", "seconds", "% of encoder", "forced F1")
SEEDS_NOTE = "±: standard deviation over the seeds, which change a head's start and dropout; the data's order is one."
BASELINE_NOTES = {
    "span": "The baseline never answers.",
    "label": "The baseline always gives the majority label of train.",
    "score": "The baseline always gives the mean score of train.",
}
BEGUN = "began with the weights of a trained head; what that one learned from, and its seconds, are not counted here."


def score_tables(run: FinishedRun) -> list[Table]:
    """A table for each snapshot that has heads and each dev split, and the fine-tuning curve where there is one."""
    tables = []
    with_heads = [epochs for epochs in run.snapshots if len(run.models(epochs)) > 2]
    for split in run.splits:
        tables += [_model_table(run, epochs, split) for epochs in with_heads or run.snapshots[-1:]]
        if len(run.snapshots) > 1:
            tables.append(_curve_table(run, split))
    return tables


def _model_table(run: FinishedRun, epochs: float, split: str) -> Table:
    keys, groups = _score_columns(run, epochs, split), run.rows(epochs)
    columns = ["model", "parameters", "% of encoder", *(heading for _, heading in keys), "seconds"]
    title = f"{run.task_name} {split}, encoder fine-tuned for {counted(epochs, 'epoch')}"
    spread = [SEEDS_NOTE] if any(len(group.models) > 1 for group in groups) else []
    begun = begun_note([group.name for group in groups if group.first.begun])
    notes = [BASELINE_NOTES[str(run.kind)], *spread, *([begun] if begun else [])]
    rows = [_model_row(group, split, keys) for group in groups]
    return Table(title, columns, rows, " ".join(notes), FIRST_TO_GO)


def _model_row(group: Group, split: str, keys: list[tuple[str, str]]) -> list[str]:
    share = "" if group.first.share is None else f"{100 * group.first.share:.3f}"
    figures = [_spread(group.figures(split, key)) for key, _ in keys] if group.well else ["stopped"]
    figures += [""] * (len(keys) - len(figures))
    return [group.title, f"{group.first.parameters:,}", share, *figures, _seconds(group.first)]


def begun_note(names: list[str]) -> str:
    """What is told of heads that did not begin with random weights; nothing where there is none."""
    return f"{', '.join(names)} {BEGUN}" if names else ""


def _curve_table(run: FinishedRun, split: str) -> Table:
    keys = _score_columns(run, run.snapshots[-1], split)
    rows = []
    for epochs in run.snapshots:
        encoder = run.encoder(epochs).first
        figures = [figure(encoder.scores(split), key) for key, _ in keys]
        rows.append([f"{epochs:g}", *figures, _seconds(encoder)])
    title = f"{run.task_name} {split}, fine-tuning curve of the encoder itself"
    return Table(title, ["epochs", *(heading for _, heading in keys), "seconds"], rows, first_to_go=FIRST_TO_GO)


def _score_columns(run: FinishedRun, epochs: float, split: str) -> list[tuple[str, str]]:
    return score_columns(run.metrics, [model.scores(split) for model in run.models(epochs)])


def score_columns(metrics: Sequence[str], found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(key in the scores, heading) of the figures that a table of these scores shows."""
    if "exact" not in metrics:
        return [(metric, NAMES.get(metric, metric)) for metric in metrics]
    return [(key, heading) for key, heading in SPAN_COLUMNS if any(figure(one, key) for one in found)]


def figure(scores: dict[str, Any], key: str) -> str:
    """As a table shows it, empty where there is none."""
    value = read_figure(scores, key)
    return "" if value is None else _spread([value])


def _spread(values: list[float]) -> str:
    """One figure, or the mean of several and their standard deviation."""
    if len(values) < 2:
        return f"{values[0]:.2f}" if values else ""
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def _seconds(model: Entry) -> str:
    """Fine-tuning so far for the encoder; for a head its own share of the pass."""
    return f"{model.seconds:.1f}" if model.parameters and model.seconds is not None else ""
