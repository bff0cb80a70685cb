"""Writing a store: bad values are rejected, sizes are known, and only missing shards are written."""

import dataclasses
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_stores import TinyStore, begin_tiny_store, tiny_encoder, write_tiny_store

from bertvision.disk.writing import host_name
from bertvision.encoder.states import Part
from bertvision.errors import UserError
from bertvision.progress import Bar, Reporter
from bertvision.sources.store import DTYPES, Manifest, Store, StoreWriter, build_identity
from bertvision.sources.store.format import LISTED, MANIFEST, WRITING, seal
from bertvision.sources.store.location import Folder

PARTS: tuple[Part, ...] = ("tokens", "cls", "mean")


def shards_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("states-"))


def hashes(folder: Path) -> dict[str, str]:
    """Checksum of every shard by name."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in shards_in(folder)}


def inodes(folder: Path) -> dict[str, int]:
    """The inode of each shard: a rewritten file gets another one."""
    return {name: (folder / name).stat().st_ino for name in shards_in(folder)}


def flip(path: Path, place: int = -5) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 16
    path.write_bytes(bytes(data))


def again(tiny: TinyStore, **changes: Any) -> StoreWriter:
    """A writer of the same store, as in another process."""
    parts = (tiny.location, tiny.encoder, tiny.features, tiny.ids, tiny.contents, tiny.identity)
    return StoreWriter(*parts, **{"shard_bytes": 20_000, **changes})


# ---------------------------------------------------------------------- numbers that can't be stored


@contextmanager
def spoiled(tiny: TinyStore, examples: list[int], value: float) -> Iterator[TinyStore]:
    """The store with `value` added to the embeddings of some examples' tokens."""
    features, unused = tiny.features, int(tiny.features.input_ids.max()) + 1
    ids = features.input_ids.copy()
    for window in np.flatnonzero(np.isin(features.example, examples)):
        ids[features.starts[window] + 2] = unused

    def spoil(_: Any, args: Any, kwargs: dict[str, Any], output: torch.Tensor) -> torch.Tensor:
        bad = (kwargs["input_ids"] == unused).any(dim=1)  # (row)
        return torch.where(bad[:, None, None], output + value, output)  # (row, slot, hidden)

    model: Any = tiny_encoder().model
    assert unused < model.config.vocab_size
    hook = model.embeddings.register_forward_hook(spoil, with_kwargs=True)
    changed = dataclasses.replace(features, input_ids=ids)
    parts = (tiny.location, tiny.encoder, changed, tiny.ids, tiny.contents, tiny.identity)
    try:
        yield dataclasses.replace(tiny, features=changed, writer=StoreWriter(*parts, shard_bytes=20_000))
    finally:
        hook.remove()


@pytest.mark.parametrize(("part", "value"), [("tokens", float("nan")), ("cls", float("inf")), ("mean", float("nan"))])
@pytest.mark.parametrize("dtype", DTYPES)
def test_states_that_are_nan_or_infinite_are_reported_with_the_id(
    tmp_path: Path, dtype: str, part: Part, value: float
) -> None:
    with spoiled(begin_tiny_store(tmp_path, dtype, (part,)), [4], value) as bad:
        with pytest.raises(UserError, match="NaN or infinite") as caught:
            bad.writer.write()
        assert f"'{bad.ids[4]}'" in str(caught.value)
        assert not any(f"'{name}'" in str(caught.value) for name in bad.ids if name != bad.ids[4])
        assert not bad.writer.finish()
    with pytest.raises(UserError, match="is incomplete"):
        Store.open(tmp_path)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_states_too_large_for_float16_are_reported_with_the_id(tmp_path: Path, dtype: str, part: Part) -> None:
    with spoiled(begin_tiny_store(tmp_path, dtype, (part,)), [4], 1e5) as bad:
        if dtype == "float16":
            with pytest.raises(UserError, match="too large for float16") as caught:
                bad.writer.write()
            text = str(caught.value)
            assert f"'{bad.ids[4]}'" in text and "65,504" in text and "store.dtype to bfloat16" in text
            assert "1e+05" in text and not bad.writer.finish()
        else:
            bad.writer.write()
            assert bad.writer.finish()
            window = np.flatnonzero(bad.features.example == 4)
            found = Store.open(tmp_path).read(part, window)
            assert found.isfinite().all() and float(found.abs().max()) > 65_504


def test_many_bad_examples_are_counted_and_three_of_them_named(tmp_path: Path) -> None:
    tiny = begin_tiny_store(tmp_path, "float32", ("cls",), shard_bytes=10**9)
    with spoiled(tiny, [1, 2, 5, 6, 8], float("nan")) as bad, pytest.raises(UserError) as caught:
        bad.writer.write()
    named = [name for name in tiny.ids if f"'{name}'" in str(caught.value)]
    assert len(named) == 3 and set(named) < {tiny.ids[number] for number in (1, 2, 5, 6, 8)}
    assert "and 2 more" in str(caught.value)


def test_shards_finished_before_a_bad_example_are_reused(tmp_path: Path) -> None:
    tiny = begin_tiny_store(tmp_path)
    with spoiled(tiny, [6], float("nan")) as bad:
        with pytest.raises(UserError):
            bad.writer.write()
        before = inodes(tmp_path)
        assert [name.split("-")[1] for name in before] == [f"{number:09d}" for number in range(6)]
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
    writer = StoreWriter(tiny.location, tiny.encoder, bad.features, tiny.ids, tiny.contents, tiny.identity)
    assert [shard.first for shard in writer.missing()] == [6, 7, 8]
    writer.write()
    assert writer.finish()
    assert {name: node for name, node in inodes(tmp_path).items() if name in before} == before


# ---------------------------------------------------------------------- bytes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", [("tokens",), ("cls",), ("cls", "mean"), PARTS])
def test_the_bytes_are_known_before_anything_is_written(tmp_path: Path, dtype: str, parts: tuple[Part, ...]) -> None:
    tiny = begin_tiny_store(tmp_path / "store", dtype, parts)
    estimate = tiny.writer.bytes
    assert not (tmp_path / "store").exists()
    assert tiny.writer.write() == estimate
    assert tiny.writer.finish()
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "store").iterdir()}
    assert sum(size for name, size in sizes.items() if name.startswith("states-")) == estimate
    assert Store.open(tmp_path / "store").manifest.bytes == estimate == again(tiny).bytes


def test_a_disk_with_too_little_space_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = begin_tiny_store(tmp_path / "store")
    monkeypatch.setattr(Folder, "free_bytes", lambda _: int(1.02 * tiny.writer.bytes) - 1)
    with pytest.raises(UserError, match="Free some space") as caught:
        tiny.writer.write()
    for word in ("MB are free", str(tmp_path / "store"), "store.path", "store.dtype", "encoder.layers", "train.source"):
        assert word in str(caught.value)
    assert not (tmp_path / "store").exists()
    monkeypatch.setattr(Folder, "free_bytes", lambda _: int(1.02 * tiny.writer.bytes) + 1)
    assert tiny.writer.write() == tiny.writer.bytes


def test_space_is_required_only_for_missing_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = write_tiny_store(tmp_path)
    gone = shards_in(tmp_path)[3]
    size = (tmp_path / gone).stat().st_size
    (tmp_path / gone).unlink()
    monkeypatch.setattr(Folder, "free_bytes", lambda _: int(1.1 * size))
    writer = again(tiny)
    assert writer.write() == size and writer.finish()
    monkeypatch.setattr(Folder, "free_bytes", lambda _: 0)
    assert again(tiny).write() == 0


def test_a_location_with_unknown_free_space_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Folder, "free_bytes", lambda _: None)
    write_tiny_store(tmp_path)


def test_progress_reports_tokens_and_bytes(tmp_path: Path) -> None:
    told: list[tuple[float, str]] = []
    titles: list[tuple[str, float, str]] = []

    class Noting(Bar):
        def advance(self, amount: float, note: str = "") -> None:
            told.append((amount, note))

    class Watching(Reporter):
        @contextmanager
        def bar(self, title: str, total: float, unit: str) -> Iterator[Bar]:
            titles.append((title, total, unit))
            yield Noting()

    tiny = write_tiny_store(tmp_path, reporter=Watching())
    total = int(tiny.features.lengths.sum())
    assert titles == [(f"encoding into {tmp_path}", total, "tokens")]
    assert sum(amount for amount, _ in told) == total and all("MB" in note for _, note in told)


# ---------------------------------------------------------------------- ranges and shares


def test_an_unfinished_store_keeps_its_shard_sizes(tmp_path: Path) -> None:
    tiny = begin_tiny_store(tmp_path, shard_bytes=20_000)
    tiny.writer.write((0, 2))
    for changes in ({"shard_bytes": 60_000}, {"shard_bytes": 10**9}, {"shard_tokens": 1}):
        writer = again(tiny, **changes)
        assert [(shard.first, shard.stop) for shard in writer.shards] == [(n, n + 1) for n in range(9)]
        assert [shard.first for shard in writer.missing()] == [1, 3, 5, 7]
    writer.write()
    assert writer.finish()
    assert hashes(tmp_path) == hashes_of_single_writer(tmp_path)
    assert len(again(tiny, shard_bytes=10**9).shards) == 9, "so does a complete store"


def hashes_of_single_writer(beside: Path, **changes: Any) -> dict[str, str]:
    folder = beside.parent / f"{beside.name}-single"
    write_tiny_store(folder, **changes)
    return hashes(folder)


@pytest.mark.parametrize("processes", [2, 4, 20])
def test_shares_are_disjoint_and_produce_the_store_of_a_single_writer(tmp_path: Path, processes: int) -> None:
    folder = tmp_path / "store"
    writers = [begin_tiny_store(folder) for _ in range(processes)]  # all start with an empty location
    seen: set[str] = set()
    for rank, tiny in enumerate(writers):
        tiny.writer.write((rank, processes))
        now = set(shards_in(folder))
        assert len(now - seen) == len(range(rank, 9, processes))
        seen = now
        assert tiny.writer.finish() == (len(now) == 9)
        assert (folder / MANIFEST).exists() == (len(now) == 9)
    assert hashes(folder) == hashes_of_single_writer(folder)
    assert sorted(os.listdir(folder)) == [MANIFEST, *shards_in(folder)]


def test_a_share_with_nothing_to_do_writes_nothing(tmp_path: Path) -> None:
    tiny = begin_tiny_store(tmp_path / "store")
    assert tiny.writer.write((15, 20)) == 0 and not (tmp_path / "store").exists() and not tiny.writer.finish()


def test_the_last_process_may_find_the_store_finished(tmp_path: Path) -> None:
    one, other = begin_tiny_store(tmp_path), begin_tiny_store(tmp_path)
    one.writer.write((0, 2))
    other.writer.write((1, 2))
    assert one.writer.finish() and other.writer.finish()
    assert sorted(os.listdir(tmp_path)) == [MANIFEST, *shards_in(tmp_path)]
    Store.open(tmp_path, one.identity)


def test_a_writer_can_start_while_another_finishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lists writing.json, which is gone when it is read: the store has been finished."""
    tiny = begin_tiny_store(tmp_path)
    tiny.writer.write()
    read = Folder.read

    def read_late(self: Folder, name: str, *rest: Any) -> bytes:
        if name == WRITING:
            monkeypatch.undo()
            assert tiny.writer.finish()
        return read(self, name, *rest)

    monkeypatch.setattr(Folder, "read", read_late)
    writer = again(tiny)
    assert writer.missing() == [] and writer.finish()


# ---------------------------------------------------------------------- written anew


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def cut_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


@pytest.mark.parametrize("break_", [remove, cut, cut_to_nothing, lengthen])
@pytest.mark.parametrize("numbers", [[0], [1, 2, 8]])
def test_only_broken_shards_are_rewritten(tmp_path: Path, break_: Callable[[Path], None], numbers: list[int]) -> None:
    tiny = write_tiny_store(tmp_path, "bfloat16", PARTS)
    names, before, nodes = shards_in(tmp_path), hashes(tmp_path), inodes(tmp_path)
    for number in numbers:
        break_(tmp_path / names[number])
    with pytest.raises(UserError, match=f"examples {numbers[0]} to {numbers[0]}[ )]") as caught:
        Store.open(tmp_path)
    assert names[numbers[0]] in str(caught.value) and "bertvision encode" in str(caught.value)
    writer = again(tiny)
    assert [shard.first for shard in writer.missing()] == numbers
    assert writer.write() == sum(writer.shards[number].bytes for number in numbers)
    assert writer.finish() and hashes(tmp_path) == before
    assert {name for name, node in inodes(tmp_path).items() if nodes[name] != node} <= {names[n] for n in numbers}
    Store.open(tmp_path, tiny.identity)


def test_a_rewritten_shard_is_bit_identical(tmp_path: Path) -> None:
    """No matter what else is written: in float32, other sequences in the batch would change the bits."""
    tiny = write_tiny_store(tmp_path, "float32", PARTS, shard_bytes=100_000, encode_tokens=100)
    before = hashes(tmp_path)
    assert 3 < len(before) < 9
    for name in before:
        (tmp_path / name).unlink()
        writer = again(tiny, encode_tokens=100)
        writer.write()
        assert writer.finish() and hashes(tmp_path) == before


def test_a_shard_known_to_be_damaged_is_rewritten(tmp_path: Path) -> None:
    tiny = write_tiny_store(tmp_path)
    names, before, nodes = shards_in(tmp_path), hashes(tmp_path), inodes(tmp_path)
    for number in (2, 5):
        flip(tmp_path / names[number])
    (tmp_path / LISTED).write_bytes(seal({"files": [names[2], names[5]]}))
    with pytest.raises(UserError, match=r"examples 0 to 0\) may be damaged"):
        Store.open(tmp_path)
    writer = again(tiny)
    assert [shard.first for shard in writer.missing()] == [2, 5]
    writer.write()
    assert writer.missing() == [], "they were rewritten"
    assert writer.finish()
    assert hashes(tmp_path) == before and sorted(os.listdir(tmp_path)) == [MANIFEST, *names]
    changed = {name for name, node in inodes(tmp_path).items() if nodes[name] != node}
    assert changed <= {names[2], names[5]}
    Store.open(tmp_path, tiny.identity)


def test_two_shares_repair_damaged_shards(tmp_path: Path) -> None:
    tiny = write_tiny_store(tmp_path)
    names, before = shards_in(tmp_path), hashes(tmp_path)
    for number in (2, 5):
        flip(tmp_path / names[number])
    (tmp_path / LISTED).write_bytes(seal({"files": [names[2], names[5]]}))
    one, other = again(tiny), again(tiny)
    one.write((0, 2))
    assert not one.finish(), "example 5 is the other's"
    with pytest.raises(UserError, match="damaged"):
        Store.open(tmp_path)
    other.write((1, 2))
    assert other.finish() and hashes(tmp_path) == before
    Store.open(tmp_path)


def test_a_damaged_list_of_damage_hides_no_damage(tmp_path: Path) -> None:
    """The list is lost, so the damage must be found again: a complete store never has a wrong shard."""
    tiny = write_tiny_store(tmp_path)
    names, before = shards_in(tmp_path), hashes(tmp_path)
    flip(tmp_path / names[2])
    (tmp_path / LISTED).write_bytes(seal({"files": [names[2]]}))
    flip(tmp_path / LISTED, 20)
    with pytest.raises(UserError):
        Store.open(tmp_path)
    try:
        writer = again(tiny)
        writer.write()
        writer.finish()
        Store.open(tmp_path)
    except UserError:
        return
    assert hashes(tmp_path) == before


def test_a_complete_store_is_left_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be on a read-only disk, or in use by other readers."""
    tiny = write_tiny_store(tmp_path)
    before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in tmp_path.iterdir()}

    def refuse(*_: Any) -> None:
        raise UserError("a write to a store that is whole")

    monkeypatch.setattr(Folder, "write", refuse)
    writer = again(tiny)
    assert writer.missing() == [] and writer.write() == 0 and writer.finish()
    assert {path.name: (path.stat().st_ino, path.read_bytes()) for path in tmp_path.iterdir()} == before


# ---------------------------------------------------------------------- lost and foreign files


@pytest.mark.parametrize("break_", [remove, cut, cut_to_nothing, flip])
@pytest.mark.parametrize("gone", [[], [3, 4, 8]])
def test_a_lost_manifest_is_rebuilt_from_the_shards(
    tmp_path: Path, break_: Callable[[Path], None], gone: list[int]
) -> None:
    tiny = write_tiny_store(tmp_path)
    names, nodes = shards_in(tmp_path), inodes(tmp_path)
    before = Manifest.parse((tmp_path / MANIFEST).read_bytes(), "before")
    break_(tmp_path / MANIFEST)
    for number in gone:
        (tmp_path / names[number]).unlink()
    with pytest.raises(UserError):
        Store.open(tmp_path)
    writer = again(tiny, about=before.about)
    missing = [example for shard in writer.missing() for example in range(shard.first, shard.stop)]
    assert missing == gone
    writer.write()
    assert writer.finish()
    after = Store.open(tmp_path, tiny.identity).manifest
    if not gone:
        assert dataclasses.replace(after, about={}) == dataclasses.replace(before, about={})
    left = {name: nodes[name] for number, name in enumerate(names) if number not in gone}
    assert left.items() <= inodes(tmp_path).items(), "existing shards are not rewritten"
    assert Store.open(tmp_path).ids() == tiny.ids


@pytest.mark.parametrize("break_", [remove, flip])
def test_unknown_ranges_are_planned_again(tmp_path: Path, break_: Callable[[Path], None]) -> None:
    tiny = begin_tiny_store(tmp_path)
    tiny.writer.write()
    for name in shards_in(tmp_path)[2:8]:
        (tmp_path / name).unlink()
    break_(tmp_path / WRITING)
    writer = again(tiny)
    ranges = [(shard.first, shard.stop) for shard in writer.shards]
    assert [example for first, stop in ranges for example in range(first, stop)] == list(range(9))
    assert {(0, 1), (1, 2), (8, 9)} <= set(ranges), "the ranges of existing shards"
    writer.write()
    assert writer.finish()
    Store.open(tmp_path, tiny.identity)
    assert max(shard.bytes for shard in writer.shards) < 2 * 20_000, "a whole shard is held in memory"


def other_store(tmp_path: Path) -> TinyStore:
    """A complete store of the same data from another encoder: files with the same ranges and sizes."""
    tiny = begin_tiny_store(tmp_path / "other")
    identity = build_identity(tiny.contents, "others", "tokenizer", "data", {"max_length": 48}, "token ids", "float32")
    model: Any = tiny_encoder().model
    hook = model.embeddings.register_forward_hook(lambda _, __, output: output * 1.5)
    try:
        writer = StoreWriter(
            tiny.location, tiny.encoder, tiny.features, tiny.ids, tiny.contents, identity, shard_bytes=20_000
        )
        writer.write()
        assert writer.finish()
    finally:
        hook.remove()
    return dataclasses.replace(tiny, writer=writer, identity=identity)


def test_shards_of_different_states_without_a_manifest_are_refused_and_left(tmp_path: Path) -> None:
    other_store(tmp_path)
    (tmp_path / "other" / MANIFEST).unlink()
    before = hashes(tmp_path / "other")
    with pytest.raises(UserError, match="holds shards of different states") as caught:
        begin_tiny_store(tmp_path / "other")
    assert "store.path" in str(caught.value) and "bertvision store rm" in str(caught.value)
    assert hashes(tmp_path / "other") == before


@pytest.mark.parametrize("state", ["whole", "begun", "no notes"])
def test_shards_of_different_states_are_never_reused(tmp_path: Path, state: str) -> None:
    other_store(tmp_path)
    tiny = begin_tiny_store(tmp_path / "store")
    tiny.writer.write()
    if state == "whole":
        assert tiny.writer.finish()
    if state == "no notes":
        (tmp_path / "store" / WRITING).unlink()
    expected = hashes(tmp_path / "store")
    for name in shards_in(tmp_path / "other"):
        shutil.copy(tmp_path / "other" / name, tmp_path / "store" / name)
    try:
        writer = again(tiny)
        writer.write()
        writer.finish()
        store = Store.open(tmp_path / "store", tiny.identity)
    except UserError:
        return
    assert {shard.file for shard in store.manifest.shards} == set(expected)
    assert {name: digest for name, digest in hashes(tmp_path / "store").items() if name in expected} == expected


def dead_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.mark.parametrize("kind", ["shard", "writing", "manifest", "damaged"])
def test_partial_files_of_killed_writers_are_removed_at_the_end(tmp_path: Path, kind: str) -> None:
    tiny = begin_tiny_store(tmp_path)
    name = {"shard": f"{tiny.writer.shards[3].stem}0123456789abcdef.safetensors", "writing": WRITING}.get(
        kind, MANIFEST if kind == "manifest" else LISTED
    )
    dead = tmp_path / f".writing-{name}@{host_name()}-{dead_process()}-abcd1234"
    alive = tmp_path / f".writing-{name}@{host_name()}-{os.getppid()}-abcd1234"
    for path in (dead, alive):
        path.write_bytes(b"half")
    tiny.writer.write()
    assert tiny.writer.finish()
    assert alive.exists(), "its process may still be running"
    assert not dead.exists()


def test_other_files_in_the_folder_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("mine")
    (tmp_path / "notes").mkdir()
    tiny = write_tiny_store(tmp_path)
    assert (tmp_path / "README").read_text() == "mine" and (tmp_path / "notes").is_dir()
    Store.open(tmp_path, tiny.identity)


def test_shards_replaced_by_other_ranges_are_removed(tmp_path: Path) -> None:
    tiny = write_tiny_store(tmp_path)
    stray = tmp_path / "states-000000000-000000003-0123456789abcdef.safetensors"
    stray.write_bytes(b"of an older plan")
    (tmp_path / shards_in(tmp_path)[-1]).unlink()
    writer = again(tiny)
    writer.write()
    assert writer.finish() and not stray.exists()


# ---------------------------------------------------------------------- the numbers themselves


@pytest.mark.parametrize("tokens", [1, 100, 8192])
@pytest.mark.parametrize("part", PARTS)
def test_stored_states_equal_the_encoders(tmp_path: Path, part: Part, tokens: int) -> None:
    tiny = write_tiny_store(tmp_path, "float32", PARTS, encode_tokens=tokens)
    store = Store.open(tmp_path)
    for window in range(len(tiny.features)):
        found = store.read(part, [window]).numpy()
        np.testing.assert_allclose(found, tiny.states_of(window, part), rtol=1e-5, atol=1e-5)


def test_a_subset_of_layers_can_be_stored(tmp_path: Path) -> None:
    from tiny_encoders import tiny_model, tiny_tokenizer

    from bertvision.encoder.encoder import Encoder
    from bertvision.sources.store import Contents, open_location

    tiny = begin_tiny_store(tmp_path / "unused")
    encoder = Encoder(tiny_model("bert", num_attention_heads=2), tiny_tokenizer(), "tiny", "padded", layers=[1, 3])
    contents = Contents.of(encoder.shape, encoder.layers, PARTS, "float32")
    identity = build_identity(contents, "w", "t", "d", {}, "i", "float32")
    writer = StoreWriter(open_location(tmp_path / "store"), encoder, tiny.features, tiny.ids, contents, identity)
    writer.write()
    assert writer.finish()
    store = Store.open(tmp_path / "store", identity)
    for part, rows in (("tokens", [1, 3]), ("cls", [1, 3, 4]), ("mean", [1, 3])):
        found = store.read(part, [5]).numpy()
        expected = tiny.states_of(5, part)[:, rows]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
