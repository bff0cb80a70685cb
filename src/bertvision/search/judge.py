"""Drop members early by their scores on held-out data.

Members with the same epochs and fraction of the data share a course. At each rung of a course, the worse half of its
members is dropped (successive halving: Jamieson and Talwalkar 2016, "Non-stochastic Best Arm Identification and
Hyperparameter Optimization").
"""

import math
from collections.abc import Callable, Sequence

from bertvision.training.stack import Member

Course = tuple[int, float]
"""Epochs and fraction of the data: members with the same course take the same steps."""


def course_of(member: Member) -> Course:
    return member.config.epochs, member.config.data_fraction


class Halving:
    """A `training.train.Judge`: at each rung of a course, the better half of its members continues."""

    def __init__(
        self,
        rungs: dict[Course, list[int]],
        score: Callable[[list[Member]], dict[str, float]],
        report: Callable[[dict[str, tuple[int, float]]], None],
    ) -> None:
        """`rungs` are the steps after which the members of a course are judged; `report` takes name → (rung, score)."""
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
    """Return the names of the worse half, rounded down. Ties with the last survivor survive: early in a pass many
    members predict the same for every example and can't be ranked. NaN is dropped."""
    numbers = sorted((score for score in scores.values() if not math.isnan(score)), reverse=True)
    cut = numbers[: math.ceil(len(scores) / 2)][-1] if numbers else math.inf
    return {name for name, score in scores.items() if not score >= cut}


def plan_rungs(courses: dict[Course, list[int]], shares: Sequence[float]) -> dict[Course, list[int]]:
    """The steps of the pass at which each course has completed the given fractions of its own steps, except its last
    step."""
    found = {}
    for course, steps in courses.items():
        counts = {max(1, round(share * len(steps))) for share in shares}
        found[course] = [steps[count - 1] + 1 for count in sorted(counts) if count < len(steps)]
    return found
