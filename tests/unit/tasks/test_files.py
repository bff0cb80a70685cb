import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertvision.errors import UserError
from bertvision.kinds import KINDS, LABEL, SCORE, SPAN
from bertvision.tasks import TaskConfig, build_task
from bertvision.tasks.files import Columns, find_files, read_file, read_rows
from bertvision.tasks.text_files import reading_up_to

SQUAD_TINY = Path(__file__).parents[2] / "fixtures" / "squad_tiny"
CELL = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))


def write(path: Path, text: str) -> str:
    path.write_bytes(text.encode())
    return str(path)


@given(st.lists(st.tuples(CELL, CELL), min_size=1))
def test_csv_written_by_python_is_read_back(tmp_path_factory: pytest.TempPathFactory, rows: list) -> None:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, quoting=csv.QUOTE_ALL).writerows([("text", "other"), *rows])
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(buffer.getvalue().encode())
    assert [(row["text"], row["other"]) for _, row in read_rows(path)] == rows


def test_tsv_is_not_quoted(tmp_path: Path) -> None:
    write(tmp_path / "a.tsv", 'text\tlabel\n"open\tx\nclose"\ty\n')
    assert [row["text"] for _, row in read_rows(tmp_path / "a.tsv")] == ['"open', 'close"']


def test_another_delimiter_is_recognised_where_the_rows_agree_on_it(tmp_path: Path) -> None:
    for name, text in (
        ("a.csv", 'id;message;intent\n1;"a;b, c";x\n2;d;y\n'),
        ("a.csv", "id\tmessage\tintent\n1\ta;b, c\tx\n2\td\ty\n"),
        ("a.tsv", 'id,message,intent\n1,"a;b, c",x\n2,d,y\n'),
    ):
        write(tmp_path / name, text)
        assert [tuple(row.values()) for _, row in read_rows(tmp_path / name)] == [("1", "a;b, c", "x"), ("2", "d", "y")]
    write(tmp_path / "a.csv", "id;message;intent\n1;a;b;x\n2;d;y\n")
    with pytest.raises(UserError, match="separated by semicolons .id;message;intent.*Enclose cells that contain semi"):
        list(read_rows(tmp_path / "a.csv"))
    write(tmp_path / "a.csv", "text\na;b\nc\n")
    assert [row["text"] for _, row in read_rows(tmp_path / "a.csv")] == ["a;b", "c"]


def test_labels_are_found_in_train_and_sorted(tmp_path: Path) -> None:
    train = write(tmp_path / "t.csv", "review,stars\nfine,good\npoor,bad\nso so,middling\n")
    task = build_task(TaskConfig("files", train=train, text="review", label="stars"))
    assert task.labels == ("bad", "good", "middling") and task.metrics == ("accuracy", "f1_macro")
    assert [example.target for example in task.read("train")] == [1, 0, 2]
    assert [example.id for example in task.read("train")] == ["train-0", "train-1", "train-2"]


def test_given_labels_keep_their_order(tmp_path: Path) -> None:
    train = write(tmp_path / "t.csv", "text,label\nfine,good\npoor,bad\n")
    task = build_task(TaskConfig("files", train=train, labels=["good", "bad"]))
    assert task.labels == ("good", "bad") and task.metrics == ("accuracy", "f1")
    assert [example.target for example in task.read("train")] == [0, 1]


@pytest.mark.parametrize("labels, names", [([0, 1], ("0", "1")), ([False, True], ("false", "true"))])
def test_numbers_and_truth_values_in_json_lines_are_labels(labels: list, names: tuple, tmp_path: Path) -> None:
    rows = [{"text": "a", "label": label} for label in labels]
    train = write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    task = build_task(TaskConfig("files", train=train))
    assert task.labels == names
    assert [example.target for example in task.read("train")] == [0, 1]


def test_pairs_ids_and_scores(tmp_path: Path) -> None:
    train = write(
        tmp_path / "t.jsonl", '{"a": "x", "b": "y", "n": 7, "s": 2}\n{"a": "z", "b": "w", "n": 8, "s": 0.5}\n'
    )
    config = TaskConfig("files", train=train, kind="score", text="a", text_pair="b", label="s", id="n")
    task = build_task(config)
    assert task.kind is SCORE and task.metrics == ("pearson", "spearman")
    assert [(e.id, e.text, e.text_pair, e.target) for e in task.read("train")] == [
        ("7", "x", "y", 2.0),
        ("8", "z", "w", 0.5),
    ]


def test_empty_texts_of_train_and_dev_are_refused_with_their_lines(tmp_path: Path) -> None:
    rows = "".join(f"{'' if n in (1, 3) else 'x'},{' ' if n == 2 else 'y'},bad\n" for n in range(5))
    write(tmp_path / "a.csv", "text,b,label\n" + rows)
    message = (
        r"a.csv: 2 rows have no text in column 'text' \(lines 3 and 5\); 1 row has no text in column 'b' \(line 4\)\. "
        r"Fill them in, or remove these rows\."
    )
    for split in ("train", "dev"):
        with pytest.raises(UserError, match=message):
            read_file(tmp_path / "a.csv", Columns(text_pair="b"), LABEL, ("bad",), split)
    assert len(read_file(tmp_path / "a.csv", Columns(text_pair="b"), LABEL, ("bad",), "test")) == 5


def test_a_test_file_may_lack_labels(tmp_path: Path) -> None:
    train = write(tmp_path / "t.csv", "text,label\nfine,good\npoor,bad\n")
    test = write(tmp_path / "u.csv", "text\nhm\n")
    partly = write(tmp_path / "p.csv", "text,label\nhm,\nah,bad\n")
    assert build_task(TaskConfig("files", train=train, test=test)).read("test")[0].target is None
    examples = build_task(TaskConfig("files", train=train, test=partly)).read("test")
    assert [example.target for example in examples] == [None, 0]


def test_json_files_hold_spans() -> None:
    task = build_task(TaskConfig("files", train=str(SQUAD_TINY / "train-v2.0.json")))
    assert (task.kind, task.windowed, task.max_length) == (SPAN, True, 384)
    assert task.metrics == ("f1", "exact") and len(task.read("train")) == 9
    assert len(build_task(TaskConfig("files", data=str(SQUAD_TINY), kind="span")).read("dev")) == 6


def test_a_folders_files_are_found_by_split(tmp_path: Path) -> None:
    for name in ("train.csv", "validation.tsv", "test.jsonl.gz"):
        (tmp_path / name).touch()
    assert {split: path.name for split, path in find_files(tmp_path).items()} == {
        "train": "train.csv",
        "dev": "validation.tsv",
        "test": "test.jsonl.gz",
    }
    (tmp_path / "train.jsonl").touch()
    with pytest.raises(UserError, match="several train files: train.csv, train.jsonl"):
        find_files(tmp_path)


@pytest.mark.parametrize(
    "name, text, kind, message",
    [
        ("a.csv", "text,label\nx,good\ny,ugly\n", "label", "a.csv, line 3: unknown label 'ugly'.*known: bad, good"),
        ("a.csv", 'text,label\n"x\ny",good\nz,ugly\n', "label", "a.csv, line 4: unknown label 'ugly'"),
        ("a.csv", "text,label\nx,\n", "label", "a.csv, line 2: column 'label' .* is empty"),
        ("a.csv", "text,labels\nx,bad\n", "label", "line 2: there is no column 'label' .*did you mean 'labels'"),
        ("a.csv", "text,label\nx,bad,more\n", "label", "line 2: expected 2 cells, .* found 3"),
        ("a.csv", 'text,label\nx,bad\n"y,bad\n', "label", "line 3: the row that starts here is not valid CSV"),
        ("a.csv", "text,text\nx,bad\n", "label", "two columns have the same name"),
        ("a.csv", "text,label\n", "label", "a.csv has no rows"),
        ("a.csv", "", "label", "a.csv is empty"),
        ("a.tsv", "text\tlabel\nx\thigh\n", "score", "a.tsv, line 2: column 'label' .* must be a number, found 'high'"),
        ("a.tsv", "text\tlabel\nx\tinf\n", "score", "must be a number, found 'inf'"),
        ("a.tsv", "text\tlabel\nx\t\n", "score", "must be a number, found ''"),
        ("a.jsonl", '{"text": "x", "label": true}\n', "score", "must be a number, found True"),
        (
            "a.jsonl",
            '{"text": "x", "label": "bad"}\n{"text": "x", "label"\n',
            "label",
            "a.jsonl, line 2: not valid JSON",
        ),
        ("a.jsonl", '["x", "bad"]\n', "label", r"line 1: expected an object .* found \['x', 'bad'\]"),
        ("a.jsonl", '{"text": 3, "label": "bad"}\n', "label", "line 1: column 'text' .* must be text, found 3"),
        ("a.jsonl", '{"text": "x", "label": null}\n', "label", "line 1: column 'label' .* is empty"),
        ("a.jsonl", '{"text": "x", "label": ["bad"]}\n', "label", "must be one label"),
        ("a.xlsx", "x", "label", "ends in '.xlsx', expected .csv, .tsv, .jsonl"),
    ],
)
def test_a_bad_file_is_reported_with_file_and_line(
    name: str, text: str, kind: str, message: str, tmp_path: Path
) -> None:
    write(tmp_path / name, text)
    with pytest.raises(UserError, match=message):
        read_file(tmp_path / name, Columns(), KINDS[kind], ("bad", "good"), "dev")


def test_repeated_and_empty_ids_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "text,label,n\nx,bad,7\ny,bad,7\n")
    with pytest.raises(UserError, match="more than once: 7"):
        read_file(tmp_path / "a.csv", Columns(id="n"), LABEL, ("bad",), "dev")
    write(tmp_path / "a.csv", "text,label,n\nx,bad,\n")
    with pytest.raises(UserError, match="line 2: column 'n' .* is empty"):
        read_file(tmp_path / "a.csv", Columns(id="n"), LABEL, ("bad",), "dev")


def test_a_single_label_is_refused(tmp_path: Path) -> None:
    train = write(tmp_path / "t.csv", "text,label\nx,bad\ny,bad\n")
    with pytest.raises(UserError, match="only one label: bad"):
        build_task(TaskConfig("files", train=train))


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        list(read_rows(path))
    return str(caught.value)


@pytest.mark.parametrize(("name", "mark"), [("a.csv", ","), ("a.tsv", "\t")])
def test_a_table_can_have_two_thousand_columns(name: str, mark: str, tmp_path: Path) -> None:
    path, names = tmp_path / name, [f"c{number}" for number in range(2001)]
    write(path, mark.join(names[:2000]) + "\n" + mark.join("x" * 2000) + "\n")
    assert len(next(read_rows(path))[1]) == 2000
    write(path, mark.join(names) + "\n")
    assert "line 1: more than 2,000 columns, the most that a table can have." in refusal(path)
    write(path, f"text{mark}label\n" + mark * 5_000_000 + "\n")
    assert "line 2: expected 2 cells" in refusal(path) and len(refusal(path)) < 300


def test_an_object_of_json_lines_can_have_two_thousand_columns(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", json.dumps({f"c{number}": 1 for number in range(2001)}))
    assert "line 1: more than 2,000 columns" in refusal(tmp_path / "a.jsonl")


def test_a_name_of_a_column_is_not_a_text(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "label," + "word " * 100 + "\na,b\n")
    assert "names of columns have at most 200 characters. Does the file begin with a line of names?" in refusal(
        tmp_path / "a.csv"
    )


def test_a_row_of_many_lines_has_a_bound(tmp_path: Path) -> None:
    cell = '"' + "x\n" * 60_000 + '",'  # below the csv module's limit for one cell
    write(tmp_path / "a.csv", "text,label\n" + cell * 200)
    assert "a.csv, line 2: it has more than 16 MB, the most that a row can have" in refusal(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("line", "words"), [("[" * 100_000, "nested too deeply"), ('{"text": ' + "9" * 5000 + "}", "too many digits")]
)
def test_json_lines_that_python_cannot_hold_are_named(line: str, words: str, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"text": "a"}\n' + line + "\n")
    found = refusal(tmp_path / "a.jsonl")
    assert found.startswith(f"{tmp_path / 'a.jsonl'}, line 2: not valid JSON: it ") and found.endswith(f"{words}.")


def test_a_parquet_file_has_the_same_bounds(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["x" * 10_000] * 1000, "label": ["a"] * 1000}), path)
    assert path.stat().st_size < 50_000  # the text is stored once
    with reading_up_to(5):
        assert "the file takes more than the 5 MB allowed" in refusal(path)
    assert len(list(read_rows(path))) == 1000
    parquet.write_table(pyarrow.table({f"c{number}": [1] for number in range(2001)}), path)
    assert "more than 2,000 columns" in refusal(path)
    path.write_bytes(path.read_bytes()[:-200])
    assert "Exception" not in refusal(path) and "is not a valid Parquet file" in refusal(path)


def test_a_label_can_be_any_value_of_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    days = pyarrow.array([0, 1], pyarrow.date32())
    parquet.write_table(pyarrow.table({"text": ["a", "b"], "label": days}), tmp_path / "a.parquet")
    task = build_task(TaskConfig("files", train=str(tmp_path / "a.parquet")))
    assert task.labels == ("1970-01-01", "1970-01-02")


def test_the_setting_raises_what_the_files_of_a_task_may_take(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\n" + "x,a\ny,b\n" * 10_000)  # 20,000 rows of 54 bytes
    with pytest.raises(UserError, match="line 18519: the file takes more than the 1 MB allowed"):
        build_task(TaskConfig("files", train=path, most_megabytes=1))
    assert len(build_task(TaskConfig("files", train=path, most_megabytes=3)).read("train")) == 20_000
