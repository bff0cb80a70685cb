"""The source contract: whoever trains cannot tell where the states come from, nor in what pieces they were made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertvision.data.packing import plan_batches
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import load_encoder
from bertvision.sources import KeptSource, KeptStates, Source, StateBatch, StreamedSource

KEEP = ("cls", "mean")


@pytest.fixture(scope="module")
def encoder(tiny_encoder_folder: Path) -> Encoder:
    return load_encoder(str(tiny_encoder_folder), torch.device("cpu"), torch.float32, "padded").eval()


@pytest.fixture(scope="module")
def features(tiny_features: Callable[[str], Features]) -> Features:
    return tiny_features("stsb")


def plan_of(features: Features, epochs: int = 2, rows: int = 3) -> list[np.ndarray]:
    return [batch for batches in plan_batches(features.lengths, epochs, 0, rows=rows).epochs for batch in batches]


Build = Callable[..., Source]


@pytest.fixture(params=["streamed", "kept"])
def build(request: pytest.FixtureRequest, encoder: Encoder, features: Features) -> Build:
    """build(plan, tokens=…, share=…) → a source of the kind under test."""

    def make(plan: list[np.ndarray], tokens: int = 100, share: tuple[int, int] = (0, 1)) -> Source:
        if request.param == "streamed":
            return StreamedSource(encoder, features, plan, KEEP, tokens, share)
        return KeptSource(KeptStates.encode(encoder, features, KEEP, tokens), features, plan, share)

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


def test_streamed_and_kept_give_equal_batches_in_equal_order(encoder: Encoder, features: Features) -> None:
    plan = plan_of(features)
    kept = KeptSource(KeptStates.encode(encoder, features, KEEP), features, plan)
    streamed = StreamedSource(encoder, features, plan, KEEP)
    assert kept.steps == streamed.steps == len(plan)
    assert_same_batches(streamed.batches(), kept.batches())


def test_a_batch_holds_the_windows_of_its_step_and_their_own_targets(build: Build, features: Features) -> None:
    plan = plan_of(features)
    for batch, windows in zip(build(plan).batches(), plan, strict=True):
        assert batch.windows.tolist() == windows.tolist() and batch.total == len(windows)
        assert batch.targets.value.tolist() == features.target[windows].tolist()
        assert batch.states.lengths.tolist() == features.lengths[windows].tolist()


def test_states_are_those_of_a_plain_call_of_the_encoder(build: Build, encoder: Encoder, features: Features) -> None:
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
def test_shares_are_disjoint_and_make_up_the_whole(build: Build, features: Features, processes: int) -> None:
    plan = plan_of(features)  # the last batch of an epoch has two windows: some shares of it are empty
    shares = [list(build(plan, share=(rank, processes)).batches()) for rank in range(processes)]
    for step, windows in enumerate(plan):
        parts = [share[step] for share in shares]
        assert sorted(w for part in parts for w in part.windows.tolist()) == sorted(windows.tolist())
        assert all(part.total == len(windows) and len(part.states) == len(part.windows) for part in parts)


@pytest.mark.parametrize("tokens", [1, 60, 137, 100_000])
def test_how_many_tokens_go_through_at_once_changes_nothing(build: Build, features: Features, tokens: int) -> None:
    plan = plan_of(features)
    assert_same_batches(build(plan, tokens=tokens).batches(), build(plan).batches())


def test_states_of_all_tokens_can_be_streamed(encoder: Encoder, tiny_features: Callable[[str], Features]) -> None:
    squad = tiny_features("squad2")
    plan = plan_of(squad, epochs=1, rows=5)
    for batch, windows in zip(StreamedSource(encoder, squad, plan, ("tokens",), 90).batches(), plan, strict=True):
        assert batch.states.read("tokens").shape == (squad.lengths[windows].sum(), 4, 32)
        assert batch.targets.start.tolist() == squad.start[windows].tolist()
        assert batch.targets.end.tolist() == squad.end[windows].tolist()


def test_the_encoder_is_asked_with_dropout_off_and_without_gradients(
    build: Build, features: Features, encoder: Encoder
) -> None:
    encoder.train()
    source = build(plan_of(features))
    assert not encoder.training
    assert not next(iter(source.batches())).states.read("cls").requires_grad
    assert_same_batches(source.batches(), source.batches())
