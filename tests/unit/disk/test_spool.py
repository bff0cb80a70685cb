"""Bytes that wait on disk: read as written, from several threads, and gone with the process."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.disk import Spool, spooling_in
from bertvision.errors import UserError

HANG = """
import sys, time
from pathlib import Path
from bertvision.disk import Spool, spooling_in
with spooling_in(Path(sys.argv[1])):
    spool = Spool()
spool.append(bytes(1 << 20))
print(spool.folder, flush=True)
time.sleep(60)
"""


@settings(deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=20), st.data())
def test_what_was_written_is_read(pieces: list[bytes], data: st.DataObject) -> None:
    spool = Spool()
    starts = [spool.append(piece) for piece in pieces]
    whole = b"".join(pieces)
    assert spool.size == len(whole)
    assert [spool.read(start, start + len(piece)) for start, piece in zip(starts, pieces, strict=True)] == pieces
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert spool.read(start, stop) == whole[start:stop]


def test_threads_read_at_the_same_time() -> None:
    spool, numbers = Spool(), np.arange(100_000)
    spool.append(numbers)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda one: spool.read(8 * one, 8 * one + 8), range(0, 100_000, 7)))
    assert b"".join(found) == numbers[::7].tobytes()


def test_reading_past_the_end_is_an_error() -> None:
    spool = Spool()
    spool.append(b"abc")
    with pytest.raises(EOFError):
        spool.read(1, 4)


def test_a_killed_process_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    process = subprocess.Popen([sys.executable, "-c", HANG, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == str(tmp_path)  # the nearest folder that exists
    assert list(tmp_path.iterdir()) == []
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert list(tmp_path.iterdir()) == []


def test_the_users_own_folder_for_temporary_files_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "big").mkdir()
    monkeypatch.delenv("TMPDIR", raising=False)
    with spooling_in(tmp_path):
        assert Spool().folder == tmp_path
        monkeypatch.setenv("TMPDIR", str(tmp_path / "big"))
        monkeypatch.setattr(tempfile, "tempdir", None)  # it is remembered
        assert Spool().folder == tmp_path / "big"


def test_in_a_folder_that_can_only_be_read_the_temporary_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    make = tempfile.TemporaryFile

    def refuse(*given: object, dir: Path, **named: object) -> object:
        if dir == tmp_path:
            raise PermissionError(errno.EACCES, "refused")
        return make(*given, dir=dir, **named)  # type: ignore[call-overload]

    with mock.patch.object(tempfile, "TemporaryFile", refuse), spooling_in(tmp_path):
        assert Spool().folder == Path(tempfile.gettempdir())


def test_a_full_disk_is_a_clear_error(tmp_path: Path) -> None:
    spool = Spool()
    with mock.patch.object(spool, "_file") as file:
        file.write.side_effect = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with pytest.raises(UserError, match="no space left on the disk.*set `TMPDIR` to a folder on another disk"):
            spool.append(b"abc")
