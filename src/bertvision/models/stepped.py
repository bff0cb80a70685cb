"""Heads of the zoo that are trained in steps: adapters, attentive pooling, ladders.

The folds are members of one pass: every batch holds rows of a single fold, and the member of a fold skips the batches
of its own rows. One more member takes every batch. It is the head that is fitted to all rows, at no further cost of the
encoder.
"""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertvision.config import TrainConfig
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.heads import Head, MemberConfig, build_head, count_parameters, setting_types
from bertvision.heads.base import find_preset
from bertvision.machine import Machine
from bertvision.models.candidates import Candidate, Fitted, Rows, Split, Trial
from bertvision.models.clock import Clock
from bertvision.pipeline.members import build_members
from bertvision.pipeline.snapshot import compute_outputs
from bertvision.progress import Reporter
from bertvision.sources import MemorySource, MemoryStates, Source, StreamedSource
from bertvision.training.checkpoint import Checkpoints
from bertvision.training.stack import Member
from bertvision.training.strengths import OutOfTimeError
from bertvision.training.train import train_heads

EPOCHS, ROWS_PER_STEP, LEARNING_RATE = 10, 64, 2e-3
LOOK_EVERY = 10
"""Steps between looks at the clock."""


class SteppedCandidate(Candidate):
    """A head or preset of the zoo."""

    def __init__(self, name: str) -> None:
        self.name = name
        # Filled in by `fit`: heads that read tokens need the encoder itself.
        self.encoder: Encoder | None = None
        self.features: Features | None = None
        self.machine: Machine | None = None
        self.reporter = Reporter()

    def attempt(self, rows: Rows, split: Split, clock: Clock) -> Trial:
        assert self.encoder is not None and self.features is not None and self.machine is not None
        config = self._config(rows)
        parts = [held.numpy() for held in split.held]
        if split.how == "held_out":
            parts.append(split.used(0).numpy())
        steps, owner = plan_steps(parts, rows.seed)
        members = []
        for fold in (*range(len(split.held)), None):
            head = build_head(config, rows.shape, rows.target).to(self.machine.device)
            taken = [step for step in range(len(steps)) if owner[step] != fold]
            members.append(Member(_named(config, fold), head, taken))
        source = self._source(members[0].head, rows, steps)
        self._train(members, source, steps, clock)
        outputs = self._outputs(members, rows)
        judged = split.join([outputs[str(fold)][held] for fold, held in enumerate(split.held)])
        whole = members[-1].head.eval().cpu()
        return Trial(
            self.name, judged, count_parameters(whole), clock.lap(), lambda: Fitted(whole, config), self.role,
            settings={"head": config.head, "lr": config.lr, **config.settings},
            temperature=1.0 if isinstance(getattr(whole, "output", None), torch.nn.Linear) else None,
        )  # fmt: skip

    def _config(self, rows: Rows) -> MemberConfig:
        entry: dict[str, Any] = {"head": self.name, "name": self.name}
        head, preset = find_preset(self.name)
        if "read" in setting_types(head) and "read" not in preset:
            entry["read"] = "mean"
        train = TrainConfig(lr=LEARNING_RATE, epochs=EPOCHS, batch_rows=ROWS_PER_STEP)
        return build_members([entry], train, rows.seed, rows.kind)[-1]

    def _source(self, head: Head, rows: Rows, steps: list[np.ndarray]) -> Source:
        assert self.encoder is not None and self.features is not None
        if all(part in rows.states for part in head.reads):
            memory: Any = {part: rows.states[part] for part in head.reads}
            return MemorySource(MemoryStates(memory, rows.shape.pooled), self.features, steps)
        return StreamedSource(self.encoder, self.features, steps, head.reads)

    def _train(self, members: list[Member], source: Source, steps: list[np.ndarray], clock: Clock) -> None:
        assert self.features is not None and self.machine is not None
        lengths = self.features.lengths
        with tempfile.TemporaryDirectory() as folder:
            train_heads(
                members, source, lambda step: int(lengths[steps[step]].sum()), self.machine,
                Checkpoints(Path(folder), "", float("inf")), lambda *given, **named: None, self.reporter, None,
                _UntilTheClock(clock),
            )  # fmt: skip
        if any(member.dropped or member.failed for member in members):
            raise OutOfTimeError

    def _outputs(self, members: list[Member], rows: Rows) -> dict[str, torch.Tensor]:
        """Each member's outputs for all rows, by fold."""
        assert self.encoder is not None and self.features is not None and self.machine is not None
        heads = {str(fold): member.head.eval() for fold, member in enumerate(members[:-1])}
        reads = members[0].head.reads
        found = compute_outputs(self.encoder, heads, reads, self.features, rows.kind, self.machine)
        return {fold: torch.from_numpy(outputs) for fold, outputs in found.items()}  # each (row, output)


class _UntilTheClock:
    """A `training.train.Judge` that drops all members when the time is up."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def is_due(self, step: int) -> bool:
        return step % LOOK_EVERY == 0 and self.clock.is_over()

    def drop(self, step: int, members: list[Member]) -> list[Member]:
        return members


def plan_steps(parts: list[np.ndarray], seed: int) -> tuple[list[np.ndarray], list[int]]:
    """The rows of each step, and the part that they belong to. Each epoch visits every part in random batches."""
    random = np.random.default_rng([seed, 5])
    steps: list[np.ndarray] = []
    owner: list[int] = []
    for _ in range(EPOCHS):
        batches = [
            (number, batch)
            for number, part in enumerate(parts)
            for batch in np.array_split(random.permutation(part), max(1, round(len(part) / ROWS_PER_STEP)))
        ]
        for at in random.permutation(len(batches)):
            owner.append(batches[at][0])
            steps.append(batches[at][1])
    return steps, owner


def _named(config: MemberConfig, fold: int | None) -> MemberConfig:
    return config if fold is None else dataclasses.replace(config, name=f"{config.name}_fold{fold}")
