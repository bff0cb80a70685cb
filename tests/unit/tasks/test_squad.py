import copy
import gzip
import json
from pathlib import Path

import pytest

from bertvision.data.examples import Answer
from bertvision.errors import ConfigError, UserError
from bertvision.tasks import TaskConfig, build_task
from bertvision.tasks.squad import find_squad_files, parse_squad, read_squad

TINY = Path(__file__).parents[2] / "fixtures" / "squad_tiny"
DOCUMENT = json.loads((TINY / "dev-v2.0.json").read_text("utf-8"))


def first_question(document: dict) -> dict:
    return document["data"][0]["paragraphs"][0]["qas"][0]


def changed(**values: object) -> dict:
    document = copy.deepcopy(DOCUMENT)
    first_question(document).update(values)
    return document


def test_questions_keep_passage_answers_and_article() -> None:
    example = parse_squad(DOCUMENT, "here")[1]
    assert example.text == 'Who said "it was loud"?'
    assert example.text_pair == DOCUMENT["data"][0]["paragraphs"][0]["context"]
    assert [answer.text for answer in example.answers or ()] == ["Anna", "Anna said"]
    assert example.group == "Article_0" and example.target is None


def test_version_1_files_need_no_is_impossible() -> None:
    document = copy.deepcopy(DOCUMENT)
    del first_question(document)["is_impossible"]
    assert parse_squad(document, "here")[0].answers == (Answer("1900", 3),)


def test_without_a_title_the_passage_is_the_group() -> None:
    document = copy.deepcopy(DOCUMENT)
    del document["data"][0]["title"]
    example = parse_squad(document, "here")[0]
    assert example.group == example.text_pair


def test_a_file_without_answers_is_unlabelled() -> None:
    assert [example.answers for example in read_squad(TINY / "test-v2.0.json")] == [None] * 3
    task = build_task(TaskConfig("squad2_answerable", data=str(TINY)))
    assert [example.target for example in task.read("test")] == [None] * 3


def test_answerable_targets_are_whether_there_is_an_answer() -> None:
    examples = build_task(TaskConfig("squad2_answerable", data=str(TINY))).read("dev")
    assert [example.target for example in examples] == [1, 1, 0] * 2
    assert examples[0].answers == (Answer("1900", 3),)


@pytest.mark.parametrize("start, found", [(4, "900 the"), (-1, "In 1900"), (10_000, "")])
def test_an_answer_that_is_not_in_the_passage_is_named(start: int, found: str) -> None:
    document = changed(answers=[{"text": "1900", "answer_start": start}])
    with pytest.raises(
        UserError, match=f"here, question dev0a: the answer '1900' is not .* {start}; the passage has '{found}"
    ):
        parse_squad(document, "here")


def test_another_unicode_form_of_the_answer_is_not_guessed_at() -> None:
    start = DOCUMENT["data"][0]["paragraphs"][0]["context"].index("café")
    with pytest.raises(UserError, match="is not in its passage"):
        parse_squad(changed(answers=[{"text": "cafe\u0301", "answer_start": start}]), "here")


@pytest.mark.parametrize(
    "document, message",
    [
        ([1], r"here: expected an object with 'data' .* found \[1\]"),
        ({"date": []}, "here: 'data' is missing; found date"),
        ({"data": {}}, "'data' must be a list, found {}"),
        ({"data": []}, "here has no questions"),
        ({"data": [{"title": "Oil"}]}, r"here, article 1 \('Oil'\): 'paragraphs' is missing"),
        ({"data": [{"title": "Oil", "paragraphs": [{"qas": []}]}]}, "paragraph 1: 'context' is missing"),
        (changed(id=None), r"article 1 \('Article_0'\), paragraph 1: a question has no 'id'"),
        (changed(question=3), "question dev0a: 'question' must be a text, found 3"),
        (changed(answers=[{"text": "1900"}]), "question dev0a: 'answer_start' is missing"),
        (changed(answers=[{"text": "1900", "answer_start": "3"}]), "'answer_start' must be a whole number, found '3'"),
        (changed(answers=[{"text": "", "answer_start": 3}]), "question dev0a: the answer '' is not"),
        (changed(is_impossible=True), "question dev0a: is_impossible is true but it has answers"),
        (changed(answers=[]), "question dev0a: is_impossible is false but it has no answers"),
        (changed(is_impossible=-1), "question dev0a: is_impossible must be true or false, found -1"),
        (changed(is_impossible=float("nan")), "question dev0a: is_impossible must be true or false, found nan"),
        (changed(is_impossible="no"), "question dev0a: is_impossible must be true or false, found 'no'"),
        (changed(id="dev0b"), "more than once: dev0b"),
    ],
)
def test_an_invalid_document_is_reported_with_the_location(document: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_squad(document, "here")


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    data = gzip.compress((TINY / "dev-v2.0.json").read_bytes())
    (tmp_path / "dev-v2.0.json.gz").write_bytes(data[:-20])
    with pytest.raises(UserError, match="dev-v2.0.json.gz is truncated"):
        read_squad(tmp_path / "dev-v2.0.json.gz")


def test_the_official_name_wins_and_several_other_files_are_refused(tmp_path: Path) -> None:
    for name in ("train-a.json", "train-b.json.gz", "dev.json", "training_notes.txt"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match="several train files: train-a.json, train-b.json.gz.") as refused:
        find_squad_files(tmp_path)
    assert str(refused.value).endswith(f'such as task.train="{tmp_path / "train-a.json"}".')
    (tmp_path / "train-v2.0.json.xz").touch()
    assert find_squad_files(tmp_path) == {"train": tmp_path / "train-v2.0.json.xz", "dev": tmp_path / "dev.json"}


def test_naming_a_file_decides_between_several(tmp_path: Path) -> None:
    for name in ("train-a.json", "train-b.json"):
        (tmp_path / name).write_bytes((TINY / "train-v2.0.json").read_bytes())
    with pytest.raises(ConfigError, match="several train files"):
        build_task(TaskConfig("squad2", data=str(tmp_path)))
    with pytest.raises(ConfigError, match=f'Did you mean task.train="{tmp_path / "train-a.json"}"'):
        build_task(TaskConfig("squad2", data=str(tmp_path), train="train-a.json"))
    task = build_task(TaskConfig("squad2", data=str(tmp_path), train=str(tmp_path / "train-a.json")))
    assert len(task.read("train")) == 9
