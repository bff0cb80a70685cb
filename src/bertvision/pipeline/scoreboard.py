"""A run's scores as tables: on the terminal, and as summary.md in the run folder."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from bertvision.kinds import Figure, Kind
from bertvision.pipeline.finished import Entry, FinishedRun, Group, read_figure
from bertvision.tables import Column, Headings, Table
from bertvision.words import counted

SECONDS = Column("seconds", note="seconds: the encoder's fine-tuning so far; a head's pass, which all heads share.")
FIRST_TO_GO = ("forced EM", "F1 has", "F1 no", "seconds", "% of encoder", "forced F1")
SEEDS_NOTE = "±: standard deviation over the seeds, which change a head's start and dropout; the data's order is one."
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
    columns, groups = _score_figures(run, epochs, split), run.rows(epochs)
    headings: Headings = ["model", "parameters", "% of encoder", *columns_of(columns), SECONDS]
    title = f"{run.task_name} {split}, encoder fine-tuned for {counted(epochs, 'epoch')}"
    spread = [SEEDS_NOTE] if any(len(group.models) > 1 for group in groups) else []
    begun = begun_note([group.name for group in groups if group.first.begun])
    notes = [run.kind.baseline_note, *spread, *([begun] if begun else [])]
    rows = [_model_row(group, split, columns) for group in groups]
    return Table(headings, rows, title, " ".join(notes), FIRST_TO_GO)


def _model_row(group: Group, split: str, columns: list[Figure]) -> list[str]:
    share = "" if group.first.share is None else f"{100 * group.first.share:.3f}"
    figures = [_spread(group.figures(split, one.key)) for one in columns] if group.trained else ["stopped"]
    figures += [""] * (len(columns) - len(figures))
    return [group.title, f"{group.first.parameters:,}", share, *figures, _seconds(group.first)]


def begun_note(names: list[str]) -> str:
    """What is told of heads that did not begin with random weights; nothing where there is none."""
    return f"{', '.join(names)} {BEGUN}" if names else ""


def _curve_table(run: FinishedRun, split: str) -> Table:
    columns = _score_figures(run, run.snapshots[-1], split)
    rows = []
    for epochs in run.snapshots:
        encoder = run.encoder(epochs).first
        figures = [figure(encoder.scores(split), one.key) for one in columns]
        rows.append([f"{epochs:g}", *figures, _seconds(encoder)])
    title = f"{run.task_name} {split}, fine-tuning curve of the encoder itself"
    return Table(["epochs", *columns_of(columns), SECONDS], rows, title, first_to_go=FIRST_TO_GO)


def _score_figures(run: FinishedRun, epochs: float, split: str) -> list[Figure]:
    return score_figures(run.kind, run.metrics, [model.scores(split) for model in run.models(epochs)])


def score_figures(kind: Kind, metrics: Sequence[str], found: list[dict[str, Any]]) -> list[Figure]:
    """The columns of a table of these scores: figures that any of them has."""
    return [one for one in kind.figures(metrics) if any(figure(scores, one.key) for scores in found)]


def columns_of(figures: Iterable[Figure]) -> list[Column]:
    """Their columns, with what is explained in the line under a table."""
    return [Column(one.heading, note=one.note) for one in figures]


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
