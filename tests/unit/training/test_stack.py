"""Members in a stack end with the weights they would have alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_sets import Killed, die, dying, make, same, weights
from tiny_training import Listening, checkpoints_in, log_nothing, member_of

from bertvision.data.windows import Features
from bertvision.encoder.states import StateShape
from bertvision.heads import HEADS, Target, build_head
from bertvision.kinds import KINDS, LABEL, SPAN, Kind
from bertvision.machine import Machine
from bertvision.training import train as loop
from bertvision.training.optimizer import StackedAdamW, build_optimizer, set_learning_rate
from bertvision.training.stack import Alone, Member, Stack, build_units
from bertvision.training.train import train_heads

ADAPTER = {"head": "adapter", "size": 4}
FIVE = [
    {**ADAPTER, "name": "first"},
    {**ADAPTER, "name": "other_seed", "seed": 3},
    {**ADAPTER, "name": "other_rate", "lr": 1e-2, "schedule": "constant"},
    {**ADAPTER, "name": "short", "epochs": 1, "warmup": 0.5},
    {**ADAPTER, "name": "decayed", "decay": 0.3, "clip": 0.05},
]
CLOSE = {"rtol": 2e-4, "atol": 2e-6}


@pytest.fixture(scope="module")
def features(tiny_features: Callable[[str], Features]) -> Features:
    return tiny_features("rte")


def run(parts: Any, folder: Path, stack: int = 64, seconds: float = 1e9, **more: Any) -> list[Member]:
    members, source, tokens_of = parts
    machine, checkpoints = Machine("cpu", "float32"), checkpoints_in(folder, seconds)
    options = {"reporter": Listening(), "log": log_nothing, **more}
    train_heads(members, source, tokens_of, machine, checkpoints, stack=stack, **options)
    return members


def assert_close(one: Member, other: Member) -> None:
    for name, tensor in weights(one).items():
        # A bias that shifts all tokens alike changes no span: its gradient is pure rounding, which Adam amplifies.
        if one.head.target.kind is not SPAN or name != "output.bias":
            torch.testing.assert_close(tensor, weights(other)[name], **CLOSE)


def test_five_variants_form_one_stack_without_other_shapes(features: Features) -> None:
    members, _, _ = make(features, [*FIVE, {"head": "adapter", "size": 5}, {"head": "learned_pooling"}])
    units = build_units(members, 64)
    assert [type(unit) for unit in units] == [Stack, Alone, Alone] and len(units[0].members) == 5
    assert [len(unit.members) for unit in build_units(members, 3)] == [3, 2, 1, 1]
    assert all(isinstance(unit, Alone) for unit in build_units(members, 1))


def test_members_that_take_different_steps_are_not_stacked(features: Features) -> None:
    members, _, _ = make(features, [{**ADAPTER, "name": name} for name in ("a", "b", "c")])
    members[1].steps = members[0].steps[:2]  # it ends earlier, but takes the same steps until then
    members[2].steps = members[0].steps[1:]
    stacked = [[member.name for member in unit.members] for unit in build_units(members, 64)]
    assert stacked == [["a", "b"], ["c"]]


def test_token_heads_on_a_cpu_run_one_by_one_by_default(tiny_features: Callable[[str], Features]) -> None:
    members, _, _ = make(tiny_features("squad2"), FIVE, SPAN)
    assert len(build_units(members)) == 5 and len(build_units(members, 5)) == 1


def test_heads_with_randomness_or_buffers_are_not_stacked(features: Features) -> None:
    for name in HEADS:
        for preset in [{}, *HEADS[name].presets.values()]:
            if not HEADS[name].takes(LABEL):
                continue
            member = member_of(name, LABEL, **preset)
            head = build_head(member, StateShape(4, 16, True), Target(LABEL, 2))
            draws = any(isinstance(module, torch.nn.Dropout) and module.p for module in head.modules())
            normed = any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in head.modules())
            assert not (head.stackable and (draws or normed))


@pytest.mark.parametrize("kind", KINDS.values())
def test_a_member_ends_with_the_same_weights_in_a_stack_and_alone(
    kind: Kind, tiny_features: Callable[[str], Features], tmp_path: Path
) -> None:
    features = tiny_features("squad2" if kind is SPAN else "rte")
    stacked = run(make(features, FIVE, kind), tmp_path / "stack")
    for entry, member in zip(FIVE, stacked, strict=True):
        (alone,) = run(make(features, [entry], kind), tmp_path / entry["name"])
        assert_close(member, alone)
        assert not same(weights(member), weights(make(features, [entry], kind)[0][0])), "it has learned something"


@pytest.mark.parametrize("name", list(HEADS))
def test_every_stackable_head_ends_with_the_same_weights(
    name: str, tiny_features: Callable[[str], Features], tmp_path: Path
) -> None:
    for kind in filter(HEADS[name].takes, (LABEL, SPAN)):
        features = tiny_features("squad2" if kind is SPAN else "rte")
        entries = [{"head": name, "seed": seed, "name": f"seed{seed}"} for seed in range(2)]
        if not make(features, entries, kind)[0][0].head.stackable:
            continue
        stacked = run(make(features, entries, kind), tmp_path / f"{kind}_stack")
        alone = run(make(features, entries, kind), tmp_path / f"{kind}_alone", stack=1)
        for one, other in zip(stacked, alone, strict=True):
            assert_close(one, other)


def test_a_member_ends_with_the_same_weights_among_fifty_and_among_two(features: Features, tmp_path: Path) -> None:
    entries = [{**ADAPTER, "seed": seed, "lr": 1e-3 * (seed + 1), "name": f"m{seed}"} for seed in range(50)]
    fifty = run(make(features, entries), tmp_path / "fifty")
    two = run(make(features, entries[:2]), tmp_path / "two")
    for one, other in zip(fifty[:2], two, strict=True):
        assert_close(one, other)


def test_a_diverging_member_leaves_the_stack_without_affecting_the_others(
    features: Features, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LOG_STEPS", 2)
    poisoned = {**ADAPTER, "lr": 1e37, "clip": 1e9, "name": "poisoned"}
    lines: list[Any] = []
    members = run(
        make(features, [*FIVE, poisoned]), tmp_path / "with", log=lambda event, **values: lines.append(values["loss"])
    )
    assert [member.failed for member in members] == [False] * 5 + [True]
    assert members[-1].taken < 9 and "poisoned" not in lines[-1]
    for one, other in zip(members[:5], run(make(features, FIVE), tmp_path / "without"), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("kills", [[1], [4], [8], [2, 3, 7]])
def test_a_killed_stack_resumes_to_the_same_weights(kills: list[int], features: Features, tmp_path: Path) -> None:
    whole = run(make(features, FIVE), tmp_path / "whole")
    for at in kills:
        members, source, tokens_of = make(features, FIVE)
        with pytest.raises(Killed):
            run((members, dying(source, at, die), tokens_of), tmp_path, seconds=0)
    again = run(make(features, FIVE), tmp_path)
    assert all(same(weights(one), weights(other)) for one, other in zip(again, whole, strict=True))


def test_a_stack_with_one_member_left_stays_a_stack_after_a_kill(features: Features, tmp_path: Path) -> None:
    two = [FIVE[0], FIVE[3]]  # the second ends after 3 of 9 steps
    whole = run(make(features, two), tmp_path / "whole")
    members, source, tokens_of = make(features, two)
    with pytest.raises(Killed):
        run((members, dying(source, 5, die), tokens_of), tmp_path, seconds=0)
    again = run(make(features, two), tmp_path)
    assert all(same(weights(one), weights(other)) for one, other in zip(again, whole, strict=True))


def test_a_stack_killed_after_its_last_step_has_nothing_left_to_do(features: Features, tmp_path: Path) -> None:
    done = run(make(features, FIVE), tmp_path, seconds=0)  # a checkpoint after each step, including the last
    again = run(make(features, FIVE), tmp_path)
    for one, other in zip(again, done, strict=True):
        assert one.is_over and all(torch.equal(weights(one)[name], value) for name, value in weights(other).items())


def test_losses_of_a_member_that_ends_early_are_logged(features: Features, tmp_path: Path) -> None:
    for stack in (1, 64):
        lines: list[Any] = []
        log = lambda event, lines=lines, **values: lines.append((values["step"], sorted(values["loss"])))  # noqa: E731
        run(make(features, [FIVE[0], FIVE[3]]), tmp_path / str(stack), stack=stack, log=log)
        assert lines == [(3, ["first", "short"]), (9, ["first"])]


def test_a_stacks_checkpoint_can_be_resumed_by_single_members(features: Features, tmp_path: Path) -> None:
    members, source, tokens_of = make(features, FIVE)
    with pytest.raises(Killed):
        run((members, dying(source, 5, die), tokens_of), tmp_path, seconds=0)
    again = run(make(features, FIVE), tmp_path, stack=1)
    for one, other in zip(again, run(make(features, FIVE), tmp_path / "whole"), strict=True):
        assert_close(one, other)


def test_losses_of_a_stack_equal_those_of_its_members_alone(
    features: Features, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LOG_STEPS", 2)
    logged: dict[int, list[Any]] = {1: [], 64: []}
    for stack, lines in logged.items():
        run(
            make(features, FIVE), tmp_path / str(stack), stack=stack,
            log=lambda event, lines=lines, **values: lines.append(values["loss"]),
        )  # fmt: skip
    for stacked, alone in zip(logged[64], logged[1], strict=True):
        assert stacked == pytest.approx(alone, abs=2e-5)


class DropWorst:
    """Drops the member with the largest norm after each epoch."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, list[str]]] = []

    def is_due(self, step: int) -> bool:
        return step % 3 == 0

    def drop(self, step: int, members: list[Member]) -> list[Member]:
        self.seen.append((step, [member.name for member in members]))
        return [max(members, key=lambda member: float(member.head.output.weight.detach().norm()))]


@pytest.mark.parametrize("stack", [1, 64])
def test_a_judge_can_drop_members_and_sees_their_current_weights(
    stack: int, features: Features, tmp_path: Path
) -> None:
    judge = DropWorst()
    members = run(make(features, FIVE), tmp_path, stack=stack, judge=judge)
    assert [(step, len(names)) for step, names in judge.seen] == [(3, 4), (6, 3)]
    assert sorted(member.taken for member in members) == [3, 3, 6, 9, 9]
    assert {member.name: member.dropped for member in members} == {
        member.name: member.taken < len(member.steps) for member in members
    }


def test_the_stacks_optimiser_is_adamw_with_a_learning_rate_and_decay_per_member() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"adapter.weight": (4, 3), "adapter.bias": (4,), "layers.bias": (2, 5)}
    start = {name: torch.randn(3, *shape, generator=generator) for name, shape in shapes.items()}
    stacked = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    decays, rates = [0.0, 0.1, 0.5], torch.tensor([1e-3, 1e-2, 0.3])
    optimizer = StackedAdamW(stacked, decays)
    single = [{n: torch.nn.Parameter(t[i].clone()) for n, t in start.items()} for i in range(3)]
    optimizers = [build_optimizer(own.items(), 1.0, decay) for own, decay in zip(single, decays, strict=True)]
    planned = optimizer.plan(torch.stack([rates / (step + 1) for step in range(20)]), first=0)  # (step, 3, member)
    for step in range(20):
        gradients = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in start.items()}
        for name, gradient in gradients.items():
            stacked[name].grad = gradient
        optimizer.step(planned[step])
        for place, own in enumerate(single):
            for name, parameter in own.items():
                parameter.grad = gradients[name][place].clone()
            set_learning_rate(optimizers[place], float(rates[place]) / (step + 1))
            optimizers[place].step()
    for place, own in enumerate(single):
        for name, parameter in own.items():
            torch.testing.assert_close(stacked[name][place].detach(), parameter.detach(), rtol=1e-5, atol=1e-6)
