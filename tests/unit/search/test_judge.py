import math
from typing import Any

import pytest
from tiny_training import member_of

from bertvision.encoder.states import StateShape
from bertvision.heads import Target, build_head
from bertvision.kinds import LABEL
from bertvision.search.judge import Halving, halve, plan_rungs
from bertvision.training.stack import Member


@pytest.mark.parametrize(
    ("scores", "dropped"),
    [
        ([5.0], []),
        ([5.0, 6.0], [0]),
        ([5.0, 6.0, 7.0], [0]),
        ([9.0, 1.0, 8.0, 2.0], [1, 3]),
        ([3.0, 3.0, 3.0, 3.0], []),
        ([4.0, 3.0, 3.0, 2.0], [3]),
        ([-5.0, 0.0, -6.0, -7.0, 4.0], [2, 3]),
        ([math.nan], [0]),
        ([math.nan, 1.0, 2.0, math.nan], [0, 3]),
        ([math.nan, math.nan, math.nan, 2.0], [0, 1, 2]),
        ([math.nan, 3.0, 2.0, 1.0], [0, 3]),
    ],
)
def test_the_worse_half_and_nan_are_dropped(scores: list[float], dropped: list[int]) -> None:
    names = {f"m{place}": score for place, score in enumerate(scores)}
    assert halve(names) == {f"m{place}" for place in dropped}


def test_rungs_are_fractions_of_each_courses_own_steps() -> None:
    courses = {(4, 1.0): list(range(40)), (1, 1.0): list(range(10)), (2, 0.3): [0, 1, 2, 40, 41, 42]}
    # 0.25 and 0.5 of 40, of 10 (2.5 is rounded to the even 2) and of 6 steps (1.5 to 2); the step after them.
    assert plan_rungs(courses, [0.5, 0.25]) == {(4, 1.0): [10, 20], (1, 1.0): [2, 5], (2, 0.3): [2, 3]}


def test_the_end_of_a_course_is_not_a_rung_and_rungs_are_unique() -> None:
    assert plan_rungs({(1, 1.0): [0, 1]}, [0.1, 0.2, 0.99]) == {(1, 1.0): [1]}
    assert plan_rungs({(1, 1.0): [0]}, [0.1]) == {(1, 1.0): []}


def test_members_are_compared_with_those_at_the_same_point_of_the_same_course() -> None:
    scores = {"a": 1.0, "b": 2.0, "c": 90.0, "d": 91.0, "e": 0.0}
    epochs = {"a": 4, "b": 4, "c": 2, "d": 2, "e": 8}
    reported: dict[str, Any] = {}
    members = [_member(name, epochs[name]) for name in scores]
    judge = Halving(
        {(4, 1.0): [5, 10], (2, 1.0): [3, 5], (8, 1.0): [20]},
        lambda some: {member.name: scores[member.name] for member in some},
        reported.update,
    )
    assert [step for step in range(30) if judge.is_due(step)] == [3, 5, 10, 20]
    assert [member.name for member in judge.drop(5, members)] == ["a", "c"]
    assert reported == {"a": (1, 1.0), "b": (1, 2.0), "c": (2, 90.0), "d": (2, 91.0)}, "e is not at a rung"


def _member(name: str, epochs: int) -> Member:
    config = member_of("learned_pooling", LABEL, epochs=epochs, name=name)
    return Member(config, build_head(config, StateShape(2, 4, False), Target(LABEL, 2)), range(1))
