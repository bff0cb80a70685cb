import csv
import json
from pathlib import Path
from typing import Any

import pytest

from bertvision.config import load_config
from bertvision.errors import UserError
from bertvision.tasks import build_task
from bertvision.tasks.one_file import is_data_file


def write_table(path: Path, columns: list[str], rows: list[list[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    rows = [[f"message number {row}", ["bills", "cards"][row % 2]] for row in range(50)]
    return write_table(tmp_path / "topics.csv", ["message", "topic"], rows)


def test_columns_and_kind_are_guessed_and_said(topics: Path) -> None:
    notes: list[str] = []
    config = load_config(topics, ["encoder.name=other/encoder"], on_note=notes.append)
    task = config.task
    assert (task.name, task.train, task.kind, task.text, task.label) == (
        "files", str(topics), "label", "message", "topic",
    )  # fmt: skip
    assert config.run == str(Path("runs") / "topics_encoder")
    assert any("'message' as text and 'topic' as label" in note and "task.label=" in note for note in notes)
    assert any("20% of topics.csv" in note and "task.dev=FILE" in note for note in notes)
    assert f"bertvision fit {topics} --text message --label topic --kind label" in notes[-1]


def test_settings_override_the_guess(topics: Path, tmp_path: Path) -> None:
    rows = [["a text", "another", row % 5, row / 7] for row in range(60)]
    table = write_table(tmp_path / "t.csv", ["one", "two", "stars", "share"], rows)
    words = [f"task.dev={table}", "task.text=one", "task.text_pair=two", "task.label=share", "run=mine"]
    config = load_config(table, words)
    assert (config.task.kind, config.task.text_pair, config.task.dev_share, config.run) == (
        "score",
        "two",
        None,
        "mine",
    )
    assert load_config(table, [*words[1:3], "task.label=stars", "task.kind=score"]).task.kind == "score"


def test_a_held_out_share_is_dev_and_no_part_of_train(topics: Path) -> None:
    task = build_task(load_config(topics).task)
    train, dev = task.read("train"), task.read("dev")
    assert (len(train), len(dev)) == (40, 10) and not {e.text for e in train} & {e.text for e in dev}
    assert [e.id for e in build_task(load_config(topics, ["seed=7"]).task).read("dev")] == [e.id for e in dev]
    assert "of which 20% are dev" in task.source


@pytest.mark.parametrize("paired", [False, True])
def test_the_same_text_is_never_in_train_and_dev(paired: bool, tmp_path: Path) -> None:
    # Every text three times; of a pair, the two texts also change places.
    sides = [[f"message {number % 20}", f"reply {number % 20}"] for number in range(60)]
    rows = [[*(pair[:: (-1) ** (row // 20)] if paired else pair[:1]), row % 2] for row, pair in enumerate(sides)]
    columns = ["text", "text_pair", "label"] if paired else ["text", "label"]
    task = build_task(load_config(write_table(tmp_path / "t.csv", columns, rows)).task)
    train, dev = ([{e.text, e.text_pair} for e in task.read(split)] for split in ("train", "dev"))
    assert (len(train), len(dev)) == (48, 12) and not any(texts in train for texts in dev)


def test_squad_format_makes_a_run_of_spans_and_keeps_articles_together(tmp_path: Path) -> None:
    def article(number: int) -> dict[str, Any]:
        context = f"It was in the year {1900 + number}."
        answers = [{"text": str(1900 + number), "answer_start": 19}]
        question = {"question": "When?", "answers": answers}
        return {
            "title": f"t{number}",
            "paragraphs": [{"context": context, "qas": [{**question, "id": f"{number}-{at}"} for at in range(2)]}],
        }

    path = tmp_path / "questions.json"
    path.write_text(json.dumps({"version": "2.0", "data": [article(number) for number in range(10)]}))
    notes: list[str] = []
    task = build_task(load_config(path, on_note=notes.append).task)
    dev = task.read("dev")
    assert str(task.kind) == "span" and len(dev) == 4 and len({example.group for example in dev}) == 2
    assert not any("bertvision fit" in note for note in notes)


def test_configs_are_not_data_files(topics: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"task": {"name": "rte"}, "data": {"max_length": 64}}')
    (tmp_path / "broken.json").write_text("{")
    assert is_data_file(topics)
    assert not any(is_data_file(tmp_path / name) for name in ("config.json", "broken.json", "absent.json", "a.toml"))
    with pytest.raises(UserError, match="broken.json is not valid JSON"):
        load_config(tmp_path / "broken.json")


def test_a_share_needs_a_training_file_and_no_dev_file(topics: Path) -> None:
    with pytest.raises(UserError, match=r"task\.dev_share divides task\.train"):
        load_config(topics, [f"task.dev={topics}", "task.dev_share=0.3"])
    with pytest.raises(UserError, match=r"task\.dev_share must be above 0 and less than 1|'task\.dev_share' must be"):
        load_config(topics, ["task.dev_share=1"])
