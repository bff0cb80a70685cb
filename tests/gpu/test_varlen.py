"""The unpadded route on a GPU: half precision, gradients, autocast, sliding windows."""

import copy

import pytest
import torch
from tiny_encoders import PACKED, random_sequences, tiny_model

from bertvision.encoder.encoder import Encoder, check_route
from bertvision.encoder.states import PackedTokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LENGTHS = [5, 1, 60, 33, 17, 2, 62]


def tokens(seed: int = 0) -> PackedTokens:
    return PackedTokens.from_lists(*random_sequences(LENGTHS, seed)).to("cuda")


@pytest.mark.parametrize("architecture", PACKED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_unpadded_states_equal_padded_states_within_rounding(architecture: str, dtype: torch.dtype) -> None:
    encoder = Encoder(tiny_model(architecture).to("cuda", dtype))
    assert encoder.route == "varlen"
    assert check_route(encoder, tokens()) < (0.03 if dtype == torch.bfloat16 else 0.005)
    assert encoder.route == "varlen"


@pytest.mark.parametrize("architecture", PACKED)
def test_float32_weights_under_autocast_train_unpadded(architecture: str) -> None:
    model = tiny_model(architecture).to("cuda")
    padded, unpadded = Encoder(copy.deepcopy(model)), Encoder(model)
    assert padded.route == "padded" and unpadded.take_route("auto", torch.bfloat16).name == "varlen"
    for encoder in (padded, unpadded):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = encoder(tokens(), keep=("last",)).last_tokens.float().square().mean()
        loss.backward()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert check_route(unpadded, tokens()) < 0.03
    theirs = torch.cat([weight.grad.flatten() for weight in padded.parameters() if weight.grad is not None])
    ours = torch.cat([weight.grad.flatten() for weight in unpadded.parameters() if weight.grad is not None])
    assert (ours - theirs).norm() / theirs.norm() < 0.05


@pytest.mark.parametrize("architecture", PACKED)
@torch.no_grad()
def test_changing_one_sequence_changes_no_other(architecture: str) -> None:
    encoder = Encoder(tiny_model(architecture).to("cuda", torch.bfloat16))
    ids, types = random_sequences(LENGTHS)
    ids[2] = [7] * len(ids[2])
    changed = encoder(PackedTokens.from_lists(ids, types)).read("tokens")
    before = encoder(tokens()).read("tokens")
    assert torch.equal(before[:6], changed[:6]) and torch.equal(before[66:], changed[66:])
    assert not torch.equal(before[6:66], changed[6:66])


@torch.no_grad()
def test_a_forward_pass_does_not_synchronise_with_the_device() -> None:
    encoder = Encoder(tiny_model("bert").to("cuda", torch.bfloat16))
    batch = tokens()
    encoder(batch, keep=("tokens", "cls", "mean"))
    torch.cuda.set_sync_debug_mode("error")
    try:
        encoder(batch, keep=("tokens", "cls", "mean"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
