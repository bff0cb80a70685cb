"""Judging members on the held-out part of train: their scores, and which of them are dropped on the way.

The worse half of those at the same point of the same course goes at each rung (successive halving: Jamieson and
Talwalkar 2016, "Non-stochastic Best Arm Identification and Hyperparameter Optimization").
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from bertvision.data.packing import fill_batches
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import Part
from bertvision.evaluation.outputs import compute_outputs
from bertvision.evaluation.predictions import build_predictions
from bertvision.evaluation.scores import pick_threshold, score_predictions
from bertvision.job import HELD_OUT, Job
from bertvision.sources import KeptSource
from bertvision.sourcing import keep_states
from bertvision.stages import keep_of
from bertvision.tasks import TargetKind
from bertvision.training.stack import Member

Course = tuple[int, float]
"""What members with the same steps share: epochs and share of the data."""
ROWS = 1024  # kept states that go through the heads at once


def course_of(member: Member) -> Course:
    return member.config.epochs, member.config.data_fraction


class HeldOut:
    """Scores on the held-out examples, whose states are kept where they are small."""

    def __init__(self, job: Job, encoder: Encoder, keep: tuple[Part, ...], metric: str) -> None:
        self.job, self.encoder, self.metric = job, encoder, metric
        self.kept = keep_states(job, encoder, keep, HELD_OUT)

    def score(self, members: list[Member]) -> dict[str, float]:
        """Name → score in percent, NaN where a head gives no numbers; the first process's where there are several."""
        if not members:
            return {}
        for member in members:
            member.head.eval()
        outputs = self._kept_outputs(members) if self.kept is not None else self._streamed_outputs(members)
        for member in members:
            member.head.train()
        machine = self.job.machine
        scores = [{name: self._score(found) for name, found in outputs.items()}] if machine.is_main else []
        agreed: dict[str, float] = machine.gather(scores)[0]
        return agreed

    def _kept_outputs(self, members: list[Member]) -> dict[str, np.ndarray]:
        assert self.kept is not None
        features = self.job.features(HELD_OUT)
        plan = fill_batches(features.lengths, np.arange(len(features)), rows=ROWS)
        found: dict[str, list[np.ndarray]] = {member.name: [] for member in members}
        for batch in KeptSource(self.kept, features, plan).batches():
            for member in members:
                with torch.no_grad():
                    output = member.head(batch.states)  # (window, output)
                found[member.name].append(output.float().cpu().numpy())
        return {name: np.concatenate(parts) for name, parts in found.items()}  # each (window, output)

    def _streamed_outputs(self, members: list[Member]) -> dict[str, np.ndarray]:
        job, features = self.job, self.job.features(HELD_OUT)
        heads = {member.name: member.head for member in members}
        keep, tokens = keep_of(list(heads.values())), job.config.train.encode_tokens
        return compute_outputs(self.encoder, heads, keep, features, job.task.kind, job.machine, tokens)

    def _score(self, outputs: np.ndarray) -> float:
        """Spans are scored at the no-answer threshold that is best here, the one that answers are given at later."""
        if not np.isfinite(outputs).all():
            return math.nan
        job, examples = self.job, self.job.examples(HELD_OUT)
        # The best answer is all that is scored.
        longest = job.config.evaluate.max_answer_tokens
        predictions = build_predictions(job.task, outputs, job.features(HELD_OUT), examples, 1, longest)
        if job.task.kind is not TargetKind.SPAN:
            return float(score_predictions(job.task, predictions, examples)[self.metric])
        threshold = pick_threshold(predictions, examples)
        return float(score_predictions(job.task, predictions, examples, threshold)["at_threshold"][self.metric])


class Halving:
    """A `training.heads.Judge`: at each rung of a course the better half of its members goes on."""

    def __init__(
        self,
        rungs: dict[Course, list[int]],
        score: Callable[[list[Member]], dict[str, float]],
        report: Callable[[dict[str, tuple[int, float]]], None],
    ) -> None:
        """`rungs` has the steps after which members of a course are judged; `report` takes name → (rung, score)."""
        self.rungs, self.score, self.report = rungs, score, report
        self.steps = {step for steps in rungs.values() for step in steps}

    def is_due(self, step: int) -> bool:
        return step in self.steps

    def drop(self, step: int, members: list[Member]) -> list[Member]:
        judged = [member for member in members if step in self.rungs[course_of(member)]]
        scores = self.score(judged)
        rungs = {member.name: self.rungs[course_of(member)].index(step) + 1 for member in judged}
        self.report({name: (rungs[name], score) for name, score in scores.items()})
        poor: set[str] = set()
        for course in {course_of(member) for member in judged}:
            poor |= halve({member.name: scores[member.name] for member in judged if course_of(member) == course})
        return [member for member in judged if member.name in poor]


def halve(scores: dict[str, float]) -> set[str]:
    """The names of the worse half, the smaller one where they are odd. Who equals the last that stays, stays too: early
    in a pass many say the same of every example, and nothing is known of them yet. What is no number goes."""
    numbers = sorted((score for score in scores.values() if not math.isnan(score)), reverse=True)
    cut = numbers[: math.ceil(len(scores) / 2)][-1] if numbers else math.inf
    return {name for name, score in scores.items() if not score >= cut}


def plan_rungs(courses: dict[Course, list[int]], shares: Sequence[float]) -> dict[Course, list[int]]:
    """The steps of the pass after which a course has done these shares of its own; its end is no rung."""
    found = {}
    for course, steps in courses.items():
        counts = {max(1, round(share * len(steps))) for share in shares}
        found[course] = [steps[count - 1] + 1 for count in sorted(counts) if count < len(steps)]
    return found
