"""Modules for heads that convolve along the values of one position (its width) or along the tokens of a sequence.

Along tokens, the batch stays packed: a convolution is a linear map of each token and its neighbours, with zeros beyond
the ends of the sequence, so that it never reads padding or another sequence. Along the width, windows are laid out for
plain matrix products: with so few channels, convolutions are several times slower on a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.errors import UserError
from bertvision.heads.base import Head, HeadConfig, ReadConfig, Target
from bertvision.heads.blocks import LearnedPooling, SharedAdapter, alignment_of, pad_to
from bertvision.settings import MOST_WIDTH, setting

SIZES = (1, 2, 3, 4, 5, 6, 7)
"""The kernel sizes N of the 1×N and N×N heads."""


@dataclass(frozen=True)
class WidthCnnConfig(ReadConfig):
    """Settings of the 1×N heads."""

    dropout: float = setting(0.1, "dropout after each convolution", at_least=0, below=1)


@dataclass(frozen=True)
class TokenCnnConfig(HeadConfig):
    """Settings of the heads that convolve along tokens."""

    size: int = setting(386, "output size of the adapter", at_least=1, at_most=MOST_WIDTH)


class TokenCnnHead(Head):
    """Base class: pools the layers into one state and applies an adapter. Subclasses convolve along tokens."""

    Config = TokenCnnConfig
    positions = frozenset({"token"})
    mixes_tokens = True

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        self.pooling = LearnedPooling(self.layers)
        self.adapter = SharedAdapter(shape.hidden, config.size)


def check_width(head: str, hidden: int, least: int) -> None:
    """Raise UserError if convolutions without padding would shrink the states to nothing."""
    if hidden < least:
        raise UserError(f"head '{head}' needs hidden states of at least {least} values, not {hidden}.")


def padded_linear(values: Tensor, weight: Tensor) -> Tensor:
    """Multiply by a weight (output, input), with both dimensions padded to the alignment."""
    align = alignment_of(values)
    widened = pad_to(pad_to(weight, -1, align), -2, align)  # (output, input), both rounded up
    return functional.linear(pad_to(values, -1, align), widened)[:, : len(weight)]  # (position, output)


# ---------------------------------------------------------------------- batch norm


@dataclass(frozen=True)
class PositionMask:
    """The positions of a batch that are not padding. Everything stays on the device, and is computed once for all norms
    along tokens. Scalars are in double precision, which does not change the dtype of tensors in a product."""

    mask: Tensor  # (position,)
    count: Tensor  # () values per channel
    several: Tensor  # () whether the count is greater than one
    share: Tensor  # () weight of one value in a mean; 0 if the count is one
    unbiased: Tensor  # () factor from the variance to its unbiased estimate

    @classmethod
    def of(cls, states: HiddenStates) -> "PositionMask | None":
        """Return None if there is no padding."""
        return None if states.real is None else cls.counting(states.real, states.real.sum(dtype=torch.float64))

    @classmethod
    def counting(cls, mask: Tensor, count: Tensor) -> "PositionMask":
        several = count > 1  # ()
        return cls(mask, count, several, several / count, count / (count - 1).clamp(min=1))

    def at(self, width: int) -> "PositionMask":
        """Return the mask for values with `width` entries per position and channel."""
        return self if width == 1 else self.counting(self.mask, self.count * width)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm over (position, channel[, width]) without padding. A batch with one value per channel has no variance:
    it is normalised with the running mean and variance, and does not update them."""

    def forward(self, input: Tensor, real: PositionMask | None = None) -> Tensor:
        if self.training and real is not None:
            return normalise([self], input, real)
        if self.training and input.numel() == self.num_features:
            return functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
            )
        return super().forward(input)


def normalise(norms: Sequence[BatchNorm], values: Tensor, real: PositionMask | None) -> Tensor:
    """Apply norms to adjacent groups of channels, as one norm where that is faster."""
    sizes = [norm.num_features for norm in norms]
    if norms[0].training and real is None:
        return torch.cat([norm(part) for norm, part in zip(norms, values.split(sizes, dim=1), strict=True)], dim=1)
    weight, bias, running_mean, running_var = (
        torch.cat([getattr(norm, name) for norm in norms]) if len(norms) > 1 else getattr(norms[0], name)
        for name in ("weight", "bias", "running_mean", "running_var")
    )  # (channel) each
    eps = norms[0].eps
    if real is None or not norms[0].training:
        return functional.batch_norm(values, running_mean, running_var, weight, bias, training=False, eps=eps)
    real = real.at(values.shape[2:].numel())
    normed, mean, var = MaskedNorm.apply(values, real, weight, bias, running_mean, running_var, eps)
    with torch.no_grad():
        assert norms[0].momentum is not None, "running means, not means over all steps"
        mean = running_mean.lerp(mean, norms[0].momentum)  # (channel)
        var = running_var.lerp(var * real.unbiased, norms[0].momentum)  # (channel)
        running = [norm.get_buffer(name) for name in ("running_mean", "running_var") for norm in norms]
        torch._foreach_copy_(running, [*mean.split(sizes), *var.split(sizes)])
        for norm in norms:
            norm.get_buffer("num_batches_tracked").add_(real.several)
    return normed  # (position, channel[, width])


class MaskedNorm(torch.autograd.Function):
    """Batch norm with the mean and variance of the positions that are not padding; also returns both. The loss must not
    depend on padding. Nothing here synchronises with the device, where the count stays."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        real: PositionMask,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        further = [1] * (values.ndim - 2)
        over = [0, *range(2, values.ndim)]
        mask = real.mask.to(weight.dtype).view(-1, 1, *further)  # (position, 1[, 1])
        shares = mask * real.share  # (position, 1[, 1])
        mean = (values * shares).sum(over)  # (channel)
        var = ((values - mean.view(-1, *further)).square() * shares).sum(over)  # (channel)
        mean, var = torch.where(real.several, mean, running_mean), torch.where(real.several, var, running_var)
        normed = functional.batch_norm(values, mean, var, weight, bias, training=False, eps=eps)
        ctx.save_for_backward(values, mask, real.share, weight, mean, var)
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, var)
        return normed, mean, var

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        values, mask, share, weight, mean, var = ctx.saved_tensors
        # The gradient for constant mean and variance ...
        inverse = (var + ctx.eps).rsqrt()  # (channel)
        plain, to_weight, to_bias = torch.ops.aten.native_batch_norm_backward(
            gradients[0], values, weight, mean, var, mean, inverse, False, ctx.eps, [True, True, True]
        )
        # ... minus the part through both: weight / σ / count · (Σ gradient + normed · Σ gradient normed).
        scale = weight * inverse * share  # (channel)
        through = functional.batch_norm(
            values, mean, var, scale * to_weight, scale * to_bias, training=False, eps=ctx.eps
        )  # (position, channel[, width])
        to_values = torch.addcmul(plain, through, mask.to(plain.dtype), value=-1)
        return to_values, None, to_weight, to_bias, None, None, None


# ---------------------------------------------------------------------- along the width, for the 1×N heads


class Kernels(nn.Module):
    """Kernels of several sizes in parallel, all centred; a kernel of even size reaches one value further to the right.

    They run as one kernel of the largest size, with zeros around the smaller ones: fewer, larger products.
    """

    def __init__(self, inputs: int, channels: int, sizes: Sequence[int] = SIZES) -> None:
        super().__init__()
        assert max(sizes) % 2 == 1, "the largest kernel has a middle"
        self.sizes, self.reach, self.outputs = tuple(sizes), max(sizes) // 2, channels * len(sizes)
        self.weights = nn.ParameterList(  # (channel, input, size) each
            nn.init.kaiming_normal_(torch.empty(channels, inputs, size), nonlinearity="relu") for size in sizes
        )
        self.bias = nn.Parameter(torch.zeros(self.outputs))

    def joined(self) -> Tensor:
        around = [(self.reach - (size - 1) // 2, self.reach - size // 2) for size in self.sizes]
        padded = [functional.pad(weight, pad) for weight, pad in zip(self.weights, around, strict=True)]
        return torch.cat(padded)  # (output, input, largest size)

    def spread(self, dilation: int) -> Tensor:
        """Return the joined kernel, dilated."""
        spread = functional.pad(self.joined().unsqueeze(3), (0, dilation - 1)).flatten(2)
        return spread[:, :, : 2 * self.reach * dilation + 1]  # (output, input, span)

    def along_tokens(self, values: Tensor, neighbours: "Neighbours") -> Tensor:
        """Convolve along tokens. On a GPU, the widths of inputs and outputs are padded with zeros."""
        align = alignment_of(values)
        around = neighbours.around(values, self.reach).flatten(1)  # (token, size * input)
        weight = pad_to(self.joined().transpose(1, 2), -1, values.shape[1]).flatten(1)  # (output, size * input)
        return functional.linear(around, pad_to(weight, -2, align), pad_to(self.bias, -1, align))  # (token, output)


class WidthCnn(nn.Module):
    """The 1×N CNN: two layers of kernels N = 1 … 7 with strides, each followed by GELU and dropout. Outputs are not
    pooled over the width, since each dimension of a hidden state has its own meaning.

    With dilation, the second layer's kernels read every other value; an additional plain 1×7 kernel reads the values in
    between.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        channels: tuple[int, int],
        strides: tuple[int, int],
        dropout: float,
        dilated: bool = False,
    ) -> None:
        super().__init__()
        self.strides, self.dilation = strides, 2 if dilated else 1
        self.first = Kernels(inputs, channels[0])
        self.second = Kernels(self.first.outputs, channels[1])
        self.between = Kernels(self.first.outputs, channels[1], sizes=SIZES[-1:]) if dilated else None
        self.dropout = nn.Dropout(dropout)
        for stride in strides:
            width = -(-width // stride)  # rounded up
        self.places, self.channels = width, self.second.outputs + (self.between.outputs if self.between else 0)
        self.features = self.places * self.channels

    def forward(self, values: Tensor) -> Tensor:
        """From (position, channel, width) to (position, place, output); apply `linear_of_places` to the result."""
        align, stride = alignment_of(values), self.strides[1]
        kernel, bias = self._second()  # (output, input, span), (output)
        parts = -(-kernel.shape[2] // stride)  # groups of rows that a window of the second layer overlaps
        groups = self.places + parts - 1
        rows = lay_out_windows(values, SIZES[-1], self.strides[0], kernel.shape[2] // 2, groups * stride, align)
        weight = torch.cat([self.first.joined().flatten(1), self.first.bias.unsqueeze(1)], dim=1)  # (output, window)
        first = functional.linear(rows, pad_to(pad_to(weight, -1, align), -2, align))  # (position, row, channel)
        first = self.dropout(functional.gelu(first)).unflatten(1, (groups, stride)).flatten(2)
        # (position, group, stride * channel): each group is multiplied once, for all windows that overlap it.
        weight, bias = split_kernel(kernel, bias, parts, stride, align)
        second = functional.linear(first, weight, bias)  # (position, group, part * output)
        own, *others = second.unflatten(2, (parts, -1)).unbind(2)  # (position, group, output) each
        summed = own[:, : self.places]  # (position, place, output)
        for part, other in enumerate(others, 1):
            summed = summed + other[:, part : part + self.places]
        return self.dropout(functional.gelu(summed))  # (position, place, output)

    def _second(self) -> tuple[Tensor, Tensor]:
        kernel, bias = self.second.spread(self.dilation), self.second.bias  # (output, input, span), (output)
        if self.between is None:
            return kernel, bias
        beside = (kernel.shape[2] - SIZES[-1]) // 2
        between = functional.pad(self.between.joined(), (beside, beside))  # (output, input, span)
        return torch.cat([kernel, between]), torch.cat([bias, self.between.bias])


def lay_out_windows(values: Tensor, size: int, stride: int, before: int, rows: int, align: int) -> Tensor:
    """Lay out windows of (position, channel, width), one per row, after `before` rows of zeros. Rows after the last
    window are zeros.

    A window is channel · size values, a 1 for the bias, and zeros up to a multiple of `align`. A row without a window
    stays 0 in any product.
    """
    positions, channels, width = values.shape
    reach, used = size // 2, channels * size
    places = min(-(-width // stride), rows - before)
    whole = range(-(-reach // stride), min(places, (width - 1 - reach) // stride + 1))  # windows inside the width
    laid = values.new_zeros(positions, rows, -(-(used + 1) // align) * align)  # (position, row, window)
    laid[:, before : before + places, used] = 1
    windows = laid[:, before : before + places, :used].unflatten(
        2, (channels, size)
    )  # (position, place, channel, size)
    if whole:
        inside = values[:, :, whole.start * stride - reach :].unfold(2, size, stride)[:, :, : len(whole)]
        windows[:, whole.start : whole.stop] = inside.transpose(1, 2)
    for place in (place for place in range(places) if place not in whole):
        start, end = place * stride - reach, place * stride + reach + 1
        low, high = max(0, start), min(width, end)
        windows[:, place, :, low - start : high - start] = values[:, :, low:high]
    return laid  # (position, row, window)


def split_kernel(kernel: Tensor, bias: Tensor, parts: int, stride: int, align: int) -> tuple[Tensor, Tensor]:
    """Split a kernel (output, input, span) into `parts` parts of `stride` places, stacked as rows; the bias goes with
    the first part. Inputs and outputs are padded to the alignment."""
    kernel = functional.pad(kernel, (0, parts * stride - kernel.shape[2])).permute(2, 0, 1)  # (place, output, input)
    kernel = pad_to(pad_to(kernel, -1, align), -2, align).unflatten(0, (parts, stride))
    outputs = kernel.shape[2]
    weight = kernel.transpose(1, 2).flatten(2).flatten(0, 1)  # (part * output, stride * input)
    return weight, functional.pad(bias, (0, parts * outputs - len(bias)))


def linear_of_places(output: nn.Linear, features: Tensor, channels: int) -> Tensor:
    """Apply `output` to (position, place, channel), without the padding after the first `channels` channels. The weight
    is ordered by channel; it is transposed, since the features are larger."""
    weight = output.weight.unflatten(1, (channels, -1)).transpose(1, 2)  # (output, place, channel)
    weight = pad_to(weight, -1, features.shape[2]).flatten(1)  # (output, place * width)
    return functional.linear(features.flatten(1), weight, output.bias)  # (position, output)


# ---------------------------------------------------------------------- along tokens


class Neighbours:
    """Which neighbours of each token in a packed batch are in its sequence; computed once for all convolutions."""

    def __init__(self, states: HiddenStates, tokens: int, reach: int) -> None:
        owners = states.owners(tokens)  # (token)
        self.reach = reach
        self.same = functional.pad(owners, (reach, reach)).unfold(0, 2 * reach + 1, 1) == owners.unsqueeze(1)
        # (token, neighbour)

    def around(self, values: Tensor, reach: int) -> Tensor:
        """Return each token with its neighbours, and zeros beyond the ends of its sequence."""
        same = self.same[:, self.reach - reach : self.reach + reach + 1].unsqueeze(2)  # (token, neighbour, 1)
        padded = functional.pad(values, (0, 0, reach, reach))  # (reach + token + reach, channel)
        return padded.unfold(0, 2 * reach + 1, 1).transpose(1, 2) * same  # (token, neighbour, channel)


class TokenConvolution(nn.Module):
    """A convolution along tokens with an odd kernel size, then batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int, size: int) -> None:
        super().__init__()
        self.reach = size // 2
        self.weight = nn.Parameter(torch.empty(outputs, inputs, size))  # (output, input, size)
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        self.norm = BatchNorm(outputs)

    def forward(self, values: Tensor, neighbours: Neighbours, real: PositionMask | None = None) -> Tensor:
        return functional.relu(self.norm(self.convolve(values, neighbours), real))  # (token, output)

    def convolve(self, values: Tensor, neighbours: Neighbours) -> Tensor:
        """Return the values before the norm."""
        around = neighbours.around(values, self.reach).flatten(1) if self.reach else values  # (token, size * input)
        return padded_linear(around, self.weight.transpose(1, 2).flatten(1))  # (token, output)


class TokenSeparable(nn.Module):
    """A separable convolution along tokens: depthwise over three tokens, pointwise, then batch norm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.depthwise = nn.Parameter(torch.empty(inputs, 1, 3))  # (input, 1, neighbour)
        self.pointwise = nn.Parameter(torch.empty(outputs, inputs))  # (output, input)
        nn.init.kaiming_normal_(self.depthwise, nonlinearity="linear")
        nn.init.kaiming_normal_(self.pointwise, nonlinearity="linear")
        self.norm = BatchNorm(outputs)

    def forward(self, values: Tensor, neighbours: Neighbours, real: PositionMask | None = None) -> Tensor:
        weight = self.depthwise.squeeze(1).T.to(values.dtype)  # (neighbour, input)
        mixed = (neighbours.around(values, 1) * weight).sum(dim=1)  # (token, input)
        return self.norm(padded_linear(mixed, self.pointwise), real)  # (token, output)


# ---------------------------------------------------------------------- along the width, with batch norm


class Convolution(nn.Module):
    """A convolution along the width without bias or padding, then batch norm."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(inputs, outputs, size, stride, bias=False)
        nn.init.kaiming_normal_(self.convolution.weight, nonlinearity="relu")
        self.norm = BatchNorm(outputs)

    def forward(self, values: Tensor, real: PositionMask | None = None) -> Tensor:
        return self.norm(self.convolution(values), real)  # (position, output, narrower)


class Separable(nn.Module):
    """A separable convolution that preserves the width: depthwise over three values, pointwise, then batch norm
    (Chollet 2017)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(inputs, inputs, 3, padding=1, groups=inputs, bias=False)
        self.pointwise = nn.Conv1d(inputs, outputs, 1, bias=False)
        nn.init.kaiming_normal_(self.depthwise.weight, nonlinearity="linear")
        nn.init.kaiming_normal_(self.pointwise.weight, nonlinearity="linear")
        self.norm = BatchNorm(outputs)

    def forward(self, values: Tensor, real: PositionMask | None = None) -> Tensor:
        return self.norm(self.pointwise(self.depthwise(values)), real)  # (position, output, width)


class HalvingBlock(nn.Module):
    """Two separable convolutions and a pooling that halves the width, with a strided 1×1 convolution as residual."""

    def __init__(self, inputs: int, middle: int, outputs: int, pool: nn.Module) -> None:
        super().__init__()
        self.first, self.second = Separable(inputs, middle), Separable(middle, outputs)
        self.pool = pool
        self.residual = Convolution(inputs, outputs, size=1, stride=2)

    def forward(self, values: Tensor, real: PositionMask | None = None) -> Tensor:
        mixed = self.first(functional.relu(values), real)  # (position, middle, width)
        mixed = self.second(functional.relu(mixed), real)  # (position, output, width)
        return self.pool(mixed) + self.residual(values, real)  # (position, output, width / 2 rounded up)
