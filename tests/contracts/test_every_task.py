"""Every task in TASKS builds from a small folder in its official layout, and every row of it is read."""

import gzip
import lzma
import os
import shutil
from pathlib import Path

import pytest

from bertvision.kinds import LABEL, SCORE
from bertvision.tasks import TASKS, TaskConfig, build_task
from bertvision.tasks.config import SPLITS
from bertvision.tasks.glue import GLUE, split_files

FIXTURES = Path(__file__).parents[1] / "fixtures"
SQUAD = ("squad2", "squad2_answerable")
REAL = os.environ.get("BERTVISION_REAL_DATA")


def config_of(name: str) -> TaskConfig:
    if name in GLUE:
        return TaskConfig(name, data=str(FIXTURES / "glue_tiny"))
    if name in SQUAD:
        return TaskConfig(name, data=str(FIXTURES / "squad_tiny"))
    if name == "files":
        return TaskConfig(name, data=str(FIXTURES / "files_tiny"))
    return TaskConfig(name, train_questions=30, dev_questions=12)


def rows_written(name: str, split: str) -> int:
    """Counted without our readers: newline bytes of the files, ids in the JSON, requested numbers."""
    if name in GLUE:
        file = "diagnostic/diagnostic.tsv" if split == "ax" else f"{GLUE[name].folder}/{split_files(GLUE[name])[split]}"
        raw = (FIXTURES / "glue_tiny" / file).read_bytes()
        has_header = not (name == "cola" and split != "test")
        return raw.rstrip(b"\r\n").count(b"\n") + 1 - has_header
    if name in SQUAD:
        return (FIXTURES / "squad_tiny" / f"{split}-v2.0.json").read_text("utf-8").count('"id":')
    if name == "files":
        return {"train": 4, "dev": 2, "test": 1}[split]
    return {"train": 30, "dev": 12}[split]


@pytest.mark.parametrize("name", TASKS)
def test_every_row_of_every_split_is_read_with_unique_ids_and_targets_in_range(name: str) -> None:
    task = build_task(config_of(name))
    assert "train" in task.splits and task.dev_splits
    for split in task.splits:
        examples = task.read(split)
        assert len(examples) == rows_written(name, split)
        assert len({example.id for example in examples}) == len(examples)
        assert {example.text_pair is not None for example in examples} == {task.takes_pairs}
        for example in examples:
            if not split.startswith(("train", "dev")):
                assert example.target is None and example.answers is None
            elif task.kind is LABEL:
                assert example.target in range(len(task.labels))
            elif task.kind is SCORE:
                assert isinstance(example.target, float) and 0 <= example.target <= 5
            else:
                assert example.answers is not None and example.text_pair is not None
                passage = example.text_pair
                assert all(passage[a.start :].startswith(a.text) for a in example.answers)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_agrees_with_its_entry_in_the_list(name: str) -> None:
    task, info = build_task(config_of(name)), TASKS[name]
    assert task.name == name and task.source and info.what
    if info.kind is not None:
        assert (task.kind, task.metrics, task.max_length, task.labels) == (
            info.kind,
            info.metrics,
            info.max_length,
            info.labels,
        )


@pytest.mark.parametrize("ending, opener", [(".gz", gzip.open), (".xz", lzma.open)])
@pytest.mark.parametrize("name", [name for name in TASKS if name != "demo"])
def test_compressed_files_give_the_same_examples(name: str, ending: str, opener, tmp_path: Path) -> None:
    plain = build_task(config_of(name))
    folder = tmp_path / "data"
    shutil.copytree(str(config_of(name).data), folder)
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        with opener(f"{path}{ending}", "wb") as handle:
            handle.write(path.read_bytes())
        path.unlink()
    packed = build_task(TaskConfig(name, data=str(folder)))
    assert packed.splits == plain.splits
    assert all(packed.read(split) == plain.read(split) for split in plain.splits)


def test_the_list_has_all_tasks() -> None:
    glue = {"cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"}
    assert set(TASKS) == glue | {"squad2", "squad2_answerable", "files", "demo"}
    assert set(SPLITS) == {"train", "dev", "test"}


@pytest.mark.skipif(not REAL, reason="BERTVISION_REAL_DATA names no folder with real data")
@pytest.mark.parametrize(
    "name, train, dev",
    [("cola", 8551, 1043), ("sst2", 67349, 872), ("mrpc", 3668, 408), ("stsb", 5749, 1500), ("rte", 2490, 277)],
)
def test_real_glue_files_give_the_official_counts(name: str, train: int, dev: int) -> None:
    task = build_task(TaskConfig(name, data=f"{REAL}/glue"))
    assert (len(task.read("train")), len(task.read("dev"))) == (train, dev)
    assert task.read("dev") == build_task(TaskConfig(name, data=f"{REAL}/glue/{GLUE[name].folder}")).read("dev")


@pytest.mark.skipif(not REAL, reason="BERTVISION_REAL_DATA names no folder with real data")
def test_real_squad_files_give_the_official_counts() -> None:
    train = f"{REAL}/squad/train-v2.0.third.json.gz"
    task = build_task(TaskConfig("squad2", data=f"{REAL}/squad", train=train))
    counts = {}
    for split in task.splits:
        examples = task.read(split)
        counts[split] = (len(examples), sum(not example.answers for example in examples))
    assert counts == {"train": (52716, 17572), "dev": (11873, 5945)}
    partial = build_task(TaskConfig("squad2_answerable", train=f"{REAL}/squad/train-v2.0.partial.json.gz"))
    examples = partial.read("train")
    assert (len(examples), sum(example.target == 0 for example in examples)) == (102699, 17572)
