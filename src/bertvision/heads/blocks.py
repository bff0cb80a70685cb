"""Modules shared by several heads. In shapes, a position is a token (spans) or a sequence (labels, scores)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class LearnedPooling(nn.Module):
    """scale · Σ softmax(weights)ₗ · stateₗ over the layers (Tenney et al. 2019): layers + 1 parameters."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(layers) * 0.05)  # (layer)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, states: Tensor) -> Tensor:
        shares = (torch.softmax(self.weights, dim=0) * self.scale).to(states.dtype)  # (layer)
        if states.is_cuda:  # einsum would copy the states first
            return torch.bmm(shares.expand(len(states), 1, -1), states).squeeze(1)  # (position, hidden)
        return torch.einsum("l,plh->ph", shares, states)  # (position, hidden)


class AveragePooling(nn.Module):
    """The mean over the layers: no parameters."""

    def forward(self, states: Tensor) -> Tensor:
        return states.mean(dim=1)  # (position, hidden)


POOLINGS = ("learned", "average")


def build_pooling(pooling: str, layers: int) -> nn.Module:
    return LearnedPooling(layers) if pooling == "learned" else AveragePooling()


ALIGNMENT = 8
"""In half precision, a width that is a multiple of this is aligned in memory; other widths are far slower on a GPU."""


def alignment_of(values: Tensor) -> int:
    """Return the alignment for the widths of matrices multiplied with these values."""
    return ALIGNMENT if values.is_cuda else 1


def pad_to(weight: Tensor, dim: int, align: int) -> Tensor:
    """Pad a weight with zeros to a multiple of `align`, along its last (`dim` = -1) or second-to-last dimension."""
    missing = -weight.shape[dim] % align
    return functional.pad(weight, (0, 0) * (-1 - dim) + (0, missing)) if missing else weight


def linear_of_parts(output: nn.Linear, parts: Sequence[tuple[Tensor, int]]) -> Tensor:
    """Apply `output` to the concatenation of the parts, without copying them. Each part is a tensor (position, [layer,]
    width) and its size before padding; values beyond that size are 0."""
    columns = [math.prod(part.shape[1:-1]) * size for part, size in parts]  # columns of the weight for each part
    mapped: Tensor | None = None
    for (part, size), weight in zip(parts, output.weight.split(columns, dim=1), strict=True):  # (output, layer * size)
        rows = pad_to(weight.unflatten(1, (-1, size)), -1, part.shape[-1]).flatten(1)  # (output, layer * width)
        bias = output.bias if mapped is None else None
        own = functional.linear(part.flatten(1), rows, bias)  # (position, output)
        mapped = own if mapped is None else mapped + own
    assert mapped is not None
    return mapped  # (position, output)


class SharedAdapter(nn.Module):
    """GELU(W state + b), one W and b for every layer; no up-projection, residual, norm or dropout."""

    def __init__(self, hidden: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(truncated_normal(size, hidden))  # (size, hidden)
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, states: Tensor, align: int = 1) -> Tensor:
        """The output is padded with zeros to a multiple of `align`."""
        weight, bias = pad_to(self.weight, -2, align), pad_to(self.bias, -1, align)  # (width, hidden), (width)
        return functional.gelu(functional.linear(states, weight, bias))  # (position, [layer,] width)


class SeparateAdapter(nn.Module):
    """GELU(Wₗ stateₗ + bₗ): a separate W and b for each layer."""

    def __init__(self, layers: int, hidden: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(truncated_normal(layers, size, hidden))  # (layer, size, hidden)
        self.bias = nn.Parameter(torch.zeros(layers, size))

    def forward(self, states: Tensor, align: int = 1) -> Tensor:
        """`align` works as in SharedAdapter."""
        weight, bias = pad_to(self.weight, -2, align), pad_to(self.bias, -1, align)
        projected = torch.einsum("plh,lsh->pls", states, weight)  # (position, layer, width)
        return functional.gelu(projected + bias)  # (position, layer, width)


def truncated_normal(*shape: int) -> Tensor:
    """The papers' initialisation of adapters: σ = 0.001, truncated at two σ."""
    return nn.init.trunc_normal_(torch.empty(*shape), std=0.001, a=-0.002, b=0.002)
