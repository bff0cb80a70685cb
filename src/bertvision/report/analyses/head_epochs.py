"""Heads from epoch to epoch: training loss and held-out score, as the log of the run has them."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.pipeline.folder import HELD_OUT
from bertvision.report.block import Block, Cell, Column, Frame
from bertvision.report.drawing import chart_of, colour_models, import_altair, without_empty
from bertvision.report.ranking import SERIES, whole_heads
from bertvision.report.wording import figure_name, in_text, joined, seeds_note, title_of
from bertvision.words import counted

POINTS = 60  # of a line of losses


@dataclass
class Pass:
    """What was logged of one head while it was trained on one snapshot."""

    snapshot: float | None = None
    """Known only where it was scored after its epochs."""
    losses: dict[int, float] = field(default_factory=dict)
    """Step → mean loss since the step before."""
    scores: dict[int, float] = field(default_factory=dict)
    """Epoch → score on held-out data after it, but for the last epoch."""


def read_passes(log: list[dict[str, Any]], name: str) -> list[Pass]:
    """The passes of a head that were finished, oldest first. Steps fall back where a new pass begins, and where one
    goes on after a kill: a pass ends at the same step on every snapshot (or where the head failed), and one that was
    cut off ends before it."""
    told = [line for line in log if line.get("event") == "train" and name in line["loss"]]
    if not told:
        return []
    last = told[-1]["step"] if told[-1]["loss"][name] is not None else max(line["step"] for line in told)
    done, current = [], Pass()
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
                current = Pass()
    return done


def _passes_by_snapshot(evidence: FinishedRun, name: str) -> dict[float, Pass]:
    """The newest pass of a head on each snapshot; where the log does not say on which, they are in the run's order."""
    there = [model.epochs for model in evidence.models() if model.name == name]
    passes = read_passes(evidence.log, name)
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
class _Course:
    """How a head went through its epochs on a snapshot, in the mean over its seeds."""

    group: Group
    passes: list[Pass]
    last: float | None
    """Held-out score after the last epoch."""

    @property
    def epochs(self) -> int:
        return int(self.group.first.trained_epochs or 1)

    @property
    def losses(self) -> dict[int, float]:
        return _mean_by_key([epoch_losses(one.losses, self.epochs) for one in self.passes if one.losses])

    @property
    def scores(self) -> dict[int, float]:
        found = _mean_by_key([one.scores for one in self.passes])
        return found if self.last is None else {**found, self.epochs: self.last}


def _mean_by_key(some: list[dict[int, float]]) -> dict[int, float]:
    """The mean of each key that all of them have."""
    keys = set.intersection(*map(set, some)) if some else set()
    return {key: sum(one[key] for one in some) / len(some) for key in sorted(keys)}


def epochs_of_heads(evidence: FinishedRun, split: str) -> Block | None:
    """Training loss and held-out score of each head after each epoch."""
    courses = _courses(evidence)
    if not courses:
        return None
    at = courses[-1].group.epochs
    newest = [course for course in courses if course.group.epochs == at]
    shown = _shown_courses(evidence, newest)
    by_epoch = any(len(course.scores) > 1 for course in shown)
    note = (
        "Losses are those of training, as logged; their steps are shared out evenly among a head's epochs. Scores are "
        "of held-out training data"
        + (", spans at the threshold that is best there." if evidence.kind.has_threshold else ".")
    )
    partly = any(not group.is_whole for e in evidence.head_snapshots for group in evidence.groups(e, "control", "head"))
    return Block(
        f"epochs_of_heads_{split}",
        "Heads from epoch to epoch",
        _tell_epochs(evidence, newest),
        _epochs_frame(evidence, courses),
        _draw_epochs(evidence, shown) if by_epoch else _draw_losses(shown),
        _epochs_in_words(evidence, shown) if by_epoch else _losses_in_words(shown),
        joined(
            f"The picture shows heads on the encoder after {counted(at, 'epoch')} of fine-tuning.",
            note,
            "Heads on a share of the data are left out." if partly else "",
            seeds_note(course.group for course in courses),
        ),
        folded=True,
    )


def _epoch_key(evidence: FinishedRun) -> str:
    """The figure that is logged after each epoch: the task's first."""
    metric = evidence.task.metrics[0]
    return f"at_threshold.{metric}" if evidence.kind.has_threshold and evidence.has_held_out else metric


def _courses(evidence: FinishedRun) -> list[_Course]:
    """Heads on all of the data, of which something was logged; a head on a share takes steps at the pass's end, which
    can't be told from the others'."""
    found: list[_Course] = []
    passes: dict[str, dict[float, Pass]] = {}
    for epochs in evidence.head_snapshots:
        for group in whole_heads(evidence, epochs):
            for model in group.trained:
                passes.setdefault(model.name, _passes_by_snapshot(evidence, model.name))
            own = [passes[model.name][epochs] for model in group.trained if epochs in passes[model.name]]
            course = _Course(group, own, group.mean(HELD_OUT, _epoch_key(evidence)))
            if course.losses:
                found.append(course)
    return found


def _shown_courses(evidence: FinishedRun, courses: list[_Course]) -> list[_Course]:
    """The control and the best heads."""
    by_name = {course.group.name: course for course in courses}
    ranked = [by_name[group.name] for group in evidence.ranked(course.group for course in courses)]
    controls = [course for course in ranked if course.group.role == "control"][:1]
    heads = [course for course in ranked if course.group.role == "head"]
    return [*controls, *heads[: SERIES - len(controls)]]


def _tell_epochs(evidence: FinishedRun, courses: list[_Course]) -> list[str]:
    ranked = evidence.ranked(course.group for course in courses)
    best = next((group for group in ranked if group.role == "head"), ranked[0])
    (course,) = [course for course in courses if course.group.name == best.name]
    told = []
    if course.epochs > 1:
        (first, early), (last, late) = list(course.losses.items())[0], list(course.losses.items())[-1]
        start = f"The mean training loss of {in_text(best)} was {early:.4f} in epoch {first}"
        told.append(f"{start}." if first == last else f"{start} and {late:.4f} in epoch {last}.")
    else:
        (first, early), (last, late) = list(_loss_line(course).items())[0], list(_loss_line(course).items())[-1]
        start = f"The training loss of {in_text(best)} was {early:.4f} in the mean up to step {first:,}"
        told.append(f"{start}." if first == last else f"{start} and {late:.4f} in the last steps up to {last:,}.")
    if len(course.scores) > 1:
        high = max(course.scores, key=lambda epoch: course.scores[epoch])
        end = max(course.scores)
        text = f"On held-out data {in_text(best)} was best after epoch {high} of {end} ({course.scores[high]:.2f})"
        told.append(f"{text}." if high == end else f"{text}; after the last it scored {course.scores[end]:.2f}.")
    several = [one for one in courses if len(one.scores) > 1]
    if len(several) > 1:
        ended = sum(one.scores[max(one.scores)] >= max(one.scores.values()) for one in several)
        which = f"{ended} of {len(several)}" if ended else f"None of {len(several)}"
        told.append(f"{which} heads, the control included, did no better after an earlier epoch than after the last.")
    return told


def _epochs_frame(evidence: FinishedRun, courses: list[_Course]) -> Frame:
    score = Column(f"held-out {figure_name(_epoch_key(evidence))}", 2)
    columns = [Column("fine-tuning", None, "Epochs the encoder was fine-tuned for"), Column("head"), Column("epoch")]
    rows: list[list[Cell]] = []
    for course in courses:
        losses, scores = course.losses, course.scores
        for epoch in sorted({*losses, *scores}):
            name = title_of(course.group)
            rows.append([course.group.epochs, name, epoch, losses.get(epoch), scores.get(epoch)])
    return without_empty(Frame([*columns, Column("training loss", 4), score], rows))


def _draw_epochs(evidence: FinishedRun, courses: list[_Course]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {"model": title_of(course.group), "epoch": epoch, "score": score, "loss": course.losses.get(epoch)}
        for course in courses
        for epoch, score in course.scores.items()
    ]
    altair, name = import_altair(), f"held-out {figure_name(_epoch_key(evidence))}"
    chart = chart_of(rows).encode(
        x=altair.X("epoch:Q", title="epochs of the head", axis=altair.Axis(tickMinStep=1, format="d")),
        y=altair.Y("score:Q", title=name, scale=altair.Scale(zero=False)),
        color=colour_models(list(dict.fromkeys(row["model"] for row in rows))),
        tooltip=[
            altair.Tooltip("model:N", title="head"),
            altair.Tooltip("epoch:Q"),
            altair.Tooltip("score:Q", title=name, format=".2f"),
            altair.Tooltip("loss:Q", title="training loss", format=".4f"),
        ],
    )
    return dict((chart.mark_line() + chart.mark_point()).to_dict())


def _epochs_in_words(evidence: FinishedRun, courses: list[_Course]) -> str:
    texts = []
    for course in courses:
        if course.scores:
            (first, early), (last, late) = list(course.scores.items())[0], list(course.scores.items())[-1]
            texts.append(f"{title_of(course.group)} from {early:.1f} after epoch {first} to {late:.1f} after {last}")
    return f"Lines of held-out {figure_name(_epoch_key(evidence))} by epoch: {'; '.join(texts)}."


def _loss_line(course: _Course) -> dict[int, float]:
    """Step → loss in the mean over seeds; of a long pass the means of neighbouring steps."""
    losses = _mean_by_key([one.losses for one in course.passes if one.losses])
    steps, values = np.array(list(losses)), np.array(list(losses.values()))  # (logged), (logged)
    parts = np.array_split(np.arange(len(steps)), min(POINTS, len(steps)))
    return {int(steps[part[-1]]): float(values[part].mean()) for part in parts}


def _draw_losses(courses: list[_Course]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {"model": title_of(course.group), "step": step, "loss": loss}
        for course in courses
        for step, loss in _loss_line(course).items()
    ]
    altair = import_altair()
    chart = chart_of(rows).encode(
        x=altair.X("step:Q", title="steps"),
        y=altair.Y("loss:Q", title="training loss", scale=altair.Scale(zero=False)),
        color=colour_models(list(dict.fromkeys(row["model"] for row in rows))),
        tooltip=[
            altair.Tooltip("model:N", title="head"),
            altair.Tooltip("step:Q"),
            altair.Tooltip("loss:Q", format=".4f"),
        ],
    )
    return dict((chart.mark_line() + chart.mark_point(size=24)).to_dict())


def _losses_in_words(courses: list[_Course]) -> str:
    texts = []
    for course in courses:
        (first, early), (last, late) = list(_loss_line(course).items())[0], list(_loss_line(course).items())[-1]
        texts.append(f"{title_of(course.group)} from {early:.3f} at step {first:,} to {late:.3f} at step {last:,}")
    return f"Lines of training loss by step: {'; '.join(texts)}."
