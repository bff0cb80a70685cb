"""Checksums of finished folders: every flipped bit is found, and nothing else is."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bertvision.disk import (
    DamagedError,
    check_files,
    digest_of,
    file_fingerprint,
    mark_done,
    read_json,
    read_stamp,
    seals,
    write_json,
    write_sealed,
)
from bertvision.errors import UserError

FACTS = {"label": "größe", "score": 0.1, "huge": 1e300, "none": None, "nested": {"a": [1, 2.5, "x"]}}


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_sealed_json_is_read_back_without_its_checksum(tmp_path: Path) -> None:
    write_sealed(tmp_path / "a.json", FACTS)
    assert read_json(tmp_path / "a.json") == FACTS
    assert list(json.loads((tmp_path / "a.json").read_text())) == [*FACTS, "sha256"]


def test_every_flipped_bit_of_sealed_json_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_sealed(path, FACTS)
    whole = path.read_bytes()
    for bit in range(len(whole) * 8):
        flip(path, bit)
        with pytest.raises(DamagedError, match="is damaged") as caught:
            read_json(path)
        assert str(path) in str(caught.value)
        path.write_bytes(whole)


def test_unsealed_json_of_earlier_versions_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", FACTS)
    write_json(tmp_path / "b.json", [1, 2])
    assert read_json(tmp_path / "a.json") == FACTS and read_json(tmp_path / "b.json") == [1, 2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    stage = tmp_path / "stage"
    (stage / "inner").mkdir(parents=True)
    (stage / "weights").write_bytes(os.urandom(5000))
    (stage / "inner" / "more").write_text("more")
    (stage / "README.md").write_text("a card")
    mark_done(stage, "abc", seconds=1.5)
    return stage


def test_a_whole_folder_passes(folder: Path) -> None:
    check_files(folder)
    found = read_stamp(folder)
    assert found is not None and found["stamp"] == "abc" and set(found["files"]) == {"weights", "inner/more"}
    (folder / "README.md").write_text("written again")
    (folder / "later").write_text("added")
    check_files(folder)


@pytest.mark.parametrize("name", ["weights", "inner/more"])
def test_a_flipped_or_missing_file_is_named(folder: Path, name: str) -> None:
    flip(folder / name, 17)
    with pytest.raises(DamagedError, match=f"{name} is damaged"):
        check_files(folder, name)
    (folder / name).unlink()
    with pytest.raises(DamagedError, match=f"{name} is missing"):
        check_files(folder)


def test_a_repaired_file_passes_again(folder: Path) -> None:
    flip(folder / "weights", 3)
    with pytest.raises(DamagedError):
        check_files(folder)
    flip(folder / "weights", 3)
    check_files(folder)


def test_a_stamp_can_not_name_files_outside(folder: Path) -> None:
    (folder.parent / "secret").write_text("x")
    write_sealed(folder / "stamp.json", {"stamp": "abc", "files": {"../secret": "0123456789abcdef"}})
    with pytest.raises(ValueError, match="can't be the name of a folder"):
        check_files(folder)


def test_folders_without_checksums_are_read(folder: Path) -> None:
    write_json(folder / "stamp.json", {"stamp": "abc"})
    flip(folder / "weights", 3)
    check_files(folder)


def test_a_file_that_can_not_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def refuse(self: Path, *given: Any, **named: Any) -> Any:
        if self.name == "weights":
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *given, **named)

    monkeypatch.setattr(Path, "open", refuse)
    seals._known.clear()
    for read in (lambda: check_files(folder, "weights"), lambda: file_fingerprint([folder / "weights"])):
        with pytest.raises(UserError, match=r"weights can't be read \(Permission denied\): change its permissions"):
            read()


def test_a_name_in_a_stamp_or_a_link_can_not_lead_out(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("mine")
    (folder / "linked").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="leads out of"):  # also of a file that the stamp does not know
        check_files(folder, "linked")
    write_sealed(folder / "stamp.json", {"stamp": "abc", "files": {"../outside": digest_of(tmp_path / "outside")}})
    with pytest.raises(UserError, match="can't be the name of a folder"):
        check_files(folder)
