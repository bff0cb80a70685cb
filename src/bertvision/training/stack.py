"""Training steps of members: alone, or stacked with others whose weights have the same shapes.

A stack runs its members as one (`torch.func.functional_call` under `vmap`): one matrix product for fifty small heads
instead of fifty. This pays off when launching an operation costs more than computing it (`_stack_limit`). On a GPU, a
step on a buffered batch is recorded and replayed (`encoder/recording.py`).
"""

import contextlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bertvision.encoder.recording import Graphs, Pool
from bertvision.heads import Head, MemberConfig
from bertvision.machine import Machine, drawing_from
from bertvision.sources import StateBatch
from bertvision.training.optimizer import (
    StackedAdamW,
    build_optimizer,
    learning_rate,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
)

MOST = 64
# Maximum number of state values that a stack of token-level heads reads per step on a GPU, summed over members.
# (Launching a recorded step is nearly free, so above this size running members one by one is faster.)
STACKED_VALUES = 40_000_000


@dataclass(eq=False)
class Member:
    """One head during its training."""

    config: MemberConfig
    head: Head
    steps: Sequence[int]
    """The steps of the pass it takes part in, in order."""
    taken: int = 0
    failed: bool = False
    """Whether it was stopped because its loss became NaN or infinite."""
    dropped: bool = False
    """Whether a judge dropped it."""

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def is_over(self) -> bool:
        return self.failed or self.dropped or self.taken == len(self.steps)

    def rate_at(self, step: int) -> float:
        """The learning rate at the member's own step `step`."""
        config = self.config
        return learning_rate(step, len(self.steps), config.lr, config.schedule, config.warmup)


Buffered = tuple[Hashable, StateBatch]
"""The size of a batch, and the batch in the fixed buffer for batches of this size."""


class _Unit:
    """Members that take their steps together."""

    def __init__(self, members: list[Member], pool: Pool | None) -> None:
        self.members, self.pool = list(members), pool
        self.device = next(members[0].head.parameters()).device
        self.losses = torch.zeros(len(members), device=self.device)  # (member) sums since the last `take_losses`
        self.counted = 0

    @cached_property
    def graphs(self) -> Graphs:
        return Graphs(self.pool)

    def is_due(self, step: int) -> bool:
        """Whether the unit takes this step of the pass. All members take the same steps; some stop earlier."""
        return bool(self.members) and self.members[0].steps[self.members[0].taken] == step

    def take_losses(self) -> Tensor:
        """Return each member's mean loss since the last call, over this process's windows."""
        means = self.losses / self.counted  # (member)
        self.losses.zero_()
        self.counted = 0
        return means

    def _take_step(self, batch: StateBatch, machine: Machine, buffered: Buffered | None) -> None:
        if buffered is None:
            self._step(batch, machine)
        else:
            size, filled = buffered
            self.graphs.run(size, lambda: self._step(filled, machine))
        for member in self.members:
            member.taken += 1
        self.counted += 1

    def _step(self, batch: StateBatch, machine: Machine) -> None:
        raise NotImplementedError

    def _backward(self, outputs: Tensor, batch: StateBatch) -> None:
        """Compute losses and gradients from outputs (member, position, output)."""
        kind = self.members[0].head.target.kind
        losses = kind.loss(outputs, batch.states, batch.targets, batch.total)  # (member)
        losses.sum().backward()
        self.losses += losses.detach()


class Alone(_Unit):
    """A single member with its own optimiser."""

    def __init__(self, member: Member, pool: Pool | None = None) -> None:
        super().__init__([member], pool)
        self.parameters = list(member.head.parameters())
        self.recorded = self.device.type == "cuda"  # a recorded step reads the learning rate from memory
        lr: Any = torch.tensor(member.config.lr, device=self.device) if self.recorded else member.config.lr
        self.optimizer = build_optimizer(member.head.named_parameters(), lr, member.config.decay)
        self.draws = member.head.draws

    def learn(self, batch: StateBatch, machine: Machine, buffered: Buffered | None = None) -> None:
        """Take one optimiser step on one batch; `buffered` is the same batch padded in a buffer, with its size."""
        (member,) = self.members
        member.head.train()
        set_learning_rate(self.optimizer, member.rate_at(member.taken))
        # Dropout depends only on the member's own seed and step, not on other members.
        seeds = (member.config.seed, member.taken, machine.rank)
        with drawing_from(machine.device, *seeds) if self.draws else contextlib.nullcontext():
            self._take_step(batch, machine, buffered if self.recorded else None)

    def _step(self, batch: StateBatch, machine: Machine) -> None:
        (member,) = self.members
        self.optimizer.zero_grad(set_to_none=True)  # a failed recording may have left gradients
        if len(batch.windows):
            with machine.autocast():
                outputs = member.head(batch.states)  # (position, output)
            self._backward(outputs.unsqueeze(0), batch)
        machine.sum_gradients(self.parameters)
        if member.config.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, member.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # now, not before the next step: other members need the memory

    def drop_finished(self) -> None:
        """Remove the member if its training has ended."""
        self.members = [member for member in self.members if not member.is_over]

    def write_back(self) -> None:
        """Nothing to do: the optimiser updates the head's own weights."""

    def memory(self) -> dict[str, dict[str, Tensor]]:
        """The optimiser's state, by member."""
        return {member.name: optimizer_tensors(self.optimizer) for member in self.members}

    def restore(self, memory: dict[str, dict[str, Tensor]]) -> None:
        restore_optimizer(self.optimizer, memory[self.members[0].name])


class Stack(_Unit):
    """Members whose weights have the same shapes. Each weight has a leading member dimension."""

    def __init__(self, members: list[Member], pool: Pool | None = None) -> None:
        super().__init__(members, pool)
        heads = [dict(member.head.named_parameters()) for member in members]
        self.weights = {
            name: torch.stack([head[name].detach() for head in heads]).requires_grad_() for name in heads[0]
        }  # each (member, …)
        self.optimizer = StackedAdamW(self.weights, [member.config.decay for member in members])
        clips = [float("inf") if member.config.clip is None else member.config.clip for member in members]
        self.clip = torch.tensor(clips, device=self.device)  # (member)
        self._plan_rates()

    def learn(self, batch: StateBatch, machine: Machine, buffered: Buffered | None = None) -> None:
        """Take one optimiser step for every member on one batch; `buffered` is the same batch padded in a buffer, with
        its size."""
        self.pace.copy_(self.paces[self.members[0].taken - self.first])
        self._take_step(batch, machine, buffered)
        self.optimizer.count += 1

    def _step(self, batch: StateBatch, machine: Machine) -> None:
        head, weights = self.members[0].head, list(self.weights.values())
        for weight in weights:
            weight.grad = None  # a failed recording may have left gradients
        if len(batch.windows):
            with machine.autocast():
                outputs = vmap(lambda own: functional_call(head, own, (batch.states,)))(self.weights)
                # (member, position, output)
            self._backward(outputs, batch)
        machine.sum_gradients(weights)
        self._clip_gradients(weights)
        self.optimizer.step(self.pace)
        for weight in weights:
            weight.grad = None

    def _clip_gradients(self, weights: list[Tensor]) -> None:
        """Clip each member's gradients by their own norm, as `clip_grad_norm_` does."""
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)  # (member)
        factors = (self.clip / (norms + 1e-6)).clamp(max=1.0)  # (member)
        for gradient in gradients:
            gradient.mul_(factors.view(-1, *[1] * (gradient.ndim - 1)))

    def _plan_rates(self) -> None:
        """Put the learning rates of all remaining steps on the device, so that no step waits for a transfer. Recorded
        steps are discarded, since the members may have changed."""
        self.first = self.members[0].taken
        most = max(len(member.steps) for member in self.members)
        table = []
        for member in self.members:
            rates = [member.rate_at(step) for step in range(self.first, len(member.steps))]
            table.append(rates + [0.0] * (most - self.first - len(rates)))
        rows = torch.tensor(table, device=self.device).T  # (step, member)
        self.paces = self.optimizer.plan(rows, self.first)  # (step, 3, member)
        self.pace = torch.empty(self.paces.shape[1:], device=self.device)  # (3, member) the row of the current step
        self.__dict__.pop("graphs", None)

    def drop_finished(self) -> None:
        """Remove members whose training has ended, after writing their weights into their heads."""
        kept = [number for number, member in enumerate(self.members) if not member.is_over]
        if len(kept) == len(self.members):
            return
        self.write_back()
        self.members = [self.members[number] for number in kept]
        if not kept:
            return
        index = torch.tensor(kept, device=self.device)  # (member)
        self.weights = {name: weight.detach()[index].requires_grad_() for name, weight in self.weights.items()}
        self.optimizer.keep(self.weights, index)
        self.clip, self.losses = self.clip[index], self.losses[index]
        self._plan_rates()

    @torch.no_grad()
    def write_back(self) -> None:
        """Copy each member's weights into its head."""
        for name, weight in self.weights.items():
            for member, own in zip(self.members, weight, strict=True):
                member.head.get_parameter(name).copy_(own)

    def memory(self) -> dict[str, dict[str, Tensor]]:
        """The optimiser's state, by member, in the format of `Alone`."""
        return {member.name: self.optimizer.tensors(number) for number, member in enumerate(self.members)}

    def restore(self, memory: dict[str, dict[str, Tensor]]) -> None:
        self.optimizer.restore([memory[member.name] for member in self.members])


def build_units(members: list[Member], wanted: int | None = None, tokens: int = 0) -> list[Alone | Stack]:
    """Group members with equal heads and equal steps into stacks of up to `wanted`; the others run alone. By default,
    choose the stack size that is fastest at about `tokens` tokens per step."""
    stackable: dict[object, list[list[Member]]] = {}
    for member in members:
        _join(member, stackable.setdefault(_stack_key(member) if member.head.stackable else id(member), []))
    units: list[Alone | Stack] = []
    on_gpu = any(next(member.head.parameters()).is_cuda for member in members)
    pool = Pool() if on_gpu else None  # shared: no graph needs its memory after it has run
    for alike in (group for groups in stackable.values() for group in groups):
        # Stacks of similar size: 65 members run better as 33 and 32 than as 64 and 1.
        stacks = -(-len(alike) // (wanted or _stack_limit(alike[0].head, tokens)))
        for first in range(stacks):
            some = alike[first::stacks]
            units.append(Stack(some, pool) if len(some) > 1 else Alone(some[0], pool))
    return units


def _stack_key(member: Member) -> object:
    """Equal for members whose heads can be stacked."""
    return type(member.head), member.head.config, member.head.reads


def _join(member: Member, groups: list[list[Member]]) -> None:
    """Add a member to the first group that takes the same steps, or to a new one. Some members may end earlier."""
    for group in groups:
        longest = max(group, key=lambda other: len(other.steps))
        shared = min(len(longest.steps), len(member.steps))
        if list(longest.steps[:shared]) == list(member.steps[:shared]):
            group.append(member)
            return
    groups.append([member])


def _stack_limit(head: Head, tokens: int) -> int:
    """The largest stack that is still faster than running members one by one (measurements: LOG.md).

    On [CLS] states and means, launching operations costs more than computing them, so stack everything. Token-level
    heads on a CPU are compute-bound and run faster one by one, while their states are in the cache. On a GPU, the same
    is true for large states; small ones are launch-bound again.
    """
    if "tokens" not in head.reads:
        return MOST
    if next(head.parameters()).device.type == "cpu":
        return 1
    values = max(1, tokens) * head.layers * head.shape.hidden
    return max(1, min(MOST, STACKED_VALUES // values))
