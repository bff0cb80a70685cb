"""Files in, Parquet files out: what a worker does with a file, without Ray."""

import gzip
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertvision.data.examples import Example
from bertvision.disk import TEMPORARY, host_name, temporary
from bertvision.errors import UserError
from bertvision.kinds import LABEL
from bertvision.sources.store.location import open_location
from bertvision.tasks.files import Columns

parquet = pytest.importorskip("pyarrow.parquet")
pyarrow = pytest.importorskip("pyarrow")

from bertvision.cluster import files  # noqa: E402
from bertvision.cluster.files import find_inputs, open_file_worker, read_output_stamp  # noqa: E402


class Lengths:
    """A model whose label is the length of the text. It fails on some."""

    kinds = {"prediction": LABEL}
    choices = [Columns("text", "text_pair"), Columns("text", None)]
    stamp = "lengths"

    def rows(self, examples: list[Example]) -> list[dict[str, Any]]:
        if any(one.text == "crash" for one in examples):
            raise RuntimeError("the process dies here")
        return [
            {"prediction": {"label": str(len(one.text)), "probabilities": {one.text: 1.0}}}
            if one.text.strip()
            else {"error": "the text is empty."}
            for one in examples
        ]


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "open_answers", lambda *_, **__: Lengths())


def write_csv(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("id,text\n" + "".join(f"{path.stem}-{number},{text}\n" for number, text in enumerate(texts)))
    return path


def predict(source: str, out: str, with_texts: bool = True) -> dict[str, dict[str, Any]]:
    """All files, in this process."""
    place = open_location(out)
    stamp = files.fingerprint(files.FORMAT, Lengths.stamp, with_texts)
    work = open_file_worker("model", {}, out, stamp, with_texts)
    missing = files._missing(find_inputs(source, place), place, stamp)
    return {one.output: work(vars(one), lambda _: None) for one in missing}


def rows_of(path: Path) -> list[dict[str, Any]]:
    return parquet.read_table(path).to_pylist(maps_as_pydicts="strict")


def test_every_row_is_written_once_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertvision.cluster.reading.BATCH", 7)
    texts = [f"text number {number}" for number in range(30)]
    write_csv(tmp_path / "in/a.csv", texts)
    (found,) = predict(str(tmp_path / "in"), str(tmp_path / "out")).values()
    assert (found["rows"], found["errors"]) == (30, 0)
    rows = rows_of(tmp_path / "out/a.csv.parquet")
    assert [row["id"] for row in rows] == [f"a-{number}" for number in range(30)]
    assert [row["prediction"]["label"] for row in rows] == [str(len(text)) for text in texts]
    assert [row["text"] for row in rows] == texts


def test_formats_give_the_same_rows(tmp_path: Path) -> None:
    table = {"id": ["1", "2", "3"], "text": ["a", "bcd", ""], "text_pair": ["x", "y", "z"]}
    lines = "".join(json.dumps(dict(zip(table, row, strict=True))) + "\n" for row in zip(*table.values(), strict=True))
    (tmp_path / "in").mkdir()
    parquet.write_table(pyarrow.table(table), tmp_path / "in/a.parquet")
    (tmp_path / "in/b.jsonl").write_text(lines)
    (tmp_path / "in/c.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "in/d.csv").write_text("id,text,text_pair\n1,a,x\n2,bcd,y\n3,,z\n")
    (tmp_path / "in/e.tsv").write_text("id\ttext\ttext_pair\n1\ta\tx\n2\tbcd\ty\n3\t\tz\n")
    predict(str(tmp_path / "in"), str(tmp_path / "out"))
    found = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in found] == [
        "a.parquet", "b.jsonl.parquet", "c.jsonl.gz.parquet", "d.csv.parquet", "e.tsv.parquet",
    ]  # fmt: skip
    assert len({json.dumps(rows_of(path)) for path in found}) == 1
    assert [row["error"] for row in rows_of(found[0])] == [None, None, "the text is empty."]


def test_a_bad_row_is_reported_and_a_bad_file_has_no_output(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/rows.jsonl").write_text('{"text": "fine"}\n{"text": 5}\n{"other": 1}\n{"text": "fine too"}\n')
    (tmp_path / "in/cut.csv").write_text('text,x\nfine,1\n"not ended,2\n')
    (tmp_path / "in/columns.csv").write_text("words\nfine\n")
    write_csv(tmp_path / "in/good.csv", ["fine"])
    found = predict(str(tmp_path / "in"), str(tmp_path / "out"))
    assert "not valid CSV" in found["cut.csv.parquet"]["problem"]
    assert "expected one of these sets of columns" in found["columns.csv.parquet"]["problem"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["good.csv.parquet", "rows.jsonl.parquet"]
    errors = [row["error"] for row in rows_of(tmp_path / "out/rows.jsonl.parquet")]
    assert errors == [None, "column 'text' must be text, found 5.", "the text is empty.", None]
    assert found["rows.jsonl.parquet"]["errors"] == 2


def test_texts_can_be_left_out(tmp_path: Path) -> None:
    write_csv(tmp_path / "in/a.csv", ["one"])
    predict(str(tmp_path / "in"), str(tmp_path / "out"), with_texts=False)
    assert rows_of(tmp_path / "out/a.csv.parquet")[0].keys() == {"id", "prediction", "error"}


def test_finished_files_are_skipped_and_others_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = str(tmp_path / "in"), str(tmp_path / "out")
    for name in "ab":
        write_csv(tmp_path / f"in/{name}.csv", ["one", "two"])
    assert len(predict(source, out)) == 2 and predict(source, out) == {}
    write_csv(tmp_path / "in/c.csv", ["three"])
    assert list(predict(source, out)) == ["c.csv.parquet"]
    with pytest.raises(UserError, match=r"a\.csv\.parquet' was predicted by another model, or with other options"):
        predict(source, out, with_texts=False)
    monkeypatch.setattr(Lengths, "stamp", "another")
    with pytest.raises(UserError, match=r"a\.csv\.parquet' was predicted by another model"):
        predict(source, out)
    monkeypatch.undo()
    monkeypatch.setattr(files, "open_answers", lambda *_, **__: Lengths())
    write_csv(tmp_path / "in/b.csv", ["one", "other"])
    os.utime(tmp_path / "in/b.csv", (1, 1))
    with pytest.raises(UserError, match=r"b\.csv\.parquet' was predicted from another version"):
        predict(source, out)
    (tmp_path / "out/b.csv.parquet").write_bytes(b"mine")
    with pytest.raises(UserError, match="is not an output of"):
        predict(source, out)
    assert (tmp_path / "out/b.csv.parquet").read_bytes() == b"mine"


def test_a_worker_with_another_model_refuses_to_work(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is another model than here"):
        open_file_worker("model", {}, str(tmp_path), "other stamp", True)


def test_a_file_that_fails_midway_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertvision.cluster.reading.BATCH", 2)
    write_csv(tmp_path / "in/a.csv", ["one", "two", "crash", "four"])
    out = str(tmp_path / "out")
    with pytest.raises(RuntimeError, match="dies here"):
        predict(str(tmp_path / "in"), out)
    place = open_location(out)
    assert place.sizes() == {} and place.half_written() == {}
    write_csv(tmp_path / "in/a.csv", ["one", "two", "three", "four"])
    assert predict(str(tmp_path / "in"), out)["a.csv.parquet"]["rows"] == 4
    assert list(place.sizes()) == ["a.csv.parquet"] and read_output_stamp(place, "a.csv.parquet") is not None


# ---------------------------------------------------------------------- which files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a.csv", "b.jsonl", "2024/c.csv", "2025/d.csv", "notes.txt", ".hidden.csv", f"{TEMPORARY}x.csv"):
        write_csv(tmp_path / "in" / name, ["one"])
    return tmp_path / "in"


@pytest.mark.parametrize(
    ("pattern", "outputs"),
    [
        ("", ["2024/c.csv", "2025/d.csv", "a.csv", "b.jsonl"]),
        ("/a.csv", ["a.csv"]),
        ("/*.csv", ["a.csv"]),
        ("/202?/*.csv", ["2024/c.csv", "2025/d.csv"]),
        ("/2024/*", ["c.csv"]),
        ("/**/*.csv", ["2024/c.csv", "2025/d.csv", "a.csv"]),
    ],
)
def test_a_path_a_pattern_and_a_folder_name_files(tree: Path, pattern: str, outputs: list[str], tmp_path: Path) -> None:
    found = find_inputs(f"{tree}{pattern}", open_location(tmp_path / "out"))
    assert [one.output for one in found] == [f"{name}.parquet" for name in outputs]
    assert all(Path(one.address).is_file() for one in found)


def test_the_same_patterns_name_files_at_an_address(tree: Path, tmp_path: Path) -> None:
    root = f"memory://{uuid.uuid4()}/in"
    for path in tree.rglob("*.csv"):
        open_location(f"{root}/{path.parent.relative_to(tree)}".removesuffix("/.")).write(
            path.name, [memoryview(path.read_bytes())]
        )
    out = open_location(tmp_path / "out")
    for pattern in ("", "/a.csv", "/*.csv", "/202?/*.csv", "/2024/*"):
        here = [one.output for one in find_inputs(f"{tree}{pattern}", out) if ".csv" in one.output]
        assert [one.output for one in find_inputs(f"{root}{pattern}", out)] == here
    assert predict(f"{root}/202?/*.csv", str(tmp_path / "out"))["2024/c.csv.parquet"]["rows"] == 1
    assert rows_of(tmp_path / "out/2024/c.csv.parquet")[0]["id"] == "c-0"


def test_wrong_places_are_refused(tree: Path, tmp_path: Path) -> None:
    out = open_location(tmp_path / "out")
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: find_inputs(str(tree / "*.xlsx"), out), "no file to predict on"),
        (lambda: find_inputs(str(tree / "notes.txt"), out), r"found '?.*notes\.txt"),
        (lambda: find_inputs("http://host/a.csv", out), "address of a file"),
        (lambda: find_inputs(str(tree), open_location(tree)), "is where the input files are"),
    ]
    for act, words in cases:
        with pytest.raises(UserError, match=words):
            act()


def test_what_was_half_written_on_lost_machines_is_removed(tmp_path: Path) -> None:
    names = [f"{TEMPORARY}a.parquet@{host}-1-0a" for host in ("node_1", "node_2", "other")]
    names += [f"{TEMPORARY}b.parquet@node_1-1-0a", temporary(Path("a.parquet")) + "0b"]
    for name in names:
        (tmp_path / name).write_bytes(b"half")
    open_location(tmp_path).sweep(["a.parquet"], {"node_1", "node_2", host_name()})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[2:])  # this process is alive
