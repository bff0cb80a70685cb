"""Answerability and GLUE: a table for each task, with encoder, control and heads."""

from bertvision.heads import CONTROL
from bertvision.pipeline.folder import BASELINE, ENCODER
from bertvision.report.block import Block
from bertvision.tables import Cell, Column, Table, counted
from paper.kept import Experiment, Experiments, show_seconds
from paper.names import LABELS, RANDOM, SECONDS, SQUAD, title_of
from paper.spans import of_seeds

GLUE = {"cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "stsb": "STS-B", "rte": "RTE"}

BASELINES = {"label": "baseline: the most frequent label", "score": "baseline: the mean"}


def glue_experiments(experiments: Experiments) -> list[tuple[str, Experiment, Experiment | None]]:
    """(title, main experiment, zoo) of each task that was run."""
    there = {name: title for name, title in GLUE.items() if name in experiments}
    return [(title, experiments[name], experiments.get(f"{name}_zoo")) for name, title in there.items()]


def answerable_block(experiment: Experiment, encoder: str) -> Block:
    title = f"{encoder}: is the question answerable?"
    note = (
        f"{SQUAD}: official dev set. F1 no answer and F1 has answer are the F1 of one label each. Half of the dev "
        "questions have no answer, but only a third of the training questions: a model that predicts “no answer” "
        "more often gains on dev by that alone. Claims are judged on held-out questions as well (claims.md)."
    )
    return table_of(experiment, title, note)


def glue_block(experiment: Experiment) -> Block:
    task, _, zoo = experiment.name.partition("_")
    title = f"{GLUE[task]} with all-MiniLM-L6-v2" + (f", heads of {experiment.name}" if zoo else "")
    return table_of(experiment, title, "GLUE's official dev set.", folded=bool(zoo))


def table_of(experiment: Experiment, title: str, note: str, folded: bool = False) -> Block:
    """One row per model, one column per snapshot and metric."""
    shots = experiment.head_snapshots
    metrics: list[str] = experiment.first["metrics"]
    columns = [Column("model"), Column("seeds"), Column("parameters")]
    columns += [Column(f"{LABELS.get(key, key)} at {counted(epochs, 'epoch')}") for epochs in shots for key in metrics]
    what = (
        "of the last snapshot: fine-tuning, plus the shared pass for heads (heads that read all tokens have their own)"
    )
    columns.append(Column("seconds", 0, f"{what}; {SECONDS}"))
    rows: list[list[Cell]] = []
    for model in experiment.models(shots[-1]):
        scores = [experiment.show(epochs, model, key) for epochs in shots for key in metrics]
        seconds = show_seconds(experiment.seconds(shots[-1], model), 0)
        shown = BASELINES[experiment.first["kind"]] if model == BASELINE else title_of(model)
        seeds = len(experiment.by_seed(shots[-1], model, metrics[0]))
        rows.append([shown, seeds, experiment.entry(shots[-1], model).parameters, *scores, seconds])
    best = experiment.best_head(shots[-1], metrics[0])
    sentences = []
    if best is not None:
        head, own, control = (experiment.mean(shots[-1], name, metrics[0]) for name in (best, ENCODER, CONTROL))
        metric, when = LABELS.get(metrics[0], metrics[0]), counted(shots[-1], "epoch")
        sentences = [
            f"After {when}, the best of these heads on held-out data, {best}, has {metric} {head}; the encoder alone "
            f"has {own}, the control {control}."
        ]
    return Block(
        key=f"{experiment.name}_scores",
        title=title,
        sentences=sentences,
        table=Table(columns, rows),
        note=f"{note} {of_seeds(experiment)} The baseline is computed on the training examples that are not held out, "
        "which depend on the seed." + (f" {RANDOM}" if 0.0 in shots else ""),
        folded=folded,
    )
