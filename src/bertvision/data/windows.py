"""Features: the token ids of every window, and the mapping from tokens back to characters of the passage.

features = build_features(examples, tokenizer, SPAN, windowed=True)
passage_text(passage, features.offsets[features.tokens_of(window)], start, end) → (text, char_start, char_end)
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bertvision.data.examples import Example
from bertvision.data.spooled import GrowingArray
from bertvision.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH = 1000  # examples tokenized at once, and per call of on_progress
LONE_SURROGATES = re.compile("[\ud800-\udfff]")

Int32 = npt.NDArray[np.int32]
OF_TOKENS = ("input_ids", "type_ids", "offsets")


@dataclass(frozen=True)
class Features:
    """All windows of some examples, packed: their tokens are laid end to end.

    The arrays of tokens are on disk if they are large (`data.spooled.SpooledArray`): read them at slices, or at indices
    of `find_tokens`."""

    input_ids: Int32
    """(token,)"""
    type_ids: npt.NDArray[np.int8]
    """(token,) zeros if the model has no token types"""
    lengths: Int32
    """(window,)"""
    starts: npt.NDArray[Any]
    """(window,) the first token of each window; 32 bits if they suffice"""
    example: Int32
    """(window,) index into the examples, ascending"""
    offsets: Int32
    """(token, 2) the tokenizer's character range in the passage; -1, -1 for tokens outside the passage"""
    start: Int32
    """(window,) first token of the answer, within the window; 0 = no answer in this window, or unknown"""
    end: Int32
    """(window,) last token of the answer (inclusive), within the window; 0 = no answer in this window, or unknown"""
    target: npt.NDArray[np.float32]
    """(window,) label index or score; NaN for spans, and if unknown"""
    make_towers: "Callable[[], Towers] | None" = field(default=None, repr=False, compare=False)
    """Tokenizes the texts of pairs one by one; None if these are no pairs, or if they are cut into windows."""

    @cached_property
    def towers(self) -> "Towers":
        """Each text of these pairs alone. Tokenized on first use."""
        assert self.make_towers is not None, "only pairs that are not cut into windows can be read as two towers"
        return self.make_towers()

    def __len__(self) -> int:
        return len(self.lengths)

    def tokens_of(self, window: int) -> slice:
        """Return the slice of the packed arrays that holds the tokens of a window."""
        first = int(self.starts[window])
        return slice(first, first + int(self.lengths[window]))

    def take(self, windows: npt.NDArray[Any]) -> "Features":
        """Some of these windows."""
        tokens, lengths = self.find_tokens(windows), self.lengths[windows]  # (token,), (window,)
        starts = np.cumsum(lengths, dtype=np.int64) - lengths  # (window,)
        return Features(
            self.input_ids[tokens], self.type_ids[tokens], lengths, starts, self.example[windows],
            self.offsets[tokens], self.start[windows], self.end[windows], self.target[windows],
            None if self.make_towers is None else lambda: self.towers.take(windows),
        )  # fmt: skip

    def uncut_lengths(self, overlap: int) -> npt.NDArray[np.int64]:
        """(example,) the length of each example in tokens before it was cut into windows that share `overlap` tokens.
        Truncated texts have no uncut length here."""
        counts = np.concatenate([[0], np.cumsum(self.offsets[:, 0] < 0)])  # (token + 1,) outside the passage
        repeated = counts[self.starts + self.lengths] - counts[self.starts] + overlap  # (window,)
        # Every window after the first repeats the question, the special tokens and the overlap.
        new = self.lengths - np.where(np.diff(self.example, prepend=-1) == 0, repeated, 0)  # (window,)
        return np.bincount(self.example, weights=new).astype(np.int64)  # (example,)

    def find_tokens(self, windows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the indices, (token,), of the tokens of the given windows in the packed arrays."""
        lengths = self.lengths[windows].astype(np.int64)  # (window,)
        before = np.cumsum(lengths) - lengths  # (window,)
        return np.repeat(self.starts[windows] - before, lengths) + np.arange(lengths.sum())


@dataclass(frozen=True)
class Towers:
    """The texts of some pairs, each alone and once, however many pairs it is in."""

    texts: Features
    """One window per text."""
    first: npt.NDArray[np.int64]
    """(pair,) index of the first text"""
    second: npt.NDArray[np.int64]
    """(pair,) index of the second text"""

    def take(self, pairs: npt.NDArray[Any]) -> "Towers":
        """Some of these pairs, with the texts that they need."""
        needed = self.needed(pairs)  # (text,)
        first, second = (np.searchsorted(needed, side[pairs]) for side in (self.first, self.second))  # (pair,) each
        return Towers(self.texts.take(needed), first, second)

    def needed(self, pairs: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """(text,) the texts of some pairs, each once, in ascending order."""
        return np.unique(np.concatenate([self.first[pairs], self.second[pairs]]))


class WindowKind(Protocol):
    """The part of a `Kind` that windows need."""

    @property
    def reads_answers(self) -> bool: ...
    def window_target(self, example: Example, answer_inside: bool) -> float: ...


class _Layout(NamedTuple):
    """Token counts of one uncut example: [CLS] question [SEP] | passage | [SEP]."""

    before: int
    passage: int
    after: int


@dataclass
class _Batch:
    """The windows of one batch of examples, before they are joined."""

    take: list[Int32] = field(default_factory=list)
    """For each window, the indices of its tokens in the uncut batch."""
    example: list[int] = field(default_factory=list)
    span: list[tuple[int, int]] = field(default_factory=list)
    target: list[float] = field(default_factory=list)


def build_features(
    examples: Sequence[Example],
    tokenizer: "PreTrainedTokenizerBase",
    kind: WindowKind,
    windowed: bool,
    max_length: int = 384,
    overlap: int = 128,
    on_progress: Callable[[int], None] | None = None,
) -> Features:
    """Tokenize the examples and, if `windowed`, cut long passages into windows that share `overlap` tokens.

    A window that does not contain the whole first answer is labelled "no answer": start = end = 0, and label 0 for
    answerability. Without `windowed`, text and pair are truncated, the longer one first. If any example has a
    `text_pair`, all are treated as pairs. `on_progress` is called with the number of examples just finished.
    """
    assert tokenizer.is_fast, "only fast tokenizers return character offsets"
    assert windowed or not kind.reads_answers, "answers need windows: truncation could cut one off"
    pairs = windowed or any(example.text_pair is not None for example in examples)
    _check_settings(tokenizer, windowed, pairs, max_length, overlap)
    too_long: list[tuple[str, int]] = []
    columns = _new_columns()
    for first in range(0, len(examples), BATCH):
        batch = examples[first : first + BATCH]
        encodings = _encode(batch, tokenizer, pairs, None if windowed else max_length)
        cut = _cut(batch, first, encodings, kind, max_length, overlap, too_long)
        for name, values in _pack(encodings, cut, "token_type_ids" in tokenizer.model_input_names).items():
            columns[name].append(values)
        if on_progress is not None:
            on_progress(len(batch))
    if too_long:
        raise UserError(_too_long_message(too_long, tokenizer, max_length, overlap))
    towers = partial(_build_towers, examples, tokenizer, kind, max_length) if pairs and not windowed else None
    return replace(_join(columns), make_towers=towers)


def _build_towers(
    examples: Sequence[Example], tokenizer: "PreTrainedTokenizerBase", kind: WindowKind, max_length: int
) -> Towers:
    numbers: dict[str, int] = {}
    first = [numbers.setdefault(example.text, len(numbers)) for example in examples]
    second = [numbers.setdefault(example.text_pair or "", len(numbers)) for example in examples]
    texts = [Example(str(number), text) for text, number in numbers.items()]
    alone = build_features(texts, tokenizer, kind, False, max_length)
    return Towers(alone, np.array(first, dtype=np.int64), np.array(second, dtype=np.int64))


def _check_settings(
    tokenizer: "PreTrainedTokenizerBase", windowed: bool, pairs: bool, max_length: int, overlap: int
) -> None:
    least = tokenizer.num_special_tokens_to_add(pair=pairs) + 1 + pairs
    if max_length < least:
        raise UserError(
            f"data.max_length must be at least {least} (special tokens and one token per text), not {max_length}."
        )
    if windowed and not 0 <= overlap < max_length:
        raise UserError(
            f"data.overlap must be from 0 to data.max_length - 1 = {max_length - 1}, not {overlap}. 128 is common."
        )


def _encode(
    batch: Sequence[Example], tokenizer: "PreTrainedTokenizerBase", pairs: bool, truncate_to: int | None
) -> list[Any]:
    """Tokenize a batch into one `tokenizers.Encoding` per example."""
    texts = [_encodable(example.text) for example in batch]
    seconds = [_encodable(example.text_pair or "") for example in batch] if pairs else None
    truncation = {"truncation": "longest_first", "max_length": truncate_to} if truncate_to else {"truncation": False}
    # verbose=False: no warning about passages that are too long for the model; the windows fit.
    encoded = tokenizer(texts, seconds, padding=False, return_attention_mask=False, verbose=False, **truncation)
    encodings = encoded.encodings
    assert encodings is not None
    assert encodings[0].ids[0] == tokenizer.cls_token_id, "the first token must be [CLS]: 'no answer' points at it"
    return list(encodings)


def _encodable(text: str) -> str:
    """Replace lone surrogates, which tokenizers reject, one for one, so that offsets stay valid."""
    return text if text.isascii() else LONE_SURROGATES.sub("\ufffd", text)


def _cut(
    batch: Sequence[Example],
    first: int,
    encodings: list[Any],
    kind: WindowKind,
    max_length: int,
    overlap: int,
    too_long: list[tuple[str, int]],
) -> _Batch:
    """Cut a batch into windows. Questions that leave no room for the passage are added to `too_long`."""
    cut = _Batch()
    base = 0
    for index, (example, encoding) in enumerate(zip(batch, encodings, strict=True)):
        sequence = encoding.sequence_ids
        layout = _layout(sequence)
        room = max_length - layout.before - layout.after
        if layout.passage > room and room <= overlap:
            too_long.append((example.id, sequence.count(0)))
        else:
            answer = _answer_tokens(example, encoding.offsets[layout.before : layout.before + layout.passage])
            for low, high in _ranges(layout.passage, room, overlap):
                whole = answer if answer is not None and low <= answer[0] and answer[1] < high else None
                cut.take.append(base + _window_tokens(layout, low, high))
                cut.example.append(first + index)
                cut.span.append(_shift(whole, layout.before - low) if kind.reads_answers else (0, 0))
                cut.target.append(kind.window_target(example, whole is not None))
        base += len(sequence)
    return cut


def _layout(sequence: list[int | None]) -> _Layout:
    if 1 not in sequence:  # a single text, or an empty passage
        return _Layout(len(sequence), 0, 0)
    before = sequence.index(1)
    passage = sequence.count(1)
    assert sequence[before : before + passage].count(1) == passage, "the passage's tokens must be in one piece"
    return _Layout(before, passage, len(sequence) - before - passage)


def _ranges(tokens: int, room: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Yield the range of passage tokens of each window. Adjacent windows share `overlap` tokens; the last window ends
    with the passage."""
    low = 0
    while low + room < tokens:
        yield low, low + room
        low += room - overlap
    yield low, tokens


def _window_tokens(layout: _Layout, low: int, high: int) -> Int32:
    before = np.arange(layout.before, dtype=np.int32)
    passage = np.arange(layout.before + low, layout.before + high, dtype=np.int32)
    after = np.arange(layout.after, dtype=np.int32) + layout.before + layout.passage
    return np.concatenate([before, passage, after]).astype(np.int32, copy=False)  # (token,)


def _answer_tokens(example: Example, offsets: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the first and last passage token of the shortest range that covers the first answer."""
    if not example.answers or example.text_pair is None:
        return None
    answer = example.answers[0]
    # Byte-level and SentencePiece tokens include the space before a word, so white space around an answer is stripped.
    low = answer.start + len(answer.text) - len(answer.text.lstrip())
    high = answer.start + len(answer.text.rstrip())
    ranges = np.array(offsets, dtype=np.int32).reshape(-1, 2)  # (token, 2)
    touched = np.flatnonzero((ranges[:, 0] < high) & (ranges[:, 1] > low) & (ranges[:, 1] > ranges[:, 0]))
    return (int(touched[0]), int(touched[-1])) if len(touched) else None


def _shift(span: tuple[int, int] | None, by: int) -> tuple[int, int]:
    return (0, 0) if span is None else (span[0] + by, span[1] + by)


def _pack(encodings: list[Any], cut: _Batch, has_types: bool) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of one batch, named as in Features."""
    take = np.concatenate([*cut.take, np.zeros(0, dtype=np.int32)])  # (token,)
    ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), dtype=np.int32)  # (uncut,)
    types = np.zeros(len(ids), dtype=np.int8)  # (uncut,)
    if has_types:
        types = np.fromiter(chain.from_iterable(encoding.type_ids for encoding in encodings), dtype=np.int8)
    span = np.array(cut.span, dtype=np.int32).reshape(-1, 2)  # (window, 2)
    return {
        "input_ids": ids[take],
        "type_ids": types[take],
        "lengths": np.array([len(tokens) for tokens in cut.take], dtype=np.int32),
        "example": np.array(cut.example, dtype=np.int32),
        "offsets": _passage_offsets(encodings)[take],
        "start": span[:, 0],
        "end": span[:, 1],
        "target": np.array(cut.target, dtype=np.float32),
    }


def _passage_offsets(encodings: list[Any]) -> Int32:
    flat = chain.from_iterable(chain.from_iterable(encoding.offsets for encoding in encodings))
    offsets = np.fromiter(flat, dtype=np.int32).reshape(-1, 2)  # (uncut, 2)
    position = 0
    for encoding in encodings:
        layout = _layout(encoding.sequence_ids)
        offsets[position : position + layout.before] = -1
        position += layout.before + layout.passage + layout.after
        offsets[position - layout.after : position] = -1
    return offsets


def _new_columns() -> dict[str, GrowingArray]:
    """The fields of Features, without windows."""
    empty = _pack([], _Batch(), False)
    return {
        name: GrowingArray(values.dtype, *values.shape[1:], on_disk=name in OF_TOKENS) for name, values in empty.items()
    }


def _join(columns: dict[str, GrowingArray]) -> Features:
    found: dict[str, Any] = {name: column.finish() for name, column in columns.items()}
    tokens = int(found["lengths"].sum(dtype=np.int64))
    starts: npt.NDArray[Any] = np.cumsum(found["lengths"], dtype=np.int32 if tokens < 2**31 else np.int64)  # (window,)
    starts -= found["lengths"]
    return Features(starts=starts, **found)


def _too_long_message(
    too_long: list[tuple[str, int]], tokenizer: "PreTrainedTokenizerBase", max_length: int, overlap: int
) -> str:
    shown = ", ".join(f"'{name}' ({tokens} tokens)" for name, tokens in too_long[:3])
    more = f" and {len(too_long) - 3} more" if len(too_long) > 3 else ""
    count = "1 question leaves" if len(too_long) == 1 else f"{len(too_long)} questions leave"
    special = tokenizer.num_special_tokens_to_add(pair=True)
    return (
        f"{count} too little room for the passage: {shown}{more}. A window of data.max_length = {max_length} tokens "
        f"must hold the question, {special} special tokens, and the whole passage or more than data.overlap = "
        f"{overlap} tokens of it. Raise data.max_length, lower data.overlap, or shorten or remove these questions."
    )


def passage_text(passage: str, offsets: Int32, start: int, end: int) -> tuple[str, int, int]:
    """Return the passage's characters for tokens `start` to `end` of a window, and their range.

    `offsets` (token, 2) are those of the window. White space at either end is dropped. Characters are never split:
    combining marks, emoji sequences, Hangul syllables and the like stay whole even if the tokenizer drops or splits
    part of them. If no character is visible, the text is empty.
    """
    low, high = int(offsets[start, 0]), int(offsets[end, 1])
    assert low >= 0 and high >= 0, "the tokens are outside the passage"
    return text_between(passage, low, high)


def text_between(passage: str, low: int, high: int) -> tuple[str, int, int]:
    """Return the characters from `low` to `high`, stripped and widened to whole graphemes, and their range."""
    text = passage[low:high]
    low += len(text) - len(text.lstrip())
    text = text.strip()
    if not text:
        return "", low, low
    high = low + len(text)
    if passage.isascii():
        return text, low, high
    edges = _grapheme_edges(passage)
    low = edges[bisect_right(edges, low) - 1]
    high = edges[bisect_right(edges, high - 1)]
    return passage[low:high], low, high


@lru_cache(maxsize=64)
def _grapheme_edges(passage: str) -> list[int]:
    """Return the start of each extended grapheme cluster (Unicode annex 29), and the end of the passage."""
    import regex  # a dependency of transformers; the standard library has no \X

    return [match.start() for match in regex.finditer(r"\X", passage, regex.DOTALL)] + [len(passage)]
