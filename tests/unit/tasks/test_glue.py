import warnings
from pathlib import Path

import pytest

from bertvision.errors import UserError
from bertvision.tasks import TaskConfig, build_task
from bertvision.tasks.glue import GLUE, find_glue_files, read_glue

TINY = Path(__file__).parents[2] / "fixtures" / "glue_tiny"


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_quotes_and_unicode_line_breaks_stay_in_the_text() -> None:
    texts = [example.text for example in read_glue(GLUE["cola"], TINY / "CoLA" / "train.tsv", "train")]
    assert texts[:2] == ['He said "stop and left 0 .', "A line\u2028break and a\u0085next line inside 1 ."]


def test_carriage_returns_of_dos_files_are_not_part_of_the_label() -> None:
    assert b"\r\n" in (TINY / "SST-2" / "dev.tsv").read_bytes()
    examples = read_glue(GLUE["sst2"], TINY / "SST-2" / "dev.tsv", "dev")
    assert [example.target for example in examples] == [0, 1, 0, 1, 0]
    assert examples[0].text == 'He said "stop and left 0 . '  # including its last space


def test_ids_are_the_index_of_the_file_or_the_row_number() -> None:
    assert [example.id for example in read_glue(GLUE["qqp"], TINY / "QQP" / "dev.tsv", "dev")][:2] == [
        "dev-1000",
        "dev-1001",
    ]
    assert read_glue(GLUE["mrpc"], TINY / "MRPC" / "dev.tsv", "dev")[3].id == "dev-3"


def test_labels_are_in_the_order_of_the_hub_dataset() -> None:
    # As the label features of nyu-mll/glue list them.
    assert {name: row.labels for name, row in GLUE.items()} == {
        "cola": ("unacceptable", "acceptable"),
        "sst2": ("negative", "positive"),
        "mrpc": ("not_equivalent", "equivalent"),
        "stsb": (),
        "qqp": ("not_duplicate", "duplicate"),
        "mnli": ("entailment", "neutral", "contradiction"),
        "qnli": ("entailment", "not_entailment"),
        "rte": ("entailment", "not_entailment"),
        "wnli": ("not_entailment", "entailment"),
    }
    rte = read_glue(GLUE["rte"], TINY / "RTE" / "train.tsv", "train")
    assert [example.target for example in rte[:2]] == [0, 1]


def test_mnli_reads_the_gold_label_and_has_two_dev_sets_and_the_diagnostic_set() -> None:
    task = build_task(TaskConfig("mnli", data=str(TINY)))
    assert task.dev_splits == ("dev_matched", "dev_mismatched")
    assert set(task.splits) - set(task.dev_splits) == {"train", "test_matched", "test_mismatched", "ax"}
    assert [example.target for example in task.read("dev_mismatched")] == [0, 1, 2, 0, 1, 2]
    assert [example.id for example in task.read("ax")] == ["ax-0", "ax-1", "ax-2"]


def test_explicit_mnli_files_keep_their_official_split() -> None:
    files = {"dev": "dev_mismatched", "test": "test_matched"}
    task = build_task(
        TaskConfig("mnli", **{split: str(TINY / "MNLI" / f"{name}.tsv") for split, name in files.items()})
    )
    assert task.splits == ("dev_mismatched", "test_matched")
    task = build_task(TaskConfig("mnli", test=str(TINY / "diagnostic" / "diagnostic.tsv")))
    assert [example.target for example in task.read("ax")] == [None, None, None]


def test_the_folder_is_found_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "sst2").mkdir()
    file = write(tmp_path / "sst2" / "dev.tsv", "sentence\tlabel\ngood\t1\n")
    assert find_glue_files(GLUE["sst2"], tmp_path) == {"dev": file}
    with pytest.raises(UserError, match="no CoLA files in .* Set task.data"):
        find_glue_files(GLUE["cola"], tmp_path)


def test_the_test_file_of_mrpc_is_never_used_as_dev(tmp_path: Path) -> None:
    for name in ("train.tsv", "test.tsv"):
        write(tmp_path / name, (TINY / "MRPC" / name).read_text("utf-8-sig"))
    task = build_task(TaskConfig("mrpc", data=str(tmp_path)))
    assert task.dev_splits == ()
    with pytest.raises(UserError, match="has no split 'dev'.*it has train, test"):
        task.read("dev")


def qqp(tmp_path: Path, malformed: list[str], valid: int = 10) -> Path:
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    rows = [f"{i}\t1\t2\ta{i}\tb{i}\t{i % 2}" for i in range(valid)]
    return write(tmp_path / "train.tsv", "\n".join([header, *rows[:2], *malformed, *rows[2:]]) + "\n")


def test_malformed_rows_of_qqp_are_skipped_with_a_warning(tmp_path: Path) -> None:
    path = qqp(tmp_path, ["77\t1\t2\tthe first half", "the other half\tb\t1"])
    with pytest.warns(UserWarning, match=r"2 of 12 lines are malformed, .*\(line 4, 5\)"):
        examples = read_glue(GLUE["qqp"], path, "train")
    assert [example.text for example in examples] == [f"a{i}" for i in range(10)]


def test_many_malformed_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="4 of 14 lines are malformed"):
        read_glue(GLUE["qqp"], qqp(tmp_path, ["half"] * 4), "train")


def test_a_valid_qqp_file_raises_no_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(read_glue(GLUE["qqp"], qqp(tmp_path, []), "train")) == 10


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("rte", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\n", "train.tsv, line 2: expected 4 cells .* found 3"),
        ("rte", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tc\tentailment\n", "line 2: expected 4 cells .* found 5"),
        ("rte", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n", "line 2: unknown label 'maybe'.*entailment"),
        ("rte", "index\tsentence1\tsentence2\tlabel\n", "train.tsv has a header but no rows"),
        (
            "rte",
            "index\tpremise\tsentence2\tlabel\n0\ta\tb\tentailment\n",
            "no column sentence1; it has index, premise",
        ),
        ("rte", "index\tsentence1\tsentence2\n0\ta\tb\n", "no column label"),
        ("rte", "", "train.tsv is empty"),
        ("wnli", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n0\ta\tb\t1\n", "more than once: train-0"),
        ("cola", "source\tlabel\tmark\tsentence\ngj04\t1\t\tGo .\n", "line 1: unknown label 'label'"),
        ("stsb", "index\tsentence1\tsentence2\tscore\n0\ta\tb\tlots\n", "line 2: the score must be .* found 'lots'"),
        ("stsb", "index\tsentence1\tsentence2\tscore\n0\ta\tb\t5.1\n", "line 2: the score must be .* found '5.1'"),
        ("stsb", "index\tsentence1\tsentence2\tscore\n0\ta\tb\tnan\n", "line 2: the score must be .* found 'nan'"),
    ],
)
def test_a_bad_file_is_reported_with_file_and_line(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read_glue(GLUE[name], write(tmp_path / "train.tsv", text), "train")
