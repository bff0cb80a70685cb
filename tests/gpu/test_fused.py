"""The fused kernels of span adapters, compared with float64."""

import pytest
import torch
from tiny_training import member_of
from torch import Tensor
from torch.nn import functional

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads import Target, adapter, build_head
from bertvision.heads.fused import can_fuse, read_out
from bertvision.kinds import SPAN

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def distance(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach()
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    ("positions", "layers", "width", "scale"), [(3001, 13, 392, 1.0), (1, 3, 8, 1.0), (70, 25, 64, 5.0)]
)
def test_output_and_gradients_equal_float64_within_rounding(
    positions: int, layers: int, width: int, scale: float
) -> None:
    generator = torch.Generator("cuda").manual_seed(positions)

    def draw(*shape: int, std: float = 1.0) -> Tensor:
        return torch.randn(*shape, device="cuda", generator=generator) * std

    hidden = 384
    states = draw(positions, layers, hidden).bfloat16().requires_grad_()
    weight = draw(width, hidden, std=scale * hidden**-0.5).requires_grad_()
    bias, columns = draw(width, std=0.3).requires_grad_(), draw(2, layers * width, std=0.02).requires_grad_()
    inputs, upstream = (states, weight, bias, columns), draw(positions, 2)
    found = read_out(*inputs)
    gradients = torch.autograd.grad(found, inputs, upstream)
    # The kernels get rounded weights, as under autocast.
    exact = [part.detach().double().requires_grad_() for part in (states, weight.bfloat16(), bias.bfloat16(), columns)]
    product = exact[0] @ exact[1].T + exact[2]  # (position, layer, width)
    expected = functional.gelu(product).flatten(1) @ exact[3].T  # (position, 2)
    assert found.dtype == torch.float32 and found.isfinite().all()
    assert distance(found, expected) < 0.01
    for gradient, other in zip(gradients, torch.autograd.grad(expected, exact, upstream.double()), strict=True):
        assert gradient.isfinite().all()
        assert distance(gradient, other) < 0.01


@pytest.mark.parametrize("row", ["adapter_64", "adapter_64_skip", "adapter_386", "adapter_386_skip"])
def test_a_head_computes_the_same_with_and_without_the_kernels(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    shape = StateShape(layers=4, hidden=64, pooled=True)
    head = build_head(member_of(row, SPAN), shape, Target(SPAN)).cuda()
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    tokens = torch.randn(5000, 4, 64, device="cuda", dtype=torch.bfloat16)  # (token, layer, hidden)
    states = HiddenStates(torch.tensor([2000, 3000]), tokens=tokens)
    found = {}
    for fused in (True, False):
        monkeypatch.setattr(adapter, "can_fuse", can_fuse if fused else lambda *_: False)
        with torch.autocast("cuda", torch.bfloat16):
            out = head(states)  # (token, 2)
        out.float().square().sum().backward()
        found[fused] = [out.detach().float(), *(weight.grad.clone() for weight in head.parameters())]
        head.zero_grad()
    assert can_fuse(tokens, head.output.weight)
    for one, other in zip(found[True], found[False], strict=True):
        assert distance(one, other.double()) < 0.02
