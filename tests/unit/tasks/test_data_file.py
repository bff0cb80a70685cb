"""Tables at an address (a real S3 server on loopback, and memory) are read as files are, with bounded memory."""

import gzip
import io
import json
import lzma
import socket
import uuid
from collections.abc import Callable
from pathlib import Path

import fsspec
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from s3_server import forget_server

from bertvision.data.examples import Example
from bertvision.errors import ConfigError, UserError
from bertvision.network import no_downloads
from bertvision.tasks import TaskConfig, build_task
from bertvision.tasks.data_file import Address, find_data_file
from bertvision.tasks.new_text import read_any_text
from bertvision.tasks.text_batches import MOST_CHARACTERS, batches_of, read_row_batches

s3fs = pytest.importorskip("s3fs")
pytestmark = pytest.mark.usefixtures("credentials")
ROWS = [(f"text {number} é", ["good", "bad"][number % 2]) for number in range(2500)]


def as_csv(delimiter: str = ",") -> bytes:
    return ("\n".join(delimiter.join(row) for row in [("text", "label"), *ROWS]) + "\n").encode()


def as_json_lines() -> bytes:
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS).encode()


def as_parquet() -> bytes:
    file, (texts, labels) = io.BytesIO(), zip(*ROWS, strict=True)
    parquet.write_table(pyarrow.table({"text": texts, "label": labels}), file, row_group_size=700)
    return file.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "a.csv": as_csv,
    "a.tsv": lambda: as_csv("\t"),
    "semicolons.csv": lambda: as_csv(";"),
    "a.jsonl": as_json_lines,
    "a.parquet": as_parquet,
    "a.csv.gz": lambda: gzip.compress(as_csv()),
    "a.jsonl.xz": lambda: lzma.compress(as_json_lines()),
}


@pytest.fixture(params=["s3", "memory"])
def place(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("bucket") if request.param == "s3" else f"memory://{uuid.uuid4()}"


def put(address: str, data: bytes) -> str:
    with fsspec.open(address, "wb") as file:
        file.write(data)
    return address


@pytest.mark.parametrize("name", FILES)
def test_a_table_at_an_address_has_the_examples_of_the_file(name: str, place: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FILES[name]())
    address = put(f"{place}/deep/{name}", FILES[name]())
    found, wanted = (build_task(TaskConfig("files", train=train)) for train in (address, str(tmp_path / name)))
    assert found.labels == wanted.labels == ("bad", "good")
    assert list(found.read("train")) == list(wanted.read("train"))
    assert [one.text for one in found.read("train")] == [text for text, _ in ROWS]
    assert list(read_any_text(Address(address))) == list(read_any_text(tmp_path / name))


@pytest.mark.parametrize("name", FILES)
def test_batches_are_the_rows_in_order(name: str, bucket: str) -> None:
    address = put(f"{bucket}/{name}", FILES[name]())
    batches = list(read_row_batches(address, rows=999))
    assert [len(batch) for batch in batches] == [999, 999, 502]
    assert [(row["text"], row["label"]) for batch in batches for _, row in batch] == ROWS
    assert all(place.startswith(f"{address}, ") for batch in batches for place, _ in batch)


@settings(deadline=None)
@given(st.lists(st.integers(0, MOST_CHARACTERS + 1), max_size=9), st.integers(1, 4))
def test_a_batch_ends_at_a_number_of_rows_or_of_characters(sizes: list[int], rows: int) -> None:
    class Text(str):
        """Of a length, without its characters."""

        def __len__(self) -> int:
            return int(self)

    examples = [Example(str(number), Text(size)) for number, size in enumerate(sizes)]
    batches = list(batches_of(examples, rows))
    assert [one for batch in batches for one in batch] == examples
    for number, batch in enumerate(batches):
        before = sum(len(one.text) for one in batch[:-1])
        assert 1 <= len(batch) <= rows and before < MOST_CHARACTERS
        assert number == len(batches) - 1 or len(batch) == rows or before + len(batch[-1].text) >= MOST_CHARACTERS


def test_a_batch_before_a_damaged_line_is_given(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 4 + "{\n")
    batches = read_row_batches(tmp_path / "a.jsonl", rows=2)
    assert [len(next(batches)), len(next(batches))] == [2, 2]
    with pytest.raises(UserError, match="line 5: not valid JSON"):
        next(batches)


def test_a_missing_object_is_named(place: str) -> None:
    with pytest.raises(UserError, match=f"there is no file {place}/none.csv"):
        build_task(TaskConfig("files", train=f"{place}/none.csv"))
    with pytest.raises(UserError, match=f"there is no file {place}/none.parquet"):
        next(read_row_batches(f"{place}/none.parquet"))


@pytest.mark.parametrize("address", ["http://x/a.csv", "ftp://x/a.csv", "zip://a.csv::http://x"])
def test_other_schemes_are_refused_before_any_request(address: str) -> None:
    with pytest.raises(ConfigError, match=r"is not the address of task.train: give a file, or an address that begins"):
        build_task(TaskConfig("files", train=address))
    with pytest.raises(UserError, match="is not the address of a data file"):
        find_data_file(address)


def test_a_file_address_is_a_path(tmp_path: Path) -> None:
    assert find_data_file(f"file://{tmp_path}/a.csv") == tmp_path / "a.csv"


def test_what_only_a_file_names_is_not_fetched(bucket: str) -> None:
    address = put(f"{bucket}/a.csv", as_csv())
    with no_downloads(), pytest.raises(UserError, match="does not download what is only named in a file"):
        build_task(TaskConfig("files", train=address))


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.xz", "a.parquet"])
def test_a_truncated_object_is_reported_as_a_file_is(name: str, bucket: str) -> None:
    address = put(f"{bucket}/{name}", FILES[name]()[:-200])
    with pytest.raises(UserError, match=f"{address} is (truncated|not a valid)"):
        list(read_row_batches(address))


@pytest.mark.usefixtures("new_client")
def test_an_unreachable_server_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        forget_server()
        with pytest.raises(UserError, match="can't be read .*check the address, the network and the credentials"):
            next(read_row_batches("s3://bucket/a.csv"))


def test_a_replaced_object_is_read_again(bucket: str) -> None:
    address = put(f"{bucket}/a.csv", b"text\nold\n")
    assert [row["text"] for batch in read_row_batches(address) for _, row in batch] == ["old"]
    files = s3fs.S3FileSystem(skip_instance_cache=True)  # as in another process
    files.pipe_file(address.removeprefix("s3://"), b"text\nnew and longer\n")
    assert [row["text"] for batch in read_row_batches(address) for _, row in batch] == ["new and longer"]
