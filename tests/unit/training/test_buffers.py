"""Batches padded to a common size, on the CPU. tests/gpu checks that recorded steps give the same results."""

import dataclasses

import pytest
import torch
from tiny_encoders import tiny_model
from tiny_training import compute_loss, member_of, random_states, random_targets

from bertvision.encoder.encoder import Encoder
from bertvision.encoder.recording import fill_up, round_up
from bertvision.encoder.states import HiddenStates, PackedTokens, StateShape
from bertvision.heads import HEADS, Target, build_head, list_presets
from bertvision.kinds import LABEL, SCORE, SPAN, Kind
from bertvision.sources import StateBatch
from bertvision.training import buffers as module
from bertvision.training.buffers import BatchBuffers

CPU = torch.device("cpu")
SHAPE = StateShape(4, 32, pooled=True)
ROWS = [name for name, (head, _) in list_presets().items() if HEADS[head].takes(SPAN)]


@pytest.mark.parametrize("parts", [4, 8])
def test_there_are_few_sizes_and_none_is_much_too_large(parts: int) -> None:
    sizes = [round_up(count, parts) for count in range(1, 5001)]
    assert all(count <= size < count + max(1, count / parts) for count, size in enumerate(sizes, 1))
    for low in (64, 256, 2048):  # between a power of two and its double
        assert len({size for size in sizes if low < size <= 2 * low}) == parts
    assert round_up(8192) == 8192 and round_up(8191) == 8192 and round_up(4097) == 4608


def batch_of(lengths: list[int], seed: int, keep: tuple[str, ...], total: int = 7) -> StateBatch:
    states = random_states(SHAPE, lengths, seed)
    dropped = {part: None for part in ("tokens", "cls", "mean") if part not in keep}
    return StateBatch(
        range(len(lengths)), dataclasses.replace(states, **dropped), random_targets(lengths, 2, seed), total
    )


def gradients(head: torch.nn.Module, batch: StateBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    head.zero_grad()
    (loss,) = head.target.kind.loss(head(batch.states).unsqueeze(0), batch.states, batch.targets, batch.total)
    loss.backward()
    return loss.detach(), {name: weight.grad for name, weight in head.named_parameters()}


@pytest.mark.parametrize("lengths", [[5, 9, 3], [40, 2, 31, 17, 8, 1], [64, 64, 64, 64]])
@pytest.mark.parametrize("row", ROWS)
def test_padding_has_no_effect_on_loss_and_gradients(row: str, lengths: list[int]) -> None:
    # In double precision: stacked norms amplify rounding.
    head = build_head(member_of(row, SPAN), SHAPE, Target(SPAN)).double()
    head.train(not head.draws)
    places, batch = BatchBuffers(CPU), in_double(batch_of(lengths, 0, ("tokens",)))
    stale = in_double(batch_of([length + 1 for length in lengths], 1, ("tokens",)))
    sizes = {places.put(stale)[0]}  # leaves its numbers behind
    key, filled = places.put(batch)
    assert len(filled.states.tokens) >= len(batch.states.tokens) and len(sizes | {key}) <= 2
    loss, found = gradients(head, filled)
    expected_loss, expected = gradients(head, batch)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-6, atol=0)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def in_double(batch: StateBatch) -> StateBatch:
    return dataclasses.replace(batch, states=batch.states.to(dtype=torch.float64))


@pytest.mark.parametrize(
    ("row", "kind", "keep"),
    [
        ("pooled_adapter_inception", SPAN, "tokens"),
        ("pooled_adapter_xception", SPAN, "tokens"),
        ("xception_abbreviated", LABEL, "cls"),
        ("xception_full", LABEL, "cls"),
    ],
)
def test_batch_norms_ignore_padding(row: str, kind: Kind, keep: str) -> None:
    plain, other = (build_head(member_of(row, kind), SHAPE, Target(kind, 2)).double() for _ in range(2))
    places, batch = BatchBuffers(CPU), in_double(batch_of([5, 9, 3] * 3, 0, (keep,)))
    places.put(in_double(batch_of([6, 8, 4] * 3, 1, (keep,))))  # leaves its numbers behind
    _, filled = places.put(batch)
    assert len(filled.states.read(keep)) > len(batch.states.read(keep))
    expected, found = gradients(plain.train(), batch)[1], gradients(other.train(), filled)[1]
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(other.get_buffer(name), buffer, rtol=1e-6, atol=1e-9, msg=name)
        assert not name.endswith("tracked") or buffer == 1


@pytest.mark.parametrize("kind", [LABEL, SCORE])
@pytest.mark.parametrize("keep", ["cls", "mean"])
def test_padding_rows_have_no_effect(kind: Kind, keep: str) -> None:
    head = build_head(member_of("adapter", kind, read=keep), SHAPE, Target(kind, 2))
    places, batch = BatchBuffers(CPU), batch_of([4, 2, 7] * 3, 0, (keep,))
    _, filled = places.put(batch)
    assert len(filled.states) > 9
    loss, found = gradients(head, filled)
    expected_loss, expected = gradients(head, batch)
    torch.testing.assert_close(loss, expected_loss)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_batches_of_similar_size_share_a_buffer() -> None:
    places = BatchBuffers(CPU)
    one, other = (places.put(batch_of(lengths, 0, ("tokens",))) for lengths in ([30, 31, 62], [33, 29, 61]))
    assert one[0] == other[0] and one[1].states.tokens.data_ptr() == other[1].states.tokens.data_ptr()
    assert places.put(batch_of([30, 30], 0, ("tokens",)))[0] != one[0]


@pytest.mark.parametrize("keep", ["cls", "mean"])
def test_full_batches_of_rows_are_not_padded(keep: str) -> None:
    """Most batches have 16, 32 or 64 rows; only token batches need extra padding sequences."""
    for rows in (16, 32, 64):
        key, filled = BatchBuffers(CPU).put(batch_of([3] * rows, 0, (keep,)))
        assert len(filled.states.lengths) == rows and bool(filled.states.real.all())
    assert len(BatchBuffers(CPU).put(batch_of([3] * 65, 0, (keep,)))[1].states.lengths) == 80


def test_large_batches_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_VALUES", 17 * SHAPE.layers * SHAPE.hidden - 1)
    assert BatchBuffers(CPU).put(batch_of([9, 8], 0, ("tokens",))) is None
    assert BatchBuffers(CPU).put(batch_of([8, 8], 0, ("tokens",))) is not None


@pytest.mark.parametrize("keep", ["tokens", "cls", "mean"])
def test_padding_sequences_change_no_other_states(keep: str) -> None:
    encoder = Encoder(tiny_model("bert", num_attention_heads=2), attention="looped").eval()
    lengths = [9, 4, 12, 7, 11]
    tokens = PackedTokens.from_lists([[(7 * place + n) % 90 + 5 for n in range(n)] for place, n in enumerate(lengths)])
    filled = fill_up(tokens, pad_id=0)
    assert len(filled.input_ids) == round_up(43) == 44 and len(filled) > 5
    assert filled.packing.bounds.diff().max() <= filled.longest and filled.packing.bounds[-1] == 44
    with torch.no_grad():
        expected, found = encoder(tokens, keep=(keep,)).read(keep), encoder(filled, keep=(keep,)).read(keep)
    assert found.isfinite().all()
    torch.testing.assert_close(found[: len(expected)], expected)


def test_the_loss_of_a_padded_token_batch_is_the_same() -> None:
    lengths = [9, 4, 12, 7, 11]
    tokens = PackedTokens.from_lists([[6] * length for length in lengths])
    filled, targets = fill_up(tokens, 0), random_targets(lengths)
    outputs = torch.randn(len(filled.input_ids), 2)  # (token, 2)
    expected = compute_loss(SPAN, outputs[:43], HiddenStates(tokens.lengths, last=outputs[:43]), targets, 5)
    further = (0, len(filled) - 5)
    padded = type(targets)(*(torch.nn.functional.pad(part, further) for part in vars(targets).values()))
    weights = torch.nn.functional.pad(torch.full((5,), 1 / 5), further)
    states = HiddenStates(filled.lengths, last=outputs, packing=filled.packing)
    torch.testing.assert_close(compute_loss(SPAN, outputs, states, padded, weights), expected)


def test_no_sequence_exceeds_the_encoders_maximum_length() -> None:
    tokens = PackedTokens.from_lists([[6] * 65, [6] * 2])
    assert fill_up(tokens, 0).longest == 80
    filled = fill_up(tokens, 0, most=66)
    assert filled.longest == 66 and filled.packing.positions.max() < 66


def test_no_new_sizes_are_buffered_once_memory_is_short() -> None:
    places = BatchBuffers(CPU)
    first = places.put(batch_of([9, 8], 0, ("tokens",)))
    places.left = -1
    assert places.put(batch_of([40, 40], 0, ("tokens",))) is None
    again = places.put(batch_of([8, 9], 0, ("tokens",)))
    assert first is not None and again is not None and again[1] is first[1]
