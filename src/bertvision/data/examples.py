"""Example: one or two texts and their target. Independent of tokens, tensors and heads."""

from dataclasses import dataclass
from typing import NamedTuple


class Answer(NamedTuple):
    """A gold answer: its text, and the character in the passage at which it starts."""

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
    """Gold answers of a question: empty = the passage has no answer, None = unknown."""
    group: str | None = None
    """Examples of one group stay together when data is held out (SQuAD: the article)."""
