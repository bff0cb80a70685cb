"""Which questions judge the candidates: never the same article, or the same passage, on both sides."""

from collections.abc import Callable

import pytest

from bertvision.data.examples import Answer, Example
from bertvision.models.spans.split import split_questions, warn_about


def ask(count: int, articles: int, passages: int) -> list[Example]:
    """Questions on passages of articles, all of about the same size; passages are numbered within their article."""
    return [
        Example(
            str(number), f"question {number}?", f"passage {number % articles}.{number // articles % passages}", None,
            (Answer("passage", 0),), f"article {number % articles}",
        )
        for number in range(count)
    ]  # fmt: skip


def article(example: Example) -> str | None:
    return example.group


def passage(example: Example) -> str | None:
    return example.text_pair


@pytest.mark.parametrize("count", [40, 600])
@pytest.mark.parametrize(
    ("articles", "passages", "unit", "apart"),
    [(20, 2, "article", article), (3, 2, "article", article), (1, 20, "passage", passage), (2, 3, "passage", passage)],
)
def test_what_is_kept_apart_is_never_on_both_sides(
    count: int, articles: int, passages: int, unit: str, apart: Callable[[Example], str | None]
) -> None:
    examples = ask(count, articles, passages)
    split, found = split_questions(examples, seed=0)
    assert found == unit
    for number, held in enumerate(split.held):
        inside = {apart(examples[row]) for row in held.tolist()}
        outside = {apart(examples[row]) for row in split.used(number).tolist()}
        assert inside and outside and not inside & outside


def test_few_questions_are_all_judged_and_of_many_a_fifth() -> None:
    few, _ = split_questions(ask(90, 9, 3), seed=0)
    assert few.how == "cv" and few.judged.tolist() == list(range(90))
    assert [len(held) for held in few.held] == [30, 30, 30]
    many, _ = split_questions(ask(1000, 50, 3), seed=0)
    assert many.how == "held_out" and len(many.judged) == 200
    most, _ = split_questions(ask(20_000, 100, 3), seed=0)
    assert len(most.judged) == 1000


def test_an_article_with_most_of_the_questions_does_not_leave_little_to_train_on() -> None:
    examples = ask(80, 1, 10) + [
        Example(f"other {number}", "question?", f"another passage {number}", None, (), f"another {number}")
        for number in range(3)
    ]
    assert split_questions(examples, seed=0)[1] == "passage"


def test_articles_that_share_a_passage_stay_together() -> None:
    examples = ask(60, 6, 2)
    shared = [Example(f"shared {n}", "question?", "shared", None, (), f"article {n}") for n in range(2)]
    split, unit = split_questions(examples + shared, seed=0)
    assert unit == "article"
    for held in split.held:
        groups = {(examples + shared)[row].group for row in held.tolist()}
        assert len(groups & {"article 0", "article 1"}) in (0, 2)


def test_questions_on_one_passage_are_split_by_question_and_the_user_is_warned() -> None:
    examples = ask(30, 1, 1)
    twice = [*examples, Example("again", examples[0].text, examples[0].text_pair, None, (), examples[0].group)]
    split, unit = split_questions(twice, seed=0)
    assert unit == "question" and "All questions are on one passage" in "".join(warn_about(split, unit))
    assert any({0, 30} <= set(held.tolist()) for held in split.held)  # the same question is on one side
    assert not list(warn_about(split, "article"))


def test_the_seed_decides_the_split() -> None:
    first, again, other = (split_questions(ask(60, 12, 2), seed)[0] for seed in (0, 0, 1))
    assert [part.tolist() for part in first.held] == [part.tolist() for part in again.held]
    assert [part.tolist() for part in first.held] != [part.tolist() for part in other.held]
