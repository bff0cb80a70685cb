"""Mixed precision with two sets of weights: the encoder computes with a half-precision copy, and the optimiser updates
the float32 weights.

    half = HalfWeights(encoder, torch.bfloat16)       pass half.full to the optimiser
    half.take_gradients(loss, add=False)              then optimizer.step(), then half.refresh()

Autocast computes the same products, but casts every weight and gradient separately in each step and passes float32
from layer to layer. LOG.md shows what that costs for a small encoder.
"""

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn


class HalfWeights:
    def __init__(self, module: nn.Module, dtype: torch.dtype, others: Iterable[nn.Parameter] = ()) -> None:
        """`others` are weights outside the module that train with it and stay in float32."""
        self.own = [weight for weight in module.parameters() if weight.is_floating_point()]
        self.full = [nn.Parameter(weight.data, weight.requires_grad) for weight in self.own]
        """The float32 weights, in the order of `own`."""
        self.others = list(others)
        self.half = [weight.data.to(dtype) for weight in self.own]
        self.begin()

    def begin(self) -> None:
        """Switch the module to its half-precision weights."""
        with torch.no_grad():
            torch._foreach_copy_(self.half, [weight.data for weight in self.full])
        self._put(self.half)

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the trainable float32 weights to half precision after an update."""
        pairs = [(half, full.data) for half, full in zip(self.half, self.full, strict=True) if full.requires_grad]
        if pairs:
            torch._foreach_copy_([half for half, _ in pairs], [full for _, full in pairs])

    @contextlib.contextmanager
    def full_precision(self) -> Iterator[None]:
        """Inside this context, the module has its float32 weights, to be saved, loaded or used elsewhere."""
        self._put([weight.data for weight in self.full])
        try:
            yield
        finally:
            self.begin()

    def end(self) -> None:
        """Switch the module back to its float32 weights."""
        self._put([weight.data for weight in self.full])

    @torch.no_grad()
    def take_gradients(self, loss: Tensor, add: bool) -> None:
        """Compute the gradients of the loss and replace the old ones, or `add` to them. Weights that do not affect the
        loss (such as a pooler, for spans) get none."""
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
