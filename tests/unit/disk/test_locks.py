"""Locks of folders: one writer at a time, across processes. They are free as soon as their holder is dead, leave no
file behind, and follow no link."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bertvision.disk import locks
from bertvision.disk.locks import LOCK, Place, lock_beside, lock_in, writing_in
from bertvision.errors import UserError

HOLD = """
import sys, time
from pathlib import Path
from bertvision.disk.locks import lock_beside, lock_in, writing_in
sys.argv = ["/somewhere/bertvision", "run", "rte.toml"]
with writing_in({place}(Path({folder!r}))):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=[lock_in, lock_beside])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temporary").mkdir()
    found: Place = request.param(tmp_path / "run")
    return found


def hold(place: Place) -> "subprocess.Popen[str]":
    name = "lock_in" if place.is_inside else "lock_beside"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(place=name, folder=str(place.folder))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def end(process: "subprocess.Popen[str]") -> None:
    process.communicate()
    assert process.returncode == 0


def test_a_second_writer_is_told_who_is_at_work_since_when_and_what_to_do(place: Place) -> None:
    process = hold(place)
    today = time.strftime("%Y-%m-%d")
    with pytest.raises(UserError) as refused, writing_in(place):
        pass
    said = str(refused.value)
    assert f"another process is writing to '{place.folder}': `bertvision run rte.toml`, process {process.pid} " in said
    assert f"on {socket.gethostname()}, since {today}" in said and "--wait" in said and f"`{place.setting}`" in said
    end(process)
    with writing_in(place):
        pass


def test_nothing_is_left_and_a_folder_that_was_not_there_is_not_made(place: Place, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), writing_in(place):
        assert place.file.is_file()
        raise ZeroDivisionError
    assert not place.file.exists() and not (tmp_path / "run").exists()
    if place.is_inside:
        with writing_in(place):
            (tmp_path / "run" / "scores.json").write_text("{}")
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["scores.json"]


def test_the_lock_of_a_killed_process_is_free_at_once_whatever_its_file_says(place: Place) -> None:
    process = hold(place)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert place.file.is_file()
    facts = json.loads(place.file.read_text())
    place.file.write_text(json.dumps({**facts, "process": os.getpid()}))  # the number of a live process
    with writing_in(place):
        assert json.loads(place.file.read_text())["process"] == os.getpid()
    assert not place.file.exists()


def test_waiting_is_said_once_and_ends_with_the_other_process(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "TURN", 0.1)
    process, said = hold(place), []
    threading.Timer(0.7, lambda: end(process)).start()
    started = time.monotonic()
    with writing_in(place, wait=True, say=said.append):
        assert time.monotonic() - started >= 0.6
    assert len(said) == 1 and said[0].startswith("waiting: another process is writing")


def test_many_processes_never_hold_it_together(place: Place, tmp_path: Path) -> None:
    """Each holds the lock 40 times: the file is removed and made again all the time."""
    name = "lock_in" if place.is_inside else "lock_beside"
    code = f"""
from pathlib import Path
from bertvision.disk import locks
locks.PAUSE = 0.001
busy = Path({str(tmp_path / "busy")!r})
for _ in range(40):
    with locks.writing_in(locks.{name}(Path({str(place.folder)!r})), wait=True):
        busy.touch(exist_ok=False)
        busy.unlink()
"""
    some = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [process.communicate(timeout=100)[1] for process in some]
    assert [process.returncode for process in some] == [0, 0, 0], "\n".join(errors)


def test_only_the_main_process_of_a_launch_takes_it_and_all_end_with_its_sentence(tmp_path: Path) -> None:
    place = lock_in(tmp_path / "run")
    with writing_in(place, first=lambda _: None):
        assert not place.file.exists()
    refused = UserError("no space left")
    with pytest.raises(UserError, match="no space left"), writing_in(place, first=lambda _: refused):
        pass
    with (
        pytest.raises(UserError, match="another process .* `bertvision run`"),
        writing_in(place, first=lambda _: "`bertvision run`"),
    ):
        pass


def test_a_disk_without_locks_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import fcntl

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    said: list[str] = []
    with writing_in(lock_in(tmp_path / "run"), say=said.append) as is_locked:
        (tmp_path / "run" / "x").touch()
        assert not is_locked
    assert len(said) == 1 and "can't be locked on this disk" in said[0]


@pytest.mark.parametrize("kind", ["link", "hard link", "folder"])
def test_a_lock_that_a_stranger_prepared_writes_nowhere_else(kind: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    victim, place = tmp_path / "victim", lock_in(tmp_path / "run")
    victim.write_text("mine")
    if kind == "link":
        place.file.symlink_to(victim)
    elif kind == "hard link":
        place.file.hardlink_to(victim)
    else:
        place.file.mkdir()
    if kind == "hard link":
        with writing_in(place):
            assert victim.read_text() == "mine"
    else:
        with pytest.raises(UserError, match=r"\.lock can't be used as a lock .*: remove it"), writing_in(place):
            pass
    assert victim.read_text() == "mine"


def test_what_a_lock_says_is_only_text(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text(json.dumps({"command": "\x1b[2Ja", "process": [1], "host": "h", "since": "s"}))
    assert locks._describe_holder(tmp_path / LOCK) == "`[2Ja`, process [1] on h, since s"
    for text in ("", "{", "[" * 3000, '"x"', "{}"):
        (tmp_path / LOCK).write_text(text)
        assert locks._describe_holder(tmp_path / LOCK) == locks.UNKNOWN


def test_a_temporary_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = lock_beside(tmp_path / "model")
    (tmp_path / "elsewhere").mkdir()
    place.file.parent.symlink_to(tmp_path / "elsewhere")
    said: list[str] = []
    with writing_in(place, say=said.append):
        assert not list((tmp_path / "elsewhere").iterdir())
    assert len(said) == 1
