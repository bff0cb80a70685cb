"""Which of several trials is chosen: the highest probability among those that F1 can't tell apart."""

import numpy as np

from bertvision.kinds.span import SpanResults
from bertvision.models.spans.trial import Trial, choose, compare


def trial(name: str, right: list[int], probability: float, parameters: int = 10) -> Trial:
    """A trial that answers every question, and is right on some."""
    f1 = np.array(right, dtype=np.float64)  # (question)
    zeros, has_answer = np.zeros_like(f1), np.ones(len(f1), dtype=bool)
    results = SpanResults(f1, f1, zeros, zeros, zeros - 1, zeros, zeros, zeros, has_answer)
    return Trial(name, np.zeros((0, 2)), results, 0.0, probability, parameters, 0.0)


def test_the_difference_and_its_error_are_those_of_paired_questions() -> None:
    one, other = trial("one", [1, 1, 1, 0], 0.0), trial("other", [1, 0, 0, 0], 0.0)
    ahead = 100 * np.array([0, 1, 1, 0])
    assert compare(one, other) == (50.0, ahead.std(ddof=1) / 2)
    assert compare(other, one)[0] == -50.0


def test_among_trials_that_f1_can_not_tell_apart_the_highest_probability_wins() -> None:
    best = trial("best", [1] * 50 + [0] * 50, probability=-2.0)
    near = trial("near", [1] * 49 + [0] * 51, probability=-1.0)  # one question in a hundred: within its error
    far = trial("far", [1] * 20 + [0] * 80, probability=-0.5)
    found, tied = choose([far, best, near])
    assert found is near and tied == [best, near]
    assert choose([best, far])[0] is best


def test_equal_trials_that_are_equally_probable_fall_to_the_smaller() -> None:
    large, small = (trial(name, [1, 0, 1], -1.0, size) for name, size in (("large", 20), ("small", 5)))
    assert choose([small, large])[0] is choose([large, small])[0] is small
