"""Texts to predict on: strings, or pairs of strings such as (question, passage)."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertvision.errors import UserError, shorten

Pair = tuple[str, str | None]
Text = str | Pair | Mapping[str, str]
NAMES = ({"question", "passage"}, {"text", "text_pair"})
"""The keys of a pair that is a mapping."""
TAKES = (
    "predict takes a text, a pair, or a list of texts and pairs; a pair is a tuple (question, passage), or a mapping "
    "with 'question' and 'passage' or with 'text' and 'text_pair'"
)


def is_alone(texts: object) -> bool:
    """Whether this is one text or one pair, not a list of them."""
    return isinstance(texts, str | tuple | Mapping)


def read_texts(texts: Any, ids: Sequence[str] | None = None) -> list[Pair]:
    """Return every text as a pair, with None in place of a missing second text. One text is a list of one. `ids` name
    the texts in errors."""
    given = [texts] if is_alone(texts) else _as_list(texts)
    if ids is not None and len(ids) != len(given):
        raise UserError(f"found {len(given)} texts but {len(ids)} ids: pass one id per text.")
    pairs = []
    for number, text in enumerate(given):
        first, second = _as_pair(text, call(number, ids))
        if blank(first, second):
            raise UserError(f"{call(number, ids)} is empty: every text, and both texts of a pair, must have content.")
        pairs.append((first, second))
    return pairs


def _as_list(texts: Any) -> list[Any]:
    # The items of a set have no order, those of bytes are numbers, and those of a data frame are names of columns.
    if not isinstance(texts, bytes | set | frozenset) and not hasattr(texts, "columns"):
        try:
            return list(texts)
        except TypeError:
            pass
    raise UserError(f"{TAKES}. Found {shorten(texts)}.")


def _as_pair(text: Any, name: str) -> Pair:
    if isinstance(text, Mapping) and set(text) in NAMES:
        text = (text["question"], text["passage"]) if "passage" in text else (text["text"], text["text_pair"])
    match (text, None) if isinstance(text, str) else text:
        case (str() as first, str() | None as second) if isinstance(text, str | tuple):
            return str(first), None if second is None else str(second)
    raise UserError(f"{TAKES}. Found {shorten(text)} as {name}.")


def blank(first: str, second: str | None) -> str | None:
    """Which text has no content, as a sentence; None if all is well."""
    if not first.strip():
        return "the text is empty." if second is None else "the first text (the question) is empty."
    if second is not None and not second.strip():
        return "the second text (the passage) is empty."
    return None


def too_long(max_length: int, task: str = "") -> str:
    """The error of a question that fills a window."""
    where = f" for {task}" if task else ""
    return f"the question is too long{where}: it leaves too little room for the passage in {max_length} tokens."


def name_texts(id: str, first: str, second: str | None) -> dict[str, str]:
    """The beginning of a row of predictions: its id and its texts."""
    return {"id": id, "text": first} if second is None else {"id": id, "text": first, "text_pair": second}


def call(number: int, ids: Sequence[str] | None) -> str:
    """How a message names a text."""
    return f"text {number}" if ids is None else f"'{ids[number]}'"
