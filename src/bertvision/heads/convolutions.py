"""Parts of the heads that convolve: along the values of one position (its width), or along the tokens of a sequence.

Along tokens the batch stays packed: a convolution is a linear map of each token and its neighbours, with zeros beyond
the ends of its own sequence, so that neither padding nor another sequence is ever seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.encoder.states import HiddenStates
from bertvision.errors import UserError
from bertvision.heads.base import HeadConfig, ReadConfig

SIZES = (1, 2, 3, 4, 5, 6, 7)
"""The kernel sizes N of the 1×N and N×N heads."""


@dataclass(frozen=True)
class WidthCnnConfig(ReadConfig):
    """Settings of the 1×N heads."""

    dropout: float = field(default=0.1, metadata={"help": "share of values dropped in training after each convolution"})

    def mistakes(self) -> list[str]:
        right = 0 <= self.dropout < 1
        return super().mistakes() + ([] if right else [f"`dropout` must be from 0 to below 1, not {self.dropout}"])


@dataclass(frozen=True)
class TokenCnnConfig(HeadConfig):
    """Settings of the heads that convolve along tokens."""

    size: int = field(default=386, metadata={"help": "values the pooled state becomes"})

    def mistakes(self) -> list[str]:
        return super().mistakes() + ([] if self.size >= 1 else [f"`size` must be at least 1, not {self.size}"])


def check_width(head: str, hidden: int, least: int) -> None:
    """Refuses states that convolutions without padding would shrink to nothing."""
    if hidden < least:
        raise UserError(f"head '{head}' needs hidden states of at least {least} values, not {hidden}.")


class BatchNorm(nn.BatchNorm1d):
    """Batch norm over (value, channel[, width]); a batch of one value a channel has no spread and takes the running
    mean and variance, and leaves them as they are."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training and input.numel() == self.num_features:
            return functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
            )
        return super().forward(input)


class Kernels(nn.Module):
    """Kernels of several sizes side by side, all of them centred; an even one reaches one further to the right.

    They run as one kernel of the largest size with zeros around the smaller ones: fewer, larger products.
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

    def along_width(self, values: Tensor, stride: int, dilation: int = 1) -> Tensor:
        padding = self.reach * dilation  # keeps the width, but for the stride
        return functional.conv1d(values, self.joined(), self.bias, stride, padding, dilation)  # (position, output, …)

    def along_tokens(self, values: Tensor, neighbours: "Neighbours") -> Tensor:
        around = neighbours.around(values, self.reach).flatten(1)  # (token, size * input)
        return functional.linear(around, self.joined().transpose(1, 2).flatten(1), self.bias)  # (token, output)


class WidthCnn(nn.Module):
    """The 1×N CNN: two layers of kernels N = 1 … 7 with strides, GELU and dropout after each; all values are kept side
    by side, since a place in a hidden state has its own meaning.

    Dilated, the second layer's kernels read every other value; a plain 1×7 beside them reads those in between.
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
        self.features = width * (self.second.outputs + (self.between.outputs if self.between else 0))

    def forward(self, values: Tensor) -> Tensor:
        first = self.first.along_width(values, self.strides[0])  # (position, channel, narrower)
        first = self.dropout(functional.gelu(first))
        second = self.second.along_width(first, self.strides[1], self.dilation)  # (position, channel, narrowest)
        if self.between is not None:
            second = torch.cat([second, self.between.along_width(first, self.strides[1])], dim=1)
        return self.dropout(functional.gelu(second)).flatten(1)  # (position, feature)


class Neighbours:
    """Where the tokens of a packed batch have neighbours of their own sequence; made once for all convolutions."""

    def __init__(self, states: HiddenStates, tokens: int, reach: int) -> None:
        first = torch.zeros(tokens, dtype=torch.long, device=states.device)  # (token)
        owners = first.index_fill(0, states.starts, 1).cumsum(0)  # (token) counted from 1: 0 is outside the batch
        self.reach = reach
        self.same = functional.pad(owners, (reach, reach)).unfold(0, 2 * reach + 1, 1) == owners.unsqueeze(1)
        # (token, neighbour)

    def around(self, values: Tensor, reach: int) -> Tensor:
        """Each token between its neighbours, zeros beyond the ends of its sequence."""
        same = self.same[:, self.reach - reach : self.reach + reach + 1].unsqueeze(2)  # (token, neighbour, 1)
        padded = functional.pad(values, (0, 0, reach, reach))  # (reach + token + reach, channel)
        return padded.unfold(0, 2 * reach + 1, 1).transpose(1, 2) * same  # (token, neighbour, channel)


class TokenConvolution(nn.Module):
    """A convolution of one odd size along tokens, batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int, size: int) -> None:
        super().__init__()
        self.reach = size // 2
        self.weight = nn.Parameter(torch.empty(outputs, inputs, size))  # (output, input, size)
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        self.norm = BatchNorm(outputs)

    def forward(self, values: Tensor, neighbours: Neighbours) -> Tensor:
        around = neighbours.around(values, self.reach).flatten(1) if self.reach else values  # (token, size * input)
        weight = self.weight.transpose(1, 2).flatten(1)  # (output, size * input)
        return functional.relu(self.norm(functional.linear(around, weight)))  # (token, output)


class TokenSeparable(nn.Module):
    """A separable convolution along tokens: each channel over three tokens, a map of the channels, batch norm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.depthwise = nn.Parameter(torch.empty(inputs, 1, 3))  # (input, 1, neighbour)
        self.pointwise = nn.Parameter(torch.empty(outputs, inputs))  # (output, input)
        nn.init.kaiming_normal_(self.depthwise, nonlinearity="linear")
        nn.init.kaiming_normal_(self.pointwise, nonlinearity="linear")
        self.norm = BatchNorm(outputs)

    def forward(self, values: Tensor, neighbours: Neighbours) -> Tensor:
        weight = self.depthwise.squeeze(1).T.to(values.dtype)  # (neighbour, input)
        mixed = (neighbours.around(values, 1) * weight).sum(dim=1)  # (token, input)
        return self.norm(functional.linear(mixed, self.pointwise))  # (token, output)


class Convolution(nn.Module):
    """A convolution without bias along the width, no padding, then batch norm."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(inputs, outputs, size, stride, bias=False)
        nn.init.kaiming_normal_(self.convolution.weight, nonlinearity="relu")
        self.norm = BatchNorm(outputs)

    def forward(self, values: Tensor) -> Tensor:
        return self.norm(self.convolution(values))  # (position, output, narrower)


class Separable(nn.Module):
    """A separable convolution along the width, which it keeps: each channel over three values, a map of the channels,
    batch norm (Chollet 2017)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(inputs, inputs, 3, padding=1, groups=inputs, bias=False)
        self.pointwise = nn.Conv1d(inputs, outputs, 1, bias=False)
        nn.init.kaiming_normal_(self.depthwise.weight, nonlinearity="linear")
        nn.init.kaiming_normal_(self.pointwise.weight, nonlinearity="linear")
        self.norm = BatchNorm(outputs)

    def forward(self, values: Tensor) -> Tensor:
        return self.norm(self.pointwise(self.depthwise(values)))  # (position, output, width)


class HalvingBlock(nn.Module):
    """Two separable convolutions and a pooling that halves the width, around them a 1×1 convolution of stride 2."""

    def __init__(self, inputs: int, middle: int, outputs: int, pool: nn.Module) -> None:
        super().__init__()
        self.first, self.second = Separable(inputs, middle), Separable(middle, outputs)
        self.pool = pool
        self.residual = Convolution(inputs, outputs, size=1, stride=2)

    def forward(self, values: Tensor) -> Tensor:
        mixed = self.first(functional.relu(values))  # (position, middle, width)
        mixed = self.second(functional.relu(mixed))  # (position, output, width)
        return self.pool(mixed) + self.residual(values)  # (position, output, width / 2 rounded up)
