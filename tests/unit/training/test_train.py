import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_sets import SHAPE, Killed, Weights, die, dying, make, same, weights
from tiny_training import Listening, checkpoints_in, log_nothing

from bertvision.data.windows import Features
from bertvision.heads import HEADS, build_head
from bertvision.kinds import LABEL, SPAN, Kind
from bertvision.machine import Machine
from bertvision.sources import StateBatch
from bertvision.training import train as module
from bertvision.training.stack import Alone, Member
from bertvision.training.train import train_heads

FIVE = [
    {"head": "last_linear", "name": "control"},
    {"head": "learned_pooling", "epochs": 1, "name": "short"},
    {"head": "adapter", "size": 4, "seed": 3, "lr": 3e-3, "schedule": "constant", "name": "third"},
    {"head": "adapter", "size": 5, "shared": False, "skip": True, "decay": 0.1, "warmup": 0.3, "name": "fourth"},
    {"head": "pooled_adapter", "size": 6, "epochs": 2, "clip": 0.1, "name": "fifth"},
]


@pytest.fixture(scope="module")
def features(tiny_features: Callable[[str], Features]) -> Features:
    return tiny_features("rte")


def run(parts: Any, folder: Path, seconds: float = 1e9, reporter: Any = None, log: Any = log_nothing) -> list[Member]:
    members, source, tokens_of = parts
    checkpoints = checkpoints_in(folder, seconds)
    train_heads(members, source, tokens_of, Machine("cpu", "float32"), checkpoints, log, reporter or Listening(), 1)
    return members


@pytest.fixture(scope="module")
def together(features: Features, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Weights]:
    members = run(make(features, FIVE), tmp_path_factory.mktemp("together"))
    return {member.config.name: weights(member) for member in members}


@pytest.mark.parametrize("entry", FIVE, ids=lambda entry: entry["name"])
def test_a_member_ends_with_the_same_weights_alone_and_among_five(
    entry: dict[str, Any], features: Features, together: dict[str, Weights], tmp_path: Path
) -> None:
    torch.manual_seed(77)  # other draws in the process must not matter
    (alone,) = run(make(features, [entry]), tmp_path)
    assert same(weights(alone), together[entry["name"]])
    assert not same(together[entry["name"]], weights(make(features, [entry])[0][0])), "it has learned something"


@pytest.fixture(scope="module")
def zoo(
    tiny_features: Callable[[str], Features], tmp_path_factory: pytest.TempPathFactory
) -> dict[Kind, dict[str, Weights]]:
    """Every head of two kinds, after an epoch with all the others."""
    found = {}
    for kind, task in ((SPAN, "squad2"), (LABEL, "rte")):
        names = [name for name in reversed(list(HEADS)) if HEADS[name].takes(kind)]
        entries = [{"head": name, "name": name, "epochs": 1} for name in names]
        members = run(make(tiny_features(task), entries, kind), tmp_path_factory.mktemp(task))
        found[kind] = {member.name: weights(member) for member in members}
    return found


@pytest.mark.parametrize("name", list(HEADS))
def test_every_head_ends_with_the_same_weights_alone_and_with_others(
    name: str, tiny_features: Callable[[str], Features], zoo: dict[Kind, dict[str, Weights]], tmp_path: Path
) -> None:
    kind = SPAN if HEADS[name].takes(SPAN) else LABEL
    features = tiny_features("squad2" if kind is SPAN else "rte")
    (alone,) = run(make(features, [{"head": name, "epochs": 1}], kind), tmp_path)
    assert same(weights(alone), zoo[kind][name])


def test_a_member_equals_the_result_of_a_plain_loop(features: Features, tmp_path: Path) -> None:
    entry = {"head": "adapter", "size": 4, "schedule": "constant", "lr": 1e-2, "clip": 0.5, "name": "it"}
    members, source, _ = make(features, [entry])
    plain = build_head(members[0].config, SHAPE, members[0].head.target)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.0)
    for batch in source.batches():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(plain(batch.states), batch.targets.value.long()).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
    (member,) = run(make(features, [entry]), tmp_path)
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(member.head.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.fixture
def after_learning(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Alone, Member], None]], None]:
    """Set a callback for each step that a member takes."""
    learn = Alone.learn

    def set_it(act: Callable[[Alone, Member], None]) -> None:
        def acting(unit: Alone, batch: StateBatch, machine: Machine, placed: None) -> None:
            learn(unit, batch, machine, placed)
            act(unit, unit.members[0])

        monkeypatch.setattr(Alone, "learn", acting)

    return set_it


def test_a_member_stops_after_its_own_epochs(features: Features, tmp_path: Path, after_learning: Any) -> None:
    taken: dict[str, int] = {}
    after_learning(lambda unit, member: taken.update({member.name: taken.get(member.name, 0) + 1}))
    run(make(features, FIVE), tmp_path)
    assert taken == {"control": 9, "short": 3, "third": 9, "fourth": 9, "fifth": 6}


def test_a_member_with_a_nan_loss_is_stopped_and_the_others_continue(
    features: Features, together: dict[str, Weights], tmp_path: Path, monkeypatch: Any, after_learning: Any
) -> None:
    monkeypatch.setattr(module, "LOG_STEPS", 2)
    poisoned = {"head": "adapter", "size": 4, "lr": 1e37, "clip": 1e9, "name": "poisoned"}
    parts, listening, lines = make(features, [poisoned, *FIVE]), Listening(), []
    steps = []
    after_learning(lambda unit, member: steps.append(1) if member.name == "poisoned" else None)
    members = run(parts, tmp_path, reporter=listening, log=lambda event, **values: lines.append(values))
    assert members[0].failed and not any(member.failed for member in members[1:])
    assert 1 < len(steps) < 9, "it did not finish training"
    assert len(listening.lines) == 1 and "stopped head 'poisoned'" in listening.lines[0]
    assert all(same(weights(member), together[member.config.name]) for member in members[1:])
    assert [line["step"] for line in lines] == [2, 3, 4, 6, 8, 9], "and at the step where a member ends"
    assert any(line["loss"].get("poisoned", 0) is None for line in lines) and "poisoned" not in lines[-1]["loss"]


def test_nan_weights_after_the_last_step_are_detected(features: Features, tmp_path: Path, after_learning: Any) -> None:
    listening = Listening()
    parts = make(features, [{"head": "last_linear", "name": "poisoned"}, FIVE[0]])

    def break_it(unit: Alone, member: Member) -> None:
        if member.name == "poisoned" and member.taken == 9:
            member.head.output.weight.data[0, 3] = torch.inf

    after_learning(break_it)
    members = run(parts, tmp_path, reporter=listening)
    assert members[0].failed and not members[1].failed
    assert "stopped head 'poisoned': its weights are NaN or infinite" in listening.lines[0]


@pytest.mark.parametrize("kills", [[0], [1], [4], [8], [2, 3, 7]])
def test_killed_at_any_step_and_started_again_ends_in_the_same_weights(
    kills: list[int], features: Features, together: dict[str, Weights], tmp_path: Path
) -> None:
    for at in kills:
        members, source, tokens_of = make(features, FIVE)
        with pytest.raises(Killed):
            run((members, dying(source, at, die), tokens_of), tmp_path, seconds=0)
    listening = Listening()
    members = run(make(features, FIVE), tmp_path, seconds=0, reporter=listening)
    assert all(same(weights(member), together[member.config.name]) for member in members)
    assert listening.lines == ([f"resuming the training of the heads at step {kills[-1]}."] if kills[-1] else [])


def test_a_stopped_member_stays_stopped_after_a_kill(
    features: Features, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOG_STEPS", 1)
    poisoned = {"head": "adapter", "size": 4, "lr": 1e37, "clip": 1e9, "name": "poisoned"}
    members, source, tokens_of = make(features, [poisoned, FIVE[0]])
    with pytest.raises(Killed):
        run((members, dying(source, 6, die), tokens_of), tmp_path, seconds=0)
    assert members[0].failed
    again = run(make(features, [poisoned, FIVE[0]]), tmp_path)
    assert again[0].failed and not again[1].failed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_held_until_every_member_has_taken_the_step(
    number: int, features: Features, together: dict[str, Weights], tmp_path: Path
) -> None:
    members, source, tokens_of = make(features, FIVE)
    with pytest.raises(KeyboardInterrupt):
        run((members, dying(source, 4, lambda: os.kill(os.getpid(), number)), tokens_of), tmp_path)
    found = checkpoints_in(tmp_path).load()
    assert found is not None and found.step == 5
    members = run(make(features, FIVE), tmp_path)
    assert all(same(weights(member), together[member.config.name]) for member in members)


def test_losses_are_means_over_the_steps_since_they_were_last_logged(
    features: Features, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, list[float]] = {}
    for every in (1, 4):
        monkeypatch.setattr(module, "LOG_STEPS", every)
        lines: list[Any] = []
        run(
            make(features, FIVE[:1]),
            tmp_path / str(every),
            log=lambda event, lines=lines, **values: lines.append(values),
        )
        seen[every] = [line["loss"]["control"] for line in lines]
    assert len(seen[1]) == 9
    assert seen[4] == pytest.approx([np.mean(seen[1][:4]), np.mean(seen[1][4:8]), seen[1][8]], abs=2e-5)
