from dataclasses import fields
from pathlib import Path

import pytest

from bertvision.errors import ConfigError
from bertvision.tasks import TaskConfig, build_task, check_task_config

FIXTURES = Path(__file__).parents[2] / "fixtures"
CSV = str(FIXTURES / "files_tiny" / "train.csv")


def test_every_setting_has_help() -> None:
    assert all(entry.metadata.get("help") for entry in fields(TaskConfig))


@pytest.mark.parametrize(
    "config",
    [
        TaskConfig("rte"),
        TaskConfig("squad2"),
        TaskConfig("demo"),
        TaskConfig("rte", data=str(FIXTURES / "glue_tiny")),
        TaskConfig("files", train=CSV),
        TaskConfig("files", hub="somebody/something", text="sentence"),
        TaskConfig("files", hub="somebody/something", kind="span"),
    ],
)
def test_a_valid_config_has_no_mistakes(config: TaskConfig) -> None:
    assert check_task_config(config) == []


@pytest.mark.parametrize(
    "config, words",
    [
        (TaskConfig("squad"), "task.name: there is no task 'squad': did you mean 'squad2'?"),
        (TaskConfig("rte", data="nowhere"), "task.data = 'nowhere': there is no such folder."),
        (TaskConfig("rte", data=CSV), "this is a file. Set task.train"),
        (TaskConfig("rte", train="nowhere.tsv"), "task.train = 'nowhere.tsv': there is no such file."),
        (TaskConfig("rte", dev=str(FIXTURES)), "this is a folder. Set task.data"),
        (TaskConfig("rte", data=str(FIXTURES / "squad_tiny")), "no RTE files in"),
        (TaskConfig("squad2", data=str(FIXTURES / "files_tiny")), "no squad2 data in"),
        (TaskConfig("rte", text="sentence"), 'task.text does not apply to rte: it is for task.name = "files"'),
        (TaskConfig("rte", seed=3), "task.seed does not apply to rte"),
        (TaskConfig("demo", data="x"), "task.data does not apply to demo"),
        (TaskConfig("demo", dev_questions=0), "'task.dev_questions' must be at least 1, not 0"),
        (TaskConfig("rte", data=str(FIXTURES), hub="a/b"), "task.hub and task.data can't be combined"),
        (TaskConfig("files"), "task.train is missing"),
        (TaskConfig("files", train=CSV, kind="lable"), "there is no kind 'lable': did you mean 'label'?"),
        (TaskConfig("files", train=CSV, text="texts"), "there is no column 'texts' (task.text): did you mean 'text'?"),
        (TaskConfig("files", train=CSV, label="stars", kind="score"), "there is no column 'stars' (task.label)"),
        (TaskConfig("files", train=CSV, labels=["a", "a"]), "at least two different names"),
        (TaskConfig("files", train=CSV, kind="score", labels=["a", "b"]), "task.labels does not apply to scores"),
        (TaskConfig("files", data=str(FIXTURES / "squad_tiny")), 'SQuAD-format JSON with task.kind = "span"'),
        (TaskConfig("files", hub="a/b", kind="span", text="q"), "task.text does not apply to files"),
    ],
)
def test_a_mistake_is_reported_with_the_setting_as_written(config: TaskConfig, words: str) -> None:
    assert [mistake for mistake in check_task_config(config) if words in mistake]


def test_all_mistakes_are_reported_at_once() -> None:
    config = TaskConfig("rte", data="nowhere", dev="nothing.tsv", kind="label", seed=1)
    with pytest.raises(ConfigError) as caught:
        build_task(config)
    assert len(caught.value.mistakes) == 4
    assert all(key in str(caught.value) for key in ("task.data", "task.dev", "task.kind", "task.seed"))


def test_a_named_file_replaces_the_one_in_the_folder() -> None:
    folder = FIXTURES / "glue_tiny" / "RTE"
    task = build_task(TaskConfig("rte", data=str(folder), dev=str(folder / "train.tsv")))
    assert task.splits == ("train", "dev", "test")
    assert len(task.read("dev")) == 8


def test_a_folder_without_a_training_file_needs_its_labels_given(tmp_path: Path) -> None:
    (tmp_path / "dev.csv").write_text("text,label\nfine,good\npoor,bad\n")
    with pytest.raises(ConfigError, match="task.labels is missing"):
        build_task(TaskConfig("files", data=str(tmp_path)))
    task = build_task(TaskConfig("files", data=str(tmp_path), labels=["bad", "good"]))
    assert [example.target for example in task.read("dev")] == [1, 0]


def test_the_demo_depends_on_its_seed_and_sizes() -> None:
    task = build_task(TaskConfig("demo", seed=1, train_questions=24, dev_questions=9))
    assert (len(task.read("train")), len(task.read("dev"))) == (24, 9)
    other = build_task(TaskConfig("demo", seed=2, train_questions=24, dev_questions=9))
    assert task.read("train") == task.read("train") != other.read("train")
