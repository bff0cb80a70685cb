import shutil
from pathlib import Path

import numpy
import pytest

from bertvision.data.examples import Example
from bertvision.errors import UserError
from bertvision.tasks.describe import describe_examples, describe_folder

FIXTURES = Path(__file__).parents[2] / "fixtures"


def by_split(folder: Path) -> dict:
    return {(entry["task"], entry["split"]): entry for entry in describe_folder(folder)}


def test_all_tasks_below_a_folder_are_found() -> None:
    entries = by_split(FIXTURES)
    glue = {"cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"}
    assert {task for task, _ in entries} == glue | {"squad2", "files"}
    assert not [entry for entry in entries.values() if "error" in entry]
    assert entries["mnli", "dev_mismatched"]["rows"] == 6 and entries["mnli", "ax"]["rows"] == 3
    assert entries["rte", "dev"]["labels"] == {"entailment": 3 / 5, "not_entailment": 2 / 5}
    assert entries["squad2", "dev"]["answerable"] == 4 / 6
    assert entries["stsb", "dev"]["scores"] == {"mean": 2.5, "min": 0.0, "max": 5.0}
    assert "labels" not in entries["rte", "test"] and "answerable" not in entries["squad2", "test"]


@pytest.mark.parametrize("name", ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI"])
def test_a_task_folder_is_also_recognised_by_its_files(name: str, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "glue_tiny" / name, tmp_path / "renamed")
    assert {entry["task"] for entry in describe_folder(tmp_path / "renamed")} == {name.lower().replace("-", "")}


def test_lengths_are_percentiles_by_nearest_rank() -> None:
    examples = [Example(str(n), "w " * n, "v " * (n % 3)) for n in range(1, 138)]
    lengths = [n + n % 3 for n in range(1, 138)]
    expected = {str(p): numpy.percentile(lengths, p, method="inverted_cdf") for p in (50, 90, 98, 100)}
    assert describe_examples(examples, ())["words"] == expected


def test_a_broken_file_is_listed_with_the_valid_ones(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "glue_tiny" / "RTE", tmp_path / "RTE")
    (tmp_path / "RTE" / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n")
    (tmp_path / "squad").mkdir()
    for name in ("train-a.json", "train-b.json"):
        shutil.copy(FIXTURES / "squad_tiny" / "train-v2.0.json", tmp_path / "squad" / name)
    (tmp_path / "squad" / "dev.json").write_text("{")
    entries = describe_folder(tmp_path)
    assert [Path(entry["file"]).name for entry in entries if entry["task"] == "squad2"] == [
        "train-a.json",
        "train-b.json",
        "dev.json",
    ]
    errors = {Path(entry["file"]).name: entry["error"] for entry in entries if "error" in entry}
    assert "line 2: unknown label 'maybe'" in errors["dev.tsv"] and "line 1" in errors["dev.json"]
    assert len(errors) == 2


def test_the_entry_reports_malformed_lines(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "glue_tiny" / "QQP", tmp_path / "QQP")
    with open(tmp_path / "QQP" / "train.tsv", "a") as handle:
        handle.write("a malformed row\n")
    entry = by_split(tmp_path)["qqp", "train"]
    assert entry["rows"] == 8 and "1 of 9 lines are malformed" in entry["warning"]


def test_many_different_numbers_are_scores(tmp_path: Path) -> None:
    rows = [f"text {n},{n / 10}" for n in range(30)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    assert by_split(tmp_path)["files", "train"]["scores"] == {"mean": pytest.approx(1.45), "min": 0.0, "max": 2.9}


def test_own_files_with_other_columns_are_listed_with_their_columns(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("review,stars\nfine,5\n")
    assert "no column 'text' (task.text): choose from review, stars" in by_split(tmp_path)["files", "train"]["error"]


def test_an_empty_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="found no data in .* looked for GLUE folders"):
        describe_folder(tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        describe_folder(tmp_path / "none")
