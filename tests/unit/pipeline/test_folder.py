"""The run folder: stamps of finished stages, the log, and sweeping of temporary files."""

import json
from pathlib import Path

import pytest

from bertvision.disk import mark_done, read_json, temporary, write_json, write_text, writing_folder
from bertvision.errors import UserError
from bertvision.pipeline.folder import RunFolder, read_task_file, snapshot_name

ENDED = 2**22 + 1
"""The number of no process."""


def test_sweeping_removes_temporary_files_and_no_user_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = [tmp_path / ".git" / "config", tmp_path / "sub" / ".venv" / "x", tmp_path / ".env"]
    for path in mine:
        write_text(path, "mine")
    done = tmp_path / "snapshots" / "epoch_1"
    write_json(done / "config.json", {})
    before = {path for path in tmp_path.rglob("*")}
    own = writing_folder(done / "predictions")  # a report, for example, has a lock of its own
    mine_now = own.__enter__()
    with monkeypatch.context() as patched:
        patched.setattr("os.getpid", lambda: ENDED)
        block = writing_folder(done / "encoder")
        (block.__enter__() / "half").write_text("half")  # a kill: the block never ends
        (done / f"{temporary(done / 'scores.json')}abc").write_text("half")
        patched.setattr("socket.gethostname", lambda: "another")
        (done / f"{temporary(done / 'scores.json')}abc").write_text("half")
        (tmp_path / "states").mkdir()
        theirs = tmp_path / "states" / f"{temporary(done / 'states')}abc"
        theirs.write_text("half")  # stores take no lock
    (tmp_path / "checkpoints" / "search" / "tokens").mkdir(parents=True)
    RunFolder(tmp_path).sweep()
    assert {path for path in tmp_path.rglob("*")} - before == {mine_now, theirs.parent, theirs}


def test_a_line_cut_off_by_a_kill_does_not_swallow_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"event": "tra')
    RunFolder(tmp_path).log("train", step=1)
    RunFolder(tmp_path).log("train", step=2)
    cut, *lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert cut == '{"event": "tra' and [json.loads(line)["step"] for line in lines] == [1, 2]


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


TASK = {
    "name": "rte", "kind": "label", "metrics": ["accuracy"], "labels": ["yes", "no"], "windowed": False,
    "max_length": 64, "source": "", "takes_pairs": True,
}  # fmt: skip


def test_a_run_of_a_newer_version_is_refused_and_an_older_one_is_read(tmp_path: Path) -> None:
    assert read_task_file(tmp_path) is None
    for format in ({}, {"format": 1}):
        write_json(tmp_path / "task.json", {**format, **TASK})
        found = read_task_file(tmp_path)
        assert found is not None and found["name"] == "rte"
    for newer in (2, 10**200, 0, -1):
        write_json(tmp_path / "task.json", {"format": newer, **TASK})
        with pytest.raises(UserError, match="update BERTVision, or run `bertvision run"):
            read_task_file(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "grade"}, "there is no kind of target 'grade'"),
        ({"metrics": ["speed"]}, "a label has no metric 'speed'"),
        ({"metrics": []}, "metrics"),
        ({"labels": ["yes"]}, "two or more different names"),
        ({"labels": ["yes", "yes"]}, "two or more different names"),
        ({"labels": [1, 2]}, r"labels\[0\]: expected `str`"),
        ({"max_length": 10**12}, "max_length"),
        ({"name": -1}, "name: expected `str`, got `int`"),
    ],
)
def test_a_changed_task_is_one_sentence(tmp_path: Path, change: dict[str, object], says: str) -> None:
    write_json(tmp_path / "task.json", {**TASK, **change})
    with pytest.raises(UserError, match=says) as caught:
        read_task_file(tmp_path)
    assert "task.json is damaged" in str(caught.value)
