"""Weights in half precision, with which an encoder computes, beside those in float32, which the optimiser moves.

    half = HalfWeights(encoder, torch.bfloat16)       the optimiser moves half.full
    half.take_gradients(loss, add=False)              after which it steps, and then half.refresh()

Autocast gives the same products, but casts each weight and each gradient by itself at each step, and carries float32
from layer to layer. LOG.md has what that costs a small encoder.
"""

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn


class HalfWeights:
    def __init__(self, module: nn.Module, dtype: torch.dtype, others: Iterable[nn.Parameter] = ()) -> None:
        """`others` are weights outside the module that learn with it and stay in float32."""
        self.own = [weight for weight in module.parameters() if weight.is_floating_point()]
        self.full = [nn.Parameter(weight.data, weight.requires_grad) for weight in self.own]
        """In float32, in the same order."""
        self.others = list(others)
        self.half = [weight.data.to(dtype) for weight in self.own]
        self.begin()

    def begin(self) -> None:
        """The module has its half-precision weights from now on."""
        with torch.no_grad():
            torch._foreach_copy_(self.half, [weight.data for weight in self.full])
        self._put(self.half)

    @torch.no_grad()
    def refresh(self) -> None:
        """After the float32 weights that learn have changed."""
        pairs = [(half, full.data) for half, full in zip(self.half, self.full, strict=True) if full.requires_grad]
        if pairs:
            torch._foreach_copy_([half for half, _ in pairs], [full for _, full in pairs])

    @contextlib.contextmanager
    def full_precision(self) -> Iterator[None]:
        """The module has its float32 weights inside: to be saved, loaded or used elsewhere."""
        self._put([weight.data for weight in self.full])
        try:
            yield
        finally:
            self.begin()

    def end(self) -> None:
        """The module has its float32 weights from now on."""
        self._put([weight.data for weight in self.full])

    @torch.no_grad()
    def take_gradients(self, loss: Tensor, add: bool) -> None:
        """The loss's gradients, in place of those that are there or on top of them. A weight that has no part in the
        loss (a pooler under spans) gets none."""
        pairs = [*zip(self.own, self.full, strict=True), *((weight, weight) for weight in self.others)]
        pairs = [(own, full) for own, full in pairs if full.requires_grad]
        found = torch.autograd.grad(loss, [own for own, _ in pairs], allow_unused=True)
        sums: list[Tensor] = []
        gradients: list[Tensor] = []
        for (_, weight), gradient in zip(pairs, found, strict=True):
            if gradient is not None:
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                sums.append(weight.grad)
                gradients.append(gradient)
        if add:
            gradients = [gradient.float() + before for gradient, before in zip(gradients, sums, strict=True)]
        torch._foreach_copy_(sums, gradients)

    def _put(self, values: list[Tensor]) -> None:
        for weight, value in zip(self.own, values, strict=True):
            weight.data = value
