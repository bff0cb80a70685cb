"""The convolutional modules, compared with torch's convolutions or plain loops."""

import numpy as np
import pytest
import torch
from tiny_training import random_states
from torch.nn import functional

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads import convolutions
from bertvision.heads.convolutions import (
    BatchNorm,
    Convolution,
    HalvingBlock,
    Kernels,
    Neighbours,
    PositionMask,
    Separable,
    TokenConvolution,
    TokenSeparable,
    WidthCnn,
    lay_out_windows,
    linear_of_places,
    normalise,
    padded_linear,
)

LENGTHS = [5, 1, 9, 2]
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


def packed_states() -> HiddenStates:
    return random_states(StateShape(2, 6, False), LENGTHS)


def draw(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def each_alone(values: torch.Tensor) -> list[torch.Tensor]:
    """The sequences as torch's convolutions want them."""
    return [sequence.T.unsqueeze(0) for sequence in values.split(LENGTHS)]  # (1, channel, token) each


def convolve_with_loops(values: np.ndarray, weight: np.ndarray, stride: int, dilation: int) -> np.ndarray:
    """One position, (channel, width). Element k of N reads (k - (N - 1) // 2) · dilation values away; outside is 0."""
    outputs, inputs, size = weight.shape
    width = values.shape[1]
    result = np.zeros((outputs, -(-width // stride)))
    for column in range(result.shape[1]):
        for place in range(size):
            at = column * stride + (place - (size - 1) // 2) * dilation
            if 0 <= at < width:
                result[:, column] += weight[:, :, place] @ values[:, at]
    return result


@pytest.fixture(params=[1, 8])
def even(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Widths of products as on a CPU and as on a GPU."""
    monkeypatch.setattr(convolutions, "alignment_of", lambda values: request.param)
    return request.param


@torch.no_grad()
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_kernels_of_all_sizes_equal_separate_convolutions(dilation: int) -> None:
    kernels, values = Kernels(3, 2), draw(1, 3, 23)
    expected = [convolve_with_loops(values[0].numpy(), weight.numpy(), 1, dilation) for weight in kernels.weights]
    found = functional.conv1d(values, kernels.spread(dilation), padding=3 * dilation)[0]
    np.testing.assert_allclose(found.numpy(), np.concatenate(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [1, 3, 5, 20, 23])
@pytest.mark.parametrize("stride", [1, 4, 7, 9])
def test_rows_are_the_windows_of_the_width_between_rows_of_zeros(width: int, stride: int) -> None:
    values, places = draw(2, 3, width), -(-width // stride)
    padded = functional.pad(values, (3, 3 + stride))
    windows = [padded[:, :, place * stride : place * stride + 7].flatten(1) for place in range(places)]
    rows = lay_out_windows(values, 7, stride, before=2, rows=places + 5, align=8)  # 3 · 7 values, a 1, two zeros
    assert rows.shape == (2, places + 5, 24) and not rows[:, :2].any() and not rows[:, 2 + places :].any()
    torch.testing.assert_close(rows[:, 2 : 2 + places, :21], torch.stack(windows, dim=1), rtol=0, atol=0)
    assert (rows[:, 2 : 2 + places, 21] == 1).all() and not rows[..., 22:].any()
    assert torch.equal(lay_out_windows(values, 7, stride, before=2, rows=places + 1, align=8), rows[:, : places + 1])


def test_kernels_have_the_sizes_one_to_seven() -> None:
    assert [tuple(weight.shape) for weight in Kernels(3, 2).weights] == [(2, 3, size) for size in range(1, 8)]


@torch.no_grad()
def test_kernels_along_tokens_are_torch_s_same_convolution_of_each_sequence_alone(even: int) -> None:
    states, values, kernels = packed_states(), draw(sum(LENGTHS), 6), Kernels(6, 2)
    expected = [
        torch.cat([functional.conv1d(one, weight, padding="same") for weight in kernels.weights], dim=1)[0].T
        for one in each_alone(values)
    ]
    wide = functional.pad(values, (0, -6 % even))  # (token, channel)
    found = kernels.along_tokens(wide, Neighbours(states, len(values), 3))
    torch.testing.assert_close(found[:, :14], torch.cat(expected), rtol=1e-5, atol=1e-5)
    assert not found[:, 14:].any()


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_token_convolution_is_torch_s_of_each_sequence_alone(size: int) -> None:
    states, values, layer = packed_states(), draw(sum(LENGTHS), 6), TokenConvolution(6, 4, size).eval()
    layer.norm.running_mean.copy_(draw(4, seed=2))
    alone = [functional.conv1d(one, layer.weight, padding=size // 2)[0].T for one in each_alone(values)]
    # Untrained, the norm subtracts the mean and divides by the square root of 1 + eps.
    expected = ((torch.cat(alone) - layer.norm.running_mean) / (1 + layer.norm.eps) ** 0.5).clamp(min=0)
    torch.testing.assert_close(layer(values, Neighbours(states, len(values), 2)), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_separable_token_convolution_is_torch_s_of_each_sequence_alone() -> None:
    states, values, layer = packed_states(), draw(sum(LENGTHS), 6), TokenSeparable(6, 4).eval()
    depthwise = [functional.conv1d(one, layer.depthwise, padding=1, groups=6) for one in each_alone(values)]
    pointwise = [functional.conv1d(one, layer.pointwise.unsqueeze(2))[0].T for one in depthwise]
    expected = torch.cat(pointwise) / (1 + layer.norm.eps) ** 0.5
    torch.testing.assert_close(layer(values, Neighbours(states, len(values), 1)), expected, rtol=1e-5, atol=1e-5)


def test_neighbours_stop_at_the_ends_of_a_sequence() -> None:
    values = torch.arange(1.0, 6.0).unsqueeze(1)  # (token, 1)
    states = HiddenStates(torch.tensor([3, 2]), tokens=torch.zeros(5, 1, 1))
    around = Neighbours(states, 5, reach=2).around(values, 1).squeeze(2)
    assert around.tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 0], [0, 4, 5], [4, 5, 0]]


def test_gradients_do_not_cross_sequences() -> None:
    states, values = packed_states(), draw(sum(LENGTHS), 6).requires_grad_()
    found = Kernels(6, 2).along_tokens(values, Neighbours(states, len(values), 3))
    found[5].sum().backward()  # the sequence of one token
    assert values.grad is not None and values.grad.abs().sum(dim=1).nonzero().flatten().tolist() == [5]


def test_batch_norm_over_packed_tokens_has_the_mean_and_variance_of_the_real_tokens() -> None:
    values, layer = draw(sum(LENGTHS), 6) * 3 + 2, TokenConvolution(6, 4, 3).train()
    seen = torch.cat([functional.conv1d(one, layer.weight, padding=1)[0].T for one in each_alone(values)])
    layer(values, Neighbours(packed_states(), len(values), 1))
    running_mean, running_var = layer.norm.running_mean, layer.norm.running_var
    torch.testing.assert_close(running_mean, 0.1 * seen.mean(dim=0).detach())
    torch.testing.assert_close(running_var, 0.9 + 0.1 * seen.var(dim=0).detach())


def test_batch_norm_of_one_value_per_channel_uses_the_running_statistics_unchanged() -> None:
    norm = BatchNorm(3).train()
    norm.running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
    norm.running_var.copy_(torch.tensor([4.0, 4.0, 4.0]))
    found = norm(torch.tensor([[3.0, 2.0, 1.0]]))
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.0, -1.0]]), rtol=1e-4, atol=1e-4)
    assert norm.running_mean.tolist() == [1, 2, 3] and norm.running_var.tolist() == [4, 4, 4]
    found.sum().backward()
    assert norm.bias.grad.tolist() == [1, 1, 1]


def some_real(count: int, further: int) -> PositionMask:
    mask = torch.cat([torch.ones(count), torch.zeros(further)])  # (position)
    real = PositionMask.of(HiddenStates(torch.tensor([count]), real=mask))
    assert real is not None
    return real


@pytest.mark.parametrize("shape", [(7, 3), (7, 3, 4), (2, 3), (1, 3, 2)])
@pytest.mark.parametrize("filler", [0, 4])
def test_batch_norm_of_a_padded_batch_equals_torch_s_without_padding(shape: tuple[int, ...], filler: int) -> None:
    ours, torchs = BatchNorm(3).double().train(), torch.nn.BatchNorm1d(3).double().train()
    for norm in (ours, torchs):
        norm.weight.data.copy_(draw(3, seed=2))
        norm.running_mean.copy_(draw(3, seed=3))
    values = (draw(shape[0] + filler, *shape[1:]) * 3 + 2).double().requires_grad_()
    weights = draw(*shape, seed=4).double()
    for _ in range(2):
        found, expected = ours(values, some_real(shape[0], filler)), torchs(values[: shape[0]])
    torch.testing.assert_close(found[: shape[0]], expected)
    assert found.isfinite().all()
    for name, buffer in torchs.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), buffer)
    own = torch.autograd.grad((found[: shape[0]] * weights).sum(), [values, *ours.parameters()])
    for one, other in zip(
        own, torch.autograd.grad((expected * weights).sum(), [values, *torchs.parameters()]), strict=True
    ):
        torch.testing.assert_close(one, other)
    assert not own[0][shape[0] :].any()


def test_batch_norm_of_a_padded_batch_in_half_precision_computes_statistics_in_float32() -> None:
    ours, torchs, values = BatchNorm(3).train(), torch.nn.BatchNorm1d(3).train(), (draw(900, 3) + 30).bfloat16()
    found = ours(values.requires_grad_(), some_real(600, 300))
    expected = torchs(values[:600].float())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(ours.running_mean, torchs.running_mean)
    torch.testing.assert_close(ours.running_var, torchs.running_var)
    torch.testing.assert_close(found[:600].float(), expected, rtol=0.01, atol=0.01)
    weights = draw(600, 3, seed=2)
    (own,) = torch.autograd.grad((found[:600] * weights).sum(), values)
    (other,) = torch.autograd.grad((expected * weights).sum(), values)
    torch.testing.assert_close(own, other, rtol=0.02, atol=0.02)


def test_batch_norm_of_one_real_value_per_channel_uses_the_running_statistics_unchanged() -> None:
    norm, values = BatchNorm(3).train(), draw(4, 3).requires_grad_()
    norm.running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
    found = norm(values, some_real(1, 3))
    torch.testing.assert_close(found[0], (values[0] - torch.tensor([1.0, 2.0, 3.0])) / (1 + norm.eps) ** 0.5)
    assert norm.running_mean.tolist() == [1, 2, 3] and norm.running_var.tolist() == [1, 1, 1]
    assert norm.num_batches_tracked == 0
    found[0].sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([[1.0] * 3] + [[0.0] * 3] * 3) / (1 + norm.eps) ** 0.5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("filler", [0, 4])
def test_joint_norms_equal_separate_norms(filler: int, training: bool) -> None:
    norms, alone = ([BatchNorm(size).train(training) for size in (2, 3)] for _ in range(2))
    for norm in (*norms, *alone):
        norm.running_mean.copy_(draw(norm.num_features, seed=2))
    values, real = draw(7 + filler, 5), some_real(7, filler) if filler else None
    found = normalise(norms, values, real)
    expected = [norm(part, real) for norm, part in zip(alone, values.split([2, 3], dim=1), strict=True)]
    torch.testing.assert_close(found, torch.cat(expected, dim=1))
    for norm, other in zip(norms, alone, strict=True):
        torch.testing.assert_close(norm.state_dict(), other.state_dict())


def test_batch_norm_of_more_values_is_torch_s() -> None:
    ours, torchs, values = BatchNorm(3).train(), torch.nn.BatchNorm1d(3).train(), draw(5, 3, 4)
    assert torch.equal(ours(values), torchs(values)) and torch.equal(ours.running_var, torchs.running_var)


def read_by_channel(cnn: WidthCnn, values: torch.Tensor) -> torch.Tensor:
    """The features of one position, channel by channel."""
    unit = torch.nn.Linear(cnn.features, cnn.features)
    with torch.no_grad():
        unit.weight.copy_(torch.eye(cnn.features))
        unit.bias.zero_()
    return linear_of_places(unit, cnn(values), cnn.channels)[0]


@torch.no_grad()
def test_the_1xn_cnn_is_two_layers_of_convolutions_of_one_position(even: int) -> None:
    cnn, values = WidthCnn(3, 20, channels=(2, 4), strides=(3, 2), dropout=0.5).eval(), draw(1, 3, 20)
    cnn.first.bias.copy_(draw(14, seed=2))
    cnn.second.bias.copy_(draw(28, seed=3))
    layer = values[0].numpy()
    for kernels, stride in ((cnn.first, 3), (cnn.second, 2)):
        layer = np.concatenate([convolve_with_loops(layer, w.numpy(), stride, 1) for w in kernels.weights])
        layer = functional.gelu(torch.from_numpy(layer) + kernels.bias.unsqueeze(1)).numpy()
    assert cnn.features == 7 * 4 * 4 == layer.size  # 20 wide → 7 → 4
    np.testing.assert_allclose(read_by_channel(cnn, values), layer.flatten(), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_dilated_cnn_reads_every_other_value_and_one_plain_kernel_those_between(even: int) -> None:
    cnn, values = WidthCnn(3, 20, (2, 4), (1, 1), dropout=0.0, dilated=True).eval(), draw(1, 3, 20)
    first = functional.gelu(
        torch.cat([functional.conv1d(values, w, padding="same") for w in cnn.first.weights], dim=1)
    )  # (1, channel, width)
    # torch's "same" pads an even dilated kernel differently: use loops instead.
    parts = [convolve_with_loops(first[0].numpy(), w.numpy(), 1, dilation=2) for w in cnn.second.weights]
    parts.append(convolve_with_loops(first[0].numpy(), cnn.between.weights[0].numpy(), 1, dilation=1))
    expected = functional.gelu(torch.from_numpy(np.concatenate(parts))).flatten()
    assert cnn.features == 8 * 4 * 20
    np.testing.assert_allclose(read_by_channel(cnn, values), expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dilated", [False, True])
@pytest.mark.parametrize(("width", "strides"), [(50, (7, 7)), (49, (4, 5)), (21, (7, 3)), (2, (7, 7))])
def test_the_1xn_cnn_equals_torch_s_convolutions_and_their_gradients(
    width: int, strides: tuple[int, int], dilated: bool, even: int
) -> None:
    cnn = WidthCnn(3, width, (2, 4), strides, dropout=0.0, dilated=dilated).double()
    output, values = torch.nn.Linear(cnn.features, 2).double(), draw(5, 3, width).double().requires_grad_()
    with torch.no_grad():
        cnn.first.bias.copy_(draw(14, seed=2))
        cnn.second.bias.copy_(draw(28, seed=3))

    def convolve(given: torch.Tensor, kernels: Kernels, stride: int, dilation: int = 1) -> torch.Tensor:
        return functional.conv1d(given, kernels.joined(), kernels.bias, stride, 3 * dilation, dilation)

    first = functional.gelu(convolve(values, cnn.first, strides[0]))  # (position, channel, narrower)
    second = [convolve(first, cnn.second, strides[1], cnn.dilation)]
    if cnn.between is not None:
        second.append(convolve(first, cnn.between, strides[1]))
    expected = output(functional.gelu(torch.cat(second, dim=1)).flatten(1))  # (position, 2)
    found = linear_of_places(output, cnn(values), cnn.channels)  # (position, 2)
    torch.testing.assert_close(found, expected)
    leaves = [values, *cnn.parameters(), *output.parameters()]
    wanted = torch.autograd.grad(expected.square().sum(), leaves)
    for one, other in zip(torch.autograd.grad(found.square().sum(), leaves), wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_padding_a_product_does_not_change_it(even: int) -> None:
    values, weight = draw(4, 13), draw(5, 13, seed=2)
    torch.testing.assert_close(padded_linear(values, weight), values @ weight.T)


@torch.no_grad()
@pytest.mark.parametrize("width", [8, 9])
def test_a_halving_block_is_two_separables_and_a_pool_plus_a_strided_residual(width: int) -> None:
    block = HalvingBlock(3, 4, 5, torch.nn.MaxPool1d(3, stride=2, padding=1)).eval()
    values, scale = draw(2, 3, width), (1 + 1e-5) ** -0.5
    mixed = values
    for layer in (block.first, block.second):
        deep = functional.conv1d(mixed.clamp(min=0), layer.depthwise.weight, padding=1, groups=mixed.shape[1])
        mixed = torch.einsum("oc,pcw->pow", layer.pointwise.weight[..., 0], deep) * scale
    columns = range(0, width, 2)
    pooled = torch.stack([mixed[:, :, max(at - 1, 0) : at + 2].amax(dim=2) for at in columns], dim=2)
    beside = torch.einsum("oc,pcw->pow", block.residual.convolution.weight[..., 0], values[:, :, ::2]) * scale
    torch.testing.assert_close(block(values), pooled + beside, rtol=1e-5, atol=1e-5)


def test_no_convolution_before_a_batch_norm_has_a_bias() -> None:
    layers = [Convolution(3, 4, 3), Separable(3, 4), TokenConvolution(3, 4, 3), TokenSeparable(3, 4)]
    weights = [3 * 4 * 3, 3 * 3 + 3 * 4, 3 * 4 * 3, 3 * 3 + 3 * 4]
    assert [sum(p.numel() for p in layer.parameters()) for layer in layers] == [count + 2 * 4 for count in weights]
