"""The one loop that trains a set of heads: each batch's states are made once and every member learns from them.

A member has its own optimiser, schedule, epochs and seed, and draws from no shared generator: among others or alone it
ends in the same weights.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bertvision.heads import Head, MemberConfig
from bertvision.machine import Machine, drawing_from
from bertvision.progress import Reporter
from bertvision.sources import Source, StateBatch
from bertvision.training.checkpoint import Checkpoints, named, under
from bertvision.training.interrupts import held_interrupts
from bertvision.training.losses import compute_loss
from bertvision.training.optimizer import (
    build_optimizer,
    learning_rate,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
)

LOG_STEPS = 50


@dataclass
class Member:
    """One head on its way through the pass."""

    config: MemberConfig
    head: Head
    steps: int
    """Steps until its own last epoch ends."""
    optimizer: torch.optim.Optimizer = field(init=False)
    loss: Tensor | None = None
    """Sum of the losses since they were last logged."""
    counted: int = 0
    failed: bool = False
    """Its loss stopped being a number; it trains no further."""

    def __post_init__(self) -> None:
        self.optimizer = build_optimizer(self.head.named_parameters(), self.config.lr, self.config.decay)

    def learn(self, batch: StateBatch, step: int, machine: Machine) -> None:
        """One optimiser step on one batch."""
        self.head.train()
        config, parameters = self.config, list(self.head.parameters())
        self.optimizer.zero_grad(set_to_none=True)
        if len(batch.windows):
            # Dropout is drawn from the member's own seed and step, whoever else is in the set.
            with drawing_from(machine.device, config.seed, step, machine.rank), machine.autocast():
                outputs = self.head(batch.states)
            loss = compute_loss(self.head.target.kind, outputs, batch.states, batch.targets, batch.total)
            loss.backward()
            self.loss = loss.detach() if self.loss is None else self.loss + loss.detach()
        machine.sum_gradients(parameters)
        if config.clip is not None:
            nn.utils.clip_grad_norm_(parameters, config.clip)
        set_learning_rate(self.optimizer, learning_rate(step, self.steps, config.lr, config.schedule, config.warmup))
        self.optimizer.step()
        self.counted += 1

    def take_loss(self) -> float:
        """Mean loss since the last call, of this process's windows."""
        value = float(self.loss) / self.counted if self.loss is not None else 0.0
        self.loss, self.counted = None, 0
        return value


def train_heads(
    members: list[Member],
    source: Source,
    tokens_of: Callable[[int], int],
    machine: Machine,
    checkpoints: Checkpoints,
    log: Callable[..., None],
    reporter: Reporter,
) -> float:
    """Trains every member in one pass over the source, from the newest checkpoint where there is one; gives the
    seconds of the pass, those before a kill included."""
    step, before = _resume(members, checkpoints)
    started = time.monotonic()
    if step:
        reporter.say(f"training of the heads goes on at step {step:,}.")
    last = max(member.steps for member in members)
    bar_of_work = reporter.bar(f"training {len(members)} heads", sum(tokens_of(s) for s in range(last)), "tokens")
    with bar_of_work as bar, held_interrupts() as asked:
        bar.advance(sum(tokens_of(done) for done in range(step)))
        for batch in source.batches(step):
            for member in members:
                if step < member.steps and not member.failed:
                    member.learn(batch, step, machine)
            bar.advance(tokens_of(step))
            step += 1
            if step % LOG_STEPS == 0 or step == last:
                losses = _take_losses(members, machine, reporter)
                if machine.is_main:
                    log("train", step=step, loss=losses)
            due, stopped = machine.agree(checkpoints.is_due(), bool(asked))
            if due or stopped:
                _save(members, step, before + time.monotonic() - started, checkpoints, machine)
            if stopped:
                raise KeyboardInterrupt
            if all(member.failed for member in members):
                break
    for member in members:
        # The last step of all, or one before a kill, is followed by no loss that would show it.
        if not member.failed and not all(bool(weight.isfinite().all()) for weight in member.head.parameters()):
            _stop(member, "its weights are no longer numbers", reporter)
    return before + time.monotonic() - started


def _take_losses(members: list[Member], machine: Machine, reporter: Reporter) -> dict[str, float | None]:
    """Mean losses since the last call, by name; a member whose loss is not a number is stopped."""
    running = [member for member in members if member.counted]
    losses = machine.sum_numbers([member.take_loss() for member in running])
    for member, loss in zip(running, losses, strict=True):
        if not math.isfinite(loss):
            _stop(member, f"its loss is {loss}", reporter)
    return {
        member.config.name: round(loss, 5) if math.isfinite(loss) else None
        for member, loss in zip(running, losses, strict=True)
    }


def _stop(member: Member, why: str, reporter: Reporter) -> None:
    member.failed = True
    reporter.say(f"head '{member.config.name}' is stopped: {why} (a smaller lr may help). The others go on.")


def _save(members: list[Member], step: int, seconds: float, checkpoints: Checkpoints, machine: Machine) -> None:
    tensors: dict[str, Tensor] = {}
    for member in members:
        name = member.config.name
        tensors |= named(f"{name}/head", member.head.state_dict())
        tensors |= named(f"{name}/optimizer", optimizer_tensors(member.optimizer))
    if machine.is_main:
        failed = [member.config.name for member in members if member.failed]
        checkpoints.save(step, tensors, {"seconds": seconds, "failed": failed})
    machine.wait()


def _resume(members: list[Member], checkpoints: Checkpoints) -> tuple[int, float]:
    """The step to go on at, and the seconds spent until then."""
    found = checkpoints.load()
    if found is None:
        return 0, 0.0
    for member in members:
        name = member.config.name
        member.head.load_state_dict(under(f"{name}/head", found.tensors))
        restore_optimizer(member.optimizer, under(f"{name}/optimizer", found.tensors))
        member.failed = name in found.facts["failed"]
    return found.step, float(found.facts["seconds"])
