"""Maintenance: any flipped bit is found, listings are complete, and removing a store deletes only its own files."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tiny_stores import ABOUT, begin_tiny_store, write_tiny_store
from tiny_training import Listening

from bertvision.errors import UserError
from bertvision.progress import Bar
from bertvision.sources.store import Store, open_location
from bertvision.sources.store.format import FORMAT, LISTED, MANIFEST, SET_ASIDE, WRITING, seal
from bertvision.sources.store.upkeep import (
    Damage,
    describe_store,
    find_leftovers,
    list_stores,
    remove_store,
    verify_store,
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete store that no test changes."""
    folder = tmp_path_factory.mktemp("sound") / "store"
    write_tiny_store(folder)
    return folder


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    """A complete store that a test may change."""
    folder = tmp_path / "store"
    folder.mkdir()
    for file in sound.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def shards_in(folder: Path) -> list[Path]:
    found = sorted(folder.glob("states-*.safetensors"))
    assert len(found) > 5
    return found


def flip(file: Path, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class Counting(Bar):
    def __init__(self) -> None:
        self.done = 0.0

    def advance(self, amount: float, note: str = "") -> None:
        self.done += amount


# ---------------------------------------------------------------------- verify


def test_an_intact_store_has_no_damage(sound: Path) -> None:
    bar = Counting()
    assert verify_store(sound, bar) == []
    assert bar.done == sum(file.stat().st_size for file in sound.iterdir()), "the bar counts all bytes"
    assert not find_leftovers(sound)


def test_any_flipped_bit_of_a_shard_is_found_and_its_examples_named(copy: Path) -> None:
    draw = random.Random(0)
    for file in shards_in(copy):
        bits = 8 * file.stat().st_size
        before = file.read_bytes()
        # Both ends, the header, and random positions.
        for bit in [0, bits - 1, 8 * 70, *(draw.randrange(bits) for _ in range(5))]:
            flip(file, bit)
            first, stop = (int(part) for part in file.name.split("-")[1:3])
            found = verify_store(copy)
            assert [(damage.file, damage.first, damage.stop) for damage in found] == [(file.name, first, stop)]
            assert found[0].examples == f"examples {first} to {stop - 1}"
            file.write_bytes(before)
    assert verify_store(copy) == []


def test_any_flipped_bit_of_the_manifest_is_found(copy: Path) -> None:
    file, draw = copy / MANIFEST, random.Random(1)
    before = file.read_bytes()
    for bit in [0, 8 * len(before) - 1, *(draw.randrange(8 * len(before)) for _ in range(40))]:
        flip(file, bit)
        assert [damage.file for damage in verify_store(copy)] == [MANIFEST], f"bit {bit}"
        file.write_bytes(before)


def test_without_a_manifest_shards_are_checked_by_their_names(copy: Path) -> None:
    flip(copy / MANIFEST, 999)
    broken = shards_in(copy)[2]
    flip(broken, 12_345)
    assert [damage.file for damage in verify_store(copy)] == [MANIFEST, broken.name]
    (copy / MANIFEST).unlink()
    other = shards_in(copy)[2]
    flip(other, 12_345)
    assert [(damage.file, damage.why.split(":")[0]) for damage in verify_store(copy)] == [
        (MANIFEST, "is missing"),
        (other.name, "is damaged"),
    ]


def test_missing_truncated_and_grown_shards_are_found(copy: Path) -> None:
    missing, cut, grown = shards_in(copy)[1:4]
    sizes = cut.stat().st_size, grown.stat().st_size
    missing.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    grown.write_bytes(grown.read_bytes() + b"\0")

    found = {damage.file: damage.why for damage in verify_store(copy)}

    assert found == {
        missing.name: "is missing",
        cut.name: f"has {sizes[0] - 1:,} bytes instead of {sizes[0]:,}",
        grown.name: f"has {sizes[1] + 1:,} bytes instead of {sizes[1]:,}",
    }


def test_a_damaged_shard_is_not_read_and_only_it_is_rewritten(copy: Path) -> None:
    before = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in shards_in(copy)}
    damaged, gone, cut = shards_in(copy)[1], shards_in(copy)[4], shards_in(copy)[6]
    flip(damaged, 100_000)
    gone.unlink()
    cut.write_bytes(b"")
    Path(copy / "notes.txt").write_text("mine")
    assert len(verify_store(copy)) == 3
    with pytest.raises(UserError, match="can't be used"):
        Store.open(copy)
    others = {file: file.stat().st_mtime_ns for file in shards_in(copy) if file not in (damaged, cut)}

    again = begin_tiny_store(copy)
    assert {shard.first for shard in again.writer.missing()} == {1, 4, 6}, "one example per shard here"
    again.writer.write()
    assert again.writer.finish()

    assert verify_store(copy) == []
    assert names_in(copy) == {*before, MANIFEST, "notes.txt"}
    assert {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in shards_in(copy)} == before
    assert {file: file.stat().st_mtime_ns for file in others} == others, "the others are not touched"
    Store.open(copy, again.identity)


def test_only_a_damaged_manifest_is_rewritten(copy: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in shards_in(copy)}
    flip(copy / MANIFEST, 1234)
    verify_store(copy)
    again = begin_tiny_store(copy)
    assert again.writer.write() == 0
    assert again.writer.finish()
    assert verify_store(copy) == []
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_a_damaged_shard_is_set_aside_under_another_name(copy: Path) -> None:
    damaged = shards_in(copy)[2]
    flip(damaged, 12_345)
    before = damaged.read_bytes()
    for _ in range(2):  # it stays damaged until it is rewritten
        assert [damage.file for damage in verify_store(copy)] == [damaged.name]
        assert (copy / f"{SET_ASIDE}{damaged.name}").read_bytes() == before and not damaged.exists()
        with pytest.raises(UserError, match=r"examples 2 to 2\) is damaged"):
            Store.open(copy)
    assert describe_store(copy).detail == "1 of 9 shards missing or damaged"
    again = begin_tiny_store(copy).writer
    again.write()
    assert again.finish() and verify_store(copy) == [] and not (copy / f"{SET_ASIDE}{damaged.name}").exists()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_shards_listed_by_an_earlier_version_are_verified_again(copy: Path, is_damaged: bool) -> None:
    shard = shards_in(copy)[0]
    (copy / LISTED).write_bytes(seal({"files": [shard.name]}))
    if is_damaged:
        flip(shard, 5)
    with pytest.raises(UserError, match="may be damaged.*store verify"):
        Store.open(copy)
    assert [damage.file for damage in verify_store(copy)] == [shard.name] * is_damaged
    assert not (copy / LISTED).exists() and shard.exists() != is_damaged


def test_damage_that_can_not_be_recorded_is_reported(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location, listening = open_location(copy), Listening()

    def refuse(*_: Any) -> None:
        raise UserError("read-only")

    monkeypatch.setattr(location, "rename", refuse)
    flip(shards_in(copy)[0], 5)
    assert len(verify_store(location, reporter=listening)) == 1
    assert (
        len(listening.lines) == 1
        and "could not be recorded" in listening.lines[0]
        and "read-only" in listening.lines[0]
    )
    assert len(shards_in(copy)) == 9


def test_an_unreadable_shard_is_damaged_but_one_without_permission_is_not(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, bad = open_location(copy), shards_in(copy)[3].name
    hash_file, error = location.hash, OSError(5, "Input/output error")

    def fail(name: str) -> str:
        if name == bad:
            raise error
        return hash_file(name)

    monkeypatch.setattr(location, "hash", fail)
    assert [(damage.file, damage.first) for damage in verify_store(location)] == [(bad, 3)]
    assert find_leftovers(copy) == [] and not (copy / bad).exists()
    assert (
        verify_store(location) == [] and (copy / bad).exists()
    )  # the read error is gone: the shard is intact, and gets its name back
    error = PermissionError(13, "Permission denied")
    with pytest.raises(UserError, match="Permission denied"):
        verify_store(location)
    assert (copy / bad).exists()


@pytest.mark.parametrize("manifest", ["gone", "damaged"])
def test_a_store_with_nothing_but_damaged_shards_is_still_listed_and_removed(copy: Path, manifest: str) -> None:
    (copy / MANIFEST).unlink() if manifest == "gone" else flip(copy / MANIFEST, 7)
    for shard in shards_in(copy):
        flip(shard, 5)
    for _ in range(2):
        assert verify_store(copy) and not list(copy.glob("states-*"))
        assert [(store.path, store.state) for store in list_stores(copy)] == [(str(copy), "damaged")]
    remove_store(copy)
    assert not copy.exists()


def test_leftover_files_are_listed_and_are_not_damage(copy: Path) -> None:
    other = "states-000000000-000000001-0123456789abcdef.safetensors"
    half = f".writing-{other}@host-1-x"
    for name in (other, half, WRITING, "notes.txt"):
        (copy / name).write_bytes(b"x")
    assert verify_store(copy) == []
    assert find_leftovers(copy) == [other, WRITING, half]


def test_an_unfinished_store_is_not_verified(tmp_path: Path) -> None:
    store = begin_tiny_store(tmp_path)
    store.writer.write((0, 2))
    with pytest.raises(UserError, match=r"not finished \(5 of 9 shards written\).*encode"):
        verify_store(tmp_path)


def test_a_folder_without_a_store_is_refused_and_stores_inside_are_listed(copy: Path, tmp_path: Path) -> None:
    for look in (verify_store, describe_store, remove_store):
        with pytest.raises(UserError, match="no store at"):
            look(tmp_path / "nothing")
        with pytest.raises(UserError, match="is not a store, but contains stores.*/store"):
            look(copy.parent)


def test_a_store_of_another_format_is_not_called_damaged(copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_bytes())
    del manifest["sha256"]
    (copy / MANIFEST).write_bytes(seal({**manifest, "format": FORMAT + 1}))
    with pytest.raises(UserError, match=f"format {FORMAT + 1}"):
        verify_store(copy)
    assert describe_store(copy).state == "unreadable"


def test_damage_without_examples_says_so() -> None:
    assert Damage(MANIFEST, 0, 0, "is missing").examples == "no examples"
    assert Damage("file", 1000, 2345, "is missing").examples == "examples 1,000 to 2,344"


# ---------------------------------------------------------------------- list


def test_stores_are_found_from_the_runs_folder_down(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    folders = [runs / run / "states" / split for run in ("a", "b") for split in ("dev_epoch_1", "train_epoch_1")]
    for folder in folders:
        write_tiny_store(folder, task="rte", parts=("cls",))
    (runs / "a" / "snapshots" / "epoch_1").mkdir(parents=True)
    (runs / "b" / MANIFEST).write_text('{"name": "a web page"}')  # other programs write such files

    assert [store.path for store in list_stores(runs)] == [str(folder) for folder in folders]
    assert [store.path for store in list_stores(runs / "b")] == [str(folder) for folder in folders[2:]]
    assert [store.path for store in list_stores(runs / "a" / "states")] == [str(folder) for folder in folders[:2]]
    assert [store.path for store in list_stores(folders[1])] == [str(folders[1])]
    assert list_stores(tmp_path / "nothing") == []


def test_a_listing_shows_contents_and_origin(tmp_path: Path) -> None:
    made = write_tiny_store(tmp_path / "store", "int8", ("tokens", "mean"))
    [store] = list_stores(tmp_path)
    assert (store.state, store.detail) == ("whole", "")
    assert store.bytes == sum(file.stat().st_size for file in (tmp_path / "store").iterdir())
    assert (store.examples, store.windows) == (len(made.ids), len(made.features))
    assert store.tokens == int(made.features.lengths.sum())
    assert (store.parts, store.layers, store.dtype) == (["tokens", "mean"], [0, 1, 2, 3], "int8")
    assert store.about == ABOUT
    assert store.written and store.written[:2] == "20"


def test_a_listing_distinguishes_whole_unfinished_and_damaged_stores(copy: Path, tmp_path: Path) -> None:
    unfinished = begin_tiny_store(tmp_path / "unfinished")
    unfinished.writer.write((0, 3))
    [store] = list_stores(tmp_path / "unfinished")
    assert (store.state, store.detail) == ("unfinished", "3 of 9 shards written")
    assert (store.examples, store.windows, store.parts, store.dtype) == (9, None, ["tokens"], "float16")
    assert store.about == ABOUT and store.written is None

    (tmp_path / "unfinished" / WRITING).write_bytes(b"?")
    assert describe_store(tmp_path / "unfinished").detail == "3 shards written"

    flip(shards_in(copy)[0], 7)
    assert describe_store(copy).state == "whole", "a listing reads no states"
    verify_store(copy)
    shards_in(copy)[1].unlink()
    store = describe_store(copy)
    assert (store.state, store.detail) == ("damaged", "2 of 9 shards missing or damaged")
    flip(copy / MANIFEST, 7)
    assert describe_store(copy).state == "damaged"
    (copy / MANIFEST).unlink()
    assert describe_store(copy).state == "damaged"


def test_a_store_of_unknown_origin_is_listed(tmp_path: Path) -> None:
    write_tiny_store(tmp_path, about=None)
    assert describe_store(tmp_path).about == {}


# ---------------------------------------------------------------------- remove


def test_removing_deletes_the_store_and_its_folder(copy: Path) -> None:
    (copy / LISTED).write_bytes(seal({"files": []}))
    shards_in(copy)[1].rename(copy / f"{SET_ASIDE}{shards_in(copy)[1].name}")
    (copy / f".writing-{MANIFEST}@host-1-x").write_bytes(b"x")
    remove_store(copy)
    assert not copy.exists() and copy.parent.exists()


def test_removing_leaves_other_files(copy: Path) -> None:
    kept = {"notes.txt", "states-of-mind.safetensors", "states-1-2.csv", ".writing-letter"}
    for name in kept:
        (copy / name).write_text("mine")
    (copy / "folder").mkdir()
    remove_store(copy)
    assert names_in(copy) == {*kept, "folder"}
    with pytest.raises(UserError, match="no store"):
        remove_store(copy)
    assert names_in(copy) == {*kept, "folder"}


def test_another_programs_manifest_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"name": "a web page"}')
    with pytest.raises(UserError, match="no store"):
        remove_store(tmp_path)
    assert names_in(tmp_path) == {MANIFEST}


def test_an_unfinished_store_can_be_removed(tmp_path: Path) -> None:
    begin_tiny_store(tmp_path / "store").writer.write((0, 2))
    remove_store(tmp_path / "store")
    assert names_in(tmp_path) == set()


def test_the_manifest_is_removed_first(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location, gone = open_location(copy), []
    monkeypatch.setattr(location, "remove", gone.append)
    remove_store(location)
    assert gone[0] == MANIFEST and len(gone) == 10


# ---------------------------------------------------------------------- addresses


def test_a_url_is_maintained_like_a_folder() -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    write_tiny_store("memory://upkeep/states/train")
    files.pipe_file("/upkeep/states/train/notes.txt", b"mine")
    assert verify_store("memory://upkeep/states/train") == []
    assert [store.path for store in list_stores("memory://upkeep")] == ["memory://upkeep/states/train"]

    name = sorted(files.glob("/upkeep/states/train/states-*"))[1]
    data = bytearray(files.cat_file(name))
    data[-1] ^= 128
    files.pipe_file(name, bytes(data))
    assert [damage.first for damage in verify_store("memory://upkeep/states/train")] == [1]
    assert list_stores("memory://upkeep")[0].state == "damaged"

    remove_store("memory://upkeep/states/train")
    assert files.ls("/upkeep/states/train", detail=False) == ["/upkeep/states/train/notes.txt"]
    files.rm("/upkeep", recursive=True)
