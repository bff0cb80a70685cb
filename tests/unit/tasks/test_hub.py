"""Hub reading on real `datasets` objects: a folder of parquet files stands in for the hub."""

import sys
from pathlib import Path

import pytest

from bertvision.data.examples import Answer
from bertvision.errors import UserError
from bertvision.kinds import SPAN
from bertvision.tasks import TaskConfig, build_task
from bertvision.tasks.hub import our_split, their_split

datasets = pytest.importorskip("datasets", reason="hub data needs the package datasets")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def save(folder: Path, split: str, columns: dict, labels: list[str] | None = None) -> str:
    """Write one split as parquet, laid out so that load_dataset finds it."""
    dataset = datasets.Dataset.from_dict(columns)
    if labels:
        dataset = dataset.cast_column("label", datasets.ClassLabel(names=labels))
    (folder / "data").mkdir(parents=True, exist_ok=True)
    dataset.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return str(folder)


def test_glue_rows_become_examples_and_minus_one_means_unknown(tmp_path: Path) -> None:
    columns = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [1, 0], "idx": [4, 9]}
    names = ["entailment", "not_entailment"]
    save(tmp_path / "rte", "train", columns, names)
    save(tmp_path / "rte", "validation", columns, names)
    hub = save(tmp_path / "rte", "test", columns | {"label": [-1, -1]}, names)
    task = build_task(TaskConfig("rte", hub=hub))
    assert [(e.id, e.text, e.text_pair, e.target) for e in task.read("dev")] == [
        ("dev-4", "a", "c", 1),
        ("dev-9", "b", "d", 0),
    ]
    assert [example.target for example in task.read("test")] == [None, None]


def test_scores_of_stsb_are_numbers(tmp_path: Path) -> None:
    columns = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [2.5, -1.0], "idx": [0, 1]}
    hub = save(tmp_path / "stsb", "train", columns)
    assert [example.target for example in build_task(TaskConfig("stsb", hub=hub)).read("train")] == [2.5, None]


def test_squad_rows_become_questions(tmp_path: Path) -> None:
    columns = {
        "id": ["x", "y"],
        "title": ["T", "T"],
        "context": ["Anna sang.", "Anna sang."],
        "question": ["Who?", "When?"],
        "answers": [{"text": ["Anna"], "answer_start": [0]}, {"text": [], "answer_start": []}],
    }
    hub = save(tmp_path / "squad", "validation", columns)
    examples = build_task(TaskConfig("squad2", hub=hub)).read("dev")
    assert [(e.id, e.text_pair, e.answers, e.group) for e in examples] == [
        ("x", "Anna sang.", (Answer("Anna", 0),), "T"),
        ("y", "Anna sang.", (), "T"),
    ]
    assert [e.target for e in build_task(TaskConfig("squad2_answerable", hub=hub)).read("dev")] == [1, 0]
    spans = build_task(TaskConfig("files", hub=hub, kind="span"))
    assert spans.read("dev") == examples and spans.kind is SPAN


def test_a_users_own_hub_dataset_provides_its_label_names(tmp_path: Path) -> None:
    save(tmp_path / "own", "train", {"body": ["a", "b"], "label": [0, 1]}, ["spam", "ham"])
    hub = save(tmp_path / "own", "test", {"body": ["c"], "label": [-1]}, ["spam", "ham"])
    task = build_task(TaskConfig("files", hub=hub, text="body"))
    assert task.labels == ("spam", "ham") and task.splits == ("train", "test")
    assert [example.target for example in task.read("train")] == [0, 1]
    assert task.read("test")[0].target is None
    swapped = build_task(TaskConfig("files", hub=hub, text="body", labels=["ham", "spam"]))
    assert [example.target for example in swapped.read("train")] == [1, 0]


def test_plain_labels_are_discovered(tmp_path: Path) -> None:
    hub = save(tmp_path / "own", "train", {"text": ["a", "b", "c"], "label": ["no", "yes", "no"]})
    task = build_task(TaskConfig("files", hub=hub))
    assert task.labels == ("no", "yes") and [e.target for e in task.read("train")] == [0, 1, 0]


def test_a_missing_column_or_split_is_reported(tmp_path: Path) -> None:
    hub = save(tmp_path / "odd", "train", {"sentence1": ["a"], "label": [0]})
    task = build_task(TaskConfig("rte", hub=hub))
    with pytest.raises(UserError, match="has no column sentence2; it has sentence1, label"):
        task.read("train")
    with pytest.raises(UserError, match="could not load the hub dataset .* split 'validation'.*task.data"):
        task.read("dev")
    with pytest.raises(UserError, match="row 0: there is no column 'text'.*choose from label, sentence1"):
        build_task(TaskConfig("files", hub=hub, labels=["0", "1"])).read("train")


def test_without_a_network_the_error_names_the_dataset_and_suggests_a_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for name, words in (("rte", "'nyu-mll/glue', config 'rte', split 'train'"), ("squad2", "'rajpurkar/squad_v2'")):
        with pytest.raises(UserError, match=f"could not load the hub dataset {words}.*task.data=FOLDER"):
            build_task(TaskConfig(name)).read("train")


def test_without_the_package_the_error_explains_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'bertvision\[hub\]'"):
        build_task(TaskConfig("rte")).read("train")


def test_mnli_has_two_dev_sets_on_the_hub_too() -> None:
    task = build_task(TaskConfig("mnli"))
    assert task.dev_splits == ("dev_matched", "dev_mismatched") and "ax" in task.splits
    assert their_split("dev_matched") == "validation_matched" and our_split("validation") == "dev"
    assert their_split("test_mismatched") == our_split("test_mismatched") == "test_mismatched"
