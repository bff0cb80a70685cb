"""Decoding against a brute-force decoder, and thresholds against an exhaustive search."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_spans import choose_threshold, span_features, threshold_free

from bertvision.data.examples import Example
from bertvision.data.windows import Features
from bertvision.evaluation.spans import official as squad
from bertvision.evaluation.spans.answers import SpanAnswer, spans_at
from bertvision.evaluation.spans.decode import answers_at, decode_spans


def build(passages: list[str], windows: list[tuple[int, int, int]]) -> tuple[Features, list[Example]]:
    """[CLS] question [SEP] words [SEP]; a window is (passage, first word, one past its last word)."""
    offsets, lengths = [], []
    for passage, low, high in windows:
        words, place = [], 0
        for word in passages[passage].split():
            place = passages[passage].index(word, place)
            words.append((place, place + len(word)))
            place += len(word)
        window = [(-1, -1)] * 3 + words[low:high] + [(-1, -1)]
        offsets += window
        lengths.append(len(window))
    features = span_features(lengths, offsets, [passage for passage, _, _ in windows])
    return features, [Example(f"q{index}", "who?", passage) for index, passage in enumerate(passages)]


def brute_force(start_logits, end_logits, features, examples, n_best, longest):
    """Decode in plain Python: try every pair of every window."""
    results = []
    for index, example in enumerate(examples):
        spans: dict[tuple[int, int], float] = {}
        null = math.inf
        for window in np.flatnonzero(features.example == index):
            tokens = range(features.starts[window], features.starts[window] + features.lengths[window])
            start_total = math.log(sum(math.exp(start_logits[token]) for token in tokens))
            end_total = math.log(sum(math.exp(end_logits[token]) for token in tokens))
            first = tokens[0]
            null = min(null, start_logits[first] - start_total + end_logits[first] - end_total)
            for start in tokens:
                for end in range(start, min(start + longest, tokens[-1] + 1)):
                    if features.offsets[start][0] < 0 or features.offsets[end][0] < 0:
                        continue
                    place = (int(features.offsets[start][0]), int(features.offsets[end][1]))
                    score = start_logits[start] - start_total + end_logits[end] - end_total
                    spans[place] = max(score, spans.get(place, -math.inf))
        best = sorted(spans.items(), key=lambda item: -item[1])[:n_best]
        total = math.exp(null) + sum(math.exp(score) for _, score in best)
        results.append((null, [(place, score, math.exp(score) / total) for place, score in best], example.text_pair))
    return results


@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    n_best=st.integers(1, 25),
    longest=st.integers(1, 15),
)
@settings(max_examples=60, deadline=None)
def test_decoding_equals_brute_force(seed, sizes, n_best, longest):
    passages = [" ".join(f"w{number}" for number in range(size)) for size in sizes]
    # Windows of 6 words that overlap by 2, so that longer passages have several.
    windows = []
    for index, size in enumerate(sizes):
        low = 0
        while low + 6 < size:
            windows.append((index, low, low + 6))
            low += 4
        windows.append((index, low, size))
    features, examples = build(passages, windows)
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, size=(2, len(features.input_ids))).astype(np.float32)
    decoded = decode_spans(logits[0], logits[1], features, examples, n_best, longest)
    expected = brute_force(*logits.astype(float).tolist(), features, examples, n_best, longest)
    for answer, (null, best, passage) in zip(decoded, expected, strict=True):
        assert answer.null_score == pytest.approx(null, abs=1e-9)
        assert [(candidate.start, candidate.end) for candidate in answer.n_best] == [place for place, _, _ in best]
        assert [candidate.score for candidate in answer.n_best] == pytest.approx([score for _, score, _ in best])
        assert [candidate.probability for candidate in answer.n_best] == pytest.approx([share for *_, share in best])
        assert sum(candidate.probability for candidate in answer.n_best) + answer.null_probability == pytest.approx(1)
        assert all(candidate.text == passage[candidate.start : candidate.end] for candidate in answer.n_best)
        if best:
            first = answer.n_best[0]
            assert (answer.text, answer.start, answer.end, answer.score) == first[:4]


def test_many_windows_of_mixed_length_keep_their_order():
    passages = [" ".join(["word"] * (1 + index * 7 % 40)) for index in range(300)]
    features, examples = build(passages, [(index, 0, 99) for index in range(300)])
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, len(features.input_ids)))
    decoded = decode_spans(logits[0], logits[1], features, examples, n_best=3)
    expected = brute_force(*logits.tolist(), features, examples, 3, 30)
    assert [(answer.start, answer.end) for answer in decoded] == [best[0][0] for _, best, _ in expected]
    assert [answer.id for answer in decoded] == [example.id for example in examples]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 30), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_spans_with_equal_scores_are_ordered_by_start_then_end(levels, n_best, longest):
    features, examples = build([" ".join(f"w{n}" for n in range(len(levels)))], [(0, 0, len(levels))])
    start = np.array([0.0, 0.0, 0.0, *levels, 0.0])
    found = decode_spans(start, np.zeros(len(start)), features, examples, n_best, longest)[0]
    pairs = [(s, e) for s in range(len(levels)) for e in range(s, min(s + longest, len(levels)))]
    expected = sorted(pairs, key=lambda pair: (-levels[pair[0]], *pair))[:n_best]
    words = features.offsets[3:-1]
    assert [(c.start, c.end) for c in found.n_best] == [(words[s, 0], words[e, 1]) for s, e in expected]


def test_spans_with_equal_scores_are_ordered_by_window():
    features, examples = build(["a b c d"], [(0, 0, 2), (0, 2, 4)])
    decoded = decode_spans(np.zeros(12), np.zeros(12), features, examples, n_best=4)[0]
    assert [candidate.text for candidate in decoded.n_best] == ["a", "a b", "b", "c"]


def test_answers_stored_as_arrays_behave_like_a_list_of_answers():
    features, examples = build(["a b c", "", "d e f g"], [(0, 0, 2), (0, 1, 3), (1, 0, 0), (2, 0, 4)])
    logits = np.random.default_rng(3).normal(size=(2, len(features.input_ids)))
    decoded = decode_spans(logits[0], logits[1], features, examples, n_best=3)
    listed = list(decoded)
    assert len(decoded) == len(listed) == 3 and decoded[1:] == listed[1:] and decoded[-1] == listed[-1]
    gold = {"q0": ["b"], "q1": [], "q2": ["e f"]}
    for threshold in (-9.0, 0.0, 9.0):
        assert answers_at(decoded, threshold) == answers_at(listed, threshold)
    assert choose_threshold(decoded, gold) == choose_threshold(listed, gold)
    assert threshold_free(decoded, gold) == threshold_free(listed, gold)
    for rank in (0, 1, 2, 3):
        arrays, plain = spans_at(decoded, rank), spans_at(listed, rank)
        assert arrays.text == plain.text and arrays.score.tolist() == plain.score.tolist()


def test_spans_longer_than_the_limit_or_backwards_are_never_answers():
    features, examples = build([" ".join(f"w{n}" for n in range(50))], [(0, 0, 50)])
    start, end = np.zeros(54), np.zeros(54)
    start[3 + 10], end[3 + 40], end[3 + 5] = 9.0, 9.0, 9.0  # one of 31 tokens, and one that ends before it starts
    answer = decode_spans(start, end, features, examples, n_best=2000)[0]
    lengths = [len(candidate.text.split()) for candidate in answer.n_best]
    assert max(lengths) == 30 and min(lengths) == 1
    assert "w10 " + " ".join(f"w{n}" for n in range(11, 41)) not in [candidate.text for candidate in answer.n_best]
    assert len(answer.n_best) == sum(min(30, 50 - first) for first in range(50))


def test_the_longest_allowed_span_can_be_the_only_candidate():
    features, examples = build([" ".join(f"w{n}" for n in range(50))], [(0, 0, 50)])
    start, end = np.zeros(54), np.zeros(54)
    start[3 + 10], end[3 + 39] = 5.0, 9.0  # 30 tokens; any other start before that end scores 9, this one 14
    answer = decode_spans(start, end, features, examples, n_best=1)[0]
    assert answer.text == " ".join(f"w{n}" for n in range(10, 40)) and len(answer.n_best) == 1


def test_the_no_answer_score_is_the_minimum_over_windows():
    features, examples = build(["a b c"], [(0, 0, 2), (0, 1, 3)])
    start, end = np.zeros(12), np.zeros(12)
    start[0] = end[0] = 5.0  # the first window strongly predicts "no answer", the second does not
    answer = decode_spans(start, end, features, examples)[0]
    assert answer.null_score == pytest.approx(2 * -math.log(6))


@pytest.mark.parametrize("passage", ["", " \n "])
def test_a_passage_without_text_has_no_answer_at_any_threshold(passage):
    features, examples = build([passage], [(0, 0, 0)])
    decoded = decode_spans(np.zeros(4), np.zeros(4), features, examples)
    assert decoded[0].text == "" and decoded[0].n_best == [] and decoded[0].null_probability == 1.0
    assert answers_at(decoded, 0.0) == answers_at(decoded, math.inf) == {"q0": ""}
    json.dumps(dataclasses.asdict(decoded[0]), allow_nan=False)


def test_white_space_tokens_are_never_answers():
    features, examples = build(["a b"], [(0, 0, 2)])
    offsets = np.array([[-1, -1], [-1, -1], [-1, -1], [0, 1], [1, 2], [1, 3], [-1, -1]], dtype=np.int32)
    features = dataclasses.replace(
        features, offsets=offsets, input_ids=np.zeros(7, dtype=np.int32), lengths=np.array([7], dtype=np.int32)
    )
    start = np.array([0, 0, 0, 0, 9.0, 0, 0])
    decoded = decode_spans(start, start, features, examples)[0]
    assert sorted(candidate.text for candidate in decoded.n_best) == ["a", "a b", "b"]


def test_several_tokens_of_one_character_are_one_candidate():
    features, examples = build(["👍 ok"], [(0, 0, 2)])
    offsets = np.array([[-1, -1]] * 3 + [[0, 1]] * 3 + [[1, 4], [-1, -1]], dtype=np.int32)
    features = dataclasses.replace(
        features, offsets=offsets, input_ids=np.zeros(8, dtype=np.int32), lengths=np.array([8], dtype=np.int32)
    )
    random = np.random.default_rng(1)
    decoded = decode_spans(random.normal(size=8), random.normal(size=8), features, examples)[0]
    assert sorted(candidate.text for candidate in decoded.n_best) == ["ok", "👍", "👍 ok"]


def test_nan_logits_are_refused_and_impossible_tokens_are_allowed():
    features, examples = build(["a b c"], [(0, 0, 3)])
    broken = np.zeros(7)
    broken[4] = np.nan
    with pytest.raises(AssertionError, match="end logits hold NaN"):
        decode_spans(np.zeros(7), broken, features, examples)
    with pytest.raises(AssertionError, match="3 .*start|start.* 7 tokens"):
        decode_spans(np.zeros(3), np.zeros(7), features, examples)
    impossible = np.full(7, -np.inf)
    impossible[4] = 0.0
    answer = decode_spans(impossible, impossible, features, examples)[0]
    assert answer.text == "b" and answer.score == 0.0 and math.isfinite(answer.null_score)
    assert answer.n_best[0].probability == 1.0


# -------------------------------------------------------------------------------------------------- thresholds


def answer(id: str, text: str, lead: float) -> SpanAnswer:
    return SpanAnswer(id, text, 0, len(text), 0.0, lead, 0.5, [])


LEADS = st.integers(-6, 6).map(lambda value: value / 2)
ROWS = st.lists(
    st.tuples(st.sampled_from(["fox", "red fox", "dog"]), LEADS, st.sampled_from([[], ["fox"], ["the red dog"]])),
    min_size=1,
    max_size=12,
)


def decoded_and_gold(rows):
    decoded = [answer(str(index), text, lead) for index, (text, lead, _) in enumerate(rows)]
    return decoded, {str(index): gold for index, (_, _, gold) in enumerate(rows)}


@given(ROWS, st.sampled_from(["f1", "exact"]))
@settings(deadline=None)
def test_the_chosen_threshold_is_the_best_and_closest_to_zero(rows, metric):
    decoded, gold = decoded_and_gold(rows)
    chosen = choose_threshold(decoded, gold, metric)
    at = {
        threshold: squad.score_answers(gold, answers_at(decoded, threshold))[metric]
        for threshold in {0.0, chosen, *(lead for _, lead, _ in rows), *np.arange(-4, 4, 0.25).tolist()}
    }
    assert at[chosen] == pytest.approx(max(at.values()))
    tried = {0.0, *(lead for _, lead, _ in rows)}
    nearest = min((abs(lead) for lead in tried if at[lead] > max(at.values()) - 1e-6), default=math.inf)
    assert abs(chosen) <= nearest


def test_no_answer_needs_a_lead_above_the_threshold():
    decoded = [answer("low", "fox", 0.5), answer("equal", "fox", 1.0), answer("high", "fox", 1.5)]
    assert answers_at(decoded, 1.0) == {"low": "fox", "equal": "fox", "high": ""}


def test_without_questions_the_threshold_is_zero():
    assert choose_threshold([], {}) == 0.0


@given(ROWS)
@settings(deadline=None)
def test_threshold_free_metrics_equal_independent_implementations(rows):
    from sklearn.metrics import roc_auc_score

    decoded, gold = decoded_and_gold(rows)
    scores = threshold_free(decoded, gold)
    answerable = [row for row in rows if row[2]]
    assert ("forced_f1" in scores) == ("forced_exact" in scores) == bool(answerable)
    if answerable:
        f1s = [max(squad.f1([text], guess) for text in texts) for guess, _, texts in answerable]
        assert scores["forced_f1"] == pytest.approx(100.0 * np.mean(f1s))
        exact = np.mean([guess in [text.removeprefix("the ") for text in texts] for guess, _, texts in answerable])
        assert scores["forced_exact"] == pytest.approx(100.0 * exact)
    if 0 < len(answerable) < len(rows):
        auc = roc_auc_score([not texts for *_, texts in rows], [lead for _, lead, _ in rows])
        assert scores["no_answer_auc"] == pytest.approx(100.0 * auc)
    else:
        assert "no_answer_auc" not in scores
