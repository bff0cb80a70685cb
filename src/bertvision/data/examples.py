"""Example: a text or two, and what is true of them. Nothing here knows of tokens, tensors or heads."""

from dataclasses import dataclass
from typing import NamedTuple


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
