import pytest
import torch
from torch import nn

from bertvision.heads.blocks import SeparateAdapter, SharedAdapter, linear_of_parts, pad_to


@pytest.mark.parametrize(("dim", "expected"), [(-1, (3, 5, 8)), (-2, (3, 8, 6))])
def test_a_weight_is_padded_with_zeros(dim: int, expected: tuple[int, ...]) -> None:
    weight = torch.randn(3, 5, 6)
    even = pad_to(weight, dim, 8)
    assert even.shape == expected and torch.equal(even[:, :5, :6], weight) and even.sum().isclose(weight.sum())
    assert pad_to(weight, -1, 6) is weight


@pytest.mark.parametrize("adapter", [SharedAdapter(16, 13), SeparateAdapter(4, 16, 13)])
def test_a_padded_adapter_returns_the_same_values_followed_by_zeros(adapter: nn.Module) -> None:
    nn.init.normal_(adapter.weight)
    nn.init.normal_(adapter.bias)
    states = torch.randn(7, 4, 16)  # (position, layer, hidden)
    plain, even = adapter(states), adapter(states, 8)
    assert plain.shape == (7, 4, 13) and even.shape == (7, 4, 16) and not even[..., 13:].any()
    torch.testing.assert_close(even[..., :13], plain)


def test_parts_are_mapped_as_if_concatenated() -> None:
    output, layers, last = nn.Linear(4 * 13 + 16, 2), torch.randn(7, 4, 13), torch.randn(7, 16)
    wide = nn.functional.pad(layers, (0, 3))  # (position, layer, 16)
    expected = output(torch.cat([layers.flatten(1), last], dim=1))  # (position, 2)
    for part in (layers, wide):
        torch.testing.assert_close(linear_of_parts(output, [(part, 13), (last, 16)]), expected)
    gradients = []
    for found in (expected, linear_of_parts(output, [(wide, 13), (last, 16)])):
        output.zero_grad()
        found.square().sum().backward()
        gradients.append([weight.grad.clone() for weight in output.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
