"""Reading a store: only complete ones, the right bytes for every window, and in disk order."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_stores import TinyStore, begin_tiny_store, write_tiny_store

from bertvision.data.packing import plan_batches
from bertvision.encoder.states import Part
from bertvision.errors import UserError
from bertvision.sources.memory import MemoryStates
from bertvision.sources.store import DTYPES, Store, StoredSource, writer
from bertvision.sources.store.format import MANIFEST, SET_ASIDE, outline_shard, seal, unseal
from bertvision.sources.store.location import ByteRange, Folder
from bertvision.sources.store.reader import StateReader
from bertvision.sources.store.upkeep import verify_store

PARTS: tuple[Part, ...] = ("tokens", "cls", "mean")
TOKEN = 4 * 32 * 4  # bytes of a token's states in float32


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyStore:
    return write_tiny_store(tmp_path_factory.mktemp("store"), "float32", PARTS)


@pytest.fixture(scope="module")
def store(tiny: TinyStore) -> Store:
    found = Store.open(tiny.location, tiny.identity)
    assert len(found.manifest.shards) == 9
    return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[tuple[int, int]]]]:
    """Every call that reads states: the file, and first and last byte of each range."""
    found: list[tuple[str, list[tuple[int, int]]]] = []
    read_into = Folder.read_into

    def note(self: Folder, name: str, runs: list[ByteRange]) -> None:
        found.append((name, [(run.start, run.stop) for run in runs]))
        read_into(self, name, runs)

    monkeypatch.setattr(Folder, "read_into", note)
    return found


# ---------------------------------------------------------------------- opening


def test_a_missing_store_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no store at .*expected manifest\.json there"):
        Store.open(tmp_path / "gone")


def test_an_unfinished_store_can_not_be_opened(tmp_path: Path) -> None:
    tiny = begin_tiny_store(tmp_path)
    tiny.writer.write()
    with pytest.raises(UserError, match="is incomplete: `bertvision encode` finishes it"):
        Store.open(tmp_path)
    assert tiny.writer.finish()
    Store.open(tmp_path)


def test_a_file_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="no store at"):
        Store.open(tmp_path / "file")


@pytest.mark.parametrize("data", [b"", b"{}", b"not json", b'{"format": 1}', b"\xff\xfe"])
def test_an_invalid_manifest_is_refused(tmp_path: Path, data: bytes) -> None:
    write_tiny_store(tmp_path)
    (tmp_path / MANIFEST).write_bytes(data)
    with pytest.raises(UserError, match=r"manifest\.json is damaged .*bertvision encode"):
        Store.open(tmp_path)


def break_by(how: str) -> Callable[[Path], None]:
    return {
        "is missing": lambda path: path.unlink(),
        "bytes instead of": lambda path: path.write_bytes(path.read_bytes()[:-1]),
        "is damaged": lambda path: path.rename(path.parent / f"{SET_ASIDE}{path.name}") and None,
    }[how]


@pytest.mark.parametrize("how", ["is missing", "bytes instead of", "is damaged"])
def test_a_broken_shard_is_refused_with_its_examples(tmp_path: Path, how: str) -> None:
    write_tiny_store(tmp_path, shard_bytes=60_000)
    shard = Store.open(tmp_path).manifest.shards[1]
    assert shard.stop - shard.first > 1
    break_by(how)(tmp_path / shard.file)
    with pytest.raises(UserError, match=how) as caught:
        Store.open(tmp_path)
    for word in (shard.file, f"examples {shard.first} to {shard.stop - 1}", "store verify", "bertvision encode"):
        assert word in str(caught.value)


@pytest.mark.parametrize("how", ["is missing", "bytes instead of"])
def test_a_shard_that_breaks_after_opening_is_reported(tmp_path: Path, how: str) -> None:
    tiny = write_tiny_store(tmp_path)
    store = Store.open(tmp_path)
    shard = store.manifest.shards[3]
    store.facts()  # read once, from all shards
    break_by(how)(tmp_path / shard.file)
    windows = np.flatnonzero(tiny.features.example == 3)
    with pytest.raises(UserError, match="can't be read") as caught:
        store.read("tokens", windows)
    for word in (shard.file, "examples 3 to 3", "store verify", "bertvision encode"):
        assert word in str(caught.value)
    assert len(store.read("tokens", [0])) == tiny.features.lengths[0]


# ---------------------------------------------------------------------- what is read


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_come_in_the_requested_order_with_their_states(tmp_path: Path, dtype: str, part: Part) -> None:
    tiny = write_tiny_store(tmp_path, dtype, PARTS)
    wanted = [17, 0, 5, 4, 5, 16]  # some adjacent, one twice, from both ends
    found = Store.open(tmp_path).read(part, wanted)
    expected = torch.from_numpy(np.concatenate([tiny.states_of(window, part) for window in wanted]))
    tolerance = {"float32": 1e-5, "float16": 2**-10, "bfloat16": 2**-7, "int8": 1 / 100}[dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def test_no_windows_return_no_states(store: Store) -> None:
    assert store.read("tokens", []).shape == (0, 4, 32)
    assert store.read("cls", []).shape == (0, 5, 32)


def test_a_store_returns_facts_and_ids(store: Store, tiny: TinyStore) -> None:
    facts, features = store.facts(), tiny.features
    assert len(store) == len(features) == 18
    for name in ("lengths", "example", "start", "end"):
        assert facts[name].tolist() == getattr(features, name).tolist()
    np.testing.assert_array_equal(facts["target"], features.target)
    assert store.ids() == tiny.ids


def test_parts_that_are_not_stored_fail_an_assertion(tmp_path: Path) -> None:
    tiny = write_tiny_store(tmp_path, parts=("cls",))
    with pytest.raises(AssertionError, match="the store has"):
        StoredSource(Store.open(tmp_path), tiny.features, [np.arange(3)], ("mean",))


def test_windows_that_do_not_match_the_store_fail_an_assertion(store: Store, tiny: TinyStore) -> None:
    for lengths in (tiny.features.lengths[:-1], tiny.features.lengths + 1):
        with pytest.raises(AssertionError, match="lengths"):
            StateReader(store, ("tokens",), lengths)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_batches_come_in_the_dtype_of_the_heads(store: Store, tiny: TinyStore, dtype: torch.dtype) -> None:
    plan = [np.array([3, 1]), np.array([2])]
    exact = StoredSource(store, tiny.features, plan, PARTS)
    for found, expected in zip(
        StoredSource(store, tiny.features, plan, PARTS, dtype=dtype).batches(), exact.batches(), strict=True
    ):
        for part in PARTS:
            assert torch.equal(found.states.read(part), expected.states.read(part).to(dtype))


def test_a_part_without_the_pooled_output_is_marked(store: Store, tiny: TinyStore) -> None:
    plan = [np.arange(4)]
    assert next(StoredSource(store, tiny.features, plan, ("cls",)).batches()).states.pooled
    assert not next(StoredSource(store, tiny.features, plan, ("mean",)).batches()).states.pooled


# ---------------------------------------------------------------------- how it is read


def test_a_group_of_steps_is_read_forward_and_every_byte_once(
    store: Store, tiny: TinyStore, reads: list[tuple[str, list[tuple[int, int]]]]
) -> None:
    order = np.random.default_rng(0).permutation(18)
    StateReader(store, ("tokens",), tiny.features.lengths).fetch([order[:7], order[7:12], order[12:]])
    names = [shard.file for shard in store.manifest.shards]
    assert [name for name, _ in reads] == names, "each shard once, in the order of the disk"
    for shard, (_, runs) in zip(store.manifest.shards, reads, strict=True):
        begin = shard.at["tokens"]
        assert runs == [(begin, begin + shard.tokens * TOKEN)], "adjacent windows are one read"


def test_only_requested_parts_are_read(
    store: Store, tiny: TinyStore, reads: list[tuple[str, list[tuple[int, int]]]]
) -> None:
    StateReader(store, ("tokens", "mean"), tiny.features.lengths).fetch([np.array([5, 2]), np.array([9])])
    lengths, shards = tiny.features.lengths, store.manifest.shards
    mean = 4 * 32 * 4
    expected = []
    for window in (2, 5, 9):  # two windows per shard: the second follows the first
        shard, second = shards[window // 2], window % 2
        tokens = shard.at["tokens"] + second * int(lengths[window - 1]) * TOKEN
        means = shard.at["mean"] + second * mean
        expected.append((shard.file, [(tokens, tokens + int(lengths[window]) * TOKEN), (means, means + mean)]))
    assert reads == expected


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of steps in each group that was read together."""
    counts: list[int] = []
    fetch = StateReader.fetch

    def note(self: StateReader, batches: list[np.ndarray], *rest: Any) -> Any:
        counts.append(len(batches))
        return fetch(self, batches, *rest)

    monkeypatch.setattr(StateReader, "fetch", note)
    return counts


@pytest.mark.parametrize(("memory", "groups"), [(10**9, 1), (1, 6)])
def test_steps_are_read_together_within_the_memory_limit(
    store: Store, tiny: TinyStore, memory: int, groups: int, fetched: list[int]
) -> None:
    plan = [batch for batch in plan_batches(tiny.features.lengths, 1, 0, rows=3).epochs[0]]
    source = StoredSource(store, tiny.features, plan, ("tokens",), memory=memory)
    assert len(list(source.batches())) == 6 and len(fetched) == groups and sum(fetched) == 6
    fetched.clear()
    assert len(list(source.batches(4))) == 2 and sum(fetched) == 2, "earlier steps are not read"


def test_a_group_ends_at_the_end_of_a_pool(store: Store, tiny: TinyStore, fetched: list[int]) -> None:
    plan = [np.array([window % 18]) for window in range(60)]
    memory = 2 * 5 * 48 * TOKEN  # a group has room for five steps
    pools = list(range(0, 60, 4))
    batches = list(StoredSource(store, tiny.features, plan, ("tokens",), memory=memory, pools=pools).batches())
    assert len(fetched) > 2 and set(np.cumsum(fetched).tolist()) <= {*pools, 60}
    assert [int(batch.windows[0]) for batch in batches] == [step % 18 for step in range(60)]


def test_memory_in_use_is_never_overwritten(store: Store, tiny: TinyStore) -> None:
    """Memory of released batches is reused; a view keeps the memory of its batch alive."""
    plan = sum(plan_batches(tiny.features.lengths, 6, 0, rows=4).epochs, [])
    held, copies = [], []
    for number, batch in enumerate(StoredSource(store, tiny.features, plan, PARTS, memory=100_000).batches()):
        if number % 3 == 0:
            for part in PARTS:
                piece = batch.states.read(part)[1:3, -1, ::2]
                held.append(piece.numpy() if number % 2 else piece)
                copies.append(torch.as_tensor(piece).clone())
        del batch
    assert len(held) > 20
    for piece, copy in zip(held, copies, strict=True):
        assert torch.equal(torch.as_tensor(piece), copy)


def test_a_pass_without_steps_is_empty(store: Store, tiny: TinyStore) -> None:
    source = StoredSource(store, tiny.features, [np.arange(3)], ("cls",))
    assert list(source.batches(1)) == [] and list(StoredSource(store, tiny.features, [], ("cls",)).batches()) == []


def test_stores_can_be_opened_by_path_string_and_location(tiny: TinyStore) -> None:
    for path in (tiny.location, str(tiny.location), Path(str(tiny.location)), f"file://{tiny.location}"):
        assert Store.open(path).manifest.fingerprint == tiny.writer.fingerprint


# ---------------------------------------------------------------------- damage


def write_as_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> TinyStore:
    """A store without checksums of windows, as earlier versions wrote it."""
    with monkeypatch.context() as patched:
        patched.setattr(writer, "outline_shard", lambda *given: outline_shard(*given[:6], checked=False))
        patched.setattr(writer, "add_checksums", lambda head, *_: head)
        return write_tiny_store(folder, "float16", PARTS)


def flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("part", PARTS)
def test_a_flipped_bit_in_a_states_is_refused_and_encode_repairs_it(tmp_path: Path, part: Part) -> None:
    tiny = write_tiny_store(tmp_path, "float16", PARTS)
    found = Store.open(tmp_path)
    before = {shard.file: (tmp_path / shard.file).read_bytes() for shard in found.manifest.shards}
    shard = found.manifest.shards[3]
    second = shard.at[part] + found.contents.window_bytes(part, tiny.features.lengths.astype(np.int64))[6]
    flip(tmp_path / shard.file, int(second) + 1)
    reading = StateReader(Store.open(tmp_path), (part,), tiny.features.lengths)
    reading.fetch([np.arange(7)])  # only what is read is checked
    with pytest.raises(UserError, match=rf"{shard.file}.*example 3 have a wrong checksum.*`bertvision encode` repairs"):
        reading.fetch([np.array([2, 7])])
    verify_store(tmp_path)
    again = begin_tiny_store(tmp_path, "float16", PARTS)
    assert again.writer.write() == shard.bytes and again.writer.finish()
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_a_flipped_bit_before_the_states_is_refused(tmp_path: Path) -> None:
    write_tiny_store(tmp_path, "float16", PARTS)
    shard = Store.open(tmp_path).manifest.shards[0]
    whole = (tmp_path / shard.file).read_bytes()
    for byte in range(0, shard.at["tokens"], 7):
        flip(tmp_path / shard.file, byte)
        with pytest.raises(UserError, match="bertvision encode"):
            Store.open(tmp_path).facts()
        (tmp_path / shard.file).write_bytes(whole)
    assert Store.open(tmp_path).ids()


def test_stores_of_earlier_versions_are_read_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = write_as_before(tmp_path, monkeypatch)
    found = Store.open(tmp_path, tiny.identity)
    assert not any(found.checksums(shard) for shard in found.manifest.shards)
    np.testing.assert_allclose(found.read("mean", [5]).numpy(), tiny.states_of(5, "mean"), atol=2e-3)
    again = begin_tiny_store(tmp_path, "float16", PARTS)
    assert again.writer.missing() == [] and again.writer.write() == 0 and again.writer.finish()
    assert Store.open(tmp_path).manifest == found.manifest
    # A shard that is written again has checksums, next to others that have none.
    lost = found.manifest.shards[4]
    (tmp_path / lost.file).unlink()
    again = begin_tiny_store(tmp_path, "float16", PARTS)
    assert again.writer.write() > lost.bytes and again.writer.finish()
    mixed = Store.open(tmp_path)
    assert [bool(mixed.checksums(shard)) for shard in mixed.manifest.shards] == [number == 4 for number in range(9)]
    new = write_tiny_store(tmp_path / "new", "float16", PARTS).location
    assert torch.equal(mixed.read("tokens", range(18)), Store.open(new).read("tokens", range(18)))


def test_pooled_states_of_earlier_versions_are_checked_by_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = write_as_before(tmp_path, monkeypatch)
    shard = Store.open(tmp_path).manifest.shards[2]
    flip(tmp_path / shard.file, shard.at["cls"] + 5)
    with pytest.raises(UserError, match=rf"{shard.file}.*is damaged"):
        MemoryStates.load(Store.open(tmp_path), ("cls",), tiny.features, torch.device("cpu"), torch.float32)


def test_a_shard_that_is_a_path_is_refused(tmp_path: Path) -> None:
    write_tiny_store(tmp_path)
    value = unseal((tmp_path / MANIFEST).read_bytes(), MANIFEST)
    value["shards"][0]["sha256"] = "/../../elsewhere"
    (tmp_path / MANIFEST).write_bytes(seal(value))
    with pytest.raises(UserError, match=r"manifest\.json is damaged \(shards\[0\]\.sha256"):
        Store.open(tmp_path)
