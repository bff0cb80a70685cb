"""Paths of regularisation strengths: start where it is usually right, and walk to where the loss is lowest."""

from collections.abc import Callable

FACTOR = 10**0.5
"""Ratio of neighbouring strengths on a path."""
MOST_STRENGTHS = 5
INPUTS_PER_STRENGTH = 20
"""Step 0 of a path is the number of inputs divided by this: the right strength grows with the number of inputs."""
SCORE_STEPS = range(-4, 5)
"""Steps that are tried for ridge regression, where they are cheap."""
ROUGHLY = 2e-4
"""Tolerance of the fits that only compare strengths or layers. The best one is then solved to convergence."""


class OutOfTimeError(Exception):
    """The time was up before there was any result."""


def strength_at(step: int, inputs: int) -> float:
    """The strength at a step of the path. Later steps are weaker."""
    return float(inputs / INPUTS_PER_STRENGTH / FACTOR**step)


def search_path(judge: Callable[[int], float | None], first: int = 0, most: int = MOST_STRENGTHS) -> tuple[int, bool]:
    """Walk along a path from a first step in the direction in which the loss falls. Return the best step, and whether
    the clock cut the walk. `judge` returns the loss at a step, or None if there is no time for it."""
    loss = judge(first)
    if loss is None:
        raise OutOfTimeError
    losses = {first: loss}
    for direction in (1, -1):
        step = first + direction
        while len(losses) < most:
            loss = judge(step)
            if loss is None:
                return min(losses, key=lambda known: losses[known]), True
            losses[step] = loss
            if loss >= losses[step - direction]:
                break
            step += direction
        if losses.get(first + direction, losses[first]) < losses[first]:
            break  # it fell in this direction, so it rises in the other
    return min(losses, key=lambda known: losses[known]), False
