"""The part of decoding that does not depend on the model: which characters a span covers that starts or ends at a given
token, and which tokens a span may start or end at. Computed once per split and cached on the features."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertvision.data.examples import Example
from bertvision.data.windows import Features, text_between
from bertvision.evaluation.spans.passages import Int64, Passages

LAST_SPACE = 0x3000  # the last Unicode character that is white space

Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]


class Sums(NamedTuple):
    """Normalisers of a window's logits: log-probability = logit - highest - total."""

    highest: npt.NDArray[np.float64]  # (window,)
    total: npt.NDArray[np.float64]  # (window,)


@dataclass(frozen=True, eq=False)
class SpanLayout:
    passages: Passages
    starts: Int64  # (window,)
    lengths: Int32  # (window,)
    first_window: Int64  # (example + 1,)
    low: Int32  # (token,) first character of a span that starts here
    high: Int32  # (token,) one past the last character of a span that ends here
    visible: Bool  # (token,) whether a token belongs to the passage and contains more than white space
    groups: dict[Any, list[Any]] = field(default_factory=dict)
    """Device → the windows in padded groups on that device; filled by `pairs`."""

    @cached_property
    def repeats(self) -> Bool:
        """(window,) whether several tokens start or end at the same character, as the tokens of an emoji do."""
        tokens = np.flatnonzero(self.visible)  # (visible token,)
        window = np.searchsorted(self.starts, tokens, side="right") - 1  # (visible token,)
        again = np.zeros(max(0, len(tokens) - 1), dtype=bool)  # (visible token - 1,)
        for place in (self.low, self.high):
            again |= np.diff(place[tokens]) <= 0
        found = np.zeros(len(self.starts), dtype=bool)  # (window,)
        found[window[1:][again & (np.diff(window) == 0)]] = True
        return found

    @cached_property
    def ends(self) -> tuple[Int64, Int64]:
        """(window,), (window,) first visible token of each window, and one past its last visible token."""
        tokens = np.append(np.flatnonzero(self.visible), len(self.visible))  # (visible token + 1,)
        after = self.starts + self.lengths  # (window,)
        first = np.minimum(tokens[np.searchsorted(tokens, self.starts)], after)  # (window,)
        last = np.concatenate([[-1], tokens])[np.searchsorted(tokens, after)]  # (window,)
        return first, np.maximum(last + 1, first)


def layout_of(features: Features, examples: Sequence[Example]) -> SpanLayout:
    """Return the layout of these features. It is built on first use and cached on the features."""
    texts = [example.text_pair or "" for example in examples]
    kept: SpanLayout | None = vars(features).get("span_layout")
    if kept is None or len(kept.passages.texts) != len(texts) or not all(map(is_, kept.passages.texts, texts)):
        kept = vars(features)["span_layout"] = build_layout(features, Passages(texts))
    return kept


def build_layout(features: Features, passages: Passages) -> SpanLayout:
    first_shown, last_shown = _find_shown(passages.codes)  # (character,), (character,)
    low, high = _find_graphemes(passages)  # (character,), (character,)
    base = np.repeat(passages.first[features.example], features.lengths)  # (token,)
    inside = features.offsets[:, 0] >= 0  # (token,)
    begin, end = (np.where(inside, base + features.offsets[:, side], 0) for side in (0, 1))  # (token,), (token,)
    visible = inside & (first_shown[begin] < end)  # (token,)
    return SpanLayout(
        passages=passages,
        starts=features.starts,
        lengths=features.lengths,
        first_window=np.searchsorted(features.example, np.arange(len(passages.texts) + 1)),
        low=np.where(visible, low[first_shown[begin]] - base, 0).astype(np.int32),
        high=np.where(visible, high[last_shown[end]] - base, 0).astype(np.int32),
        visible=visible,
    )


def _find_shown(codes: npt.NDArray[np.uint32]) -> tuple[Int64, Int64]:
    """(character,), (character,) for each position, the first character at or after it that is not white space, and the
    last such character before it. Near the ends of a passage these can belong to a neighbouring passage, but visible
    tokens never look there."""
    blank = np.array([chr(code).isspace() for code in range(LAST_SPACE + 1)] + [False])  # (code,)
    shown = ~blank[np.minimum(codes, LAST_SPACE + 1)]  # (character,)
    place = np.arange(len(codes))  # (character,)
    first = np.minimum.accumulate(np.where(shown, place, len(codes))[::-1])[::-1]  # (character,)
    last = np.maximum.accumulate(np.where(shown, place, 0))  # (character,)
    return np.minimum(first, len(codes) - 1), np.concatenate([[0], last[:-1]])


def _find_graphemes(passages: Passages) -> tuple[Int64, Int64]:
    """(character,), (character,) start and end of the grapheme that each character belongs to.

    Apart from line ends, which are white space, only non-ASCII characters combine with their neighbours.
    """
    low = np.arange(len(passages.codes))  # (character,)
    high = low + 1  # (character,)
    for passage, base in passages.places.items():
        if passage.isascii():
            continue
        odd = passages.codes[base : base + len(passage)] > 127  # (character,)
        near = odd | np.append(odd[1:], False) | np.append(False, odd[:-1])  # (character,)
        for place in np.flatnonzero(near).tolist():
            text, start, end = text_between(passage, place, place + 1)
            if text:
                low[base + place], high[base + place] = base + start, base + end
    return low, high
