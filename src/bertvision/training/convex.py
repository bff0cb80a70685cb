"""Convex fits, solved to convergence: multinomial logistic regression and ridge regression, several fits at once.

    fits = LogisticRegression(inputs, targets, labels=6, weights=weights).fit(strength=100.0)      weights (fit, row)

All fits read the same inputs but weigh the rows differently. The folds of a cross-validation give weight 0 to the rows
that they hold out, so one call solves them together. Inputs are standardised for each fit by the rows it reads. The
optimum is that of scikit-learn's `make_pipeline(StandardScaler(), LogisticRegression(C=1 / strength))`, or of
`Ridge(alpha=strength)` in its place. Sparse inputs (word counts) are not standardised.

Logistic regression is minimised with L-BFGS. Its starting metric is the Gram matrix of the inputs: states of
neighbouring layers are so strongly correlated that plain L-BFGS needs up to seven times as many steps (LOG.md).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

HISTORY = 10
MOST_STEPS = 500
TOLERANCE = 1e-4
"""Largest gradient of the mean loss at the optimum, as in scikit-learn."""
CURVATURE = 0.002
"""Typical curvature of the loss along a logit, p (1 - p), for labels that are mostly predicted well. Only the number of
steps depends on it."""
CONSTANT = 1e-6
"""Inputs that vary less than this, relative to their size, are constant; they are not scaled."""


@dataclass(frozen=True)
class Linear:
    """Linear maps of inputs that are not standardised, one per fit."""

    weight: Tensor  # (fit, input, output)
    bias: Tensor  # (fit, output)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the outputs of every fit for every row."""
        flat = inputs @ self.weight.permute(1, 0, 2).flatten(1)  # (row, fit · output)
        return flat.unflatten(1, self.bias.shape).transpose(0, 1) + self.bias.unsqueeze(1)  # (fit, row, output)


def measure_scales(inputs: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (fit, input) of the inputs over the rows that each fit reads."""
    used = (weights > 0).to(inputs.dtype)  # (fit, row)
    shares = used / used.sum(1, keepdim=True)  # (fit, row)
    centre = inputs.mean(0)  # (input) any fixed shift: squares of centred values lose less precision
    shifted = inputs - centre  # (row, input)
    mean = shares @ shifted  # (fit, input)
    variance = shares @ shifted.square() - mean.square()  # (fit, input)
    deviation = variance.clamp(min=0).sqrt()  # (fit, input)
    constant = deviation <= CONSTANT * (mean + centre).abs()  # (fit, input)
    return mean + centre, deviation.masked_fill(constant | (deviation == 0), 1.0)


# ---------------------------------------------------------------------- labels


class LogisticRegression:
    """Multinomial logistic regression on the same inputs for each row of `weights` (fit, row), at any strength."""

    def __init__(self, inputs: Tensor, targets: Tensor, labels: int, weights: Tensor) -> None:
        """inputs (row, input), dense or sparse (COO), targets (row) label indices."""
        self.targets, self.labels, self.weights = targets, labels, weights
        self.total, self.sparse = weights.sum(1), inputs.is_sparse  # (fit)
        if self.sparse:
            self.centre, self.scale = weights.new_zeros(inputs.shape[1]), weights.new_ones(1, inputs.shape[1])
            self.inputs, self.relative = inputs, self.scale.unsqueeze(2)  # (row, input), (1, input, 1)
            return
        mean, self.scale = measure_scales(inputs, weights)  # (fit, input) each
        # Standardised once for all fits, which keeps products precise; each fit's own scale is relative to it.
        self.centre, spread = mean.mean(0), self.scale.mean(0)  # (input) each
        self.inputs = (inputs - self.centre) / spread  # (row, input)
        self.relative = (spread / self.scale).unsqueeze(2)  # (fit, input, 1)

    def fit(
        self,
        strength: float,
        start: Linear | None = None,
        tolerance: float = TOLERANCE,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Linear:
        """Solve all fits. `start` is a nearby solution, such as that of another strength: it saves steps and does not
        change the optimum. With `should_stop`, the fits end early, where they are."""
        # For two labels, scikit-learn fits one logit; ours are two, so the same penalty needs twice the strength.
        objective = _Objective(self, strength * (2 if self.labels == 2 else 1))
        size = self.inputs.shape[1] + 1
        if start is None:
            first = self.weights.new_zeros(len(self.weights), size, self.labels)  # (fit, input + 1, label)
        else:
            first = self._standardise(start)  # (fit, input + 1, label)
        return self._restore(_minimise(objective, first, tolerance, should_stop))

    def _standardise(self, fits: Linear) -> Tensor:
        weight = fits.weight * self.scale.unsqueeze(2)  # (fit, input, label)
        bias = fits.bias + torch.einsum("fil,i->fl", fits.weight, self.centre)  # (fit, label)
        return torch.cat([weight, bias.unsqueeze(1)], dim=1)  # (fit, input + 1, label)

    def _restore(self, found: Tensor) -> Linear:
        weight = found[:, :-1] / self.scale.unsqueeze(2)  # (fit, input, label)
        return Linear(weight, found[:, -1] - torch.einsum("fil,i->fl", weight, self.centre))

    @cached_property
    def gram(self) -> Tensor:
        """Products of the inputs: over inputs or, if they are fewer, over rows. Sparse: only each with itself."""
        rows, size = self.inputs.shape
        if self.sparse:
            return (self.inputs * self.inputs).sum(0).to_dense()  # (input)
        if rows <= size:
            return self.inputs @ self.inputs.T  # (row, row)
        some = self.inputs[:: max(1, rows // (2 * size))]  # a sample of the rows is precise enough
        return (some.T @ some).mul_(rows / len(some))  # (input, input)


class _Objective:
    """The objective of all fits at one strength. Parameters are (fit, input + 1, label), the intercept last."""

    def __init__(self, data: LogisticRegression, strength: float) -> None:
        self.data, self.strength = data, strength
        self.shares = (data.weights / data.total.unsqueeze(1)).T  # (row, fit)
        self.over_rows = not data.sparse and len(data.inputs) <= data.inputs.shape[1]
        if data.sparse:
            self.factor = (data.gram * CURVATURE + strength).unsqueeze(1)  # (input, 1)
            return
        metric = data.gram.clone() if self.over_rows else data.gram * CURVATURE
        metric.diagonal().add_(strength / CURVATURE if self.over_rows else strength)
        self.factor = torch.linalg.cholesky(metric)

    def value(self, found: Tensor) -> tuple[Tensor, Tensor]:
        """The objective (fit), divided by the sum of the weights, and its gradient (fit, input + 1, label)."""
        data, fits = self.data, len(found)
        effective = (found[:, :-1] * data.relative).permute(1, 0, 2)  # (input, fit, label)
        logits = (data.inputs @ effective.flatten(1)).unflatten(1, effective.shape[1:])  # (row, fit, label)
        logits += found[:, -1]
        index = data.targets.view(-1, 1, 1).expand(-1, fits, 1)  # (row, fit, 1)
        whole = torch.logsumexp(logits, dim=2)  # (row, fit)
        losses = self.shares * (whole - logits.gather(2, index).squeeze(2))  # (row, fit)
        errors = (logits - whole.unsqueeze(2)).exp_()  # (row, fit, label) probabilities
        errors.scatter_add_(2, index, errors.new_tensor(-1.0).expand(index.shape))
        errors *= self.shares.unsqueeze(2)
        slope = (data.inputs.T @ errors.flatten(1)).unflatten(1, errors.shape[1:])  # (input, fit, label)
        penalty = (self.strength / data.total).view(-1, 1, 1)  # (fit, 1, 1)
        slope = slope.permute(1, 0, 2) * data.relative + penalty * found[:, :-1]  # (fit, input, label)
        gradient = torch.cat([slope, errors.sum(0).unsqueeze(1)], dim=1)  # (fit, input + 1, label)
        squares = found[:, :-1].double().square().sum((1, 2))  # (fit)
        return losses.double().sum(0) + 0.5 * self.strength / data.total.double() * squares, gradient

    def precondition(self, gradient: Tensor) -> Tensor:
        """The inverse of the metric, curvature · Gram matrix + strength, times a gradient (fit, input + 1, label)."""
        inputs = self.data.inputs
        flat = gradient[:, :-1].permute(1, 0, 2).flatten(1)  # (input, fit · label)
        if self.over_rows:
            inner = torch.cholesky_solve(inputs @ flat, self.factor)  # (row, fit · label)
            flat = (flat - inputs.T @ inner) / self.strength  # (input, fit · label)
        elif self.data.sparse:
            flat = flat / self.factor  # (input, fit · label)
        else:
            flat = torch.cholesky_solve(flat, self.factor)  # (input, fit · label)
        moved = flat.unflatten(1, (len(gradient), -1)).permute(1, 0, 2)  # (fit, input, label)
        bias = gradient[:, -1:] / (CURVATURE * len(inputs))  # (fit, 1, label)
        return torch.cat([moved, bias], dim=1)  # (fit, input + 1, label)


def _minimise(problem: _Objective, found: Tensor, tolerance: float, should_stop: Callable[[], bool]) -> Tensor:
    """L-BFGS for all fits at once. A fit that has converged stays where it is."""
    value, gradient = problem.value(found)
    moved = problem.precondition(gradient)  # (fit, input + 1, label)
    pairs: list[_Pair] = []
    for _ in range(MOST_STEPS):
        running = gradient.abs().amax((1, 2)) > tolerance  # (fit)
        if not bool(running.any()) or should_stop():
            break
        direction = -_times_inverse_hessian(gradient, moved, pairs)  # (fit, input + 1, label)
        slope = _dot(gradient, direction).flatten().double()  # (fit)
        length = running.to(found.dtype)  # (fit) 1, or 0 for a fit that has converged
        for _ in range(30):
            new = found + length.view(-1, 1, 1) * direction
            new_value, new_gradient = problem.value(new)
            # Sums in float32 are exact to about seven digits: smaller increases are rounding.
            slack = 1e-4 * length.double() * slope + 2e-7 * value.abs()  # (fit)
            too_far = (new_value > value + slack) & (length > 0)  # (fit)
            if not bool(too_far.any()):
                break
            length = torch.where(too_far, length * 0.5, length)
        new_moved = problem.precondition(new_gradient)  # (fit, input + 1, label)
        pairs = [*pairs[-HISTORY + 1 :], _Pair.of(new - found, new_gradient - gradient, new_moved - moved)]
        gained = value - new_value  # (fit)
        found, value, gradient, moved = new, new_value, new_gradient, new_moved
        if not bool((running & (gained > 1e-8 * value.abs())).any()):
            break  # at the limit of float32
    return found


class _Pair(NamedTuple):
    """A step of the parameters, the change of the gradient along it, and the inverse metric times that change."""

    step: Tensor  # (fit, input + 1, label)
    change: Tensor  # (fit, input + 1, label)
    moved: Tensor  # (fit, input + 1, label)
    curvature: Tensor  # (fit, 1, 1)

    @classmethod
    def of(cls, step: Tensor, change: Tensor, moved: Tensor) -> "_Pair":
        return cls(step, change, moved, _dot(step, change))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((1, 2), keepdim=True)  # (fit, 1, 1)


def _divide(above: Tensor, below: Tensor) -> Tensor:
    """The quotient; 0 where a pair has no positive curvature, so that it is skipped."""
    return torch.where(below > 1e-20, above / below.clamp(min=1e-20), torch.zeros_like(above))  # (fit, 1, 1)


def _times_inverse_hessian(gradient: Tensor, moved: Tensor, pairs: list[_Pair]) -> Tensor:
    """The two-loop recursion of L-BFGS for every fit. `moved` is the inverse metric times the gradient; everything is
    linear, so no other product with the inverse metric is needed."""
    shares = []
    for pair in reversed(pairs):
        share = _divide(_dot(pair.step, gradient), pair.curvature)  # (fit, 1, 1)
        gradient, moved = gradient - share * pair.change, moved - share * pair.moved
        shares.append(share)
    if pairs:
        scale = _divide(pairs[-1].curvature, _dot(pairs[-1].change, pairs[-1].moved))  # (fit, 1, 1)
        moved = moved * torch.where(scale > 0, scale, torch.ones_like(scale))
    for pair, share in zip(pairs, reversed(shares), strict=True):
        part = share - _divide(_dot(pair.change, moved), pair.curvature)  # (fit, 1, 1)
        moved = moved + torch.where(pair.curvature > 1e-20, part, torch.zeros_like(part)) * pair.step
    return moved


# ---------------------------------------------------------------------- scores


def fit_ridge(inputs: Tensor, targets: Tensor, strengths: Sequence[float], weights: Tensor) -> list[Linear]:
    """Fit ridge regression to targets (row, output) in closed form, for each strength and each row of `weights` (fit,
    row). Further strengths cost little."""
    mean, scale = measure_scales(inputs, weights)  # (fit, input) each
    fits = [
        _solve_ridge(inputs.double(), targets.double(), strengths, *one)
        for one in zip(weights.double(), mean.double(), scale.double(), strict=True)
    ]
    return [
        Linear(*(torch.stack(parts).to(inputs.dtype) for parts in zip(*some, strict=True)))
        for some in zip(*fits, strict=True)
    ]


def _solve_ridge(
    inputs: Tensor, targets: Tensor, strengths: Sequence[float], weights: Tensor, mean: Tensor, scale: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Weight (input, output) and bias (output) for each strength."""
    used = weights > 0  # (row)
    shares = (weights[used] / weights[used].sum()).unsqueeze(1)  # (row, 1)
    root = weights[used].sqrt().unsqueeze(1)  # (row, 1)
    given = (inputs[used] - mean) / scale  # (row, input)
    middle, level = (shares * given).sum(0), (shares * targets[used]).sum(0)  # (input), (output)
    given, wanted = root * (given - middle), root * (targets[used] - level)  # (row, input), (row, output)
    over_rows = len(given) <= given.shape[1]
    gram = given @ given.T if over_rows else given.T @ given  # (row, row) or (input, input)
    right = wanted if over_rows else given.T @ wanted  # (row or input, output)
    found = []
    for strength in strengths:
        metric = gram.clone()
        metric.diagonal().add_(strength)
        solved = torch.cholesky_solve(right, torch.linalg.cholesky(metric))  # (row or input, output)
        weight = (given.T @ solved if over_rows else solved) / scale.unsqueeze(1)  # (input, output)
        found.append((weight, level - (mean + middle * scale) @ weight))
    return found
