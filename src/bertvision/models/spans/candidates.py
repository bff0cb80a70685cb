"""What `fit` tries on questions: the shipped span head as it is, continued on the user's questions, and fresh ladders.

    trial = candidate.attempt(asked, clock)      trial.outputs (token of a judged window, 2), out of fold
    head, member, note = candidate.refit(asked, trial, clock)      on all questions

The folds are members of one pass, as for tables (models/stepped.py).
"""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertvision.config import TrainConfig
from bertvision.data.examples import Example
from bertvision.data.packing import fill_batches
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import identify
from bertvision.errors import UserError, suggest
from bertvision.heads import (
    CONTROL,
    HEADS,
    Head,
    MemberConfig,
    Target,
    build_head,
    count_parameters,
    find_preset,
    list_presets,
    load_head,
)
from bertvision.kinds import Decoding
from bertvision.kinds.span import SpanResults
from bertvision.kits.kit import read_kit_file
from bertvision.machine import Machine
from bertvision.models.candidates import NoResultError
from bertvision.models.clock import Clock
from bertvision.models.spans.trial import Trial, choose
from bertvision.models.split import Split
from bertvision.models.stepped import TokenSource, UntilTheClock, count_batches, plan_steps
from bertvision.pipeline.begin import begin_head
from bertvision.pipeline.folder import SHIPPED
from bertvision.pipeline.members import build_members
from bertvision.progress import Reporter
from bertvision.sources import Source, StreamedSource
from bertvision.tasks.base import Task
from bertvision.training.checkpoint import Checkpoints
from bertvision.training.stack import Member
from bertvision.training.strengths import OutOfTimeError
from bertvision.training.train import train_heads

KIT, CONTINUED, FRESH = "kit", "continued", "ladder_128_deep"
KIT_HEAD = "default/squad2"
WINDOWS_PER_STEP, TOKENS_AT_ONCE = 16, 8192
WARMUP = 0.05


@dataclass(frozen=True)
class Recipe:
    """How long and how fast to train."""

    epochs: int
    lr: float
    least_steps: int = 0
    """Few questions are read in more epochs, until there are so many steps."""

    def __str__(self) -> str:
        return f"{self.epochs} epochs at {self.lr:g}"


CONTINUE = (Recipe(3, 3e-4), Recipe(3, 1e-3))
START = (Recipe(6, 1e-3, least_steps=120),)
FRESH_FROM = 3000
"""With fewer questions, `heads="auto"` trains no fresh head if the shipped one can be continued: it would take most of
the time and come out far behind (LOG.md)."""


@dataclass(frozen=True)
class Asked:
    """The questions of a fit as windows, with the states of their tokens."""

    task: Task
    examples: list[Example]
    features: Features
    split: Split
    """Of the windows."""
    judged_examples: list[Example]
    judged_features: Features
    encoder: Encoder
    machine: Machine
    tokens: torch.Tensor | None
    """(token, layer, hidden); None: there is no memory for them, so the encoder runs in every pass."""
    seed: int
    reporter: Reporter

    @cached_property
    def target(self) -> Target:
        return Target(self.task.kind)

    @cached_property
    def judged_tokens(self) -> np.ndarray:
        """(token of a judged window) their places among all tokens."""
        return self.features.find_tokens(self.split.judged.numpy())

    def source(self, plan: list[np.ndarray]) -> Source:
        if self.tokens is None:
            return StreamedSource(self.encoder, self.features, plan, ("tokens",))
        return TokenSource(self.tokens, self.features, plan, self.encoder.device)

    def results(self, outputs: np.ndarray) -> SpanResults:
        """Per-example results of outputs (token of a judged window, 2)."""
        # The second-best span is part of the results.
        decoded = self.task.kind.decode(self.task, outputs, self.judged_features, self.judged_examples, Decoding(2))
        found: SpanResults = self.task.kind.example_results(decoded, self.judged_examples)  # type: ignore[assignment]
        return found


class Candidate(ABC):
    name: str

    @abstractmethod
    def attempt(self, asked: Asked, clock: Clock) -> Trial:
        """Judge the candidate. Raise OutOfTimeError or NoResultError if there is no result."""

    @abstractmethod
    def refit(self, asked: Asked, trial: Trial, clock: Clock) -> tuple[Head, MemberConfig, str]:
        """The head on all questions, and a note if it is not: there was no time."""


class AsShipped(Candidate):
    """The shipped head, not trained. Only its no-answer threshold is chosen on the user's questions."""

    name = KIT

    def __init__(self) -> None:
        head, member = load_head(SHIPPED / KIT_HEAD)
        self.head, self.member = head, replace(member, name=KIT, group=KIT)

    def attempt(self, asked: Asked, clock: Clock) -> Trial:
        head = self.head.to(asked.machine.device)
        outputs = compute_span_outputs(asked, [head] * len(asked.split.held))
        return _judge(self.name, asked, outputs, head, clock, self.member, "as shipped")

    def refit(self, asked: Asked, trial: Trial, clock: Clock) -> tuple[Head, MemberConfig, str]:
        return self.head.cpu(), self.member, ""


class Trained(Candidate):
    """A head of the zoo, trained on the user's questions from random weights or from the shipped head. Of several
    recipes, the one that `choose` chooses counts."""

    def __init__(self, name: str, preset: str, recipes: Sequence[Recipe], begin: str | None = None) -> None:
        self.name, self.preset, self.recipes, self.begin = name, preset, recipes, begin

    def attempt(self, asked: Asked, clock: Clock) -> Trial:
        trials: list[Trial] = []
        for recipe in self.recipes:
            try:
                trials.append(self._attempt(recipe, asked, clock))
            except OutOfTimeError:
                if not trials:
                    raise
                break
        best, _ = choose(trials)
        seconds = sum(trial.seconds for trial in trials)
        note = f"{best.note}, the best of {len(trials)} settings" if len(trials) > 1 else best.note
        return replace(best, seconds=seconds, note=note)

    def _attempt(self, recipe: Recipe, asked: Asked, clock: Clock) -> Trial:
        parts = [held.numpy() for held in asked.split.held]
        if asked.split.how == "held_out":
            parts.append(asked.split.used(0).numpy())
        own = sum(count_batches(part, WINDOWS_PER_STEP) for part in parts)
        recipe = replace(recipe, epochs=max(recipe.epochs, -(-recipe.least_steps // own)))
        config = self._config(recipe, asked)
        steps, owner = plan_steps(parts, recipe.epochs, asked.seed, WINDOWS_PER_STEP)
        members = [
            self._member(config, asked, [step for step in range(len(steps)) if owner[step] != fold], f"_fold{fold}")
            for fold in range(len(asked.split.held))
        ]
        _train(members, asked, steps, clock)
        outputs = compute_span_outputs(asked, [member.head for member in members])
        kept = members[0].head.eval() if len(members) == 1 else None
        return _judge(
            self.name, asked, outputs, members[0].head, clock, config, str(recipe), kept,
            "encoder" if config.head == CONTROL else "head",
        )  # fmt: skip

    def refit(self, asked: Asked, trial: Trial, clock: Clock) -> tuple[Head, MemberConfig, str]:
        assert trial.member is not None
        everything = np.arange(len(asked.features))  # (window)
        steps, _ = plan_steps([everything], trial.member.epochs, asked.seed, WINDOWS_PER_STEP)
        member = self._member(trial.member, asked, list(range(len(steps))))
        try:
            # Without another head to fall back on, this one must be trained.
            _train([member], asked, steps, clock if trial.head is not None else Clock(None))
        except OutOfTimeError:
            assert trial.head is not None
            return trial.head.cpu(), trial.member, "trained without the held-out questions: there was no time for all"
        return member.head.eval().cpu(), trial.member, ""

    def _config(self, recipe: Recipe, asked: Asked) -> MemberConfig:
        entry: dict[str, Any] = {"head": self.preset, "name": self.name}
        if self.begin is not None:
            entry["begin"] = self.begin
        train = TrainConfig(lr=recipe.lr, epochs=recipe.epochs, warmup=WARMUP)
        found = build_members([entry], train, asked.seed, asked.task.kind)
        return next(member for member in found if member.name == self.name)

    def _member(self, config: MemberConfig, asked: Asked, steps: list[int], fold: str = "") -> Member:
        head = build_head(config, asked.encoder.shape, asked.target)
        if config.begin is not None:
            # Start and end of an answer mean the same in all questions, so the output layer is taken too.
            begin_head(head, config, replace(asked.task, name=Path(KIT_HEAD).name))
        return Member(replace(config, name=config.name + fold), head.to(asked.machine.device), steps)


def _judge(
    name: str,
    asked: Asked,
    outputs: np.ndarray,
    head: Head,
    clock: Clock,
    member: MemberConfig,
    note: str,
    kept: Head | None = None,
    role: str = "head",
) -> Trial:
    results = asked.results(outputs)
    threshold = asked.task.kind.pick_threshold(results)
    assert threshold is not None
    probability = float(asked.task.kind.gold_log_probabilities(outputs, asked.judged_features).mean())
    return Trial(
        name, outputs, results, threshold, probability, count_parameters(head), clock.lap(), role, note, member, kept
    )  # fmt: skip


def _train(members: list[Member], asked: Asked, steps: list[np.ndarray], clock: Clock) -> None:
    lengths = asked.features.lengths
    with tempfile.TemporaryDirectory() as folder:
        train_heads(
            members, asked.source(steps), lambda step: int(lengths[steps[step]].sum()), asked.machine,
            Checkpoints(Path(folder), "", float("inf")), lambda *given, **named: None, asked.reporter, None,
            UntilTheClock(clock, len(steps)),
        )  # fmt: skip
    if any(member.failed for member in members):
        raise NoResultError("failed: its loss became NaN or infinite")
    if any(member.dropped for member in members):
        raise OutOfTimeError


def compute_span_outputs(asked: Asked, heads: Sequence[Head]) -> np.ndarray:
    """(token of a judged window, 2) the outputs of each fold's head for the windows that it has not read."""
    features = asked.features
    found = np.empty((len(features.input_ids), 2), dtype=np.float32)  # (token, 2)
    for head, held in zip(heads, asked.split.held, strict=True):
        head.eval()
        plan = fill_batches(features.lengths, held.numpy(), tokens=TOKENS_AT_ONCE)
        for batch in asked.source(plan).batches():
            with torch.no_grad():
                found[features.find_tokens(batch.windows)] = head(batch.states).float().cpu().numpy()
    return found[asked.judged_tokens]


# ---------------------------------------------------------------------- which candidates


def kit_fits(encoder: str) -> bool:
    """Whether the shipped head was trained on this encoder."""
    kit = read_kit_file(SHIPPED / Path(KIT_HEAD).parent)
    return kit is not None and identify(encoder) == kit["encoder_stamp"]


def find_candidates(heads: str | Sequence[str], questions: int, fits: bool) -> list[Candidate]:
    """The candidates of "auto", or those that the user names, after the last layer. `fits`: the shipped head was
    trained on this encoder."""
    wanted = [heads] if isinstance(heads, str) else [str(name) for name in heads]
    if wanted == ["auto"]:
        wanted = [KIT, CONTINUED] if fits else []
        wanted += [FRESH] if not fits or questions >= FRESH_FROM else []
    if not wanted or "auto" in wanted:
        raise UserError("heads: name at least one head, or use 'auto' alone.")
    return [_candidate(name, fits) for name in dict.fromkeys([CONTROL, *wanted])]


def _candidate(name: str, fits: bool) -> Candidate:
    zoo = sorted(preset for preset in {*HEADS, *list_presets()} if "token" in HEADS[find_preset(preset)[0]].positions)
    if name in (KIT, CONTINUED):
        if not fits:
            raise UserError(
                f"heads has '{name}', but the shipped head reads only the encoder 'embedded': leave it out."
            )
        return AsShipped() if name == KIT else Trained(CONTINUED, FRESH, CONTINUE, KIT_HEAD)
    if name not in zoo:
        raise UserError(f"heads has '{name}': {suggest(name, [KIT, CONTINUED, *zoo])}")
    return Trained(name, name, START)
