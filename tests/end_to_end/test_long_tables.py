"""Long tables: what waits on disk, and what is predicted in batches, gives what short ones give in memory."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bertvision.data import spooled, windows
from bertvision.pipeline import predict

Command = Callable[..., Any]
HALT = """
import sys, time
from bertvision.data import windows
from bertvision.data.spooled import SpooledArray
from bertvision.pipeline.job import Job, load_config
from bertvision.data import spooled
spooled.MOST_EXAMPLES, spooled.MOST_BYTES, windows.BATCH = 5, 64, 10
job = Job(load_config(sys.argv[1]))
with job.writing():
    assert not isinstance(job.examples("train"), list)
    assert isinstance(job.features("train").input_ids, SpooledArray)
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    words = ["a", "king", "and", "the", "queen", "of", "a", "small", "land", "saw", "the", "old", "man"]
    lines = ["id,text,label"]
    for number in range(120):
        text = " ".join(words[number % 7 : 8 + number % 5]) + f" {number // 2}"
        lines.append(f"row {number},{text},{'yes' if number % 3 else 'no'}")
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "train.csv"


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """From the call on, everything but the first few rows and tokens waits on disk."""

    def begin() -> None:
        for module, name, value in (
            (spooled, "MOST_EXAMPLES", 5), (spooled, "BLOCK", 4), (spooled, "MOST_BYTES", 64), (spooled, "PIECE", 7),
            (windows, "BATCH", 10),
        ):  # fmt: skip
            monkeypatch.setattr(module, name, value)

    yield begin


@pytest.fixture
def config(table: Path, tmp_path: Path, write_config: Callable[..., Path]) -> Callable[[str], Path]:
    def write(name: str) -> Path:
        (tmp_path / name).mkdir()
        path = write_config(tmp_path / name, name="files", train=table, id="id")
        path.write_text(path.read_text().replace("[data]", "dev_share = 0.2\n[data]"))
        return path

    return write


def store_of(folder: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """The shards of a store with their hashes, and its identity."""
    (place,) = (folder / "run" / "states").iterdir()
    shards = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in place.glob("states-*")}
    return shards, json.loads((place / "manifest.json").read_text())["identity"]


def test_a_store_of_a_table_on_disk_is_that_of_one_in_memory(
    config: Callable[[str], Path], command: Command, on_disk: Callable[[], None]
) -> None:
    settings = ['heads=["linear"]', "store.shard_mb=1"]
    one, other = config("one"), config("other")
    assert command("encode", one, *settings).code == 0
    on_disk()
    said = command("encode", other, *settings)
    assert said.code == 0, said.err
    assert store_of(one.parent) == store_of(other.parent)
    assert store_of(one.parent)[0]


def test_a_run_on_a_table_in_memory_is_finished_when_the_table_is_on_disk(
    config: Callable[[str], Path], command: Command, on_disk: Callable[[], None]
) -> None:
    """The fingerprints of data, windows and results are the same."""
    path = config("one")
    first = command("run", path, "--json")
    assert first.code == 0, first.err
    folder = path.parent / "run"
    stamps = {one: one.stat().st_mtime_ns for one in folder.rglob("stamp.json")}
    on_disk()
    again = command("run", path, "--json")
    assert again.code == 0, again.err
    assert "fine-tuning: already done" in again.err
    assert again.json["snapshots"] == first.json["snapshots"]
    assert {one: one.stat().st_mtime_ns for one in folder.rglob("stamp.json")} == stamps and len(stamps) > 3


def test_a_run_on_a_table_on_disk_has_the_scores_of_one_in_memory(
    config: Callable[[str], Path], command: Command, on_disk: Callable[[], None]
) -> None:
    settings = ['heads=["linear"]', "train.source=stored", "--json"]
    wanted = command("run", config("one"), *settings).json["snapshots"]
    on_disk()
    found = command("run", config("other"), *settings)
    assert found.code == 0, found.err
    for epochs, models in wanted.items():
        for name, model in models.items():
            assert found.json["snapshots"][epochs][name]["scores"] == model["scores"], name


def test_a_killed_run_leaves_nothing_of_what_waited_on_disk(
    config: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    path = config("one")
    process = subprocess.Popen([sys.executable, "-c", HALT, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert [one.name for one in (path.parent / "run").rglob("*")] == [".lock"]


# ---------------------------------------------------------------------- predict --file


def new_texts(folder: Path, pairs: bool = False) -> Path:
    """Rows with repeated ids, and some without a text."""
    lines = []
    for number in range(23):
        row = {"id": f"row {number % 20}", "text": "" if number in (0, 5, 22) else f"the old king {number} \u2028 é"}
        lines.append(json.dumps(row | ({"text_pair": "a man"} if pairs else {})))
    (folder / "new.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "new.jsonl"


@pytest.fixture
def model(config: Callable[[str], Path], command: Command) -> Path:
    path = config("model")
    said = command("run", path, 'heads=["linear"]')
    assert said.code == 0, said.err
    return path.parent / "run"


@pytest.fixture(params=["run", "kit"])
def predicting(request: pytest.FixtureRequest, model: Path, command: Command, tmp_path: Path) -> Path:
    if request.param == "run":
        return model
    # A kit has untouched encoders.
    path = tmp_path / "untouched.toml"
    path.write_text((model.parent / "config.toml").read_text().replace(f"{model}", f"{tmp_path / 'untouched'}"))
    said = command("run", path, 'heads=["linear"]', "finetune.epochs=0", "finetune.snapshots=[]")
    assert said.code == 0, said.err
    said = command("kit", tmp_path / "untouched", "--to", tmp_path / "kit")
    assert said.code == 0, said.err
    return tmp_path / "kit"


def assert_same(found: Any, wanted: Any) -> None:
    """Equal, but for the rounding of numbers: other texts are in a batch."""
    if isinstance(wanted, float):
        assert found == pytest.approx(wanted, abs=1e-4)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key, value in wanted.items():
            assert_same(found[key], value)
    elif isinstance(wanted, list):
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    else:
        assert found == wanted


def test_batches_give_the_answers_of_one_pass(
    predicting: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disk: Callable[[], None]
) -> None:
    file = new_texts(tmp_path)
    asked = ["predict", predicting, "--file", file]
    wanted = [command(*asked, "--out", tmp_path / "one.jsonl"), command(*asked, "--json"), command(*asked)]
    monkeypatch.setattr(predict, "MOST_ROWS", 4)
    on_disk()
    found = [command(*asked, "--out", tmp_path / "two.jsonl"), command(*asked, "--json"), command(*asked)]
    for one, other in zip(found, wanted, strict=True):
        assert one.code == other.code == 1
        assert "error: 3 of 23 rows could not be predicted." in one.err
        assert len(one.out.splitlines()) == len(other.out.splitlines())
    one, other = ((tmp_path / name).read_text() for name in ("two.jsonl", "one.jsonl"))
    rows = [json.loads(line) for line in one.split("\n")[:-1]]
    assert_same(rows, [json.loads(line) for line in other.split("\n")[:-1]])
    assert [row["id"] for row in rows] == [f"row {number % 20}" for number in range(23)]
    assert ["error" in row for row in rows] == [number in (0, 5, 22) for number in range(23)]
    assert_same(found[1].json, wanted[1].json)
    assert_same(found[1].json, rows)
    for said in (*found[1:2], *wanted[1:2]):
        assert said.out == json.dumps(said.json, indent=2, ensure_ascii=False) + "\n"


def test_a_json_file_is_one_object_in_order(
    predicting: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = new_texts(tmp_path), tmp_path / "out.json"
    refused = command("predict", predicting, "--file", file, "--out", out)
    assert (
        refused.code == 2 and "ids must be unique, but these occur more than once: row 0, row 1, row 2." in refused.err
    )
    assert not out.exists()
    rows = [json.loads(line) for line in file.read_text().split("\n")[:-1]]
    file.write_text("\n".join(json.dumps({**row, "id": f"{n} \ud83d"}) for n, row in enumerate(rows)) + "\n")
    monkeypatch.setattr(predict, "MOST_ROWS", 4)
    command("predict", predicting, "--file", file, "--out", out)
    text = out.read_text()
    found = json.loads(text)
    assert list(found) == [f"{number} \ud83d" for number in range(23) if number not in (0, 5, 22)]
    rendered = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    assert text.encode() == rendered.encode("utf-8", "backslashreplace")


def test_a_file_in_which_nothing_can_be_predicted_gives_an_empty_object(
    model: Path, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "new.csv").write_text('text,id\n"",a\n" ",b\n')
    said = command("predict", model, "--file", tmp_path / "new.csv", "--out", tmp_path / "out.json")
    assert said.code == 1 and (tmp_path / "out.json").read_text() == "{}\n"


def test_a_damaged_line_is_found_before_anything_is_predicted(model: Path, command: Command, tmp_path: Path) -> None:
    file = new_texts(tmp_path)
    with file.open("a") as lines:
        lines.write("{\n")
    started = time.monotonic()
    for out in ([], ["--out", tmp_path / "out.jsonl"]):
        said = command("predict", model, "--file", file, *out)
        assert said.code == 2 and "line 24: not valid JSON" in said.err and said.out == ""
    assert not (tmp_path / "out.jsonl").exists() and time.monotonic() - started < 120
