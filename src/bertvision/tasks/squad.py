"""Reading comprehension in SQuAD's JSON format, 1.1 or 2.0: questions about passages, with or without answers.

The same questions make two tasks: `squad2` asks where the answer is, `squad2_answerable` whether there is one.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertvision.data.examples import Answer, Example
from bertvision.errors import MOST_SHOWN, UserError, list_names, shorten
from bertvision.tasks.base import check_unique_ids
from bertvision.tasks.data_file import DataFile
from bertvision.tasks.text_files import find_file, list_folder, read_json, the_only_file

HUB = "rajpurkar/squad_v2"
MAX_LENGTH = 384
SPAN_METRICS = ("f1", "exact")
ANSWERABLE_METRICS = ("accuracy", "f1_no_answer", "f1_has_answer")
ANSWERABLE_LABELS = ("no_answer", "has_answer")
TYPES = {list: "a list", str: "a text", int: "a whole number"}


def read_squad(path: DataFile) -> list[Example]:
    """Read all questions of a SQuAD file (.json, .json.gz, .json.xz); without answers, `answers` is None."""
    return parse_squad(read_json(path), str(path))


def parse_squad(document: Any, where: str) -> list[Example]:
    """Parse all questions of a SQuAD document; every error message starts with `where`."""
    examples = []
    for article_number, article in enumerate(_field(document, "data", list, where), start=1):
        title = article.get("title") if isinstance(article, Mapping) else None
        place = f"{where}, article {article_number}" + (f" ({shorten(title, 40)})" if title else "")
        for number, paragraph in enumerate(_field(article, "paragraphs", list, place), start=1):
            paragraph_place = f"{place}, paragraph {number}"
            passage = _field(paragraph, "context", str, paragraph_place)
            for question in _field(paragraph, "qas", list, paragraph_place):
                examples.append(_parse_question(question, passage, title, where, paragraph_place))
    if not examples:
        raise UserError(f"{where} has no questions.")
    check_unique_ids(lambda: (example.id for example in examples), where)
    return examples


def make_question(
    identity: str, question: str, passage: str, title: str | None, answers: tuple[Answer, ...] | None, where: str
) -> Example:
    """Make an Example of one question, after checking that every answer is at its answer_start."""
    for text, start in answers or ():
        found = passage[start : start + len(text)] if start >= 0 else ""
        if not text or found != text:
            raise UserError(
                f"{where}, question {identity[:MOST_SHOWN]}: the answer {shorten(text)} is not in its passage at "
                f"answer_start {str(start)[:20]}; the passage has "
                f"{shorten(passage[max(start, 0) : max(start, 0) + max(len(text), 20)])} there. "
                "Correct answer_start (in characters, from 0) or the answer's text."
            )
    return Example(id=identity, text=question, text_pair=passage, answers=answers, group=title or passage)


def to_answerable(examples: Iterable[Example]) -> list[Example]:
    """The same questions with "is there an answer?" as the target; the answers are kept."""
    return [
        example if example.answers is None else replace(example, target=int(bool(example.answers)))
        for example in examples
    ]


def find_squad_files(folder: Path, splits: Iterable[str] = ("train", "dev", "test")) -> dict[str, Path]:
    """The file of each split in a folder: the one with the official name, else the only `split*.json`."""
    found = {}
    for split in splits:
        official = find_file(folder, f"{split}-v2.0.json")
        path = the_only_file(folder, split, [official] if official else squad_files(folder, split))
        if path:
            found[split] = path
    return found


def squad_files(folder: Path, split: str) -> list[Path]:
    """Every file in `folder` whose name could be this split in SQuAD's format."""
    pattern = re.compile(rf"{split}.*\.json(\.gz|\.xz)?", re.IGNORECASE)
    return sorted(path for path in list_folder(folder) if pattern.fullmatch(path.name) and os.path.isfile(path))


def _parse_question(question: Any, passage: str, title: str | None, where: str, paragraph: str) -> Example:
    identity = question.get("id") if isinstance(question, Mapping) else None
    if not isinstance(identity, str | int) or identity == "":
        raise UserError(f"{paragraph}: a question has no 'id'. Every question needs a unique one.")
    place = f"{where}, question {str(identity)[:MOST_SHOWN]}"
    text = _field(question, "question", str, place)
    answers = None
    if "answers" in question:
        found = _field(question, "answers", list, place)
        answers = tuple(Answer(_field(a, "text", str, place), _field(a, "answer_start", int, place)) for a in found)
        _check_possible(question.get("is_impossible"), answers, place)
    return make_question(str(identity), text, passage, title, answers, where)


def _check_possible(is_impossible: Any, answers: tuple[Answer, ...], place: str) -> None:
    if is_impossible is not None and not isinstance(is_impossible, bool):
        raise UserError(f"{place}: is_impossible must be true or false, found {shorten(is_impossible)}.")
    if is_impossible is not None and bool(is_impossible) == bool(answers):
        conflict = (
            "is_impossible is true but it has answers" if answers else "is_impossible is false but it has no answers"
        )
        raise UserError(f"{place}: {conflict}. Correct one of the two.")


def _field(value: Any, key: str, kind: type, place: str) -> Any:
    """Return value[key], which must have the expected type; errors name the location in the document."""
    if not isinstance(value, Mapping):
        raise UserError(f"{place}: expected an object with '{key}' (SQuAD format), found {shorten(value)}.")
    if key not in value:
        raise UserError(f"{place}: '{key}' is missing; found {list_names(list(map(str, value)), 300) or 'nothing'}.")
    if not isinstance(value[key], kind) or isinstance(value[key], bool):
        raise UserError(f"{place}: '{key}' must be {TYPES[kind]}, found {shorten(value[key])}.")
    return value[key]
