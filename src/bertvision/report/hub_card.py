"""The card of a shared model or kit, README.md in the format of the Hugging Face hub: metrics as a model index,
licence, data and base model. It has no local paths."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertvision import __version__
from bertvision.encoder.loading import EMBEDDED, split_revision
from bertvision.kinds import Kind
from bertvision.pipeline.finished import read_figure
from bertvision.pipeline.folder import HELD_OUT
from bertvision.report.cards import join_card, usage
from bertvision.tables import Column, Headings, Table, to_markdown
from bertvision.tasks.config import TASKS

EMBEDDED_ON_HUB = "sentence-transformers/all-MiniLM-L6-v2"
"""The encoder of the package that is called `embedded` here."""


@dataclass(frozen=True)
class SharedHead:
    """A head as its card describes it."""

    task: str
    kind: Kind
    metrics: Sequence[str]
    takes_pairs: bool
    head: str
    parameters: int
    scores: dict[str, dict[str, Any]]
    """Figures by split."""


@dataclass(frozen=True)
class Sharing:
    """What whoever shares a model says about it."""

    license: str | None = None
    datasets: Sequence[str] = ()


def build_hub_card(name: str, heads: Sequence[SharedHead], encoder: str, is_tuned: bool, sharing: Sharing) -> str:
    """`encoder` is "embedded", a hub name with or without a revision, or "" for weights that travel along and have no
    name on the hub. `is_tuned`: whether it was fine-tuned."""
    return join_card(
        f"---\n{_front_matter(name, heads, encoder, is_tuned, sharing)}\n---",
        f"# {name.split('/')[-1]}",
        _what(heads, encoder, is_tuned),
        _use(name, heads),
        _scores(heads),
        "## Limits\n\nThe scores hold for the data that the heads were trained and tested on, and say little about "
        "other text. Heads and thresholds were chosen on the held-out examples, so those scores and the trust that "
        "comes with every answer are slightly optimistic.",
    )


def base_model(encoder: str) -> str | None:
    """The encoder's name on the hub, without its revision."""
    if encoder == EMBEDDED:
        return EMBEDDED_ON_HUB
    pinned = split_revision(encoder)
    return pinned[0] if pinned else encoder or None


def _front_matter(name: str, heads: Sequence[SharedHead], encoder: str, is_tuned: bool, sharing: Sharing) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type=one.kind.hub_task,
            task_name=one.task,
            dataset_type=_dataset_of(one.task) or one.task,
            dataset_name=one.task,
            dataset_split=split,
            metric_type=figure.key,
            metric_name=figure.heading,
            metric_value=round(value, 4),
        )
        for one in heads
        for split, scores in one.scores.items()
        for figure in one.kind.figures(one.metrics)
        if (value := read_figure(scores, figure.key)) is not None and math.isfinite(value)
    ]
    known = [found for one in heads if (found := _dataset_of(one.task))]
    data = ModelCardData(
        model_name=name.split("/")[-1],
        library_name="bertvision",
        license=sharing.license,
        datasets=list(dict.fromkeys([*known, *sharing.datasets])) or None,
        base_model=base_model(encoder),
        base_model_relation="finetune" if is_tuned else "adapter",
        pipeline_tag=heads[0].kind.hub_task if len({one.kind.hub_task for one in heads}) == 1 else None,
        metrics=list(dict.fromkeys(metric for one in heads for metric in one.metrics)),
        tags=["bertvision", "hidden-states", *dict.fromkeys(str(one.kind) for one in heads)],
        eval_results=results or None,
    )
    return data.to_yaml()


def _dataset_of(task: str) -> str | None:
    return TASKS[task].hub if task in TASKS else None


def _what(heads: Sequence[SharedHead], encoder: str, is_tuned: bool) -> str:
    of = heads[0].task if len(heads) == 1 else f"{len(heads)} tasks in one pass of its encoder"
    found = split_revision(encoder)
    named = f"`{base_model(encoder)}`" + (f", revision `{found[1]}`," if found else "")
    if is_tuned:
        reads = "a fine-tuned encoder, which is in this repository"
    elif encoder:
        reads = f"{named} which was not fine-tuned and is checked when the model is loaded"
    else:
        reads = "an encoder that was not fine-tuned and is in this repository"
    return (
        f"A BERTVision model for {of}: very small heads on the hidden states of {reads}. Made with BERTVision "
        f"{__version__}."
    )


def _use(name: str, heads: Sequence[SharedHead]) -> str:
    first = heads[0]
    text = '"A text."'
    if first.kind.reads_answers:
        text = '("Who wrote it?", "It was written by Ada.")'
    elif first.takes_pairs:
        text = '("A text.", "A second one.")'
    typed = text.strip("()").replace('", "', '" --text-pair "')
    return usage(
        [f'model = bv.load("{name}")', f"model.predict({text})"], f"```\nbertvision predict {name} --text {typed}\n```"
    )


def _scores(heads: Sequence[SharedHead]) -> str:
    splits = list(dict.fromkeys(split for one in heads for split in one.scores))
    headings: Headings = ["task", "head", Column("parameters", 0), "metric", *(Column(split, 2) for split in splits)]
    rows = []
    for one in heads:
        main = one.kind.main(one.metrics, HELD_OUT in one.scores)
        title = next((figure.heading for figure in one.kind.figures(one.metrics) if figure.key == main), main)
        figures = [read_figure(one.scores.get(split, {}), main) for split in splits]
        rows.append([one.task.replace("|", "\\|"), one.head, one.parameters, title, *figures])
    return to_markdown(Table(headings, rows, "Scores"))
