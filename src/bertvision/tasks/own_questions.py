"""A user's questions with answers in passages, in SQuAD's JSON format, checked and ready to train on.

questions = read_own_questions("questions.json")     questions.notes says what was found
notes = check_unseen(questions, dev)
"""

import os
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bertvision.data.examples import Example
from bertvision.data.splits import draw
from bertvision.data.texts import blank
from bertvision.disk import check_path
from bertvision.errors import UserError
from bertvision.tables import counted
from bertvision.tasks.files import FORMATS, read_rows
from bertvision.tasks.squad import parse_squad
from bertvision.tasks.table_source import listed, quoted
from bertvision.tasks.text_files import plain_suffix, read_json

FEWEST = 5
"""With fewer questions, there is nothing to choose a model by."""
OVERLAP = 0.05
"""Share of dev questions on passages of the training file from which a note is written."""
FORMAT = (
    '{"data": [{"title": "…", "paragraphs": [{"context": PASSAGE, "qas": [{"id": "1", "question": "…", '
    '"answers": [{"text": "…", "answer_start": CHARACTER}]}]}]}]}'
)
QUESTION, PASSAGES, ANSWERS = "question", ("passage", "context"), ("answer", "answers", "answer_text")
PEEKED = 50
"""Rows by which a table of questions, passages and answers is recognised."""


@dataclass(frozen=True)
class OwnQuestions:
    """Questions on passages. `answers` of an example is empty if its passage has no answer."""

    name: str
    """The file's name, for messages."""
    examples: list[Example]
    notes: list[str]

    def __len__(self) -> int:
        return len(self.examples)


def has_questions(given: Any) -> bool:
    """Whether the training data is a file of questions in SQuAD's format, judging by its name."""
    return isinstance(given, str | Path) and plain_suffix(Path(given)) == ".json"


def read_own_questions(path: Path | str, most: int | None = None, seed: int = 0, training: bool = True) -> OwnQuestions:
    """Read a SQuAD file, also .gz or .xz. `most` draws a random sample of a longer file. Only `training` questions must
    suffice to train a model."""
    path = Path(os.path.expanduser(path))
    check_path(path, "the file of questions")
    if not os.path.isfile(path):
        raise UserError(f"there is no file '{path}'.")
    document = read_json(path)
    if not isinstance(document, dict) or "data" not in document:
        found = f"the keys {quoted(list(document))}" if isinstance(document, dict) else f"a {type(document).__name__}"
        raise UserError(
            f"{path} is not in SQuAD's format: expected an object with 'data', found {found}. Write questions "
            f"as {FORMAT}, and a table of texts with labels as {listed(FORMATS)}."
        )
    everything = parse_squad(document, str(path))
    _refuse_gaps(everything, path)
    if training:
        _refuse_too_few(everything, path)
    examples = list(draw(everything, most, seed))
    notes = [_describe(everything, path)]
    if len(examples) < len(everything):
        notes.append(f"Using {len(examples):,} of {len(everything):,} questions, drawn at random (--rows).")
    return OwnQuestions(path.name, examples, notes)


def _refuse_gaps(examples: list[Example], path: Path) -> None:
    unlabelled = [example.id for example in examples if example.answers is None]
    if unlabelled:
        raise UserError(
            f'{path}: {counted(len(unlabelled), "question")} without "answers" (id {listed(unlabelled)}). Add the '
            'answers, or "answers": [] where the passage has none.'
        )
    for example in examples:
        if problem := blank(example.text, example.text_pair):
            raise UserError(f"{path}, question {example.id}: {problem} Fill it in, or remove the question.")


def _refuse_too_few(examples: list[Example], path: Path) -> None:
    if len(examples) < FEWEST:
        raise UserError(
            f"{path} has {counted(len(examples), 'question')}; at least {FEWEST} are needed to choose a model, and "
            "some hundreds to train one. Without any, use the shipped head: bertvision predict default --tasks squad2."
        )
    if not any(example.answers for example in examples):
        raise UserError(f"{path} has no question with an answer: there is nothing to learn. Add answers.")


def _describe(examples: list[Example], path: Path) -> str:
    silent = sum(not example.answers for example in examples)
    passages = counted(len({example.text_pair for example in examples}), "passage")
    articles = counted(len({example.group for example in examples}), "article")
    return (
        f"{path.name} has questions in SQuAD's format: {counted(len(examples), 'question')}, {silent:,} of them "
        f"without an answer, on {passages} of {articles}. The model finds answers in passages."
    )


def check_unseen(train: OwnQuestions, dev: OwnQuestions) -> list[str]:
    """Return a note if dev asks about passages that are in the training file too."""
    seen = {example.text_pair for example in train.examples}
    shared = sum(example.text_pair in seen for example in dev.examples)
    if shared < OVERLAP * len(dev):
        return []
    return [
        f"{shared:,} of the {counted(len(dev), 'question')} in {dev.name} are on passages that also occur in "
        f"{train.name}. Scores on {dev.name} will be too high."
    ]


# ---------------------------------------------------------------------- tables of questions and answers


def refuse_question_table(path: Path) -> None:
    """Raise UserError for a table whose rows are questions with answers from their passages: a label can't be an
    answer, and without answer_start it is not clear where the answer is."""
    rows = [row for _, row in islice(read_rows(path), PEEKED)]
    names = {str(name).strip().lower(): name for name in (rows[0] if rows else {})}
    passage = next((names[name] for name in PASSAGES if name in names), None)
    answer = next((names[name] for name in ANSWERS if name in names), None)
    if QUESTION not in names or passage is None or answer is None:
        return
    answers = [_first_text(row.get(answer)) for row in rows]
    inside = sum(_occurs(text, str(row.get(passage))) for text, row in zip(answers, rows, strict=True))
    if inside <= len(rows) / 2 or len(set(answers)) <= len(rows) / 2:
        return  # yes and no, or other labels
    raise UserError(
        f"{path} holds questions, passages and answers ('{names[QUESTION]}', '{passage}', '{answer}'). `fit` reads "
        f"these in SQuAD's JSON format, which says where in the passage the answer is: {FORMAT}. To use '{answer}' as "
        f"a label all the same, add --label {answer}."
    )


def _first_text(cell: Any) -> str:
    """The answer in a cell: a text, or SQuAD's forms of it."""
    while isinstance(cell, list | tuple) and cell:
        cell = cell[0]
    return _first_text(cell.get("text", "")) if isinstance(cell, dict) else str(cell or "").strip()


def _occurs(text: str, passage: str) -> bool:
    return bool(text) and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", passage, re.IGNORECASE) is not None
