"""A scan reports what is at a location, and only reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_stores import TinyStore, begin_tiny_store, write_tiny_store

from bertvision.errors import UserError
from bertvision.sources.store import DamagedError, StoreWriter, open_location
from bertvision.sources.store.format import LISTED, MANIFEST, SET_ASIDE, WRITING
from bertvision.sources.store.location import Folder
from bertvision.sources.store.scan import scan


def nothing(folder: Path) -> TinyStore:
    return begin_tiny_store(folder)


def begun(folder: Path) -> TinyStore:
    tiny = begin_tiny_store(folder)
    tiny.writer.write((0, 2))
    return tiny


def without_notes(folder: Path) -> TinyStore:
    tiny = begun(folder)
    (folder / WRITING).unlink()
    return tiny


def with_damaged_notes(folder: Path) -> TinyStore:
    tiny = begun(folder)
    (folder / WRITING).write_bytes(b"?")
    return tiny


def whole(folder: Path) -> TinyStore:
    return write_tiny_store(folder)


def with_damaged_manifest(folder: Path) -> TinyStore:
    tiny = whole(folder)
    (folder / MANIFEST).write_bytes(b"?")
    return tiny


def with_an_old_list(folder: Path) -> TinyStore:
    tiny = whole(folder)
    (folder / LISTED).write_bytes(b"?")
    return tiny


MAKERS = (nothing, begun, without_notes, with_damaged_notes, whole, with_damaged_manifest, with_an_old_list)


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """read_only() → from now on, changing a folder or building a writer fails."""

    def forbid() -> None:
        for name in ("write", "remove", "rename", "sweep"):
            monkeypatch.setattr(Folder, name, lambda *_: pytest.fail("a scan changes nothing"))
        monkeypatch.setattr(StoreWriter, "__init__", lambda *_, **__: pytest.fail("a scan needs no writer"))

    return forbid


@pytest.mark.parametrize("make", MAKERS)
def test_a_scan_changes_nothing_and_recognises_its_store(
    make: Any, tmp_path: Path, read_only: Callable[[], None]
) -> None:
    tiny = make(tmp_path / "store")
    read_only()
    found = scan(open_location(tmp_path / "store"))
    assert found.is_store == (make is not nothing)
    assert (found.manifest is not None) == (make in (whole, with_an_old_list))
    assert found.find_difference(tiny.identity) == ""
    found.refuse_other(tiny.identity)
    assert bool(found.broken) == (make is with_an_old_list)
    assert isinstance(found.problem, DamagedError) == (make is with_damaged_manifest)


@pytest.mark.parametrize("make", MAKERS[1:])
def test_different_states_are_recognised(make: Any, tmp_path: Path, read_only: Callable[[], None]) -> None:
    tiny = make(tmp_path / "store")
    read_only()
    found, other = scan(open_location(tmp_path / "store")), {**tiny.identity, "encoder weights": "others"}
    named = found.find_difference(other)
    assert "encoder weights" in named if found.identity else "shards of different states" in named
    with pytest.raises(UserError, match="bertvision store rm"):
        found.refuse_other(other)


def test_broken_shards_are_found_without_reading_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole(tmp_path)
    names = sorted(path.name for path in tmp_path.glob("states-*"))
    (tmp_path / names[1]).unlink()
    (tmp_path / names[3]).write_bytes(b"")
    (tmp_path / names[5]).rename(tmp_path / f"{SET_ASIDE}{names[5]}")
    monkeypatch.setattr(Folder, "hash", lambda *_: pytest.fail("nothing is hashed"))
    found = [(shard.file, why.partition(" instead")[0]) for shard, why in scan(open_location(tmp_path)).broken]
    assert found == [(names[1], "is missing"), (names[3], "has 0 bytes"), (names[5], "is damaged")]
