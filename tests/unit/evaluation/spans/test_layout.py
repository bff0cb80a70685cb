"""The characters of spans, computed for all tokens at once, equal those computed for each span."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_spans import span_features

from bertvision.data.examples import Example
from bertvision.data.windows import Features, text_between
from bertvision.evaluation.spans.layout import layout_of

# Combining marks, a flag, a family emoji, Hangul in parts, and several kinds of white space.
PIECES = [
    "a",
    "b",
    " ",
    "\n",
    "\r\n",
    "\u3000",
    "\u00a0",
    "e\u0301",
    "\u0301",
    "🇨🇭",
    "👩‍👧",
    "각",
    "1\ufe0f\u20e3",
    "—",
]


def build(passages: list[str], cuts: list[list[int]]) -> tuple[Features, list[Example]]:
    """One window per passage: [CLS], and tokens of the characters from each cut to the next."""
    offsets, lengths = [], []
    for places in cuts:
        tokens = list(zip(places[:-1], places[1:], strict=True))
        offsets += [(-1, -1), *tokens]
        lengths.append(len(tokens) + 1)
    features = span_features(lengths, offsets, list(range(len(lengths))))
    return features, [Example(f"q{index}", "who?", passage) for index, passage in enumerate(passages)]


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), min_size=1, max_size=4), st.data())
@settings(deadline=None)
def test_spans_cover_the_characters_that_belong_to_them(passages: list[str], data: st.DataObject) -> None:
    cuts = [sorted(data.draw(st.sets(st.integers(0, len(passage))))) for passage in passages]
    features, examples = build(passages, cuts)
    layout = layout_of(features, examples)
    for window, passage in enumerate(passages):
        tokens = range(*features.tokens_of(window).indices(len(features.input_ids)))
        shown = [token for token in tokens if passage[slice(*features.offsets[token])].strip() and token != tokens[0]]
        assert [token for token in tokens if layout.visible[token]] == shown
        for start in shown:
            for end in (token for token in shown if token >= start):
                expected = text_between(passage, features.offsets[start, 0], features.offsets[end, 1])
                low, high = layout.low[start], layout.high[end]
                assert (passage[low:high], low, high) == expected


def test_a_layout_is_built_once_for_its_features_and_passages() -> None:
    features, examples = build(["a b"], [[0, 1, 2, 3]])
    layout = layout_of(features, examples)
    assert layout_of(features, list(examples)) is layout
    other = layout_of(features, [Example("q0", "who?", " bc")])
    assert other is not layout and other.visible.tolist() == [False, False, True, True]
