from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_encoders import tiny_model
from tiny_training import member_of
from torch import nn
from transformers import get_constant_schedule_with_warmup, get_linear_schedule_with_warmup

from bertvision.encoder.states import StateShape
from bertvision.heads import HEADS, Target, build_head
from bertvision.kinds import KINDS
from bertvision.training.optimizer import (
    build_optimizer,
    learning_rate,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
)


def rates_of(scheduler_of: object, steps: int, *rest: int) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = scheduler_of(optimizer, *rest)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(("steps", "warmup"), [(20, 0.0), (20, 0.1), (7, 0.5), (1, 0.1), (100, 0.06), (3, 0.99)])
def test_the_learning_rate_is_that_of_transformers_shifted_by_one_warm_up_step(steps: int, warmup: float) -> None:
    """Their first step has a learning rate of 0 and learns nothing; ours starts with their second."""
    rise = round(warmup * steps)
    for name, theirs in (
        ("linear", rates_of(get_linear_schedule_with_warmup, steps, rise, steps)),
        ("constant", rates_of(get_constant_schedule_with_warmup, steps, rise)),
    ):
        ours = [learning_rate(step, steps, 0.5, name, warmup) for step in range(steps)]
        assert ours[rise:] == pytest.approx(theirs[rise:])
        assert ours[:rise] == pytest.approx([0.5 * (step + 1) / rise for step in range(rise)])
        assert ours[: max(0, rise - 1)] == pytest.approx(theirs[1:rise])


@pytest.mark.parametrize("schedule", ["linear", "constant"])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.9])
def test_the_learning_rate_is_always_positive_and_never_above_lr(schedule: str, warmup: float) -> None:
    for steps in (1, 2, 3, 10, 57):
        rates = [learning_rate(step, steps, 2e-5, schedule, warmup) for step in range(steps)]
        assert all(0 < rate <= 2e-5 * (1 + 1e-12) for rate in rates) and max(rates) == pytest.approx(2e-5)


def test_biases_and_norms_of_an_encoder_are_not_decayed() -> None:
    model = tiny_model("bert")
    groups = build_optimizer(model.named_parameters(), 1e-3, 0.01).param_groups
    decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    spared = ("bias", "LayerNorm.weight")
    assert len(decay) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        assert decay[id(parameter)] == (0.0 if name.endswith(spared) else 0.01), name


@pytest.mark.parametrize("name", list(HEADS))
def test_no_bias_of_a_head_is_decayed(name: str) -> None:
    for settings in [{}, {"shared": False}] if name == "adapter" else [{}]:
        kind = next(filter(HEADS[name].takes, KINDS.values()))
        member = member_of(name, kind, **settings)
        head = build_head(member, StateShape(3, 32, True), Target(kind, 2))
        groups = build_optimizer(head.named_parameters(), 1e-3, 0.01).param_groups
        decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
        found = {key for key, parameter in head.named_parameters() if id(parameter) in decayed}
        assert found == {key for key, p in head.named_parameters() if "bias" not in key and p.ndim > 1}


def test_frozen_weights_are_left_out() -> None:
    layer = nn.Linear(3, 2)
    layer.bias.requires_grad_(False)
    groups = build_optimizer(layer.named_parameters(), 1e-3, 0.0).param_groups
    assert [parameter for group in groups for parameter in group["params"]] == [layer.weight]


def test_the_learning_rate_reaches_every_group() -> None:
    optimizer = build_optimizer(nn.Linear(3, 2).named_parameters(), 1e-3, 0.01)
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        set_learning_rate(optimizer, learning_rate(step, 10, 0.01, "linear", 0.2))
        optimizer.step()


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 1))


def test_a_restored_optimizer_continues_bit_identically(tmp_path: Path) -> None:
    whole = make()
    steps(whole, build_optimizer(whole.named_parameters(), 0.01, 0.01), 0, 10)

    half = make()
    optimizer = build_optimizer(half.named_parameters(), 0.01, 0.01)
    steps(half, optimizer, 0, 4)
    save_file(optimizer_tensors(optimizer), tmp_path / "optimizer.safetensors")
    again = make()
    again.load_state_dict(half.state_dict())
    restored = build_optimizer(again.named_parameters(), 0.01, 0.01)
    restore_optimizer(restored, load_file(tmp_path / "optimizer.safetensors"))
    steps(again, restored, 4, 10)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))
