"""Model cards: README.md in the folder of each head of a run, in Hugging Face's format. The cards of kits share a few
parts with them."""

import os
from pathlib import Path

from bertvision import __version__
from bertvision.disk import write_text
from bertvision.pipeline.finished import FinishedRun, Group, Model, read_figure
from bertvision.pipeline.score import BEGUN
from bertvision.report.ranking import figure_columns
from bertvision.report.summary import FOLDERS, encoder_name
from bertvision.report.wording import tuned
from bertvision.tables import Table, counted, to_markdown


def write_cards(run: FinishedRun) -> int:
    """Write a card for each head that finished training and return the number of cards."""
    heads = [model for model in run.models() if model.role in ("control", "head") and not model.failed]
    for model in heads:
        write_text(run.head_folder(model) / "README.md", build_card(run, model))
    return len(heads)


# ---------------------------------------------------------------------- parts that all cards share


def join_card(*parts: str) -> str:
    """Join the parts of a card that are not empty."""
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def describe_head(parameters: int, share: float | None, states: str, encoder: str) -> str:
    """Return the beginning of a sentence; the caller completes it with "fine-tuned for …" or "not fine-tuned"."""
    of = "" if share is None else f" ({100 * share:.3g} % of the encoder's)"
    return f"A head of {parameters:,} parameters{of} on the {states} of {encoder}, which was"


def usage(lines: list[str], more: str) -> str:
    """The section on how to use a head: Python code, then the text `more`."""
    return "\n".join(["## Use", "", "```python", "import bertvision as bv", "", *lines, "```", "", more])


# ---------------------------------------------------------------------- a head of a run


def build_card(run: FinishedRun, model: Model) -> str:
    states = "last layer" if model.role == "control" else "hidden states of every layer"
    frozen, where = (" and then frozen", ", which is in the same run folder") if model.epochs else ("", "")
    about = (
        f"{describe_head(model.parameters, model.share, states, encoder_name(run))} {tuned(model.epochs)}{frozen}. "
        f"It works only with that encoder{where}."
    )
    return join_card(
        f"---\n{_front_matter(run, model)}\n---",
        f"# {model.name} for {run.task.name}",
        about,
        _use(run, model),
        *(_scores(run, model, split) for split in run.splits),
        _training(run, model),
        _limits(run),
    )


def _front_matter(run: FinishedRun, model: Model) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type=run.kind.hub_task,
            dataset_type=run.task.name,
            dataset_name=run.task.name,
            dataset_split=split,
            metric_type=one.key,
            metric_name=one.heading,
            metric_value=round(value, 4),
        )
        for split in run.splits
        for one in figure_columns(run)
        if (value := read_figure(model.scores(split), one.key)) is not None
    ]
    data = ModelCardData(
        model_name=f"{model.name} for {run.task.name}",
        library_name="bertvision",
        pipeline_tag=run.kind.hub_task,
        base_model=_hub_name(run),
        metrics=list(run.task.metrics),
        tags=["bertvision", "hidden-states", str(run.kind)],
        eval_results=results,
    )
    return data.to_yaml()


def _hub_name(run: FinishedRun) -> str | None:
    """The encoder's name on the Hugging Face Hub; None for a local folder or the embedded encoder."""
    name = run.settings.encoder.name
    return None if name == "embedded" or Path(os.path.expanduser(name)).exists() or Path(name).is_absolute() else name


def _use(run: FinishedRun, model: Model) -> str:
    text = '"A text."'
    if run.kind.reads_answers:
        text = '("Who wrote it?", "It was written by Ada.")'
    elif run.task.takes_pairs:
        text = '("A text.", "A second one.")'
    options = ""
    if model.epochs != run.last:
        options = f", epochs={model.epochs:g}"
    lines = [f'model = bv.load("{run.name}", head="{model.name}"{options})  # the run folder', f"model.predict({text})"]
    return usage(lines, _default(run, model))


def _default(run: FinishedRun, model: Model) -> str:
    """A sentence on the model that `predict` uses by default."""
    best = run.best_model(run.last)
    if best is None:
        return "`bertvision predict` needs `--head`, because no model of this run was scored."
    is_this = (best.epochs, best.name) == (model.epochs, model.name)
    used = best.title
    if is_this:
        used = f"this model{' (the control)' if best.role == 'control' else ''}"
    return f"Without `--head`, `bertvision predict` uses {used}: {run.reason}."


def _scores(run: FinishedRun, model: Model, split: str) -> str:
    figures = figure_columns(run)
    rows: dict[str, list[str]] = {}
    for group in (Group([model]), run.encoder(model.epochs), run.control(model.epochs)):
        if group is not None:
            means = [group.mean(split, one.key) for one in figures]
            rows.setdefault(group.title, [group.title, *("" if mean is None else f"{mean:.2f}" for mean in means)])
    headings = ["model", *(one.heading for one in figures)]
    return to_markdown(Table(headings, rows.values(), f"Scores on {split}"))


def _training(run: FinishedRun, model: Model) -> str:
    rate = run.settings.finetune.lr
    return "\n".join(
        [
            "## Training",
            "",
            f"- data: {FOLDERS.sub('', run.task.source)}",
            f"- encoder: {tuned(model.epochs)}" + (f", learning rate {rate:g}" if model.epochs else ""),
            f"- head: {counted(model.trained_epochs or 1, 'epoch')} on frozen hidden states, seed {model.seed}, "
            f"{100 * model.data_fraction:g} % of the data; all heads were trained in one pass of "
            f"{model.seconds or 0.0:.1f} s",
            *([f"- it {BEGUN.rstrip('.')}"] if model.begun else []),
            f"- made with BERTVision {__version__}",
        ]
    )


def _limits(run: FinishedRun) -> str:
    threshold = "The no-answer threshold and the best head were" if run.kind.has_threshold else "The best head was"
    chosen = f"{threshold} chosen on held-out training data."
    if not run.has_held_out:
        threshold = ", so the no-answer threshold is 0" if run.kind.has_threshold else ""
        chosen = f"No training data was held out{threshold}."
    return f"## Limits\n\nThe scores hold for the data named above and say little about other text. {chosen}"
