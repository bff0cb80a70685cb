"""AdamW and the learning-rate schedule."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

TIMES = "times"
"""Key of a parameter group: its learning rate as a multiple of the optimiser's."""


def build_optimizer(
    named: Iterable[tuple[str, nn.Parameter]],
    lr: float | Tensor,
    decay: float,
    times: Mapping[str, float] | None = None,
) -> torch.optim.AdamW:
    """Build AdamW with weight decay on matrices only, not on biases, norms and other one-dimensional weights. If `lr`
    is a tensor, the optimiser's steps can be recorded as a CUDA graph. `times` maps a prefix of weights' names to their
    learning rate as a multiple of `lr`."""
    multiples = {prefix: multiple for prefix, multiple in (times or {}).items() if multiple != 1}
    found: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in named:
        if parameter.requires_grad:
            multiple = next((value for prefix, value in multiples.items() if name.startswith(prefix)), 1.0)
            found.setdefault((multiple, is_decayed(name, parameter.ndim)), []).append(parameter)
    groups: list[dict[str, Any]] = []
    for multiple in (1.0, *multiples.values()):
        own = {} if multiple == 1 else {TIMES: multiple, "lr": lr * multiple}
        for decayed in (True, False):
            if parameters := found.get((multiple, decayed)):
                groups.append({"params": parameters, "weight_decay": decay if decayed else 0.0, **own})
    # One kernel for the whole step: many times faster than a loop over tensors on a CPU, and no slower on CUDA.
    fused = all(parameter.device.type in ("cpu", "cuda") for group in groups for parameter in group["params"])
    return torch.optim.AdamW(groups, lr=lr, fused=fused, capturable=isinstance(lr, Tensor))


def is_decayed(name: str, dimensions: int) -> bool:
    """Whether a weight is a matrix. A bias may have two dimensions as well: one bias per layer."""
    return dimensions >= 2 and name.split(".")[-1] != "bias"


def learning_rate(step: int, steps: int, lr: float, schedule: str, warmup: float) -> float:
    """The learning rate at step `step` of `steps`: linear warm-up, then constant or linear decay towards 0."""
    rise = round(warmup * steps)
    if step < rise:
        return lr * (step + 1) / rise
    if schedule == "constant":
        return lr
    return lr * (steps - step) / max(1, steps - rise)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        own = lr * group.get(TIMES, 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as plain tensors, named by parameter index."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        f"{index}.{key}": value
        for index, parameter in enumerate(parameters)
        for key, value in optimizer.state[parameter].items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, value in tensors.items():
        index, key = name.split(".")
        parameter = parameters[int(index)]
        # The step counter is always float32, and on the CPU unless the optimiser is fused.
        if key == "step":
            optimizer.state[parameter][key] = value.to(parameter.device) if optimizer.defaults["fused"] else value
        else:
            optimizer.state[parameter][key] = value.to(parameter)


class StackedAdamW:
    """AdamW for weights with a leading member dimension: each member has its own learning rate and decay.

    The arithmetic is that of `torch.optim.AdamW`, which only supports one learning rate per tensor. The state is saved
    and restored under the names that `optimizer_tensors` uses.
    """

    betas, epsilon = (0.9, 0.999), 1e-8

    def __init__(self, weights: dict[str, Tensor], decays: list[float]) -> None:
        self.weights, self.count = weights, 0
        self.means = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.squares = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.decays = torch.tensor(decays, device=next(iter(weights.values())).device)  # (member)

    def plan(self, rates: Tensor, first: int) -> Tensor:
        """Precompute the factors of each step from the learning rates (step, member), starting after step `first`:
        weight decay, step size, and bias correction of the second moment."""
        steps = torch.arange(first + 1, first + 1 + len(rates), dtype=torch.float64, device=rates.device)  # (step)
        slow, slower = (1 - beta**steps for beta in self.betas)  # (step), (step)
        rows = [1 - rates * self.decays, rates / slow.unsqueeze(1), slower.sqrt().unsqueeze(1).expand_as(rates)]
        return torch.stack(rows, dim=1).float()  # (step, 3, member)

    @torch.no_grad()
    def step(self, planned: Tensor) -> None:
        """Take one step for every member, with a row of `plan` (3, member)."""
        first, second = self.betas
        shrink, pace, correction = planned  # each (member)
        for name, weight in self.weights.items():
            gradient, mean, square = weight.grad, self.means[name], self.squares[name]  # (member, …)
            if gradient is None:
                continue
            rows = (-1, *[1] * (weight.ndim - 1))
            if is_decayed(name, weight.ndim - 1):
                weight.mul_(shrink.view(rows))
            mean.lerp_(gradient, 1 - first)
            square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            width = square.sqrt().div_(correction.view(rows)).add_(self.epsilon)  # (member, …)
            weight.sub_((mean / width).mul_(pace.view(rows)))

    def keep(self, weights: dict[str, Tensor], index: Tensor) -> None:
        """Continue with the members in `index` only, and with these weights."""
        self.weights, self.decays = weights, self.decays[index]
        self.means = {name: values[index] for name, values in self.means.items()}
        self.squares = {name: values[index] for name, values in self.squares.items()}

    def tensors(self, index: int) -> dict[str, Tensor]:
        """One member's state, named as in `optimizer_tensors`."""
        found = {}
        for number, name in enumerate(self._order()):
            found[f"{number}.step"] = torch.tensor(float(self.count))
            found[f"{number}.exp_avg"] = self.means[name][index]
            found[f"{number}.exp_avg_sq"] = self.squares[name][index]
        return found

    def restore(self, members: list[dict[str, Tensor]]) -> None:
        self.count = int(members[0]["0.step"])
        for number, name in enumerate(self._order()):
            device = self.weights[name].device
            self.means[name] = torch.stack([one[f"{number}.exp_avg"] for one in members]).to(device)
            self.squares[name] = torch.stack([one[f"{number}.exp_avg_sq"] for one in members]).to(device)

    def _order(self) -> list[str]:
        """Names of the weights, matrices first: the order of the parameter groups in `build_optimizer`."""
        return sorted(self.weights, key=lambda name: not is_decayed(name, self.weights[name].ndim - 1))
