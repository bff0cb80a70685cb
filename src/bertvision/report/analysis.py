"""An analysis is a function in a file of analyses/. Its decorator sets its section and order in a report and its needs.

    @analysis("Predictions", 60, "Confusion matrix", needs=[gives(LabelResults)])
    def confusion_matrix(run: FinishedRun, split: str) -> Block | None:

No other file has to change. An analysis returns None if it has nothing to show. It is skipped if a need is not met.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, cast

from bertvision.disk import DamagedError
from bertvision.errors import UserError
from bertvision.kinds import ExampleResults
from bertvision.pipeline.finished import FinishedRun
from bertvision.progress import Reporter
from bertvision.registry import Registry
from bertvision.report.block import Block, Section, block_key
from bertvision.report.certainty import Certainty

SECTIONS = ("Scores", "Cost", "Training", "Layers", "Predictions")
"""In the order of the page; any other section comes after these."""

Subject = Literal["split", "states", "scores", "snapshots"]
"""The arguments of an analysis, and how often it is called:
split       (run, split): once, with the first dev split
states      (run, split, reporter): the same, but skipped if the encoder must not be run
scores      (certainty): for every dev split, at the last snapshot with heads
snapshots   (certainty): the same, and also for each earlier snapshot with heads
"""
Need = Callable[[FinishedRun, str], bool]
P = ParamSpec("P")


@dataclass(frozen=True)
class Analysis:
    build: Callable[..., Block | None]
    section: str
    order: int
    """Position in the section, lowest first."""
    subject: Subject


ANALYSES: Registry[Analysis] = Registry("report block")


def analysis(
    section: str, order: int, title: str = "", needs: Sequence[Need] = (), subject: Subject = "split"
) -> Callable[[Callable[P, Block | None]], Callable[P, Block | None]]:
    """Register the function under its name. A block without a key gets the function's name and the split as its key."""

    def register(build: Callable[P, Block | None]) -> Callable[P, Block | None]:
        @functools.wraps(build)
        def ask(*given: P.args, **named: P.kwargs) -> Block | None:
            first, *more = cast(Any, given)
            run, split = (first.run, first.split) if isinstance(first, Certainty) else (first, more[0])
            if not all(need(run, split) for need in needs):
                return None
            try:
                block = build(*given, **named)
            except UserError as error:
                if subject != "states" or isinstance(error, DamagedError):
                    raise
                # The data or the encoder may have been deleted; the rest of the report does not need them.
                more[1].say(f"“{title}” is left out: {error}")
                return None
            if block is None:
                return None
            key = block.key or block_key(build.__name__, split)
            return dataclasses.replace(block, key=key, title=block.title or title)

        ANALYSES.register(build.__name__)(Analysis(ask, section, order, subject))
        return ask

    return register


# ---------------------------------------------------------------------- needs


def gives(results: type[ExampleResults]) -> Need:
    """Need: the run's kind of target has per-example results of this class."""
    return lambda run, split: issubclass(run.kind.results, results)


def several_snapshots(run: FinishedRun, split: str) -> bool:
    return len(run.snapshots) > 1


def a_best_head(run: FinishedRun, split: str) -> bool:
    return run.best_head(run.last) is not None


def texts(run: FinishedRun, split: str) -> bool:
    """Need: the examples of the split are still available."""
    return run.examples(split) is not None


# ---------------------------------------------------------------------- all sections


def build_sections(
    run: FinishedRun, certainties: list[Certainty], reporter: Reporter, with_states: bool
) -> list[Section]:
    """Run all analyses and return the sections of a report, in the declared order. `certainties` are those of the last
    snapshot, one per split."""
    found = sorted(ANALYSES.values(), key=lambda one: one.order)
    titles = [*SECTIONS, *(one.section for one in found if one.section not in SECTIONS)]
    split = certainties[0].split
    earlier = [Certainty(run, epochs, split) for epochs in reversed(run.head_snapshots[:-1])]
    sections = []
    for title in dict.fromkeys(titles):
        inside = [one for one in found if one.section == title]
        blocks = [
            one.build(certainty)
            for subjects, some in ((("scores", "snapshots"), certainties), (("snapshots",), earlier))
            for certainty in some
            for one in inside
            if one.subject in subjects
        ]
        for one in inside:
            if one.subject == "split":
                blocks.append(one.build(run, split))
            elif one.subject == "states" and with_states:
                blocks.append(one.build(run, split, reporter))
        sections.append(Section(title, [block for block in blocks if block is not None]))
    return [section for section in sections if section.blocks]
