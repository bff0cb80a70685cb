"""Parts shared by two or more heads. Shapes: position = a token (spans) or a sequence (labels, scores)."""

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
"""Rows of so many values in half precision begin at aligned addresses: other widths take a GPU far longer."""


def alignment_of(values: Tensor) -> int:
    """What the widths in products with these values should be multiples of."""
    return ALIGNMENT if values.is_cuda else 1


def pad_to(weight: Tensor, dim: int, align: int) -> Tensor:
    """A weight with zeros up to a multiple of `align` along its last dimension (`dim` = -1) or the one before it."""
    missing = -weight.shape[dim] % align
    return functional.pad(weight, (0, 0) * (-1 - dim) + (0, missing)) if missing else weight


def linear_of_parts(output: nn.Linear, parts: Sequence[tuple[Tensor, int]]) -> Tensor:
    """`output` of parts side by side, without copying them to there. Each part is (position, [layer,] width) and its
    true size; what it has beyond that size is 0."""
    columns = [math.prod(part.shape[1:-1]) * size for part, size in parts]  # that each part has in the weight
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
        """`align`: further values, all of them 0, make the width a multiple of it."""
        weight, bias = pad_to(self.weight, -2, align), pad_to(self.bias, -1, align)  # (width, hidden), (width)
        return functional.gelu(functional.linear(states, weight, bias))  # (position, [layer,] width)


class SeparateAdapter(nn.Module):
    """GELU(Wₗ stateₗ + bₗ): a W and b of its own for each layer."""

    def __init__(self, layers: int, hidden: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(truncated_normal(layers, size, hidden))  # (layer, size, hidden)
        self.bias = nn.Parameter(torch.zeros(layers, size))

    def forward(self, states: Tensor, align: int = 1) -> Tensor:
        """`align` is as in the shared one."""
        weight, bias = pad_to(self.weight, -2, align), pad_to(self.bias, -1, align)
        projected = torch.einsum("plh,lsh->pls", states, weight)  # (position, layer, width)
        return functional.gelu(projected + bias)  # (position, layer, width)


def truncated_normal(*shape: int) -> Tensor:
    """σ = 0.001, cut at two σ: the papers' start for adapters."""
    return nn.init.trunc_normal_(torch.empty(*shape), std=0.001, a=-0.002, b=0.002)
