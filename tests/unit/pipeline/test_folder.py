"""The run folder: stamps of finished stages, the log, and sweeping of temporary files."""

import json
from pathlib import Path

from bertvision.disk import mark_done, read_json, temporary, write_json, write_text, writing_folder
from bertvision.pipeline.folder import RunFolder, snapshot_name


def test_sweeping_removes_temporary_files_and_no_user_files(tmp_path: Path) -> None:
    mine = [tmp_path / ".git" / "config", tmp_path / "sub" / ".venv" / "x", tmp_path / ".env"]
    for path in mine:
        write_text(path, "mine")
    done = tmp_path / "snapshots" / "epoch_1"
    write_json(done / "config.json", {})
    before = {path for path in tmp_path.rglob("*")}
    block = writing_folder(done / "encoder")
    (block.__enter__() / "half").write_text("half")  # a kill: the block never ends
    (done / f"{temporary(done / 'scores.json')}abc").write_text("half")
    assert {path for path in tmp_path.rglob("*")} > before
    RunFolder(tmp_path).sweep()
    assert {path for path in tmp_path.rglob("*")} == before


def test_sweeping_a_missing_folder_does_nothing(tmp_path: Path) -> None:
    RunFolder(tmp_path / "none").sweep()
    assert not list(tmp_path.iterdir())


def test_a_stage_is_done_only_if_the_stamp_matches(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert not run.is_done(tmp_path / "stage", "abc")
    mark_done(tmp_path / "stage", "abc", seconds=1.5)
    assert run.is_done(tmp_path / "stage", "abc") and not run.is_done(tmp_path / "stage", "abd")
    assert read_json(tmp_path / "stage" / "stamp.json") == {"stamp": "abc", "seconds": 1.5, "files": {}}


def test_the_log_has_one_json_line_per_event(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.log("train", step=1, loss={"é": None})
    run.log("train", step=2)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2] and json.loads(lines[0])["loss"] == {"é": None}


def test_snapshots_are_named_by_their_epochs() -> None:
    assert [snapshot_name(epochs) for epochs in (0, 0.1, 0.3, 1.0, 2.0)] == [
        "epoch_0", "epoch_0.1", "epoch_0.3", "epoch_1", "epoch_2",
    ]  # fmt: skip
