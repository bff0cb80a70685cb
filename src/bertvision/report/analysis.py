"""An analysis: a function in a file of analyses/, whose decorator says where it stands in a report and what it needs.

    @analysis("What the models say", 60, "Which labels are taken for which", needs=[gives(LabelResults)])
    def confusion_matrix(run: FinishedRun, split: str) -> Block | None:

Nothing else is edited. It gives None where it has nothing to say; where a need is not met it is not asked.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, cast

from bertvision.errors import UserError
from bertvision.kinds import ExampleResults
from bertvision.pipeline.finished import FinishedRun
from bertvision.progress import Reporter
from bertvision.registry import Registry
from bertvision.report.block import Block, Section
from bertvision.report.certainty import Certainty

SECTIONS = ("Scores", "What it cost", "How it came about", "What each layer holds", "What the models say")
"""In the page's order; any other comes after them."""

Subject = Literal["split", "states", "scores", "snapshots"]
"""What an analysis is called with:
split       (run, split), once, with the first dev split
states      (run, split, reporter), the same, unless the encoder is not to be run
scores      (certainty), for every dev split at the last snapshot that has heads
snapshots   (certainty), the same, and for the earlier snapshots that have heads
"""
Need = Callable[[FinishedRun, str], bool]
P = ParamSpec("P")


@dataclass(frozen=True)
class Analysis:
    build: Callable[..., Block | None]
    section: str
    order: int
    """Its place in the section, lowest first."""
    subject: Subject


ANALYSES: Registry[Analysis] = Registry("report block")


def analysis(
    section: str, order: int, title: str = "", needs: Sequence[Need] = (), subject: Subject = "split"
) -> Callable[[Callable[P, Block | None]], Callable[P, Block | None]]:
    """Registers the function under its name, which is also its block's key (with the split) where it gives none."""

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
                if subject != "states":
                    raise
                # The data or the encoder may be gone: the rest of the report does not need them.
                more[1].say(f"“{title}” is left out: {error}")
                return None
            if block is None:
                return None
            key = block.key or f"{build.__name__}_{split}"
            return dataclasses.replace(block, key=key, title=block.title or title)

        ANALYSES.register(build.__name__)(Analysis(ask, section, order, subject))
        return ask

    return register


# ---------------------------------------------------------------------- needs


def gives(results: type[ExampleResults]) -> Need:
    """That the run's kind of target has such per-example results."""
    return lambda run, split: issubclass(run.kind.results, results)


def several_snapshots(run: FinishedRun, split: str) -> bool:
    return len(run.snapshots) > 1


def a_best_head(run: FinishedRun, split: str) -> bool:
    return run.best_head(run.last) is not None


def texts(run: FinishedRun, split: str) -> bool:
    """That the examples of the split are still there."""
    return run.examples(split) is not None


# ---------------------------------------------------------------------- asking all of them


def build_sections(
    run: FinishedRun, certainties: list[Certainty], reporter: Reporter, with_states: bool
) -> list[Section]:
    """All that the analyses say of a run, in the order they declare. `certainties` are of the last snapshot, a split
    each."""
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
