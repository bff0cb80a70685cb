"""Every head predicts the same from padded rows, which exported graphs have, as from packed states."""

from typing import Any

import pytest
import torch
from tiny_encoders import random_sequences, tiny_model
from tiny_training import member_of

from bertvision.encoder.encoder import Encoder
from bertvision.encoder.padded import PaddedEncoder, PaddedStates
from bertvision.encoder.states import POOLED, PackedTokens
from bertvision.heads import HEADS, Target, build_head
from bertvision.kinds import KINDS, SPAN

PARTS = ("tokens", *POOLED)


def cases() -> list[Any]:
    found = []
    for head in HEADS:
        for name, settings in (HEADS[head].presets or {head: {}}).items():
            for kind in filter(HEADS[head].takes, KINDS.values()):
                if not (kind is SPAN and settings.get("pairs") == "towers"):
                    found.append(pytest.param(head, settings, kind, id=f"{name}-{kind}"))
    assert len(found) > 40
    return found


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(tiny_model("bert"), name="tiny", attention="padded").eval().requires_grad_(False)


@pytest.fixture(scope="module")
def batch() -> tuple[PackedTokens, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same sequences packed and as padded rows: token ids, mask and segment ids."""
    ids, types = random_sequences()
    longest = max(map(len, ids))
    # Padding is random: nothing may depend on it.
    padded, segments = torch.randint(1, 9, (len(ids), longest)), torch.zeros(len(ids), longest, dtype=torch.long)
    mask = torch.zeros(len(ids), longest, dtype=torch.long)
    for row, (own, kinds) in enumerate(zip(ids, types, strict=True)):
        padded[row, : len(own)], segments[row, : len(own)] = torch.tensor(own), torch.tensor(kinds)
        mask[row, : len(own)] = 1
    return PackedTokens.from_lists(ids, types), padded, mask, segments


@pytest.mark.parametrize("head, settings, kind", cases())
@torch.no_grad()
def test_padded_rows_change_no_output(
    head: str, settings: dict[str, Any], kind: Any, encoder: Encoder, batch: Any
) -> None:
    packed, ids, mask, types = batch
    target = Target(kind, 3 if kind.has_labels else 0)
    own = build_head(member_of(head, kind, **settings), encoder.shape, target).eval()
    for weight in own.parameters():  # some start at zero, which would hide what they multiply
        weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())) * 0.1)
    states, padded = encoder(packed, keep=PARTS), PaddedEncoder(encoder)(ids, mask, types)
    if own.towers:
        rows = torch.arange(len(ids))
        states, padded = states.pair(rows, rows.flip(0), *PARTS), padded.rows(rows)
        padded.second = padded.rows(rows.flip(0))
    found = own(padded)  # (slot or sequence, output)
    if kind.position == "token":
        found = found[mask.flatten() > 0]  # (token, output)
    assert torch.allclose(found, own(states), atol=2e-5)


def test_padded_states_are_those_of_the_encoder(encoder: Encoder, batch: Any) -> None:
    packed, ids, mask, types = batch
    states, padded = encoder(packed, keep=PARTS), PaddedEncoder(encoder)(ids, mask, types)
    assert isinstance(padded, PaddedStates) and padded.pooled == states.pooled
    for part in POOLED:
        assert torch.allclose(padded.read(part), states.read(part), atol=1e-5), part
    assert torch.allclose(padded.read("tokens")[mask.flatten() > 0], states.read("tokens"), atol=1e-5)
