"""Texts to predict on: strings, or pairs of strings such as (question, passage)."""

from collections.abc import Iterable, Sequence
from typing import Any

from bertvision.errors import UserError, shorten

Pair = tuple[str, str | None]
Text = str | Pair


def check_texts(texts: Iterable[Text], ids: Sequence[str] | None = None) -> list[Pair]:
    """Return every text as a pair, with None in place of a missing second text. `ids` name the texts in errors."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise UserError("texts must be a list: pass [text], or [(text, second text)].")
    if isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(text, str) for text in texts):
        raise UserError(
            "two texts in a tuple could be a pair or two texts: pass [(question, passage)] or [text, text]."
        )
    texts = list(texts)
    if ids is not None and len(ids) != len(texts):
        raise UserError(f"found {len(texts)} texts but {len(ids)} ids: pass one id per text.")
    pairs = []
    for number, text in enumerate(texts):
        match (text, None) if isinstance(text, str) else text:
            case [str() as first, str() | None as second]:
                pass
            case _:
                raise UserError(f"{call(number, ids)} is neither a text nor a pair of texts: {shorten(text)}.")
        if blank(first, second):
            raise UserError(f"{call(number, ids)} is empty: every text, and both texts of a pair, must have content.")
        pairs.append((first, second))
    if not pairs:
        raise UserError("no text to predict on.")
    return pairs


def as_one_list(given: tuple[Any, ...]) -> list[Any]:
    """The texts of `predict("a", "b")`, `predict(("question", "passage"))` or `predict(["a", "b"])`."""
    if len(given) == 1 and not isinstance(given[0], str | tuple) and isinstance(given[0], Iterable):
        return list(given[0])
    return list(given)


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
