"""The source contract: batches are the same from every source, in whatever pieces the states were computed."""

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertvision.data.packing import plan_batches
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import load_encoder
from bertvision.encoder.states import Part
from bertvision.sources import MemorySource, MemoryStates, Source, StateBatch, StreamedSource
from bertvision.sources.store import Contents, Store, StoredSource, StoreWriter, build_identity, open_location, reader
from bertvision.sources.store.reader import StateReader

KEEP: tuple[Part, ...] = ("cls", "mean")
SHARD_TOKENS = 100  # two or three windows: batches cross shards


@pytest.fixture(scope="module")
def encoder(tiny_encoder_folder: Path) -> Encoder:
    return load_encoder(str(tiny_encoder_folder), torch.device("cpu"), torch.float32, "padded").eval()


@pytest.fixture(scope="module")
def features(tiny_features: Callable[[str], Features]) -> Features:
    return tiny_features("stsb")


def plan_of(features: Features, epochs: int = 2, rows: int = 3) -> list[np.ndarray]:
    return [batch for batches in plan_batches(features.lengths, epochs, 0, rows=rows).epochs for batch in batches]


def store_states(
    folder: Path,
    encoder: Encoder,
    features: Features,
    keep: tuple[Part, ...],
    dtype: str = "float32",
    tokens: int = 100,
) -> Store:
    """A complete store of several shards; the ranges are the same for every dtype."""
    contents = Contents.of(encoder.shape, range(encoder.shape.layers), keep, dtype)
    identity = build_identity(contents, "weights", "tokenizer", "data", {"max_length": 48}, "ids", "float32")
    ids = [f"e{number}" for number in range(int(features.example.max()) + 1)]
    sizes = {"encode_tokens": tokens, "shard_tokens": SHARD_TOKENS}
    writer = StoreWriter(open_location(folder), encoder, features, ids, contents, identity, **sizes)
    writer.write()
    assert writer.finish()
    store = Store.open(folder, identity)
    assert len(store.manifest.shards) > 3
    return store


Build = Callable[..., Source]


@pytest.fixture(params=["streamed", "memory", "stored"])
def build(
    request: pytest.FixtureRequest, encoder: Encoder, features: Features, tmp_path_factory: pytest.TempPathFactory
) -> Build:
    """build(plan, tokens=…, share=…) → a source of the kind under test."""

    def make(plan: list[np.ndarray], tokens: int = 100, share: tuple[int, int] = (0, 1)) -> Source:
        if request.param == "streamed":
            return StreamedSource(encoder, features, plan, KEEP, tokens, share)
        if request.param == "stored":
            store = store_states(tmp_path_factory.mktemp("store"), encoder, features, KEEP, tokens=tokens)
            return StoredSource(store, features, plan, KEEP, share=share, memory=8000)
        return MemorySource(MemoryStates.encode(encoder, features, KEEP, tokens), features, plan, share)

    return make


def assert_same(found: StateBatch, expected: StateBatch) -> None:
    assert found.windows.tolist() == expected.windows.tolist() and found.total == expected.total
    assert found.states.lengths.tolist() == expected.states.lengths.tolist()
    assert found.states.pooled == expected.states.pooled
    for part in KEEP:
        torch.testing.assert_close(found.states.read(part), expected.states.read(part), rtol=1e-5, atol=1e-5)
    for name in ("start", "end", "value"):
        torch.testing.assert_close(getattr(found.targets, name), getattr(expected.targets, name), equal_nan=True)


def assert_same_batches(found: Any, expected: Any) -> None:
    pairs = list(zip(found, expected, strict=True))
    assert pairs
    for one, other in pairs:
        assert_same(one, other)


def test_every_source_returns_the_batches_of_the_streamed_source_in_the_same_order(
    build: Build, encoder: Encoder, features: Features
) -> None:
    plan = plan_of(features)
    found, streamed = build(plan), StreamedSource(encoder, features, plan, KEEP)
    assert found.steps == streamed.steps == len(plan)
    assert_same_batches(found.batches(), streamed.batches())


def test_a_batch_holds_the_windows_of_its_step_and_their_targets(build: Build, features: Features) -> None:
    plan = plan_of(features)
    for batch, windows in zip(build(plan).batches(), plan, strict=True):
        assert batch.windows.tolist() == windows.tolist() and batch.total == len(windows)
        assert batch.targets.value.tolist() == features.target[windows].tolist()
        assert batch.states.lengths.tolist() == features.lengths[windows].tolist()


def test_states_equal_those_of_a_plain_call_of_the_encoder(build: Build, encoder: Encoder, features: Features) -> None:
    for batch in build(plan_of(features)).batches():
        for row, window in enumerate(batch.windows):
            place = features.tokens_of(window)
            ids, types = (
                torch.tensor(part[place].astype(np.int64))[None] for part in (features.input_ids, features.type_ids)
            )
            with torch.no_grad():
                plain = encoder.model(input_ids=ids, token_type_ids=types, output_hidden_states=True)
            expected = torch.stack([*(layer[0, 0] for layer in plain.hidden_states), plain.pooler_output[0]])
            torch.testing.assert_close(batch.states.read("cls")[row], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("first", [1, 2, 5, 6])
def test_resuming_at_a_step_continues_the_sequence(build: Build, features: Features, first: int) -> None:
    source = build(plan_of(features))
    rest, whole = list(source.batches(first)), list(source.batches())
    assert len(whole) == 6 and len(rest) == 6 - first
    for one, other in zip(rest, whole[first:], strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("processes", [2, 3, 5])
def test_shares_are_disjoint_and_complete(build: Build, features: Features, processes: int) -> None:
    plan = plan_of(features)  # the last batch of an epoch has two windows: some shares of it are empty
    shares = [list(build(plan, share=(rank, processes)).batches()) for rank in range(processes)]
    for step, windows in enumerate(plan):
        parts = [share[step] for share in shares]
        assert sorted(w for part in parts for w in part.windows.tolist()) == sorted(windows.tolist())
        assert all(part.total == len(windows) and len(part.states) == len(part.windows) for part in parts)


@pytest.mark.parametrize("tokens", [1, 60, 137, 100_000])
def test_the_number_of_tokens_encoded_at_once_changes_nothing(build: Build, features: Features, tokens: int) -> None:
    plan = plan_of(features)
    assert_same_batches(build(plan, tokens=tokens).batches(), build(plan).batches())


@pytest.fixture(params=["streamed", "stored"])
def build_tokens(
    request: pytest.FixtureRequest,
    encoder: Encoder,
    tiny_features: Callable[[str], Features],
    tmp_path_factory: pytest.TempPathFactory,
) -> Build:
    """build_tokens(plan) → a source of the states of all tokens, for the tiny SQuAD windows."""
    squad = tiny_features("squad2")

    def make(plan: list[np.ndarray], share: tuple[int, int] = (0, 1)) -> Source:
        if request.param == "streamed":
            return StreamedSource(encoder, squad, plan, ("tokens",), 90, share)
        store = store_states(tmp_path_factory.mktemp("store"), encoder, squad, ("tokens",), tokens=90)
        return StoredSource(store, squad, plan, ("tokens",), share=share, memory=100_000)

    return make


def test_states_of_all_tokens_come_with_their_spans(
    build_tokens: Build, tiny_features: Callable[[str], Features]
) -> None:
    squad = tiny_features("squad2")
    plan = plan_of(squad, epochs=1, rows=5)
    for batch, windows in zip(build_tokens(plan).batches(), plan, strict=True):
        assert batch.states.read("tokens").shape == (squad.lengths[windows].sum(), 4, 32)
        assert batch.targets.start.tolist() == squad.start[windows].tolist()
        assert batch.targets.end.tolist() == squad.end[windows].tolist()


def test_states_of_all_tokens_equal_those_of_a_plain_call_of_the_encoder(
    build_tokens: Build, encoder: Encoder, tiny_features: Callable[[str], Features]
) -> None:
    squad = tiny_features("squad2")
    for batch in build_tokens(plan_of(squad, epochs=1, rows=5)).batches():
        parts = batch.states.read("tokens").split(batch.states.lengths.tolist())
        for states, window in zip(parts, batch.windows, strict=True):
            place = squad.tokens_of(window)
            ids, types = (
                torch.tensor(part[place].astype(np.int64))[None] for part in (squad.input_ids, squad.type_ids)
            )
            with torch.no_grad():
                plain = encoder.model(input_ids=ids, token_type_ids=types, output_hidden_states=True)
            expected = torch.stack([layer[0] for layer in plain.hidden_states], dim=1)  # (token, layer, hidden)
            torch.testing.assert_close(states, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("first", [1, 3, 4])
def test_resuming_a_pass_over_all_tokens_continues_it(
    build_tokens: Build, tiny_features: Callable[[str], Features], first: int
) -> None:
    source = build_tokens(plan_of(tiny_features("squad2"), epochs=1, rows=5))
    rest, whole = list(source.batches(first)), list(source.batches())
    assert len(whole) == 4 and len(rest) == 4 - first
    for one, other in zip(rest, whole[first:], strict=True):
        assert one.windows.tolist() == other.windows.tolist()
        torch.testing.assert_close(one.states.read("tokens"), other.states.read("tokens"), rtol=1e-5, atol=1e-5)


def test_shares_of_all_tokens_are_complete(build_tokens: Build, tiny_features: Callable[[str], Features]) -> None:
    plan = plan_of(tiny_features("squad2"), epochs=1, rows=5)
    shares = [list(build_tokens(plan, share=(rank, 4)).batches()) for rank in range(4)]
    for step, whole in enumerate(build_tokens(plan).batches()):
        parts = dict(zip(whole.windows.tolist(), split_tokens(whole), strict=True))
        for share in shares:  # the last batch has three windows: one share of it is empty
            assert share[step].total == len(whole.windows)
            for window, states in zip(share[step].windows.tolist(), split_tokens(share[step]), strict=True):
                torch.testing.assert_close(states, parts.pop(window), rtol=1e-5, atol=1e-5)
        assert not parts


def split_tokens(batch: StateBatch) -> list[torch.Tensor]:
    return list(batch.states.read("tokens").split(batch.states.lengths.tolist())) if len(batch.windows) else []


def test_the_encoder_runs_without_dropout_and_gradients(build: Build, features: Features, encoder: Encoder) -> None:
    encoder.train()
    source = build(plan_of(features))
    assert not encoder.training
    assert not next(iter(source.batches())).states.read("cls").requires_grad
    assert_same_batches(source.batches(), source.batches())


# ---------------------------------------------------------------------- what only a store can get wrong


# The largest error of one value: half the distance between adjacent values of the stored dtype.
ROUNDING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bfloat16": lambda values: values.abs() * 2**-8,
    "float16": lambda values: values.abs() * 2**-11 + 2**-25,  # below 2**-14 the resolution is constant
    "int8": lambda values: (values.abs().amax(dim=-1, keepdim=True) / 254).expand_as(values),
}


@pytest.mark.parametrize("dtype", list(ROUNDING))
def test_half_precision_and_int8_return_the_same_batches_up_to_rounding(
    dtype: str, encoder: Encoder, tiny_features: Callable[[str], Features], tmp_path: Path
) -> None:
    parts: tuple[Part, ...] = ("tokens", "cls", "mean")
    squad = tiny_features("squad2")
    plan = plan_of(squad, rows=5)
    exact, stored = (
        StoredSource(store_states(tmp_path / name, encoder, squad, parts, name), squad, plan, parts)
        for name in ("float32", dtype)
    )
    differs = False
    for one, other in zip(stored.batches(), exact.batches(), strict=True):
        assert one.windows.tolist() == other.windows.tolist() and one.total == other.total
        assert one.targets.start.tolist() == other.targets.start.tolist()
        for part in ("tokens", "cls", "mean"):
            found, expected = one.states.read(part), other.states.read(part)
            assert found.dtype == torch.float32
            bound = ROUNDING[dtype](expected.double()) * (1 + 1e-6)  # the bound is computed in float32
            assert bool(((found.double() - expected.double()).abs() <= bound).all()), part
            differs |= not torch.equal(found, expected)
    assert differs, "the states were not stored in this dtype at all"


@pytest.fixture
def stored(encoder: Encoder, tiny_features: Callable[[str], Features], tmp_path: Path) -> Store:
    return store_states(tmp_path / "store", encoder, tiny_features("squad2"), ("tokens",))


def test_concurrent_readers_get_their_own_batches(stored: Store, tiny_features: Callable[[str], Features]) -> None:
    squad = tiny_features("squad2")
    everything = {
        int(window): states
        for batch in StoredSource(stored, squad, plan_of(squad, 1, 1), ("tokens",)).batches()
        for window, states in zip(batch.windows, split_tokens(batch), strict=True)
    }
    plans = [plan_batches(squad.lengths, 3, seed, rows=4).epochs for seed in range(3)]
    sources = [StoredSource(stored, squad, sum(plan, []), ("tokens",), memory=60_000) for plan in plans]
    start = threading.Barrier(6)

    def read(number: int) -> int:
        start.wait(30)
        wrong = 0
        for batch in sources[number % 3].batches():  # two readers of each source
            for window, states in zip(batch.windows, split_tokens(batch), strict=True):
                wrong += not torch.equal(states, everything[int(window)])
        return wrong

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(read, range(6))) == [0] * 6


def store_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("store-")]


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_an_abandoned_pass_leaves_no_thread_behind(
    stored: Store, tiny_features: Callable[[str], Features], taken: int
) -> None:
    squad = tiny_features("squad2")
    batches = StoredSource(stored, squad, plan_of(squad, 2, 4), ("tokens",), memory=60_000).batches()
    for _ in range(taken):
        next(batches)
    assert bool(store_threads()) == bool(taken)
    del batches
    gc.collect()
    assert not store_threads()


def test_a_failed_read_reaches_the_reader_and_leaves_no_thread_behind(
    stored: Store, tiny_features: Callable[[str], Features], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    squad = tiny_features("squad2")
    monkeypatch.setattr(type(stored.location), "read_into", fail)
    with pytest.raises(ValueError, match=r"examples .* can't be read .*Input/output error"):
        next(StoredSource(stored, squad, plan_of(squad), ("tokens",)).batches())
    gc.collect()
    assert not store_threads()


@pytest.mark.parametrize("memory", [1, 60_000, 200_000])
def test_prefetched_states_stay_within_the_memory_limit(
    stored: Store, tiny_features: Callable[[str], Features], memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    squad, lock, alive, most, groups = tiny_features("squad2"), threading.Lock(), 0, 0, []
    fetch, make = StateReader.fetch, reader._aligned
    taken = largest = 0  # bytes of the memory that holds the states

    def count(size: int) -> None:
        nonlocal alive, most
        with lock:
            alive += size
            most = max(most, alive)

    def watched(self: StateReader, batches: list[np.ndarray], *rest: Any) -> Any:
        found = fetch(self, batches, *rest)
        tensors = [values for made in found for values in made.values()]
        groups.append(sum(values.nbytes for values in tensors))
        for values in tensors:
            count(values.nbytes)
            weakref.finalize(values, count, -values.nbytes)
        return found

    def count_memory(size: int) -> None:
        nonlocal taken, largest
        with lock:
            taken += size
            largest = max(largest, taken)

    def make_watched(size: int) -> np.ndarray:
        made = make(size)
        count_memory(made.nbytes)
        weakref.finalize(made, count_memory, -made.nbytes)
        return made

    monkeypatch.setattr(StateReader, "fetch", watched)
    monkeypatch.setattr(reader, "_aligned", make_watched)
    plan = plan_of(squad, epochs=8, rows=4)
    step = max(int(squad.lengths[windows].sum()) for windows in plan) * 4 * 32 * 4  # layers · hidden · bytes
    for batch in StoredSource(stored, squad, plan, ("tokens",), memory=memory).batches():
        del batch
    assert sum(groups) == 8 * int(squad.lengths.sum()) * 4 * 32 * 4
    assert all(size <= max(memory // 2, step) for size in groups)
    assert most <= max(memory, 2 * step) + step, "two groups, and the batch in use"
    assert largest <= 1.5 * (max(memory, 2 * step) + step), "memory is reused, also for smaller batches"
    gc.collect()
    assert alive == taken == 0
