"""Task and Example: where texts and targets come from. Nothing here knows of tokens, tensors or heads.

task.read("train") → [Example, …]      task.dev_splits → ("dev",), or two for MNLI
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from bertvision.errors import UserError


class TargetKind(StrEnum):
    """What a head predicts: one label, one number, or where an answer starts and ends."""

    LABEL = "label"
    SCORE = "score"
    SPAN = "span"


class Answer(NamedTuple):
    """A gold answer: its text and the character of the passage where it starts."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Example:
    id: str
    text: str
    """The sentence, the first of a pair, or the question."""
    text_pair: str | None = None
    """The second of a pair, or the passage."""
    target: int | float | None = None
    """Index into the task's labels, or the score; None for spans and for unlabelled text."""
    answers: tuple[Answer, ...] | None = None
    """Gold answers of a question: empty = it has none in the passage, None = not known."""
    group: str | None = None
    """What must stay together when a part is held out (SQuAD: the article)."""


@dataclass(frozen=True)
class Task:
    name: str
    kind: TargetKind
    metrics: tuple[str, ...]
    """Names in `evaluation.metrics`; the first is the one models are chosen by."""
    readers: Mapping[str, Callable[[], list[Example]]] = field(repr=False)
    """How to read each split that exists: "train", "dev" (MNLI: "dev_matched", "dev_mismatched"), "test" …"""
    labels: tuple[str, ...] = ()
    windowed: bool = False
    """Whether a long `text_pair` is cut into overlapping windows; if not, it is truncated."""
    max_length: int = 128
    """Tokens a window holds unless the config says otherwise."""
    source: str = ""
    """Where the data came from, in words, for the run folder."""
    takes_pairs: bool = False
    """Whether an example has two texts, or a question and a passage."""

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.readers)

    @property
    def dev_splits(self) -> tuple[str, ...]:
        return tuple(name for name in self.readers if name.startswith("dev"))

    def read(self, split: str) -> list[Example]:
        """All examples of a split, in file order, with unique ids."""
        if split not in self.readers:
            there = ", ".join(self.readers) or "none"
            raise UserError(f"{self.name} has no split '{split}' in {self.source or 'its data'}: it has {there}.")
        return self.readers[split]()


def describe_task(task: Task) -> dict[str, Any]:
    """What the run folder keeps of a task, enough to predict without the data."""
    return {
        "name": task.name,
        "kind": str(task.kind),
        "metrics": list(task.metrics),
        "labels": list(task.labels),
        "windowed": task.windowed,
        "max_length": task.max_length,
        "source": task.source,
        "takes_pairs": task.takes_pairs,
    }


def restore_task(facts: dict[str, Any]) -> Task:
    """The task that `describe_task` described, without splits. Descriptions older than `takes_pairs` lack it: whoever
    reads one adds it."""
    lists = {"metrics": tuple(facts["metrics"]), "labels": tuple(facts["labels"])}
    return Task(**{**facts, **lists, "kind": TargetKind(facts["kind"])}, readers={})
