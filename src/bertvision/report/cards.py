"""A model card for each saved head, in Hugging Face's form: README.md in the head's folder."""

from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from bertvision import __version__
from bertvision.disk import write_text
from bertvision.pipeline.finished import FinishedRun, Group, Model, read_figure
from bertvision.pipeline.scoreboard import BEGUN
from bertvision.report.analyses.scores_table import figure_columns
from bertvision.report.summary import encoder_name
from bertvision.words import counted


def write_cards(evidence: FinishedRun) -> int:
    """One card for each head that was trained to its end; gives how many."""
    heads = [model for model in evidence.models() if model.role in ("control", "head") and not model.failed]
    for model in heads:
        write_text(evidence.head_folder(model) / "README.md", build_card(evidence, model))
    return len(heads)


def build_card(evidence: FinishedRun, model: Model) -> str:
    title = f"{model.name} for {evidence.task.name}"
    parts = [
        f"---\n{_front_matter(evidence, model)}\n---",
        f"# {title}",
        _about(evidence, model),
        _use(evidence, model),
    ]
    parts += [_scores(evidence, model, split) for split in evidence.splits]
    parts += [_training(evidence, model), _limits(evidence)]
    return "\n\n".join(parts) + "\n"


def _front_matter(evidence: FinishedRun, model: Model) -> str:
    results = [
        EvalResult(
            task_type=evidence.kind.hub_task,
            dataset_type=evidence.task.name,
            dataset_name=evidence.task.name,
            dataset_split=split,
            metric_type=one.key,
            metric_name=one.heading,
            metric_value=round(value, 4),
        )
        for split in evidence.splits
        for one in figure_columns(evidence)
        if (value := read_figure(model.scores(split), one.key)) is not None
    ]
    data = ModelCardData(
        model_name=f"{model.name} for {evidence.task.name}",
        library_name="bertvision",
        pipeline_tag=evidence.kind.hub_task,
        base_model=_hub_name(evidence),
        metrics=[key for key in evidence.task.metrics],
        tags=["bertvision", "hidden-states", str(evidence.kind)],
        eval_results=results,
    )
    return data.to_yaml()


def _hub_name(evidence: FinishedRun) -> str | None:
    """The encoder's name where it is one of the hub; a folder or the embedded one has none there."""
    name = str(evidence.config["encoder"]["name"])
    return None if name == "embedded" or Path(name).expanduser().exists() or Path(name).is_absolute() else name


def _about(evidence: FinishedRun, model: Model) -> str:
    share = "" if model.share is None else f" ({100 * model.share:.3g} % of the encoder's)"
    read = "last layer" if model.role == "control" else "hidden states of every layer"
    return (
        f"A head of {model.parameters:,} parameters{share} on the {read} of {encoder_name(evidence)}, which was "
        f"fine-tuned for {counted(model.epochs, 'epoch')} and then frozen. It needs that very encoder, which lies "
        "beside it in the run folder."
    )


def _use(evidence: FinishedRun, model: Model) -> str:
    text = '"A text."'
    if evidence.kind.reads_answers:
        text = '("Who wrote it?", "It was written by Ada.")'
    elif evidence.task.takes_pairs:
        text = '("A text.", "A second one.")'
    return "\n".join(
        [
            "## Use",
            "",
            "```python",
            "import bertvision as bv",
            "",
            f'run = bv.Run("{evidence.name}")  # the run folder',
            f'run.predict({text}, head="{model.name}")'
            if model.epochs == evidence.last
            else f'bv.Predictor(run.folder, "{model.name}", epochs={model.epochs:g}).predict_texts([{text}])',
            "```",
            "",
            _default(evidence, model),
        ]
    )


def _default(evidence: FinishedRun, model: Model) -> str:
    """Which model `predict` uses where none is named."""
    best = evidence.best_model(evidence.last)
    if best is None:
        return "`bertvision predict` needs `--head`: no model of this run was scored."
    is_this = (best.epochs, best.name) == (model.epochs, model.name)
    used = f"this model{' (the control)' if best.role == 'control' else ''}" if is_this else best.title
    return f"Without `--head`, `bertvision predict` uses {used}: {evidence.reason}."


def _scores(evidence: FinishedRun, model: Model, split: str) -> str:
    columns = figure_columns(evidence)
    rows = [Group([model]), evidence.encoder(model.epochs), evidence.control(model.epochs)]
    lines = [
        f"## Scores on {split}",
        "",
        "| model | " + " | ".join(one.heading for one in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    shown: set[str] = set()
    for group in rows:
        if group is not None and group.title not in shown:
            shown.add(group.title)
            cells = [group.mean(split, one.key) for one in columns]
            figures = " | ".join("" if value is None else f"{value:.2f}" for value in cells)
            lines.append(f"| {group.title} | {figures} |")
    return "\n".join(lines)


def _training(evidence: FinishedRun, model: Model) -> str:
    finetune, seconds = evidence.config["finetune"], model.seconds or 0.0
    lines = [
        "## Training",
        "",
        f"- data: {evidence.task.source}",
        f"- encoder: {counted(model.epochs, 'epoch')} of fine-tuning, learning rate {finetune['lr']:g}",
        f"- head: {counted(model.trained_epochs or 1, 'epoch')} over frozen states, seed {model.seed}, "
        f"{100 * model.data_fraction:g} % of the data, one pass of {seconds:.1f} s for all heads",
        *([f"- it {BEGUN.rstrip('.')}"] if model.begun else []),
        f"- made with BERTVision {__version__}",
    ]
    return "\n".join(lines)


def _limits(evidence: FinishedRun) -> str:
    chosen = "held-out training data" if evidence.has_held_out else "nothing: thresholds are 0"
    return (
        "## Limits\n\nThe scores are those of the data named above and say little of other text. Choices (such as the "
        f"no-answer threshold) were made on {chosen}."
    )
