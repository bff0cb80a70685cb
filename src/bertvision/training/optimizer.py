"""AdamW and its learning rate over the steps."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def build_optimizer(named: Iterable[tuple[str, nn.Parameter]], lr: float, decay: float) -> torch.optim.AdamW:
    """AdamW that decays matrices only: biases, norms and other one-dimensional weights are left alone."""
    decayed: list[nn.Parameter] = []
    left: list[nn.Parameter] = []
    for name, parameter in named:
        if parameter.requires_grad:
            # A bias can have two dimensions: one for each layer.
            is_matrix = parameter.ndim >= 2 and name.split(".")[-1] != "bias"
            (decayed if is_matrix else left).append(parameter)
    groups = [{"params": decayed, "weight_decay": decay}, {"params": left, "weight_decay": 0.0}]
    # One kernel for the whole step: many times faster than a loop over tensors on a CPU, and no slower on CUDA.
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in (*decayed, *left))
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=lr, fused=fused)


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
        group["lr"] = lr


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's memory as plain tensors, named by the parameter's place."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        f"{place}.{key}": value
        for place, parameter in enumerate(parameters)
        for key, value in optimizer.state[parameter].items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, value in tensors.items():
        place, key = name.split(".")
        parameter = parameters[int(place)]
        # The step counter is float32 whatever the parameter is, and on the CPU unless the step is fused.
        if key == "step":
            optimizer.state[parameter][key] = value.to(parameter.device) if optimizer.defaults["fused"] else value
        else:
            optimizer.state[parameter][key] = value.to(parameter)
