"""Texts to predict on, and the windows of tokens that a graph reads."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from bertvision_runtime.folder import ExportError, Task

Pair = tuple[str, str | None]
NAMES = ({"question", "passage"}, {"text", "text_pair"})
TAKES = (
    "predict takes a text, a pair, or a list of texts and pairs; a pair is a tuple (question, passage), or a mapping "
    "with 'question' and 'passage' or with 'text' and 'text_pair'"
)
LONE_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Window:
    """A sequence of tokens."""

    ids: tuple[int, ...]
    types: tuple[int, ...]
    offsets: npt.NDArray[np.int32]
    """(token, 2) the characters of each token in the passage; -1, -1 for tokens outside it"""

    @property
    def key(self) -> tuple[Any, ...]:
        return self.ids, self.types


def is_alone(texts: object) -> bool:
    """Whether this is one text or one pair, not a list of them."""
    return isinstance(texts, str | tuple | Mapping)


def read_texts(texts: Any) -> list[Pair]:
    """Every text as a pair, with None in place of a missing second text."""
    if is_alone(texts):
        given = [texts]
    elif isinstance(texts, bytes | set | frozenset) or hasattr(texts, "columns") or not hasattr(texts, "__iter__"):
        raise ExportError(f"{TAKES}. Found {_short(texts)}.")
    else:
        given = list(texts)
    return [_read_text(number, text) for number, text in enumerate(given)]


def _read_text(number: int, text: Any) -> Pair:
    if isinstance(text, Mapping) and set(text) in NAMES:
        text = (text["question"], text["passage"]) if "passage" in text else (text["text"], text["text_pair"])
    match (text, None) if isinstance(text, str) else text:
        case (str() as first, str() | None as second) if isinstance(text, str | tuple):
            if not first.strip() or (second is not None and not second.strip()):
                raise ExportError(f"text {number} is empty: every text, and both texts of a pair, must have content.")
            return first, second
    raise ExportError(f"{TAKES}. Found {_short(text)} as text {number}.")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


# ---------------------------------------------------------------------- windows


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], seconds: Sequence[str] | None, most: int | None
) -> list[Encoding]:
    """Tokenize texts or pairs. With `most` tokens they are cut, the longer text first."""
    tokenizer.no_padding()
    if most is None:
        tokenizer.no_truncation()
    else:
        tokenizer.enable_truncation(most, strategy="longest_first")
    clean = [LONE_SURROGATES.sub("\ufffd", text) for text in texts]
    pairs = None if seconds is None else [LONE_SURROGATES.sub("\ufffd", text) for text in seconds]
    inputs: list[Any] = clean if pairs is None else list(zip(clean, pairs, strict=True))
    found: list[Encoding] = tokenizer.encode_batch(inputs)
    return found


def build_windows(tokenizer: Tokenizer, task: Task, pairs: Sequence[Pair], has_types: bool) -> list[list[Window]]:
    """The windows of each text or pair: several only for a long passage."""
    seconds = [second or "" for _, second in pairs] if task.pairs else None
    encodings = encode_texts(
        tokenizer, [first for first, _ in pairs], seconds, None if task.windowed else task.max_length
    )
    if not task.windowed:
        return [[_window(one, np.arange(len(one.ids)), has_types)] for one in encodings]
    return [_cut(one, number, task, has_types) for number, one in enumerate(encodings)]


def _cut(encoding: Encoding, number: int, task: Task, has_types: bool) -> list[Window]:
    """[CLS] question [SEP] | a part of the passage | [SEP]; neighbouring parts share `overlap` tokens."""
    sequence = encoding.sequence_ids
    before = sequence.index(1) if 1 in sequence else len(sequence)
    passage = sequence.count(1)
    after = len(sequence) - before - passage
    room = task.max_length - before - after
    if passage > room and room <= task.overlap:
        raise ExportError(
            f"text {number} is too long for {task.name}: the question leaves too little room for the passage in "
            f"{task.max_length} tokens. Shorten the question."
        )
    found, low = [], 0
    while low + room < passage:
        found.append((low, low + room))
        low += room - task.overlap
    found.append((low, passage))
    ends = np.arange(before + passage, len(sequence))
    parts = ([np.arange(before), np.arange(before + low, before + high), ends] for low, high in found)
    return [_window(encoding, np.concatenate(part), has_types) for part in parts]


def _window(encoding: Encoding, tokens: npt.NDArray[Any], has_types: bool) -> Window:
    ids, types = np.array(encoding.ids)[tokens], np.array(encoding.type_ids)[tokens]
    inside = np.array([side == 1 for side in encoding.sequence_ids], dtype=bool)[tokens]  # (token)
    offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)[tokens]  # (token, 2)
    offsets = np.where(inside[:, None], offsets, -1).astype(np.int32)  # (token, 2)
    return Window(tuple(ids.tolist()), tuple(types.tolist()) if has_types else (0,) * len(ids), offsets)
