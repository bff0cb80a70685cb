"""AdamW and its learning rate over the steps."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def build_optimizer(named: Iterable[tuple[str, nn.Parameter]], lr: float | Tensor, decay: float) -> torch.optim.AdamW:
    """AdamW that decays matrices only: biases, norms and other one-dimensional weights are left alone. A rate that lies
    in memory, as a tensor, lets its steps be recorded."""
    decayed: list[nn.Parameter] = []
    left: list[nn.Parameter] = []
    for name, parameter in named:
        if parameter.requires_grad:
            (decayed if is_decayed(name, parameter.ndim) else left).append(parameter)
    groups = [{"params": decayed, "weight_decay": decay}, {"params": left, "weight_decay": 0.0}]
    # One kernel for the whole step: many times faster than a loop over tensors on a CPU, and no slower on CUDA.
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in (*decayed, *left))
    recorded = isinstance(lr, Tensor)
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=lr, fused=fused, capturable=recorded)


def is_decayed(name: str, dimensions: int) -> bool:
    """Whether a weight is a matrix. A bias can have two dimensions too: one for each layer."""
    return dimensions >= 2 and name.split(".")[-1] != "bias"


def learning_rate(step: int, steps: int, lr: float, schedule: str, warmup: float) -> float:
    """The rate of step `step` of `steps`: up over the warm-up, then constant, or down in a line towards 0."""
    rise = round(warmup * steps)
    if step < rise:
        return lr * (step + 1) / rise
    if schedule == "constant":
        return lr
    return lr * (steps - step) / max(1, steps - rise)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's memory as plain tensors, named by the parameter's index."""
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
        # The step counter is float32 whatever the parameter is, and on the CPU unless the step is fused.
        if key == "step":
            optimizer.state[parameter][key] = value.to(parameter.device) if optimizer.defaults["fused"] else value
        else:
            optimizer.state[parameter][key] = value.to(parameter)


class StackedAdamW:
    """AdamW over weights with a member dimension in front: each member has its own learning rate and decay.

    The same arithmetic as `torch.optim.AdamW`, which knows one rate for a whole tensor. Moments are given out and taken
    back under the names that `optimizer_tensors` uses.
    """

    betas, epsilon = (0.9, 0.999), 1e-8

    def __init__(self, weights: dict[str, Tensor], decays: list[float]) -> None:
        self.weights, self.count = weights, 0
        self.means = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.squares = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.decays = torch.tensor(decays, device=next(iter(weights.values())).device)  # (member)

    def plan(self, rates: Tensor, first: int) -> Tensor:
        """What each step needs to know, from the rates (step, member) of the steps after the first `first` ones: how
        much is left of a decayed weight, how far to go, and how the moments' slow start is made up for."""
        steps = torch.arange(first + 1, first + 1 + len(rates), dtype=torch.float64, device=rates.device)  # (step)
        slow, slower = (1 - beta**steps for beta in self.betas)  # (step), (step)
        rows = [1 - rates * self.decays, rates / slow.unsqueeze(1), slower.sqrt().unsqueeze(1).expand_as(rates)]
        return torch.stack(rows, dim=1).float()  # (step, 3, member)

    @torch.no_grad()
    def step(self, planned: Tensor) -> None:
        """One step of every member, by its row of `plan` (3, member)."""
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
        """Goes on with the members in `index`, whose weights are given anew."""
        self.weights, self.decays = weights, self.decays[index]
        self.means = {name: values[index] for name, values in self.means.items()}
        self.squares = {name: values[index] for name, values in self.squares.items()}

    def tensors(self, index: int) -> dict[str, Tensor]:
        """One member's memory, as `optimizer_tensors` names it."""
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
        """Matrices first, then the rest: the order in which `build_optimizer` files them."""
        return sorted(self.weights, key=lambda name: not is_decayed(name, self.weights[name].ndim - 1))
