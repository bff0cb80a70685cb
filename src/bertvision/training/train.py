"""The loop that trains a set of heads: the states of each batch are computed once, and every member learns from them.

A member has its own optimiser, schedule, epochs, seed and fraction of the data, and uses no shared random generator. So
it ends with the same weights whether it trains alone or with others: up to rounding in a stack (`training/stack.py`),
bit-identical otherwise.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from bertvision.interrupts import interruption
from bertvision.machine import Machine
from bertvision.progress import Reporter
from bertvision.sources import Source
from bertvision.tables import counted
from bertvision.training.buffers import BatchBuffers
from bertvision.training.checkpoint import Checkpoint, Checkpoints, add_prefix, held_interrupts, strip_prefix
from bertvision.training.stack import Alone, Member, Stack, build_units

LOG_STEPS = 50


class Judge(Protocol):
    """Evaluates members during the pass and decides which of them to drop."""

    def is_due(self, step: int) -> bool: ...

    def drop(self, step: int, members: list[Member]) -> list[Member]:
        """Return the members to drop. `members` are those still training after `step` steps; their heads are up to
        date."""
        ...


def train_heads(
    members: list[Member],
    source: Source,
    tokens_of: Callable[[int], int],
    machine: Machine,
    checkpoints: Checkpoints,
    log: Callable[..., None],
    reporter: Reporter,
    stack: int | None = None,
    judge: Judge | None = None,
) -> float:
    """Train every member in one pass over the source, starting from the newest checkpoint if there is one. Return the
    seconds of the pass, including those before a kill."""
    found = checkpoints.load()
    step, before = _resume(members, found)
    units = _drop_finished(build_units(members, stack, tokens_of(0)))
    if found is not None:
        for unit in units:
            unit.restore(
                {member.name: strip_prefix(f"{member.name}/optimizer", found.tensors) for member in unit.members}
            )
        reporter.say(f"resuming the training of the heads at step {step:,}.")
        del found  # frees a second copy of all weights and moments
    started = time.monotonic()
    buffers = build_buffers(machine)
    last = max(member.steps[-1] for member in members) + 1
    title, total = f"training {counted(len(members), 'head')}", sum(tokens_of(each) for each in range(last))
    with reporter.bar(title, total, "tokens") as bar, held_interrupts() as interrupts:
        bar.advance(sum(tokens_of(done) for done in range(step)))
        for batch in source.batches(step) if units else ():
            buffered = buffers.put(batch) if buffers is not None else None
            for unit in units:
                if unit.is_due(step):
                    unit.learn(batch, machine, buffered)
            bar.advance(tokens_of(step))
            step += 1
            ended = any(member.is_over for unit in units for member in unit.members)
            is_judged = judge is not None and judge.is_due(step)
            if step % LOG_STEPS == 0 or step == last or ended or is_judged:
                losses = _take_losses(units, machine, reporter)
                if machine.is_main:
                    log("train", step=step, loss=losses)
            if judge is not None and is_judged:
                _drop_judged(judge, step, units)
            units = _drop_finished(units)
            del batch  # free its states before the next ones are computed
            due, stopped = machine.agree(checkpoints.is_due(), bool(interrupts))
            if due or stopped:
                _save(members, units, step, before + time.monotonic() - started, checkpoints, machine)
            if stopped:
                raise interruption(*interrupts)
            if not units:
                break
    _average_buffers(members, machine)
    for member in members:
        # No later loss reveals divergence in the very last step, or in one before a kill.
        if not member.failed and not all(bool(weight.isfinite().all()) for weight in member.head.parameters()):
            _stop(member, "its weights are NaN or infinite", reporter)
    return before + time.monotonic() - started


def build_buffers(machine: Machine) -> BatchBuffers | None:
    """Return the batch buffers that recorded steps need; None if steps are not recorded."""
    return BatchBuffers(machine.device) if machine.records else None


def _drop_finished(units: list[Alone | Stack]) -> list[Alone | Stack]:
    """Remove members whose training has ended. A stack stays a stack even with one member, so that a resumed pass
    rounds in the same way."""
    for unit in units:
        unit.drop_finished()
    return [unit for unit in units if unit.members]


def _average_buffers(members: list[Member], machine: Machine) -> None:
    """Average the running statistics of batch norms over processes, each of which sees only its own windows."""
    machine.average([buffer for member in members for buffer in member.head.buffers() if buffer.is_floating_point()])


def _drop_judged(judge: Judge, step: int, units: list[Alone | Stack]) -> None:
    for unit in units:
        unit.write_back()
    running = [member for unit in units for member in unit.members if not member.is_over]
    for member in judge.drop(step, running) if running else []:
        member.dropped = True


def _take_losses(units: list[Alone | Stack], machine: Machine, reporter: Reporter) -> dict[str, float | None]:
    """Return mean losses since the last call, by name. Stop members whose loss is NaN or infinite."""
    running = [unit for unit in units if unit.counted]
    members = [member for unit in running for member in unit.members]
    if not members:
        return {}
    # One transfer from the device for all units.
    means = torch.cat([unit.take_losses() for unit in running]).tolist()
    losses = machine.sum_numbers(means)
    for member, loss in zip(members, losses, strict=True):
        if not math.isfinite(loss):
            _stop(member, f"its loss is {loss}", reporter)
    return {
        member.name: round(loss, 5) if math.isfinite(loss) else None
        for member, loss in zip(members, losses, strict=True)
    }


def _stop(member: Member, why: str, reporter: Reporter) -> None:
    member.failed = True
    reporter.say(f"stopped head '{member.name}': {why} (a smaller lr may help). The other heads continue.")


def _save(
    members: list[Member],
    units: list[Alone | Stack],
    step: int,
    seconds: float,
    checkpoints: Checkpoints,
    machine: Machine,
) -> None:
    tensors: dict[str, Tensor] = {}
    _average_buffers(members, machine)
    for unit in units:
        unit.write_back()
        for name, memory in unit.memory().items():
            tensors |= add_prefix(f"{name}/optimizer", memory)
    for member in members:
        tensors |= add_prefix(f"{member.name}/head", member.head.state_dict())
    if machine.is_main:
        facts = {
            "seconds": seconds,
            "failed": [member.name for member in members if member.failed],
            "dropped": [member.name for member in members if member.dropped],
        }
        checkpoints.save(step, tensors, facts)
    else:
        checkpoints.skip()
    machine.wait()


def _resume(members: list[Member], found: Checkpoint | None) -> tuple[int, float]:
    """Restore the members. Return the step to continue at and the seconds spent so far."""
    if found is None:
        return 0, 0.0
    for member in members:
        member.head.load_state_dict(strip_prefix(f"{member.name}/head", found.tensors))
        member.failed = member.name in found.facts.get("failed", ())
        member.dropped = member.name in found.facts.get("dropped", ())
        member.taken = bisect_left(member.steps, found.step)
    return found.step, found.facts["seconds"]
