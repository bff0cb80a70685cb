"""Heads of the zoo that are trained in steps: adapters, attentive pooling, ladders.

The folds are members of one pass: every batch holds rows of a single fold, and the member of a fold skips the batches
of its own rows. One more member takes every batch. It is the head that is fitted to all rows, at no further cost of the
encoder.
"""

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertvision.config import TrainConfig
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import HiddenStates
from bertvision.heads import Head, MemberConfig, build_head, count_parameters, setting_types
from bertvision.heads.base import find_preset, find_read
from bertvision.machine import Machine
from bertvision.models.candidates import Candidate, Fitted, NoResultError, Rows, Trial
from bertvision.models.clock import Clock
from bertvision.models.split import Split
from bertvision.pipeline.members import build_members
from bertvision.progress import Reporter
from bertvision.sources import MemorySource, MemoryStates, Source, StateBatch, StreamedSource
from bertvision.sources.base import pack_targets
from bertvision.training.checkpoint import Checkpoints
from bertvision.training.stack import Member
from bertvision.training.strengths import OutOfTimeError
from bertvision.training.train import train_heads

ROWS_PER_STEP, LEARNING_RATE = 64, 2e-3
LEAST_STEPS = 120
"""Few rows are read in more epochs, until there are so many steps."""
ROWS_AT_ONCE = 256
"""Rows per batch of predictions."""
LOOK_EVERY = 10
"""Steps between looks at the clock."""
TOLERATED = 1.35
"""A head that is going to end late is not dropped at once: its fit on all rows is ready with it."""


class SteppedCandidate(Candidate):
    """A head or preset of the zoo."""

    def __init__(self, name: str, epochs: int = 10, needs_memory: bool = False) -> None:
        """`needs_memory`: try it only if the states of all tokens are in memory."""
        self.name, self.epochs, self.needs_memory = name, epochs, needs_memory
        # Filled in by `fit`: heads that read tokens need the encoder itself.
        self.encoder: Encoder | None = None
        self.features: Features | None = None
        self.machine: Machine | None = None

    def attempt(self, rows: Rows, split: Split, clock: Clock) -> Trial:
        assert self.encoder is not None and self.features is not None and self.machine is not None
        if self.needs_memory and "tokens" not in rows.states:
            raise NoResultError("not tried: there is no memory for the states of all tokens")
        parts = [held.numpy() for held in split.held]
        if split.how == "held_out":
            parts.append(split.used(0).numpy())
        epochs = max(self.epochs, -(-LEAST_STEPS // sum(map(count_batches, parts))))
        config = self._config(rows, epochs)
        steps, owner = plan_steps(parts, epochs, rows.seed)
        members = []
        for fold in (*range(len(split.held)), None):
            head = build_head(config, rows.shape, rows.target).to(self.machine.device)
            taken = [step for step in range(len(steps)) if owner[step] != fold]
            members.append(Member(_named(config, fold), head, taken))
        source = self._source(members[0].head, rows, steps)
        self._train(members, source, steps, clock)
        judged = self._outputs(members, rows, split)  # (judged row, output)
        whole = members[-1].head.eval().cpu()
        return Trial(
            self.name, judged, count_parameters(whole), clock.lap(), lambda: Fitted(whole, config), self.role,
            settings={"head": config.head, "lr": config.lr, **config.settings},
            temperature=1.0 if isinstance(getattr(whole, "output", None), torch.nn.Linear) else None,
        )  # fmt: skip

    def _config(self, rows: Rows, epochs: int) -> MemberConfig:
        entry: dict[str, Any] = {"head": self.name, "name": self.name}
        head, preset = find_preset(self.name)
        if "read" in setting_types(head) and "read" not in preset:
            entry["read"] = find_read(head, rows.read)
        train = TrainConfig(lr=LEARNING_RATE, epochs=epochs, batch_rows=ROWS_PER_STEP)
        return build_members([entry], train, rows.seed, rows.kind)[-1]

    def _source(self, head: Head, rows: Rows, steps: list[np.ndarray]) -> Source:
        assert self.encoder is not None and self.features is not None
        if head.reads == ("tokens",) and "tokens" in rows.states:
            return TokenSource(rows.states["tokens"], self.features, steps, self.encoder.device)
        if all(part in rows.states for part in head.reads):
            memory: Any = {part: rows.states[part].to(self.encoder.device) for part in head.reads}
            return MemorySource(MemoryStates(memory, rows.shape.pooled), self.features, steps)
        return StreamedSource(self.encoder, self.features, steps, head.reads)

    def _train(self, members: list[Member], source: Source, steps: list[np.ndarray], clock: Clock) -> None:
        assert self.features is not None and self.machine is not None
        lengths = self.features.lengths
        with tempfile.TemporaryDirectory() as folder:
            train_heads(
                members, source, lambda step: int(lengths[steps[step]].sum()), self.machine,
                Checkpoints(Path(folder), "", float("inf")), lambda *given, **named: None, Reporter(), None,
                UntilTheClock(clock, len(steps)),
            )  # fmt: skip
        if any(member.failed for member in members):
            raise NoResultError("failed: its loss became NaN or infinite")
        if any(member.dropped for member in members):
            raise OutOfTimeError

    def _outputs(self, members: list[Member], rows: Rows, split: Split) -> torch.Tensor:
        """(judged row, output) each member's outputs for the rows that it has not read."""
        held = [part.numpy() for part in split.held]
        plan = [batch for part in held for batch in np.array_split(part, -(-len(part) // ROWS_AT_ONCE))]
        folds = [fold for fold, part in enumerate(held) for _ in range(-(-len(part) // ROWS_AT_ONCE))]
        found = []
        with torch.no_grad():
            for fold, batch in zip(folds, self._source(members[0].head, rows, plan).batches(), strict=True):
                found.append(members[fold].head.eval()(batch.states).float().cpu())  # (row, output)
        return split.join(found)


class TokenSource:
    """Batches of the states of all tokens, which are in memory."""

    def __init__(self, tokens: torch.Tensor, features: Features, plan: list[np.ndarray], device: torch.device) -> None:
        self.tokens, self.features, self.plan, self.device = tokens, features, plan, device

    @property
    def steps(self) -> int:
        return len(self.plan)

    def batches(self, first: int = 0) -> Iterator[StateBatch]:
        for rows in self.plan[first:]:
            tokens = self.tokens[torch.from_numpy(self.features.find_tokens(rows))]  # (token, layer, hidden)
            lengths = torch.from_numpy(self.features.lengths[rows].astype(np.int64))  # (row)
            states = HiddenStates(lengths, tokens=tokens.to(self.device, torch.float32))
            yield StateBatch(rows, states, pack_targets(self.features, rows).to(self.device), len(rows))


class UntilTheClock:
    """A `training.train.Judge` that drops all members when the time is up, or is going to be up before they end."""

    def __init__(self, clock: Clock, steps: int) -> None:
        self.clock, self.steps, self.started = clock, steps, clock.spent

    def is_due(self, step: int) -> bool:
        if step == LOOK_EVERY:  # the first steps are slower
            self.started = self.clock.spent
        return step % LOOK_EVERY == 0 and (self._is_late() or (step > LOOK_EVERY and self._is_too_slow(step)))

    def _is_late(self) -> bool:
        limit = self.clock.seconds
        return self.clock.stopped or (limit is not None and self.clock.spent > TOLERATED * limit)

    def _is_too_slow(self, step: int) -> bool:
        if self.clock.seconds is None:
            return False
        needed = (self.clock.spent - self.started) / (step - LOOK_EVERY) * (self.steps - LOOK_EVERY)
        return self.started + needed > TOLERATED * self.clock.seconds

    def drop(self, step: int, members: list[Member]) -> list[Member]:
        return members


def plan_steps(
    parts: list[np.ndarray], epochs: int, seed: int, size: int = ROWS_PER_STEP
) -> tuple[list[np.ndarray], list[int]]:
    """The rows of each step, about `size`, and the part that they belong to. Each epoch visits every part in random
    batches."""
    random = np.random.default_rng([seed, 5])
    steps: list[np.ndarray] = []
    owner: list[int] = []
    for _ in range(epochs):
        batches = [
            (number, batch)
            for number, part in enumerate(parts)
            for batch in np.array_split(random.permutation(part), count_batches(part, size))
        ]
        for at in random.permutation(len(batches)):
            owner.append(batches[at][0])
            steps.append(batches[at][1])
    return steps, owner


def count_batches(part: np.ndarray, size: int = ROWS_PER_STEP) -> int:
    return max(1, round(len(part) / size))


def _named(config: MemberConfig, fold: int | None) -> MemberConfig:
    return config if fold is None else dataclasses.replace(config, name=f"{config.name}_fold{fold}")
