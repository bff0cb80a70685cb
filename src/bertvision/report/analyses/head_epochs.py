"""Heads from epoch to epoch: training loss and held-out score, as the log of the run has them."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.pipeline.folder import HELD_OUT
from bertvision.report.analysis import analysis
from bertvision.report.block import Block
from bertvision.report.curves import draw_curve
from bertvision.report.drawing import import_altair, off_zero, tips
from bertvision.report.ranking import SERIES, names_drawn, whole_heads
from bertvision.report.wording import CHOSEN, figure_name, in_text, joined, seeds_note, title_of
from bertvision.tables import Column, Table, counted

POINTS = 60  # of a line of losses


@dataclass
class LoggedPass:
    """What was logged of one head while it was trained on one snapshot."""

    snapshot: float | None = None
    """Known only where it was scored after its epochs."""
    losses: dict[int, float] = field(default_factory=dict)
    """Step → mean loss since the step before."""
    scores: dict[int, float] = field(default_factory=dict)
    """Epoch → score on held-out data after it, but for the last epoch."""


def read_passes(log: list[dict[str, Any]], name: str) -> list[LoggedPass]:
    """The passes of a head that were finished, oldest first. Steps fall back where a new pass begins, and where one
    goes on after a kill: a pass ends at the same step on every snapshot (or where the head failed), and one that was
    cut off ends before it."""
    told = [line for line in log if line.get("event") == "train" and name in line["loss"]]
    if not told:
        return []
    last = told[-1]["step"] if told[-1]["loss"][name] is not None else max(line["step"] for line in told)
    done, current = [], LoggedPass()
    for line in log:
        if line.get("event") == "epoch" and line["head"] == name:
            current.snapshot = float(line["snapshot"])
            if line["held_out"] is not None:
                current.scores[line["epoch"]] = line["held_out"]
        elif line.get("event") == "train" and name in line["loss"]:
            step, loss = line["step"], line["loss"][name]
            current.losses = {old: value for old, value in current.losses.items() if old < step}
            if loss is not None:
                current.losses[step] = loss
            if step == last or loss is None:
                done.append(current)
                current = LoggedPass()
    return done


def _passes_by_snapshot(run: FinishedRun, name: str) -> dict[float, LoggedPass]:
    """The newest pass of a head on each snapshot; where the log does not say on which, they are in the run's order."""
    there = [model.epochs for model in run.models() if model.name == name]
    passes = read_passes(run.log, name)
    known = {one.snapshot: one for one in passes if one.snapshot is not None}
    if known:
        return {epochs: known[epochs] for epochs in there if epochs in known}
    newest = passes[-len(there) :]
    return dict(zip(there[-len(newest) :], newest, strict=True)) if newest else {}


def epoch_losses(losses: dict[int, float], epochs: int) -> dict[int, float]:
    """Epoch → mean of the losses logged in it, the steps being shared out evenly."""
    last, found = max(losses), {}
    for epoch in range(1, epochs + 1):
        inside = [loss for step, loss in losses.items() if math.ceil(step * epochs / last) == epoch]
        if inside:
            found[epoch] = sum(inside) / len(inside)
    return found


@dataclass(frozen=True)
class Course:
    """How a head went through its epochs on a snapshot, in the mean over its seeds."""

    group: Group
    passes: list[LoggedPass]
    last: float | None
    """Held-out score after the last epoch."""

    @property
    def epochs(self) -> int:
        return int(self.group.first.trained_epochs or 1)

    @property
    def losses(self) -> dict[int, float]:
        """By epoch."""
        return _mean_by_key([epoch_losses(one.losses, self.epochs) for one in self.passes if one.losses])

    @property
    def steps(self) -> dict[int, float]:
        """Losses by step; of a long pass the means of neighbouring steps."""
        losses = _mean_by_key([one.losses for one in self.passes if one.losses])
        steps, values = np.array(list(losses)), np.array(list(losses.values()))  # (logged), (logged)
        parts = np.array_split(np.arange(len(steps)), min(POINTS, len(steps)))
        return {int(steps[part[-1]]): float(values[part].mean()) for part in parts}

    @property
    def scores(self) -> dict[int, float]:
        found = _mean_by_key([one.scores for one in self.passes])
        return found if self.last is None else {**found, self.epochs: self.last}


def _mean_by_key(some: list[dict[int, float]]) -> dict[int, float]:
    """The mean of each key that all of them have."""
    keys = set.intersection(*map(set, some)) if some else set()
    return {key: sum(one[key] for one in some) / len(some) for key in sorted(keys)}


@analysis("How it came about", 30, "Heads from epoch to epoch")
def epochs_of_heads(run: FinishedRun, split: str) -> Block | None:
    """Training loss and held-out score of each head after each epoch."""
    courses = _courses(run)
    if not courses:
        return None
    at = courses[-1].group.epochs
    newest = [course for course in courses if course.group.epochs == at]
    by_name = {course.group.name: course for course in newest}
    shown = [by_name[name] for name in names_drawn(run, [course.group for course in newest], SERIES)]
    score = f"held-out {figure_name(_epoch_key(run))}"
    by_epoch = any(len(course.scores) > 1 for course in shown)
    drawn = score if by_epoch else "training loss"
    chosen = ", spans at the threshold that is best there." if run.kind.has_threshold else "."
    partly = any(not group.is_whole for e in run.head_snapshots for group in run.groups(e, "control", "head"))
    return Block(
        sentences=_describe_epochs(run, newest),
        table=_table_of(courses, score),
        picture=_draw_epochs(shown, score) if by_epoch else _draw_losses(shown),
        drawn=["epoch", drawn],
        drawn_rows=_table_of(shown, score, ends_only=True),
        note=joined(
            f"The picture shows heads on the encoder after {counted(at, 'epoch')} of fine-tuning.",
            "Losses are those of training, as logged; their steps are shared out evenly among a head's epochs. Scores "
            f"are of held-out training data{chosen}",
            "Heads on a share of the data are left out." if partly else "",
            seeds_note(course.group for course in courses),
        ),
        folded=True,
    )


def _epoch_key(run: FinishedRun) -> str:
    """The figure that is logged after each epoch: the task's first."""
    metric = run.task.metrics[0]
    return f"{CHOSEN}{metric}" if run.kind.has_threshold and run.has_held_out else metric


def _courses(run: FinishedRun) -> list[Course]:
    """Heads on all of the data, of which something was logged; a head on a share takes steps at the pass's end, which
    can't be told from the others'."""
    found: list[Course] = []
    passes: dict[str, dict[float, LoggedPass]] = {}
    for epochs in run.head_snapshots:
        for group in whole_heads(run, epochs):
            for model in group.trained:
                passes.setdefault(model.name, _passes_by_snapshot(run, model.name))
            own = [passes[model.name][epochs] for model in group.trained if epochs in passes[model.name]]
            course = Course(group, own, group.mean(HELD_OUT, _epoch_key(run)))
            if course.losses:
                found.append(course)
    return found


def _describe_epochs(run: FinishedRun, courses: list[Course]) -> list[str]:
    ranked = run.ranked(course.group for course in courses)
    best = next((group for group in ranked if group.role == "head"), ranked[0])
    (course,) = [course for course in courses if course.group.name == best.name]
    name, told = in_text(best), []
    (first, early), (last, late) = _ends(course.losses if course.epochs > 1 else course.steps)
    if course.epochs > 1:
        start, end = f"The mean training loss of {name} was {early:.4f} in epoch {first}", f"in epoch {last}"
    else:
        start = f"The training loss of {name} was {early:.4f} in the mean up to step {first:,}"
        end = f"in the last steps up to {last:,}"
    told.append(f"{start}." if first == last else f"{start} and {late:.4f} {end}.")
    if len(course.scores) > 1:
        high, end_epoch = max(course.scores, key=lambda epoch: course.scores[epoch]), max(course.scores)
        text = f"On held-out data {name} was best after epoch {high} of {end_epoch} ({course.scores[high]:.2f})"
        scored = f"; after the last it scored {course.scores[end_epoch]:.2f}" if high != end_epoch else ""
        told.append(f"{text}{scored}.")
    several = [one.scores for one in courses if len(one.scores) > 1]
    if len(several) > 1:
        ended = sum(scores[max(scores)] >= max(scores.values()) for scores in several)
        which = f"{ended} of {len(several)}" if ended else f"None of {len(several)}"
        told.append(f"{which} heads, the control included, did no better after an earlier epoch than after the last.")
    return told


def _ends(values: dict[int, float]) -> tuple[tuple[int, float], tuple[int, float]]:
    pairs = list(values.items())
    return pairs[0], pairs[-1]


def _table_of(courses: list[Course], score: str, ends_only: bool = False) -> Table:
    """`ends_only`: a head's first and last epoch."""
    return Table.of(
        {
            Column("fine-tuning", None, "Epochs the encoder was fine-tuned for"): course.group.epochs,
            "head": title_of(course.group),
            "epoch": epoch,
            Column("training loss", 4): losses.get(epoch),
            Column(score, 2): scores.get(epoch),
        }
        for course in courses
        for losses, scores in [(course.losses, course.scores)]
        for epochs in [sorted({*losses, *scores})]
        for epoch in (sorted({epochs[0], epochs[-1]}) if ends_only and epochs else epochs)
    ).without_empty()


def _draw_epochs(courses: list[Course], score: str) -> dict[str, Any]:
    altair = import_altair()
    rows = [
        {"model": title_of(course.group), "epoch": epoch, "score": value, "loss": course.losses.get(epoch)}
        for course in courses
        for epoch, value in course.scores.items()
    ]
    x = altair.X("epoch:Q", title="epochs of the head", axis=altair.Axis(tickMinStep=1, format="d"))
    tooltip = tips(("model:N", "head"), "epoch:Q", ("score:Q", score, ".2f"), ("loss:Q", "training loss", ".4f"))
    return draw_curve(rows, x, off_zero("Y", "score:Q", score), tooltip)


def _draw_losses(courses: list[Course]) -> dict[str, Any]:
    rows = [
        {"model": title_of(course.group), "step": step, "loss": loss}
        for course in courses
        for step, loss in course.steps.items()
    ]
    x, y = import_altair().X("step:Q", title="steps"), off_zero("Y", "loss:Q", "training loss")
    return draw_curve(rows, x, y, tips(("model:N", "head"), "step:Q", ("loss:Q", None, ".4f")), size=24)
