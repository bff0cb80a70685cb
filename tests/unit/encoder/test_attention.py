import pytest
import torch
from tiny_encoders import ARCHITECTURES, PACKED, tiny_config

from bertvision.encoder import attention
from bertvision.encoder.encoder import choose_route
from bertvision.errors import UserError


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(attention, "_varlen_parameters", lambda: frozenset({"scale", "window_size"}))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_only_half_precision_on_cuda_with_the_interface_goes_unpadded(
    cuda: None, architecture: str, dtype: torch.dtype, device: str
) -> None:
    unpadded = architecture in PACKED and device == "cuda" and dtype != torch.float32
    route = choose_route(tiny_config(architecture), device, dtype)
    assert route.name == ("varlen" if unpadded else "padded") and route.reason


def test_older_devices_are_padded(cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    assert choose_route(tiny_config("bert"), "cuda", torch.float16).name == "padded"


def test_only_modernbert_is_padded_if_the_kernel_has_no_sliding_window(
    cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_varlen_parameters", lambda: frozenset({"scale"}))
    routes = {name: choose_route(tiny_config(name), "cuda", torch.bfloat16).name for name in ("bert", "modernbert")}
    assert routes == {"bert": "varlen", "modernbert": "padded"}


def test_without_the_kernel_the_route_is_padded(cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_varlen_parameters", lambda: None)
    assert choose_route(tiny_config("bert"), "cuda", torch.bfloat16).name == "padded"


def test_unsupported_head_sizes_are_padded(cuda: None) -> None:
    config = tiny_config("bert", hidden_size=36, num_attention_heads=3)
    assert choose_route(config, "cuda", torch.bfloat16).name == "padded"


@pytest.mark.parametrize(
    ("architecture", "wanted", "words"),
    [("mpnet", "looped", "mpnet"), ("deberta-v2", "varlen", "deberta-v2"), ("bert", "varlen", "needs CUDA")],
)
def test_an_impossible_route_is_refused_with_the_reason(architecture: str, wanted: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        choose_route(tiny_config(architecture), "cpu", torch.float32, wanted)


def test_an_unknown_route_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match="'varlen'"):
        choose_route(tiny_config("bert"), "cpu", torch.float32, "varlenn")
