"""Parts shared by two or more heads. Shapes: position = a token (spans) or a sequence (labels, scores)."""

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
        shares = torch.softmax(self.weights, dim=0) * self.scale  # (layer)
        return torch.einsum("l,plh->ph", shares.to(states.dtype), states)  # (position, hidden)


class AveragePooling(nn.Module):
    """The mean over the layers: no parameters."""

    def forward(self, states: Tensor) -> Tensor:
        return states.mean(dim=1)  # (position, hidden)


POOLINGS = ("learned", "average")


def build_pooling(pooling: str, layers: int) -> nn.Module:
    return LearnedPooling(layers) if pooling == "learned" else AveragePooling()


class SharedAdapter(nn.Module):
    """GELU(W state + b), one W and b for every layer; no up-projection, residual, norm or dropout."""

    def __init__(self, hidden: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(truncated_normal(size, hidden))  # (size, hidden)
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, states: Tensor) -> Tensor:
        return functional.gelu(functional.linear(states, self.weight, self.bias))  # (position, [layer,] size)


class SeparateAdapter(nn.Module):
    """GELU(Wₗ stateₗ + bₗ): a W and b of its own for each layer."""

    def __init__(self, layers: int, hidden: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(truncated_normal(layers, size, hidden))  # (layer, size, hidden)
        self.bias = nn.Parameter(torch.zeros(layers, size))

    def forward(self, states: Tensor) -> Tensor:
        projected = torch.einsum("plh,lsh->pls", states, self.weight)  # (position, layer, size)
        return functional.gelu(projected + self.bias)  # (position, layer, size)


def truncated_normal(*shape: int) -> Tensor:
    """σ = 0.001, cut at two σ: the papers' start for adapters."""
    return nn.init.trunc_normal_(torch.empty(*shape), std=0.001, a=-0.002, b=0.002)
