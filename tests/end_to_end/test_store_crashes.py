"""Stores survive kills, flipped bits and full disks: states are never wrong, and finished shards are never lost."""

import dataclasses
import hashlib
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from store_writers import DONE, UNFINISHED, Writers, begin_long_store
from tiny_stores import TinyStore, begin_tiny_store, write_tiny_store

from bertvision.errors import UserError
from bertvision.sources.store import Manifest, Store
from bertvision.sources.store.format import MANIFEST, SET_ASIDE, WRITING
from bertvision.sources.store.location import Folder
from bertvision.sources.store.upkeep import verify_store

SHARDS = 18
LONG, FEW = {"times": 2}, {"shard_bytes": 80_000}  # many shards, and three


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    with Writers() as found:
        yield found


@pytest.fixture(scope="module")
def long_store(writers: Writers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of many shards whose writer was never killed."""
    folder = tmp_path_factory.mktemp("never_killed") / "store"
    assert writers.write(folder, **LONG) == DONE
    assert len(shards_in(folder)) == SHARDS
    return folder


@pytest.fixture(scope="module")
def small_store(writers: Writers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("never_killed") / "small"
    assert writers.write(folder, **FEW) == DONE
    assert len(shards_in(folder)) == 3
    return folder


def shards_in(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith("states-")) if folder.exists() else []


def half_written(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".")] if folder.exists() else []


def all_states(folder: Path) -> torch.Tensor:
    store = Store.open(folder)
    return store.read("tokens", range(len(store)))


def assert_nothing_wrong(folder: Path, reference: Path) -> None:
    """After a kill, the store is correct or refused."""
    for name in shards_in(folder):
        data = (folder / name).read_bytes()
        right = hashlib.sha256(data).hexdigest()[:16] == name.removesuffix(".safetensors")[-16:]
        assert right and data == (reference / name).read_bytes()
    try:
        found = all_states(folder)
    except UserError:
        return
    assert (folder / MANIFEST).exists() and torch.equal(found, all_states(reference))


def assert_same_store(folder: Path, reference: Path) -> None:
    """Byte for byte, except for the time of writing, and without other files."""
    assert sorted(os.listdir(folder)) == sorted(os.listdir(reference))
    for name in shards_in(reference):
        assert (folder / name).read_bytes() == (reference / name).read_bytes()
    one, other = (Manifest.parse((place / MANIFEST).read_bytes(), "there") for place in (folder, reference))
    assert one.about.keys() == other.about.keys()
    assert dataclasses.replace(one, about={}) == dataclasses.replace(other, about={})


def phase_of(folder: Path) -> str:
    """How far a writer of a long store was when it was killed."""
    if (folder / MANIFEST).exists():
        return "manifest"
    count = len(shards_in(folder))
    if not count:
        return "notes" if (folder / WRITING).exists() else "nothing"
    return "all shards" if count == SHARDS else f"{3 * count // SHARDS + 1}. third"


# ---------------------------------------------------------------------- kills


def kill_at(writers: Writers, folder: Path, moment: float, seconds: float) -> int:
    """Kill a writer after `moment` more shards, and return its exit code. A fractional part waits for that fraction of
    `seconds`, the time per shard. Time is counted in shards because the load of the machine varies."""
    wanted = min(SHARDS, len(shards_in(folder)) + int(moment))
    process = writers.start(folder, **LONG)
    deadline = time.monotonic() + 60
    while len(shards_in(folder)) < wanted:
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    time.sleep(moment % 1 * seconds)
    os.kill(process, signal.SIGKILL)
    return writers.wait(process)


def test_a_writer_killed_at_fifty_random_moments_never_leaves_a_wrong_state(
    writers: Writers, long_store: Path, tmp_path: Path
) -> None:
    started = time.monotonic()
    assert writers.write(tmp_path / "timed", **LONG) == DONE
    seconds = (time.monotonic() - started) / SHARDS
    draws = random.Random(0)
    phases: Counter[str] = Counter()
    hit = 0
    for number in range(50):
        folder = tmp_path / f"{number}"
        ended = kill_at(writers, folder, draws.uniform(0, SHARDS + 1), seconds)
        assert ended in (-signal.SIGKILL, DONE)
        hit += ended == -signal.SIGKILL
        phases[phase_of(folder)] += 1
        assert_nothing_wrong(folder, long_store)
        assert writers.write(folder, **LONG) == DONE
        assert_same_store(folder, long_store)
        shutil.rmtree(folder)
    assert hit >= 40, f"only {hit} of 50 kills fell into the write"
    assert {"1. third", "2. third", "3. third"} <= set(phases), phases
    assert sum(phases[name] for name in ("nothing", "notes", "all shards", "manifest")) < 25, phases


def test_a_store_killed_again_and_again_is_finished_eventually(
    writers: Writers, long_store: Path, tmp_path: Path
) -> None:
    folder, draws, kills = tmp_path / "store", random.Random(1), 0
    while not (folder / MANIFEST).exists():
        kills += kill_at(writers, folder, draws.uniform(0.2, 3), 0.01) == -signal.SIGKILL
        assert_nothing_wrong(folder, long_store)
    assert kills > 2
    assert writers.write(folder, **LONG) == DONE
    assert_same_store(folder, long_store)


def test_a_writer_killed_at_any_step_resumes(writers: Writers, small_store: Path, tmp_path: Path) -> None:
    """Kill before every call that changes the disk, and in the middle of every file."""
    seen: Counter[str] = Counter()
    for step in range(1000):
        folder = tmp_path / f"{step}"
        ended = writers.write(folder, **FEW, die_at=step)
        if ended == DONE:
            break
        assert ended == -signal.SIGKILL
        names = os.listdir(folder)
        seen["cut shard"] += any(name.startswith(".writing-states-") for name in names)
        seen["cut manifest"] += any(name.startswith(f".writing-{MANIFEST}") for name in names)
        seen["shards and no manifest"] += len(shards_in(folder)) == 3 and MANIFEST not in names
        seen["manifest and notes"] += MANIFEST in names and WRITING in names
        assert_nothing_wrong(folder, small_store)
        assert writers.write(folder, **FEW) == DONE
        assert_same_store(folder, small_store)
    assert step > 15 and all(seen.values()) and len(seen) == 4, seen


def damage(folder: Path, numbers: list[int]) -> None:
    """Flip a bit in some shards, and let `verify` rename them."""
    names = [shards_in(folder)[number] for number in numbers]
    for name in names:
        flip(folder / name, -9, 3)
    found = verify_store(folder)
    assert sorted(entry.file for entry in found) == names and set_aside(folder) == [SET_ASIDE + name for name in names]


def set_aside(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith(SET_ASIDE))


def flip(path: Path, place: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(bytes(data))


def test_a_repair_killed_at_any_step_resumes(writers: Writers, small_store: Path, tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for step in range(1000):
        folder = tmp_path / f"{step}"
        shutil.copytree(small_store, folder)
        damage(folder, [0, 2])
        ended = writers.write(folder, **FEW, die_at=step)
        if ended == DONE:
            break
        assert ended == -signal.SIGKILL
        assert_nothing_wrong(folder, small_store)
        seen["cut"] += any(name.startswith(".writing-states-") for name in os.listdir(folder))
        seen["set aside"] += bool(set_aside(folder))
        assert writers.write(folder, **FEW) == DONE
        assert_same_store(folder, small_store)
    assert step > 10 and seen["cut"] and seen["set aside"]


def test_a_verify_interrupted_between_two_shards_hides_no_damage(
    small_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards not yet renamed are found by the next run; renamed ones stay renamed."""

    class Stopped(BaseException):
        pass

    folder, rename = tmp_path / "store", Folder.rename
    shutil.copytree(small_store, folder)
    names = shards_in(folder)
    for name in names:
        flip(folder / name, -9, 3)

    def stop(self: Folder, name: str, other: str) -> None:
        rename(self, name, other)
        raise Stopped

    monkeypatch.setattr(Folder, "rename", stop)
    for count in range(1, len(names) + 1):
        with pytest.raises(Stopped):
            verify_store(folder)
        assert len(set_aside(folder)) == count
        with pytest.raises(UserError):
            Store.open(folder)
    assert sorted(entry.file for entry in verify_store(folder)) == names


def test_a_repair_killed_at_random_moments_resumes(writers: Writers, long_store: Path, tmp_path: Path) -> None:
    draws = random.Random(2)
    for number in range(6):
        folder = tmp_path / f"{number}"
        shutil.copytree(long_store, folder)
        damage(folder, sorted(draws.sample(range(SHARDS), SHARDS // 2)))
        process = writers.start(folder, **LONG)
        time.sleep(draws.uniform(0, 0.12))
        os.kill(process, signal.SIGKILL)
        assert writers.wait(process) in (-signal.SIGKILL, DONE)
        assert_nothing_wrong(folder, long_store)
        assert writers.write(folder, **LONG) == DONE
        assert_same_store(folder, long_store)


# ---------------------------------------------------------------------- several processes


def test_several_processes_write_disjoint_ranges_and_the_last_one_finishes(
    writers: Writers, long_store: Path, tmp_path: Path
) -> None:
    for count in (2, 3):
        folder = tmp_path / f"{count}"
        processes = [writers.start(folder, **LONG, share=(rank, count)) for rank in range(count)]
        ends = [writers.wait(process) for process in processes]
        assert set(ends) <= {DONE, UNFINISHED} and DONE in ends
        assert_same_store(folder, long_store)


def test_one_of_several_processes_may_be_killed(writers: Writers, long_store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    processes = [writers.start(folder, **LONG, share=(rank, 3), die_at=15 if rank == 1 else None) for rank in range(3)]
    assert [writers.wait(process) for process in processes] == [UNFINISHED, -signal.SIGKILL, UNFINISHED]
    assert_nothing_wrong(folder, long_store)
    assert 0 < len(shards_in(folder)) < SHARDS
    before = {name: (folder / name).stat().st_ino for name in shards_in(folder)}
    assert writers.write(folder, **LONG, share=(1, 3)) == DONE
    assert before.items() <= {name: (folder / name).stat().st_ino for name in shards_in(folder)}.items()
    assert_same_store(folder, long_store)


def test_processes_that_start_and_stop_at_different_times_do_not_interfere(
    writers: Writers, long_store: Path, tmp_path: Path
) -> None:
    """Each process takes every range, as if a user started the same command twice."""
    draws = random.Random(4)
    for number in range(4):
        folder = tmp_path / f"{number}"
        processes = []
        for _ in range(3):
            processes.append(writers.start(folder, **LONG))
            time.sleep(draws.uniform(0, 0.2))
        assert [writers.wait(process) for process in processes] == [DONE] * 3
        assert_same_store(folder, long_store)


# ---------------------------------------------------------------------- flipped bits


@pytest.fixture
def tiny(tmp_path: Path) -> TinyStore:
    return write_tiny_store(tmp_path / "store")


def repair(tiny: TinyStore, folder: Path) -> list[int]:
    """The examples that a new writer finds missing and writes to complete the store."""
    writer = begin_tiny_store(folder).writer
    missing = [shard.first for shard in writer.missing()]
    writer.write()
    assert writer.finish()
    return missing


def test_any_flipped_bit_is_found_and_only_its_shard_is_rewritten(tiny: TinyStore, tmp_path: Path) -> None:
    folder, reference = tmp_path / "store", tmp_path / "reference"
    shutil.copytree(folder, reference)
    draws, names = random.Random(0), [*shards_in(folder), MANIFEST]
    sizes = [(reference / name).stat().st_size for name in names]
    hit: Counter[str] = Counter()
    for number in range(200):
        # Every tenth in the manifest, which is small; the others anywhere, including the shards' headers.
        name = MANIFEST if number % 10 == 0 else draws.choices(names, sizes)[0]
        place = draws.randrange(4096) if number % 5 == 1 else draws.randrange((reference / name).stat().st_size)
        place %= (reference / name).stat().st_size
        hit[name] += 1
        nodes = {name: (folder / name).stat().st_ino for name in shards_in(folder)}
        flip(folder / name, place, draws.randrange(8))
        (found,) = verify_store(folder)
        assert found.file == name and found.why
        with pytest.raises(UserError):
            Store.open(folder)
        if name == MANIFEST:
            assert (found.first, found.stop) == (0, 0) and repair(tiny, folder) == []
        else:
            first, stop = (int(text) for text in name.split("-")[1:3])
            assert (found.first, found.stop) == (first, stop) and repair(tiny, folder) == [first]
        after = {name: (folder / name).stat().st_ino for name in shards_in(folder)}
        assert {other for other in names[:-1] if nodes[other] != after[other]} <= {name}
        assert verify_store(folder) == []
        assert_same_store(folder, reference)
    assert len(hit) == len(names)


def test_any_flipped_bit_of_a_shards_first_bytes_is_found(tiny: TinyStore, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    name = shards_in(folder)[4]
    for place in range(16):
        for bit in range(8):
            flip(folder / name, place, bit)
            assert [(found.file, found.first, found.stop) for found in verify_store(folder)] == [(name, 4, 5)]
            with pytest.raises(UserError, match="examples 4 to 4"):
                Store.open(folder)
            (folder / f"{SET_ASIDE}{name}").rename(folder / name)
            flip(folder / name, place, bit)
    assert verify_store(folder) == []


def test_all_damage_is_found(tiny: TinyStore, tmp_path: Path) -> None:
    folder, reference = tmp_path / "store", tmp_path / "reference"
    shutil.copytree(folder, reference)
    names = shards_in(folder)
    flip(folder / names[1], 5000, 0)
    (folder / names[3]).unlink()
    os.truncate(folder / names[6], 1000)
    flip(folder / MANIFEST, 100, 2)
    found = {entry.file: (entry.first, entry.stop) for entry in verify_store(folder)}
    assert found.keys() >= {names[1], names[6], MANIFEST} and found[names[1]] == (1, 2)
    assert repair(tiny, folder) == [1, 3, 6]
    assert verify_store(folder) == []
    assert_same_store(folder, reference)


def test_a_flipped_bit_in_an_unfinished_store_is_repaired(tmp_path: Path) -> None:
    """A bit of writing.json; shards are checked at the end."""
    reference, draws = tmp_path / "reference", random.Random(5)
    write_tiny_store(reference)
    for number in range(8):
        folder = tmp_path / f"{number}"
        tiny = begin_tiny_store(folder)
        tiny.writer.write((0, 2))
        flip(folder / WRITING, draws.randrange((folder / WRITING).stat().st_size), draws.randrange(8))
        repair(tiny, folder)
        assert verify_store(folder) == []
        assert_same_store(folder, reference)


def test_a_bit_flipped_during_writing_is_found_at_the_end(tmp_path: Path) -> None:
    folder, reference = tmp_path / "store", tmp_path / "reference"
    write_tiny_store(reference)
    tiny = begin_tiny_store(folder)
    tiny.writer.write((0, 2))
    flip(folder / shards_in(folder)[2], 9999, 4)
    repair(tiny, folder)
    assert [found.first for found in verify_store(folder)] == [4]
    assert repair(tiny, folder) == [4]
    assert_same_store(folder, reference)


# ---------------------------------------------------------------------- no room


def test_a_disk_that_fills_up_at_any_point_loses_nothing(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, folder, filler = tmp_path / "reference", small_disk / "store", small_disk / "filler"
    needed = sum(shard.bytes for shard in write_tiny_store(reference).writer.shards)
    free = Folder.free_bytes
    ended: Counter[int] = Counter()
    for room in range(0, needed + 32_768, 8192):
        with monkeypatch.context() as patch:
            # The check finds enough space; then another program uses it.
            patch.setattr(Folder, "free_bytes", lambda _: 10**9)
            tiny = begin_tiny_store(folder)
            filler.write_bytes(bytes(max(0, (free(tiny.location) or 0) - room)))
            try:
                tiny.writer.write()
                assert tiny.writer.finish()
            except UserError as error:
                assert (
                    "no space left on the disk" in str(error)
                    and "store.path" in str(error)
                    and "is saved" in str(error)
                )
                assert error.__suppress_context__
            else:
                break
        ended[len(shards_in(folder))] += 1
        assert not half_written(folder), "half-written files would take up space"
        assert_nothing_wrong(folder, reference)
        before = {name: (folder / name).stat().st_ino for name in shards_in(folder)}
        filler.unlink()
        writer = begin_tiny_store(folder).writer
        assert len(writer.missing()) == 9 - len(before)
        writer.write()
        assert writer.finish()
        assert before.items() <= {name: (folder / name).stat().st_ino for name in shards_in(folder)}.items()
        assert_same_store(folder, reference)
        shutil.rmtree(folder)
    assert room > needed and len(ended) >= 9, ended
    assert_same_store(folder, reference)


def test_too_little_space_is_reported_before_anything_is_written(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(200_000))
    tiny = begin_tiny_store(small_disk / "store")
    with pytest.raises(UserError, match="Free some space"):
        tiny.writer.write()
    assert os.listdir(small_disk) == ["filler"]
    (small_disk / "filler").unlink()
    tiny.writer.write()
    assert tiny.writer.finish()


def test_a_long_store_repeats_the_short_one(tmp_path: Path) -> None:
    """The long store of the tests above holds the right states."""
    tiny = begin_long_store(tmp_path, times=2)
    tiny.writer.write()
    assert tiny.writer.finish() and len(tiny.features) == 2 * 18
    states = all_states(tmp_path)
    half = int(tiny.features.lengths[:18].sum())
    assert torch.equal(states[:half], states[half:])
    expected = np.concatenate([tiny.states_of(window, "tokens") for window in range(18)])
    torch.testing.assert_close(states[:half].float(), torch.from_numpy(expected), rtol=2e-3, atol=2e-3)
