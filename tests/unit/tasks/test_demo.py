"""The demo corpus: answers where they should be, a third unanswerable, no dev name or wording in train."""

import itertools
import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bertvision.errors import UserError
from bertvision.tasks import demo
from bertvision.tasks.demo import build_corpus, spell

SORTS, TRAIN, DEV = demo.sorts(), demo.words("train"), demo.words("dev")
SPLITS = ("train", "dev")
NAME_VALUES = {"person", "place", "title"}
# Words in names that are not names themselves: type words and function words.
TYPE_WORDS = {"the", "of", "and", "battle", "treaty", "festival", "expedition", "bridge"}
corpus = cache(build_corpus)


def paragraphs(split: str, questions: int = 3000, seed: int = 0) -> Iterator[dict[str, Any]]:
    for article in corpus(split, questions, seed)["data"]:
        yield from article["paragraphs"]


def rows(split: str, questions: int = 3000, seed: int = 0) -> list[tuple[str, dict[str, Any]]]:
    return [(p["context"], qa) for p in paragraphs(split, questions, seed) for qa in p["qas"]]


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))


def expansions(template: str) -> Iterator[str]:
    parts = re.split(r"\[([^\]]*)\]", template)
    choices = [part.split("|") if index % 2 else [part] for index, part in enumerate(parts)]
    yield from ("".join(choice) for choice in itertools.product(*choices))


def templates(split: str) -> list[str]:
    found: list[str] = []
    for kind in SORTS:
        found += [*kind.doubles[split], *kind.asides[split]]
        for relation in kind.relations:
            found += [*relation.sentences[split], *relation.questions[split]]
    return found


def name_tokens(pools: dict[str, list[str]]) -> set[str]:
    """Every token that can occur in a name of the split, in lower case."""
    surnames = {a + b for a in pools["surname_starts"] for b in pools["surname_ends"]}
    places = {a + b for a in pools["place_starts"] for b in pools["place_ends"]}
    plain = (*pools["women"], *pools["men"], *pools["adjectives"], *pools["nouns"], *pools["ventures"], *pools["arts"])
    return {token.lower() for token in (*surnames, *places, *plain)}


@pytest.mark.parametrize("split", SPLITS)
def test_the_same_arguments_produce_the_same_bytes_in_another_process(split: str) -> None:
    code = f"import json, bertvision.tasks.demo as demo; print(json.dumps(demo.build_corpus('{split}', 200, 5)))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == json.dumps(build_corpus(split, 200, 5)) + "\n"


def test_another_seed_produces_another_corpus() -> None:
    texts = [{paragraph["context"] for paragraph in paragraphs("train", 300, seed)} for seed in (0, 1)]
    assert not texts[0] & texts[1]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("questions", [1, 2, 7, 100, 1999])
def test_a_corpus_has_the_requested_number_of_questions_and_is_a_prefix_of_a_larger_one(
    split: str, questions: int
) -> None:
    assert rows(split, questions) == rows(split)[:questions]


@pytest.mark.parametrize("split", SPLITS)
def test_a_third_of_every_prefix_is_unanswerable_to_within_one_question(split: str) -> None:
    flags = [qa["is_impossible"] for _, qa in rows(split)]
    assert all(abs(sum(flags[:end]) - end / 3) <= 1 for end in range(1, len(flags) + 1))


@pytest.mark.parametrize("split", SPLITS)
def test_every_answer_is_at_its_offset_and_nowhere_else(split: str) -> None:
    for context, qa in rows(split):
        assert qa["is_impossible"] == (not qa["answers"])
        for answer in qa["answers"]:
            text, start = answer["text"], answer["answer_start"]
            assert text and text == text.strip()
            assert context[start : start + len(text)] == text
            assert len(re.findall(rf"(?<![\w-]){re.escape(text)}(?![\w-])", context, re.IGNORECASE)) == 1, (
                text,
                context,
            )


@pytest.mark.parametrize("split", SPLITS)
def test_ids_are_unique(split: str) -> None:
    ids = [qa["id"] for _, qa in rows(split)]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(rf"{split}-\d{{4}}-\d-\d", name) for name in ids)


@pytest.mark.parametrize("split", SPLITS)
def test_passages_and_the_questions_and_answers_of_a_passage_are_unique(split: str) -> None:
    contexts = [paragraph["context"] for paragraph in paragraphs(split)]
    assert len(set(contexts)) == len(contexts)
    for paragraph in paragraphs(split):
        questions = [qa["question"] for qa in paragraph["qas"]]
        assert len(set(questions)) == len(questions)
        given = [qa["answers"][0]["text"] for qa in paragraph["qas"] if qa["answers"]]
        assert len(set(given)) == len(given)


@pytest.mark.parametrize("split", SPLITS)
def test_passages_and_articles_have_the_documented_size(split: str) -> None:
    articles = corpus(split, 3000)["data"][:-1]
    assert all(4 <= len(article["paragraphs"]) <= 6 for article in articles)
    for paragraph in itertools.chain.from_iterable(article["paragraphs"] for article in articles):
        assert 45 <= len(paragraph["context"].split()) <= 90
        assert 4 <= len(re.findall(r"[.](?: |$)", paragraph["context"])) <= 7
        assert 5 <= len(paragraph["qas"]) <= 6


@pytest.mark.parametrize("split", SPLITS)
def test_sentences_are_well_formed(split: str) -> None:
    for context, qa in rows(split):
        for text in (context, qa["question"]):
            assert not re.search(r"[{}\[\]|]|  | [,.?]|,,|\.\.", text), text
            assert not re.search(r"\b(\w+) \1\b", text, re.IGNORECASE), text
            assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", text), text
            assert text[0].isupper()
        sentences = context.split(". ")
        assert all(sentence[0].isupper() for sentence in sentences)
        assert len(set(sentences)) == len(sentences)
        assert qa["question"].endswith("?")


def test_train_and_dev_share_no_wording() -> None:
    used = {split: {text for one in templates(split) for text in expansions(one)} for split in SPLITS}
    assert not used["train"] & used["dev"]
    assert not {*TRAIN["contrasts"], *TRAIN["hearsay"]} & {*DEV["contrasts"], *DEV["hearsay"]}


@pytest.mark.parametrize("kind", SORTS, ids=lambda kind: kind.name)
def test_every_fact_has_several_sentences_and_questions(kind: Any) -> None:
    for relation, (split, least) in itertools.product(kind.relations, {"train": 4, "dev": 3}.items()):
        assert len(relation.sentences[split]) >= least
        assert len({text for one in relation.questions[split] for text in expansions(one)}) >= 3


def test_no_dev_name_occurs_in_train() -> None:
    assert not name_tokens(TRAIN) & name_tokens(DEV)
    seen = set().union(*(words(context) | words(qa["question"]) for context, qa in rows("train", 6000)))
    for template in templates("train"):
        seen |= words(template)
    assert not name_tokens(DEV) & seen


def test_every_capitalised_word_in_dev_questions_is_the_first_a_type_word_or_a_dev_name() -> None:
    known = name_tokens(DEV) | TYPE_WORDS
    for _, qa in rows("dev"):
        found = re.findall(r"(?<=[ ])[A-Z][a-z]+", qa["question"])
        assert {word.lower() for word in found} <= known, qa["question"]


def test_train_and_dev_share_no_answers_except_numbers() -> None:
    for pool in ("trades", "materials", "goods", "reasons"):
        assert not set(TRAIN[pool]) & set(DEV[pool])
    numeric = {spell(number) for number in range(70)}
    answers = {
        split: {qa["answers"][0]["text"].lower() for _, qa in rows(split, 6000) if qa["answers"]} for split in SPLITS
    }
    shared = {text for text in answers["train"] & answers["dev"] if not re.search(r"\d", text)} - numeric
    assert not shared


def log_odds(train: list[tuple[set[str], bool]]) -> tuple[float, dict[str, float]]:
    """Naive Bayes with add-one smoothing: the prior and each word's log odds of unanswerable."""
    totals = Counter(flag for _, flag in train)
    seen = {flag: Counter(word for bag, f in train if f == flag for word in bag) for flag in (True, False)}
    odds = {
        word: math.log((seen[True][word] + 1) / (totals[True] + 2))
        - math.log((seen[False][word] + 1) / (totals[False] + 2))
        for word in seen[True] | seen[False]
    }
    return math.log(totals[True] / totals[False]), odds


@pytest.mark.parametrize("fit_on", SPLITS)
@pytest.mark.parametrize("score_on", SPLITS)
def test_a_question_alone_does_not_reveal_whether_it_is_answerable(fit_on: str, score_on: str) -> None:
    def bags(split: str, seed: int) -> list[tuple[set[str], bool]]:
        return [(words(qa["question"]), qa["is_impossible"]) for _, qa in rows(split, 6000, seed)]

    prior, odds = log_odds(bags(fit_on, 0))
    scored = bags(score_on, 1)
    right = sum((prior + sum(odds.get(word, 0.0) for word in bag) > 0) == flag for bag, flag in scored)
    assert right / len(scored) < 2 / 3 + 0.03


@pytest.mark.parametrize("split", SPLITS)
def test_most_unanswerable_questions_name_an_entity_of_the_passage_and_some_do_not(split: str) -> None:
    unanswerable = [(context, qa["question"]) for context, qa in rows(split) if qa["is_impossible"]]
    names = name_tokens(TRAIN if split == "train" else DEV)
    absent = sum(not (words(question) & names) <= words(context) for context, question in unanswerable)
    assert 0.02 < absent / len(unanswerable) < 0.25


def value_shapes(split: str) -> dict[str, str]:
    """Relation value → a pattern that such values match in passages of the split."""
    pools = TRAIN if split == "train" else DEV
    listed = {
        "trade": pools["trades"],
        "material": pools["materials"],
        "goods": pools["goods"],
        "reason": pools["reasons"],
    }
    shapes = {value: "|".join(map(re.escape, pool)) for value, pool in listed.items()}
    shapes["person"] = rf"(?:{'|'.join(pools['women'] + pools['men'])}) [A-Z][a-z]+"
    shapes["place"] = rf"(?:{'|'.join(pools['place_starts'])})(?:{'|'.join(pools['place_ends'])})"
    shapes["title"] = rf"The (?:{'|'.join(pools['adjectives'])}) [A-Z][a-z]+|[A-Z][a-z]+ and [A-Z][a-z]+"
    shapes["small"] = "|".join(spell(number) for number in range(12, 70))
    return shapes | {"year": r"1\d{3}", "date": r"\d+ [A-Z][a-z]+ 1\d{3}", "count": r"\d+,\d{3}|\d{2,3}"}


def value_asked_for(split: str) -> dict[str, set[str]]:
    """Question with `{S}` for its entity → the types of value that answer it."""
    asked: dict[str, set[str]] = {}
    for relation in itertools.chain.from_iterable(kind.relations for kind in SORTS):
        for text in itertools.chain.from_iterable(map(expansions, relation.questions[split])):
            asked.setdefault(text.replace("{S's}", "{S}"), set()).add(relation.value)
    return asked


@pytest.mark.parametrize("split", SPLITS)
def test_the_passage_of_an_unanswerable_question_usually_has_a_value_of_the_right_type(split: str) -> None:
    shapes, asked = value_shapes(split), value_asked_for(split)
    patterns = [
        (re.compile(re.escape(text).replace(re.escape("{S}"), "(?P<name>.+?)(?:'s?)?"), re.IGNORECASE), values)
        for text, values in asked.items()
    ]
    found = []
    for context, qa in rows(split, 900):
        if qa["is_impossible"]:
            matches = [(match, values) for pattern, values in patterns if (match := pattern.fullmatch(qa["question"]))]
            assert matches, qa["question"]
            match, values = matches[0]
            others = context.replace(match["name"], "")
            found.append(any(re.search(rf"\b(?:{shapes[value]})\b", others, re.IGNORECASE) for value in values))
    assert len(found) == 300 and sum(found) / len(found) > 0.65


@pytest.mark.parametrize("split", SPLITS)
def test_most_passages_use_pronouns(split: str) -> None:
    contexts = [paragraph["context"] for paragraph in paragraphs(split)]
    linked = sum(bool(re.search(r"\. (It|Its|She|Her|He|His) ", context)) for context in contexts)
    assert linked / len(contexts) > 0.5


def test_every_kind_of_answer_is_asked_for_in_both_splits() -> None:
    values = {relation.value for kind in SORTS for relation in kind.relations}
    assert values >= NAME_VALUES | {"year", "date", "count", "small", "trade", "material", "goods", "reason"}
    for split in SPLITS:
        starts = Counter(qa["question"].split()[0] for _, qa in rows(split) if qa["answers"])
        assert {"Who", "What", "When", "Why", "How", "Where", "In"} <= set(starts)


@pytest.mark.parametrize("kind", SORTS, ids=lambda kind: kind.name)
def test_templates_use_the_relations_of_their_sort(kind: Any) -> None:
    names = {relation.name for relation in kind.relations}
    for split in SPLITS:
        for template in kind.doubles[split]:
            assert len(set(re.findall(r"\{(?:a )?([a-z]+)\}", template)) & names) == 2, template
        for relation in kind.relations:
            assert all(text.count("v}") == 1 and "{S" in text for text in relation.sentences[split])
            assert all(option.count("{S") == 1 for text in relation.questions[split] for option in expansions(text))


def test_numbers_are_spelled_out_in_english() -> None:
    assert [spell(number) for number in (0, 12, 19, 20, 21, 40, 69)] == [
        "zero", "twelve", "nineteen", "twenty", "twenty-one", "forty", "sixty-nine",
    ]  # fmt: skip


def test_the_sample_in_the_docs_is_the_first_dev_passage() -> None:
    page = (Path(__file__).parents[3] / "docs" / "demo_corpus.md").read_text(encoding="utf-8")
    shown = " ".join(page.replace("\n> ", " ").split())
    first = next(paragraphs("dev", 5))
    assert first["context"] in shown
    for qa in first["qas"]:
        answer = qa["answers"][0]["text"] if qa["answers"] else "no answer"
        assert f"| {qa['question']} | {answer} |" in shown


def test_an_unknown_split_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(UserError, match="no split 'test'.*dev, train"):
        build_corpus("test", 10)


def test_zero_questions_are_refused() -> None:
    with pytest.raises(UserError, match="not 0"):
        build_corpus("train", 0)
