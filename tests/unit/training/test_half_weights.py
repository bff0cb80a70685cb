import pytest
import torch
from torch import Tensor, nn

from bertvision.training.half_weights import HalfWeights


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(6, 9), nn.Linear(9, 4), nn.Linear(4, 4)

    def forward(self, values: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(values)))


def build() -> tuple[Net, nn.Linear]:
    torch.manual_seed(3)
    return Net(), nn.Linear(4, 1)


def batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(8, 6, generator=generator) for _ in range(count)]


def loss_of(net: nn.Module, output: nn.Linear, values: Tensor, dtype: torch.dtype) -> Tensor:
    return (output(net(values.to(dtype)).float()) - values.sum(1, keepdim=True)).square().mean()


def train_plain(parts: int) -> tuple[Net, nn.Linear]:
    net, output = build()
    optimizer = torch.optim.AdamW([*net.parameters(), *output.parameters()], lr=1e-2, weight_decay=0.1)
    for values in batches(20):
        optimizer.zero_grad()
        for part in values.chunk(parts):
            (loss_of(net, output, part, torch.float32) / parts).backward()
        optimizer.step()
    return net, output


def train_half(dtype: torch.dtype, parts: int) -> tuple[Net, nn.Linear]:
    net, output = build()
    half = HalfWeights(net, dtype, output.parameters())
    optimizer = torch.optim.AdamW([*half.full, *output.parameters()], lr=1e-2, weight_decay=0.1)
    for values in batches(20):
        for place, part in enumerate(values.chunk(parts)):
            half.take_gradients(loss_of(net, output, part, dtype) / parts, add=place > 0)
        optimizer.step()
        half.refresh()
    half.end()
    return net, output


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 0.03)])
def test_training_with_half_weights_matches_float32_up_to_rounding(
    dtype: torch.dtype, tolerance: float, parts: int
) -> None:
    (net, output), (plain, plain_output) = train_half(dtype, parts), train_plain(parts)
    started, _ = build()
    for name, weight in net.named_parameters():
        expected, before = plain.get_parameter(name), started.get_parameter(name)
        assert weight.dtype == torch.float32
        torch.testing.assert_close(weight, expected, rtol=0, atol=tolerance)
        if not name.startswith("unused"):
            assert (weight - before).abs().mean() > 0.03  # it has learned, by far more than rounding
    torch.testing.assert_close(output.weight, plain_output.weight, rtol=0, atol=tolerance)


def test_a_weight_that_does_not_affect_the_loss_is_left_alone() -> None:
    net, output = train_half(torch.bfloat16, 1)
    assert torch.equal(net.unused.weight, build()[0].unused.weight)  # no gradient, so no decay either


def test_the_module_has_its_float32_weights_inside_the_context() -> None:
    net, _ = build()
    before = net.first.weight.detach().clone()
    half = HalfWeights(net, torch.bfloat16)
    address = net.first.weight.data_ptr()
    assert net.first.weight.dtype == torch.bfloat16
    with half.full_precision():
        assert torch.equal(net.first.weight, before)
        net.load_state_dict({name: weight + 1 for name, weight in net.state_dict().items()})
    assert net.first.weight.data_ptr() == address and net.first.weight.dtype == torch.bfloat16
    torch.testing.assert_close(net.first.weight.float(), before + 1, rtol=0.01, atol=0)
    half.end()
    assert torch.equal(net.first.weight, before + 1)
    half.begin()
    assert net.first.weight.data_ptr() == address
