"""The kernels of span adapters against float64."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

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
def test_output_and_gradients_are_those_of_float64_to_rounding(
    positions: int, layers: int, width: int, scale: float
) -> None:
    from bertvision.heads.fused import read_out

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
    # The kernels are given weights that were rounded, as under autocast.
    exact = [part.detach().double().requires_grad_() for part in (states, weight.bfloat16(), bias.bfloat16(), columns)]
    product = exact[0] @ exact[1].T + exact[2]  # (position, layer, width)
    expected = functional.gelu(product).flatten(1) @ exact[3].T  # (position, 2)
    assert found.dtype == torch.float32 and found.isfinite().all()
    assert distance(found, expected) < 0.01
    for gradient, other in zip(gradients, torch.autograd.grad(expected, exact, upstream.double()), strict=True):
        assert gradient.isfinite().all()
        assert distance(gradient, other) < 0.01
