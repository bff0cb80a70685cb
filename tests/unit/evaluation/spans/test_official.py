"""Exact match and F1 against a step-by-step implementation of the published definition."""

import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.errors import UserError
from bertvision.evaluation.spans import official as squad


def plain_normalize(text: str) -> str:
    """Normalise an answer step by step, following the definition."""
    lowered = text.lower()
    unpunctuated = "".join(character for character in lowered if character not in string.punctuation)
    without_articles = re.sub(r"\b(a|an|the)\b", " ", unpunctuated)
    return " ".join(without_articles.split())


def plain_exact(gold: str, predicted: str) -> int:
    return int(plain_normalize(gold) == plain_normalize(predicted))


def plain_f1(gold: str, predicted: str) -> float:
    gold_words, predicted_words = plain_normalize(gold).split(), plain_normalize(predicted).split()
    if not gold_words or not predicted_words:
        return float(gold_words == predicted_words)
    left, same = list(gold_words), 0
    for word in predicted_words:
        if word in left:
            left.remove(word)
            same += 1
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted_words), same / len(gold_words)
    return 2 * precision * recall / (precision + recall)


def plain_scores(gold: dict[str, list[str]], predicted: dict[str, str]) -> dict[str, float]:
    exacts, f1s = {}, {}
    for id, answers in gold.items():
        kept = [answer for answer in answers if plain_normalize(answer)] or [""]
        exacts[id] = max(plain_exact(answer, predicted[id]) for answer in kept)
        f1s[id] = max(plain_f1(answer, predicted[id]) for answer in kept)
    scores: dict[str, float] = {}
    parts = {"": list(gold), "HasAns_": [i for i in gold if gold[i]], "NoAns_": [i for i in gold if not gold[i]]}
    for prefix, ids in parts.items():
        if ids:
            scores[prefix + "exact"] = 100.0 * sum(exacts[id] for id in ids) / len(ids)
            scores[prefix + "f1"] = 100.0 * sum(f1s[id] for id in ids) / len(ids)
            scores[prefix + "total"] = len(ids)
    return scores


WORDS = [
    "the",
    "a",
    "An",
    "fox",
    "Fox's",
    "fox.",
    "1,867",
    "—",
    "“dog”",
    "...",
    "anthem",
    "İ",
    "the-fox",
    "ß",
    "\u00a0",
]
TEXT = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join) | st.text(max_size=12)


@given(TEXT)
@settings(deadline=None)
def test_normalisation_follows_the_definition(text):
    assert squad.normalize_answer(text) == plain_normalize(text)


@given(st.dictionaries(st.text(max_size=3), st.tuples(st.lists(TEXT, max_size=3), TEXT), min_size=1, max_size=8))
@settings(deadline=None)
def test_scores_follow_the_definition_under_the_official_keys(questions):
    gold = {id: answers for id, (answers, _) in questions.items()}
    predicted = {id: text for id, (_, text) in questions.items()}
    ours, expected = squad.score_answers(gold, predicted), plain_scores(gold, predicted)
    assert list(ours) == list(expected)
    assert ours == pytest.approx(expected)


def test_the_order_is_lower_case_then_punctuation_then_articles_then_spaces():
    assert squad.normalize_answer(" The  T.h.e Anthem—a “Fox”! ") == "anthem— “fox”"


def test_f1_by_hand():
    # Gold words: quick brown fox. Predicted: brown fox jumps high. 2 are shared: precision 2/4, recall 2/3.
    assert squad.f1(["the quick brown fox"], "brown fox jumps high") == pytest.approx(4 / 7)
    assert squad.f1(["fox fox"], "fox") == pytest.approx(2 / 3)


def test_gold_answers_that_are_empty_after_normalisation_do_not_count():
    assert squad.exact(["the", "fox"], "a") == 0.0
    assert squad.exact(["the"], "") == squad.f1(["the"], "") == 1.0
    scores = squad.score_answers({"q": ["the"]}, {"q": ""})
    assert scores["HasAns_exact"] == 100.0 and "NoAns_exact" not in scores


def test_no_answer_is_all_or_nothing():
    assert squad.f1([], "") == squad.exact([], "") == 1.0
    assert squad.f1([], "fox") == squad.exact([], "fox") == squad.f1(["fox"], "") == 0.0


def test_scores_per_question_keep_the_order_of_gold():
    ids, exacts, f1s = squad.per_question({"b": ["fox"], "a": []}, {"a": "", "b": "fox den", "other": "x"})
    assert ids == ["b", "a"] and exacts.tolist() == [0.0, 1.0] and f1s.tolist() == pytest.approx([2 / 3, 1.0])


def test_missing_predictions_are_counted_and_named():
    gold = {f"q{index}": [] for index in range(9)}
    with pytest.raises(UserError, match=r"5 of 9 .*'q4', 'q5', 'q6', ….*1 of the predicted ids .*'typo'"):
        squad.score_answers(gold, {"q0": "", "q1": "", "q2": "", "q3": "", "typo": ""})


def test_no_questions_is_an_error():
    with pytest.raises(UserError, match="no questions"):
        squad.score_answers({}, {"q": ""})
