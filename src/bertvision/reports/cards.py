"""A model card for each saved head, in Hugging Face's form: README.md in the head's folder."""

from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from bertvision import __version__
from bertvision.analysis.scores import figure_columns
from bertvision.disk import write_text
from bertvision.pipeline.finished import Evidence, Group, Model
from bertvision.pipeline.predict import takes_pairs
from bertvision.pipeline.scoreboard import BEGUN, read_figure
from bertvision.reports.summary import encoder_name
from bertvision.tasks import TaskConfig
from bertvision.words import counted


def write_cards(evidence: Evidence) -> int:
    """One card for each head that was trained to its end; gives how many."""
    heads = [model for model in evidence.models() if model.role in ("control", "head") and not model.failed]
    for model in heads:
        write_text(evidence.head_folder(model) / "README.md", build_card(evidence, model))
    return len(heads)


def build_card(evidence: Evidence, model: Model) -> str:
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


def _front_matter(evidence: Evidence, model: Model) -> str:
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


def _hub_name(evidence: Evidence) -> str | None:
    """The encoder's name where it is one of the hub; a folder or the embedded one has none there."""
    name = str(evidence.config["encoder"]["name"])
    return None if name == "embedded" or Path(name).expanduser().exists() or Path(name).is_absolute() else name


def _about(evidence: Evidence, model: Model) -> str:
    facts = model.facts
    read = "last layer" if model.role == "control" else "hidden states of every layer"
    return (
        f"A head of {facts['parameters']:,} parameters ({100 * facts['share']:.3g} % of the encoder's) on the {read} "
        f"of {encoder_name(evidence)}, which was fine-tuned for "
        f"{counted(model.epochs, 'epoch')} and then frozen. It needs that very encoder, which lies beside it in the "
        "run folder."
    )


def _use(evidence: Evidence, model: Model) -> str:
    text = '"A text."'
    if evidence.kind.reads_answers:
        text = '("Who wrote it?", "It was written by Ada.")'
    elif takes_pairs(evidence.task, TaskConfig(**evidence.config["task"])):
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
        ]
    )


def _scores(evidence: Evidence, model: Model, split: str) -> str:
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


def _training(evidence: Evidence, model: Model) -> str:
    finetune, facts = evidence.config["finetune"], model.facts
    lines = [
        "## Training",
        "",
        f"- data: {evidence.task.source}",
        f"- encoder: {counted(model.epochs, 'epoch')} of fine-tuning, learning rate {finetune['lr']:g}",
        f"- head: {counted(facts.get('epochs') or 1, 'epoch')} over frozen states, seed {facts['seed']}, "
        f"{100 * facts.get('data_fraction', 1):g} % of the data, one pass of {facts['seconds']:.1f} s for all heads",
        *([f"- it {BEGUN.rstrip('.')}"] if facts.get("begun") else []),
        f"- made with BERTVision {__version__}",
    ]
    return "\n".join(lines)


def _limits(evidence: Evidence) -> str:
    chosen = "held-out training data" if evidence.has_held_out else "nothing: thresholds are 0"
    return (
        "## Limits\n\nThe scores are those of the data named above and say little of other text. Choices (such as the "
        f"no-answer threshold) were made on {chosen}."
    )
