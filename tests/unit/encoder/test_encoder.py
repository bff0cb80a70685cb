from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_encoders import LENGTHS, PACKED, random_sequences, tiny_model, tiny_tokenizer
from transformers import AutoModel

from bertvision.encoder import attention
from bertvision.encoder.encoder import Encoder, check_route
from bertvision.encoder.states import PackedTokens, group_by_length
from bertvision.errors import UserError


def tokens(lengths: list[int] = LENGTHS) -> PackedTokens:
    return PackedTokens.from_lists(*random_sequences(lengths))


@torch.no_grad()
def test_only_requested_parts_are_built() -> None:
    encoder = Encoder(tiny_model("bert"))
    states = encoder(tokens(), keep=("cls",))
    assert states.cls is not None and states.cls.shape == (7, 5, 32)
    assert states.tokens is None and states.last is None and states.mean is None
    last = encoder(tokens(), keep=("last",))
    assert last.last is not None and last.last.shape == (81, 32) and last.cls is None
    assert torch.equal(last.last, encoder(tokens()).read("tokens")[:, -1])


@pytest.mark.parametrize("route", ["padded", "looped"])
def test_a_sequence_longer_than_the_position_table_names_the_setting(route: str) -> None:
    roberta = Encoder(tiny_model("roberta"), name="tiny", attention=route)
    assert roberta.max_length == 62  # 64 positions minus the padding index 1 and the one before it
    roberta(tokens([62]))
    with pytest.raises(UserError, match="at most 62 tokens, but one text has 63: set data.max_length"):
        roberta(tokens([63]))


def test_models_without_a_position_table_have_no_limit() -> None:
    assert Encoder(tiny_model("deberta-v2")).max_length is None and Encoder(tiny_model("modernbert")).max_length is None


@pytest.mark.parametrize("budget", [1, 40, 64, 10_000])
@torch.no_grad()
def test_the_padded_budget_does_not_change_the_states(budget: int) -> None:
    model = tiny_model("bert")
    expected = Encoder(model)(tokens()).read("tokens")
    torch.testing.assert_close(
        Encoder(model, padded_tokens=budget)(tokens()).read("tokens"), expected, rtol=1e-5, atol=1e-5
    )


def test_micro_batches_cover_every_sequence_once_within_the_budget_and_with_little_padding() -> None:
    lengths = torch.randint(3, 385, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    groups = list(group_by_length(lengths, 8192))
    assert sorted(sum(groups, [])) == list(range(300))
    slots = [len(group) * max(lengths[i] for i in group) for group in groups]
    assert max(slots) <= 8192 and sum(slots) < 1.15 * sum(lengths)


def test_a_sequence_over_the_budget_is_a_batch_of_its_own() -> None:
    assert list(group_by_length([30, 50, 8], 20)) == [[1], [0], [2]]


@pytest.mark.parametrize("architecture", PACKED)
def test_check_route_accepts_the_packed_route_and_restores_the_encoder(architecture: str) -> None:
    encoder = Encoder(tiny_model(architecture), attention="looped").train()
    assert check_route(encoder, tokens()) < 1e-5
    assert encoder.route == "looped" and encoder.training
    assert encoder.model.config._attn_implementation == "bertvision_looped"


def test_check_route_catches_sequences_that_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder(tiny_model("bert"), name="tiny", attention="looped")
    right = attention._looped_attention

    def mixing(*args: Any, packed_bounds: torch.Tensor, **kwargs: Any) -> Any:
        return right(*args, packed_bounds=packed_bounds[[0, -1]], **kwargs)

    monkeypatch.setattr(attention, "_looped_attention", mixing)
    attention.register()
    try:
        with pytest.raises(RuntimeError, match="encoder.attention = 'padded'"):
            check_route(encoder, tokens())
    finally:
        monkeypatch.undo()
        attention.register()


def test_the_padded_route_has_nothing_to_check() -> None:
    assert check_route(Encoder(tiny_model("mpnet")), tokens()) == 0.0


def test_float32_never_reaches_the_half_precision_kernel() -> None:
    encoder = Encoder(tiny_model("bert"))
    encoder.route = "varlen"
    attention.register()
    encoder.model.set_attn_implementation(attention.VARLEN)
    with pytest.raises(RuntimeError, match="use half precision or autocast"):
        encoder(tokens())


def test_autocast_on_a_cpu_returns_all_parts() -> None:
    encoder = Encoder(tiny_model("bert"), attention="looped")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = encoder(tokens(), keep=("tokens", "last", "cls", "mean"))
    assert states.read("cls").dtype == states.read("tokens").dtype


@pytest.mark.parametrize("architecture", PACKED)
@torch.no_grad()
def test_a_saved_encoder_is_a_plain_hugging_face_folder(architecture: str, tmp_path: Path) -> None:
    encoder = Encoder(tiny_model(architecture), tiny_tokenizer(), attention="looped")
    encoder.save(tmp_path)
    assert "bertvision" not in (tmp_path / "config.json").read_text()
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in tmp_path.iterdir()}
    again = Encoder(AutoModel.from_pretrained(tmp_path))
    torch.testing.assert_close(again(tokens()).read("tokens"), encoder(tokens()).read("tokens"), rtol=1e-5, atol=1e-5)
