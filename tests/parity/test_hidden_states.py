"""The packed forward pass, compared with plain transformers calls on single sequences, for every architecture."""

import copy

import pytest
import torch
from tiny_encoders import ARCHITECTURES, PACKED, plain_call, random_sequences, tiny_model

from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import PackedTokens

ROUTES = [(name, "padded") for name in ARCHITECTURES] + [(name, "looped") for name in PACKED]
KEEP = ("tokens", "last", "cls", "mean", "max", "deviation")


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def build(architecture: str, route: str, **settings: int) -> tuple[Encoder, torch.nn.Module, PackedTokens]:
    model = tiny_model(architecture)
    plain = copy.deepcopy(model)
    ids, types = random_sequences()
    return Encoder(model, attention=route, **settings), plain, PackedTokens.from_lists(ids, types)


@pytest.mark.parametrize(("architecture", "route"), ROUTES)
@torch.no_grad()
def test_states_of_every_layer_equal_a_plain_call(architecture: str, route: str) -> None:
    encoder, plain, tokens = build(architecture, route, padded_tokens=40)
    states = encoder(tokens, keep=KEEP)
    ids, types = random_sequences()
    start = 0
    for i, (sequence, segments) in enumerate(zip(ids, types, strict=True)):
        output = plain_call(plain, sequence, segments)
        expected = torch.stack(output.hidden_states)[:, 0].transpose(0, 1)  # (token, layer, hidden)
        assert expected.shape[1:] == (4, 32)
        end = start + len(sequence)
        close(states.read("tokens")[start:end], expected)
        close(states.last_tokens[start:end], output.last_hidden_state[0])
        close(states.read("cls")[i, :4], expected[0])
        close(states.last_cls[i], output.last_hidden_state[0, 0])
        close(states.read("mean")[i], expected.mean(dim=0))
        close(states.read("max")[i], expected.amax(dim=0))
        close(states.read("deviation")[i], expected.std(dim=0, correction=0))
        assert encoder.shape.pooled == (architecture in ("bert", "roberta", "mpnet"))
        if encoder.shape.pooled:
            close(states.pooled_output[i], output.pooler_output[0])
        start = end
    assert start == len(states.read("tokens")) and states.read("cls").shape[1] == encoder.shape.read_layers("cls")


@pytest.mark.parametrize(("architecture", "route"), ROUTES)
def test_gradients_equal_those_of_plain_calls(architecture: str, route: str) -> None:
    encoder, plain, tokens = build(architecture, route, padded_tokens=40)
    states = encoder(tokens, keep=("tokens", "cls"))
    pooled = states.pooled_output.sum() if encoder.shape.pooled else 0.0
    (states.read("tokens").square().sum() + pooled).backward()
    for sequence, segments in zip(*random_sequences(), strict=True):
        output = plain_call(plain, sequence, segments)
        loss = sum(layer.square().sum() for layer in output.hidden_states)
        (loss + (output.pooler_output.sum() if encoder.shape.pooled else 0.0)).backward()
    compared = 0
    for (name, ours), theirs in zip(encoder.model.named_parameters(), plain.parameters(), strict=True):
        if theirs.grad is not None:
            scale = theirs.grad.abs().max().clamp_min(1.0)
            assert ours.grad is not None, name
            close(ours.grad / scale, theirs.grad / scale, 2e-5)
            compared += 1
    assert compared >= 20


@pytest.mark.parametrize(("architecture", "route"), ROUTES)
@torch.no_grad()
def test_changing_one_sequence_changes_no_other(architecture: str, route: str) -> None:
    encoder, _, tokens = build(architecture, route)
    ids, types = random_sequences()
    ids[2] = [7] * len(ids[2])
    before, after = (encoder(batch).read("tokens") for batch in (tokens, PackedTokens.from_lists(ids, types)))
    changed = torch.repeat_interleave(tokens.lengths == torch.arange(len(ids)).eq(2) * 17, tokens.lengths)
    assert changed.sum() == 17
    close(before[~changed], after[~changed], 1e-6)
    assert not torch.allclose(before[changed], after[changed], atol=1e-2)


@pytest.mark.parametrize(("architecture", "route"), ROUTES)
@torch.no_grad()
def test_bfloat16_states_are_within_rounding_error(architecture: str, route: str) -> None:
    encoder, plain, tokens = build(architecture, route)
    states = Encoder(encoder.model.to(torch.bfloat16), attention=route)(tokens, keep=KEEP)
    sequences = zip(*random_sequences(), strict=True)
    expected = torch.cat([torch.stack(plain_call(plain, *one).hidden_states, 2)[0] for one in sequences])
    assert states.read("tokens").dtype == states.read("mean").dtype == torch.bfloat16
    relative = (states.read("tokens").float() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert relative.mean() < 0.03  # a few times 2⁻⁸, the error of one rounding


@pytest.mark.parametrize("embedding_size", [16, 32])
@torch.no_grad()
def test_electra_layer_zero_has_the_hidden_size(embedding_size: int) -> None:
    encoder = Encoder(tiny_model("electra", embedding_size=embedding_size))
    assert encoder(PackedTokens.from_lists([[5, 6, 7]])).read("tokens").shape == (3, 4, 32)
