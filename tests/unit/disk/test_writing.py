import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from bertvision.disk import (
    file_fingerprint,
    fingerprint,
    read_json,
    save_tensors,
    write_json,
    write_text,
    writing,
    writing_folder,
)
from bertvision.errors import UserError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_text_is_written_and_parent_folders_are_created(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b.txt", "größe\n")
    assert (tmp_path / "a" / "b.txt").read_text(encoding="utf-8") == "größe\n" and names(tmp_path / "a") == ["b.txt"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    file = tmp_path / "a.json"
    write_json(file, {"old": 1})

    def fail(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writing.os, failing, fail)
    with pytest.raises(KeyboardInterrupt):
        write_json(file, {"new": 2})
    assert read_json(file) == {"old": 1} and names(tmp_path) == ["a.json"]


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "no space left on the disk"), (errno.EDQUOT, "no space left"), (errno.EROFS, "can't be written")],
)
def test_a_full_or_read_only_disk_is_a_user_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    file = tmp_path / "a.json"
    write_json(file, {"old": 1})

    def full(*args: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(writing.os, "fsync", full)
    with pytest.raises(UserError, match=words) as caught:
        write_json(file, {"new": 2})
    assert str(file) in str(caught.value) and "`run`" in str(caught.value)
    assert read_json(file) == {"old": 1} and names(tmp_path) == ["a.json"]


def test_other_system_errors_are_user_errors_that_name_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "bad disk")))
    with pytest.raises(UserError, match="Input/output error.*check the disk"):
        write_text(tmp_path / "a", "x")
    monkeypatch.undo()
    with pytest.raises(UserError, match="File name too long"):
        write_text(tmp_path / ("a" * 300), "x")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_disk_that_fills_up_while_a_folder_is_written_is_a_user_error(tmp_path: Path) -> None:
    place = tmp_path / "place"
    with writing_folder(place) as fresh:
        (fresh / "old").write_text("old")
    with pytest.raises(UserError, match="no space left on the disk"), writing_folder(place) as fresh:
        (fresh / "full").symlink_to("/dev/full")
        (fresh / "full").write_text("x" * 100_000)
    assert names(tmp_path) == ["place"] and names(place) == ["old"]


def test_a_disk_that_fills_up_under_safetensors_is_the_same_user_error(tmp_path: Path) -> None:
    # safetensors raises its own error with the system's number in the text, as seen on a small tmpfs.
    full = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(UserError, match="no space left on the disk"), writing_folder(tmp_path / "place"):
        raise full
    with pytest.raises(SafetensorError, match="bad header"), writing_folder(tmp_path / "place"):
        raise SafetensorError("bad header")
    assert names(tmp_path) == []


def test_files_and_folders_are_readable_by_other_users(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "x")
    with writing_folder(tmp_path / "folder") as fresh:
        write_json(fresh / "inner", 1)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "folder", "folder/inner")]
    assert modes == [0o644, 0o755, 0o644]


def test_a_folder_replaces_the_old_one(tmp_path: Path) -> None:
    for name in ("old", "new"):
        with writing_folder(tmp_path / "a" / "place") as fresh:
            (fresh / name).write_text(name)
    assert names(tmp_path / "a" / "place") == ["new"] and names(tmp_path / "a") == ["place"]


def test_the_folder_appears_only_when_the_block_ends(tmp_path: Path) -> None:
    with writing_folder(tmp_path / "place") as fresh:
        assert not (tmp_path / "place").exists() and fresh.parent == tmp_path
    assert (tmp_path / "place").is_dir()


def test_an_error_inside_leaves_the_old_folder_and_nothing_else(tmp_path: Path) -> None:
    with writing_folder(tmp_path / "place") as fresh:
        (fresh / "old").write_text("old")
    with pytest.raises(ZeroDivisionError), writing_folder(tmp_path / "place") as fresh:
        (fresh / "new").write_text("new")
        raise ZeroDivisionError
    assert names(tmp_path) == ["place"] and names(tmp_path / "place") == ["old"]


def test_fingerprints_are_equal_only_for_equal_parts() -> None:
    assert fingerprint({"a": 1, "b": 2.5}, "x") == fingerprint({"b": 2.5, "a": 1}, "x")
    others = [fingerprint(*parts) for parts in [(1,), ("1",), (1, 1), ([1],), ({"a": 1},), (None,), (1.5,), ()]]
    assert len(set(others)) == len(others)


def test_a_file_fingerprint_depends_on_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    (tmp_path / "b").write_bytes(b"x" * 3_000_000)
    assert file_fingerprint([tmp_path / "a"]) == file_fingerprint([tmp_path / "b"])
    (tmp_path / "b").write_bytes(b"x" * 2_999_999 + b"y")
    assert file_fingerprint([tmp_path / "a"]) != file_fingerprint([tmp_path / "b"])


# ---------------------------------------------------------------------- permissions


@pytest.mark.parametrize(
    ("mask", "file", "inner"), [(0o027, 0o640, 0o750), (0o022, 0o644, 0o755), (0o077, 0o600, 0o700)]
)
def test_all_files_follow_the_umask(tmp_path: Path, mask: int, file: int, inner: int) -> None:
    before = os.umask(mask)
    try:
        save_tensors(tmp_path / "alone" / "head.safetensors", {"weight": torch.zeros(2)})
        write_text(tmp_path / "alone" / "config.json", "{}")
        with writing_folder(tmp_path / "whole") as fresh:
            save_file({"weight": torch.zeros(2)}, fresh / "model.safetensors")
            (fresh / "a.json").write_text("{}")
    finally:
        os.umask(before)
    modes = {path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    folders = {"alone", "whole"}
    assert modes == {name: inner if name in folders else file for name in modes} and len(modes) == 6


def test_a_file_that_is_written_again_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "head.safetensors"
    save_tensors(path, {"weight": torch.zeros(2)})
    path.chmod(0o660)
    save_tensors(path, {"weight": torch.ones(2)})
    assert path.stat().st_mode & 0o777 == 0o660
