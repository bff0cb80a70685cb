"""Trying candidates in order while there is time: what fits on tables and on questions share."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from bertvision.interrupts import Terminated
from bertvision.models.candidates import NoResultError
from bertvision.models.clock import Clock
from bertvision.progress import Reporter
from bertvision.training.strengths import OutOfTimeError


class Named(Protocol):
    @property
    def name(self) -> str: ...


AnyCandidate = TypeVar("AnyCandidate", bound=Named)
AnyTrial = TypeVar("AnyTrial")
LEAST = 2
"""The baseline or the last layer, and one more: with fewer trials there is no model to keep."""


def try_in_order(
    candidates: Sequence[AnyCandidate],
    clock: Clock,
    attempt: Callable[[AnyCandidate, int], AnyTrial],
    reporter: Reporter,
    on_done: Callable[[str], None] = lambda name: None,
) -> tuple[list[AnyTrial], dict[str, str]]:
    """The trials, and why each other candidate has no result. `attempt` gets a candidate and the number of trials so
    far. Ctrl-C ends the trying and keeps the best so far."""
    trials: list[AnyTrial] = []
    skipped: dict[str, str] = {}
    for candidate in candidates:
        if clock.is_over() and len(trials) >= LEAST:
            skipped[candidate.name] = f"not tried: {'interrupted' if clock.stopped else 'out of time'}"
            continue
        try:
            trials.append(attempt(candidate, len(trials)))
        except OutOfTimeError:
            skipped[candidate.name] = "cut for time before it had a result"
        except NoResultError as error:
            skipped[candidate.name] = str(error)
        except Terminated:
            raise
        except KeyboardInterrupt:
            if len(trials) < LEAST:
                raise
            clock.stop()
            skipped[candidate.name] = "interrupted"
        clock.lap()
        on_done(candidate.name)
    if clock.stopped:
        reporter.say("Interrupted: going on with the best model so far. Press Ctrl-C again to stop.")
    return trials, skipped
