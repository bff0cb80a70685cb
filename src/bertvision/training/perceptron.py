"""Small multilayer perceptrons on pooled states, trained fast on a CPU.

The pooled states of all layers are thousands of correlated values. Training in their leading principal components takes
a tenth of the time and ends as high. The projection is linear, so it becomes part of the first layer's weights.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.machine import drawing_from, using_threads
from bertvision.training.convex import measure_scales

COMPONENTS = 512
BASIS_ROWS = 3000
"""Rows from which the components are computed, at most: a basis needs no more."""
SPREAD = 4.0
"""Standard deviation of the first component after scaling. The others keep their size relative to it."""
DECAY = 0.01


@dataclass(frozen=True)
class Recipe:
    """How a perceptron is trained. The learning rate falls linearly to 0."""

    epochs: int
    lr: float
    dropout: float
    input_dropout: float
    least_steps: int

    def steps(self, rows: int, batch: int) -> int:
        return max(self.least_steps, self.epochs * -(-rows // batch))


RECIPES = (Recipe(5, 1e-3, 0.3, 0.1, 60), Recipe(20, 2e-3, 0.5, 0.2, 240))
"""Short training for noisy labels, long training for clean ones: held-out data decides."""


@dataclass(frozen=True)
class Components:
    """Principal components of standardised inputs."""

    mean: Tensor  # (input)
    basis: Tensor  # (input, component), with the scales of inputs and components

    @classmethod
    def of(cls, inputs: Tensor, seed: int) -> "Components":
        some = inputs[:: -(-len(inputs) // BASIS_ROWS)]  # (row, input)
        mean, scale = (part[0] for part in measure_scales(some, some.new_ones(1, len(some))))  # (input) each
        given = (some - mean) / scale  # (row, input)
        count = min(COMPONENTS, *given.shape)
        with drawing_from(inputs.device, seed):
            _, sizes, basis = torch.svd_lowrank(given, q=count, niter=2)  # (component), (input, component)
        first = sizes[0].clamp(min=1e-6) / len(given) ** 0.5
        return cls(mean, basis / scale.unsqueeze(1) * (SPREAD / first))

    def project(self, inputs: Tensor) -> Tensor:
        return (inputs - self.mean) @ self.basis  # (row, component)


@dataclass(frozen=True)
class Perceptron:
    """The weights of a trained perceptron on inputs that are not projected."""

    hidden: Tensor  # (size, input)
    hidden_bias: Tensor  # (size)
    output: Tensor  # (output, size)
    output_bias: Tensor  # (output)

    def __call__(self, inputs: Tensor) -> Tensor:
        return functional.linear(
            functional.gelu(functional.linear(inputs, self.hidden, self.hidden_bias)), self.output, self.output_bias
        )  # (row, output)

    def state(self) -> dict[str, Tensor]:
        """The state dict of an `mlp` head."""
        return {
            "hidden.weight": self.hidden.contiguous(), "hidden.bias": self.hidden_bias,
            "output.weight": self.output.contiguous(), "output.bias": self.output_bias,
        }  # fmt: skip


def train_perceptron(
    components: Components,
    projected: Tensor,
    targets: Tensor,
    weights: Tensor,
    outputs: int,
    size: int,
    recipe: Recipe,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> Perceptron | None:
    """Train on projected inputs (row, component). `targets` are label indices or scores (row), `weights` (row) those of
    the loss. None if it was stopped before the end."""
    rows, batch = len(projected), 128 if len(projected) >= 1024 else 32
    of_labels, device = not targets.is_floating_point(), projected.device
    # The steps are so small that a second thread saves nothing, and on a busy machine it waits.
    with using_threads(1), drawing_from(device, seed):
        first, last = nn.Linear(projected.shape[1], size, device=device), nn.Linear(size, outputs, device=device)
        net = nn.Sequential(nn.Dropout(recipe.input_dropout), first, nn.GELU(), nn.Dropout(recipe.dropout), last)
        optimizer = torch.optim.AdamW(net.parameters(), lr=recipe.lr, weight_decay=DECAY, fused=True)
        steps, order = recipe.steps(rows, batch), torch.randperm(rows, device=device)  # (row)
        for step in range(steps):
            if should_stop():
                return None
            optimizer.param_groups[0]["lr"] = recipe.lr * (1 - step / steps)
            if len(order) < min(batch, rows):
                order = torch.cat([order, torch.randperm(rows, device=device)])  # (row)
            some, order = order[:batch], order[batch:]  # (row of the batch)
            found = net(projected[some])  # (row, output)
            if of_labels:
                losses = functional.cross_entropy(found, targets[some], reduction="none")  # (row)
            else:
                losses = (found.squeeze(1) - targets[some]).square()  # (row)
            optimizer.zero_grad()
            ((losses * weights[some]).sum() / weights[some].sum().clamp(min=1e-12)).backward()
            optimizer.step()
    weight = first.weight.detach() @ components.basis.T  # (size, input)
    return Perceptron(weight, first.bias.detach() - weight @ components.mean, last.weight.detach(), last.bias.detach())
