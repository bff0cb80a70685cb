"""The page's parts on answerability and on GLUE: a table for each task, with encoder, control and heads."""

from bertvision.analysis.block import Block, Cell, Column, Frame
from bertvision.results import counted
from bertvision.stages import BASELINE, ENCODER
from results.kept import Experiment
from results.names import LABELS, SQUAD, title_of

GLUE = {"cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "stsb": "STS-B", "rte": "RTE"}


def answerable_block(experiment: Experiment, encoder: str) -> Block:
    title = f"{encoder}: is the question answerable?"
    return table_of(experiment, title, f"{SQUAD}: official dev set.")


def glue_block(experiment: Experiment) -> Block:
    title = f"{GLUE[experiment.name]} with all-MiniLM-L6-v2"
    return table_of(experiment, title, "GLUE's official dev set.")


def table_of(experiment: Experiment, title: str, note: str) -> Block:
    """A row a model, a column a snapshot and metric."""
    shots = experiment.head_snapshots
    metrics: list[str] = experiment.first["metrics"]
    columns = [Column("model"), Column("seeds"), Column("parameters")]
    columns += [Column(f"{LABELS.get(key, key)} at {counted(epochs, 'epoch')}") for epochs in shots for key in metrics]
    columns.append(Column("seconds", 0, "of the last snapshot: fine-tuning, and for heads the pass they share"))
    rows: list[list[Cell]] = []
    for model in experiment.models(shots[-1]):
        figures: list[Cell] = []
        for epochs in shots:
            for key in metrics:
                mean = experiment.mean(epochs, model, key) if model in experiment.models(epochs) else None
                figures.append(None if mean is None else str(mean))
        seconds = None if model == BASELINE else experiment.seconds(shots[-1], model)
        shown = "baseline: the most frequent label or the mean" if model == BASELINE else title_of(model)
        seeds = len(experiment.by_seed(shots[-1], model, metrics[0]))
        rows.append([shown, seeds, experiment.facts(shots[-1], model)["parameters"], *figures, seconds])
    best = experiment.best_head(shots[-1], metrics[0])
    told = []
    if best is not None:
        head, own = experiment.mean(shots[-1], best, metrics[0]), experiment.mean(shots[-1], ENCODER, metrics[0])
        told = [f"The best head on held-out data, {best}, has {head}; the encoder itself {own}."]
    return Block(
        key=f"{experiment.name}_scores",
        title=title,
        sentences=told,
        frame=Frame(columns, rows),
        note=f"{note} Mean ± standard deviation over seeds.",
    )
