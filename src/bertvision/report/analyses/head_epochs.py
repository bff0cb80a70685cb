"""Training loss and held-out score of each head after each epoch, and dev scores if the run has them; from its log."""

import math
from collections.abc import Sequence
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
from bertvision.report.wording import CHOSEN, ENCODER, after_tuning, figure_name, in_text, joined, seeds_note, title_of
from bertvision.tables import Column, Table, counted

POINTS = 60  # points of a line of losses
TICKS = 12  # labels of an axis of epochs


@dataclass
class LoggedPass:
    """The log of one head trained on one snapshot."""

    snapshot: float | None = None
    """None if the head was not scored after its epochs."""
    losses: dict[int, float] = field(default_factory=dict)
    """Step → mean loss since the last logged step."""
    scores: dict[int, float] = field(default_factory=dict)
    """Epoch → score on held-out data after it; without the last epoch."""
    dev: dict[int, dict[str, dict[str, float | None]]] = field(default_factory=dict)
    """Epoch → dev split → metric → score; without the last epoch, empty unless `train.dev_each_epoch`."""
    seconds: dict[int, float] = field(default_factory=dict)
    """Epoch → how long the pass took for it, without scoring."""


def read_passes(log: list[dict[str, Any]], name: str) -> list[LoggedPass]:
    """The finished passes of a head, oldest first. The step number falls where a new pass starts and where a killed
    one resumes: a pass ends at the same step on every snapshot (or where the head failed), an interrupted one
    earlier."""
    logged = [line for line in log if line.get("event") == "train" and name in line["loss"]]
    if not logged:
        return []
    last = logged[-1]["step"] if logged[-1]["loss"][name] is not None else max(line["step"] for line in logged)
    done, current = [], LoggedPass()
    for line in log:
        if line.get("event") == "epoch" and line["head"] == name:
            current.snapshot = float(line["snapshot"])
            if line["held_out"] is not None:
                current.scores[line["epoch"]] = line["held_out"]
            if "dev" in line:
                current.dev[line["epoch"]] = line["dev"]
            if "seconds" in line:
                current.seconds[line["epoch"]] = line["seconds"]
        elif line.get("event") == "train" and name in line["loss"]:
            step, loss = line["step"], line["loss"][name]
            current.losses = {old: value for old, value in current.losses.items() if old < step}
            if loss is not None:
                current.losses[step] = loss
            if step == last or loss is None:
                done.append(current)
                current = LoggedPass()
        elif line.get("event") == "last_epoch" and name in line["epochs"] and done:
            done[-1].seconds[line["epochs"][name]] = line["seconds"]
    return done


def _passes_by_snapshot(run: FinishedRun, name: str) -> dict[float, LoggedPass]:
    """The newest pass of a head on each snapshot. If the log does not name snapshots, passes are in the run's order."""
    there = [model.epochs for model in run.models() if model.name == name]
    passes = read_passes(run.log.lines, name)
    known = {one.snapshot: one for one in passes if one.snapshot is not None}
    if known:
        return {epochs: known[epochs] for epochs in there if epochs in known}
    newest = passes[-len(there) :]
    return dict(zip(there[-len(newest) :], newest, strict=True)) if newest else {}


def epoch_losses(losses: dict[int, float], epochs: int) -> dict[int, float]:
    """Epoch → mean of its logged losses; steps are divided evenly among the epochs."""
    last, found = max(1, *losses), dict[int, list[float]]()
    for step, loss in losses.items():
        found.setdefault(math.ceil(step * epochs / last), []).append(loss)
    return {epoch: sum(found[epoch]) / len(found[epoch]) for epoch in sorted(found) if epoch}


@dataclass(frozen=True)
class Course:
    """Losses and scores of a head on a snapshot, averaged over its seeds."""

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
        """Losses by step; in a long pass, means of neighbouring steps."""
        losses = _mean_by_key([one.losses for one in self.passes if one.losses])
        steps, values = np.array(list(losses)), np.array(list(losses.values()))  # (logged), (logged)
        parts = np.array_split(np.arange(len(steps)), min(POINTS, len(steps)))
        return {int(steps[part[-1]]): float(values[part].mean()) for part in parts}

    @property
    def scores(self) -> dict[int, float]:
        found = _mean_by_key([one.scores for one in self.passes])
        return found if self.last is None else {**found, self.epochs: self.last}

    @property
    def seconds(self) -> dict[int, float]:
        return _mean_by_key([one.seconds for one in self.passes])

    def dev(self, split: str) -> dict[int, dict[str, float | None]]:
        """Epoch → metric → score on a dev split, without the last epoch."""
        epochs = set.intersection(*({e for e in one.dev if split in one.dev[e]} for one in self.passes))
        return {epoch: _mean_scores([one.dev[epoch][split] for one in self.passes]) for epoch in sorted(epochs)}

    def whole_dev(self, split: str, metrics: Sequence[str]) -> dict[int, dict[str, float | None]]:
        """The same with the last epoch."""
        return {**self.dev(split), self.epochs: {metric: self.group.mean(split, metric) for metric in metrics}}


def _mean_by_key(some: list[dict[int, float]]) -> dict[int, float]:
    """The mean of each key that occurs in all of them."""
    keys = set.intersection(*map(set, some)) if some else set()
    return {key: sum(one[key] for one in some) / len(some) for key in sorted(keys)}


def _mean_scores(some: list[dict[str, float | None]]) -> dict[str, float | None]:
    """The mean of each metric; None if a seed has no score."""
    found: dict[str, float | None] = {}
    for metric in some[0]:
        values = [scores[metric] for scores in some]
        known = [value for value in values if value is not None]
        found[metric] = sum(known) / len(known) if len(known) == len(values) else None
    return found


@analysis("Training", 30, "Heads by epoch")
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
    chosen = ", at the best threshold there." if run.kind.has_threshold else "."
    partly = any(not group.is_whole for e in run.head_snapshots for group in run.groups(e, "control", "head"))
    return Block(
        sentences=_describe_epochs(run, newest),
        table=_table_of(courses, score),
        picture=_draw_epochs(shown, score) if by_epoch else _draw_losses(shown),
        drawn=["epoch", drawn],
        drawn_rows=_table_of(shown, score, ends_only=True),
        note=joined(
            f"The picture shows heads on the encoder {after_tuning(at)}.",
            "Losses are logged training losses; steps are divided evenly among the epochs of a head. Scores are on "
            f"held-out training data{chosen}",
            "Heads trained on part of the data are left out." if partly else "",
            seeds_note(course.group for course in courses),
        ),
        folded=True,
    )


@analysis("Training", 31, "Heads by epoch, on dev")
def epochs_on_dev(run: FinishedRun, split: str) -> Block | None:
    """Dev scores of each head after each epoch beside those of the encoder alone, if the run scored them."""
    courses = [course for course in _courses(run) if course.dev(split)]
    if not courses:
        return None
    at, metrics = courses[-1].group.epochs, run.task.metrics
    newest = [course for course in courses if course.group.epochs == at]
    by_name = {course.group.name: course for course in newest}
    shown = [by_name[name] for name in names_drawn(run, [course.group for course in newest], SERIES)]
    alone, title = run.encoder(at).mean(split, metrics[0]), figure_name(metrics[0])
    rows = [
        {"model": title_of(course.group), "epoch": epoch, "score": scores[metrics[0]]}
        for course in shown
        for epoch, scores in course.whole_dev(split, metrics).items()
        if scores[metrics[0]] is not None
    ]
    altair = import_altair()
    last = max(course.epochs for course in shown)
    x = altair.X("epoch:Q", title="epochs of the head", axis=altair.Axis(values=_whole_ticks(last), format="d"))
    tooltip = tips(("model:N", "head"), "epoch:Q", ("score:Q", title, ".2f"))
    return Block(
        sentences=[_describe_dev(run, split, at, newest), "These scores were used for no choice."],
        table=_dev_table(courses, split, metrics),
        picture=draw_curve(rows, x, off_zero("Y", "score:Q", f"{split} {title}"), tooltip, level=(alone, ENCODER)),
        drawn=["epoch", title],
        note=joined(
            f"The picture shows heads on the encoder {after_tuning(at)}.",
            "No-answer threshold 0." if run.kind.has_threshold else "",
            "Seconds are those of the pass that all heads share, without scoring; the first epoch's include computing "
            "states that are then held in memory or stored.",
            seeds_note(course.group for course in courses),
        ),
        folded=True,
    )


def _describe_dev(run: FinishedRun, split: str, at: float, courses: list[Course]) -> str:
    """How often the heads were above the encoder alone."""
    metric = run.task.metrics[0]
    alone = run.encoder(at).mean(split, metric)
    scores = [
        found[metric]
        for course in courses
        if course.group.role == "head"
        for found in course.whole_dev(split, run.task.metrics).values()
    ]
    known = [score for score in scores if score is not None]
    if alone is None or not known:
        return f"No head has {split} scores by epoch to compare with the encoder alone."
    above = sum(score > alone for score in known)
    return (
        f"The heads have {counted(len(known), 'epoch')} together. After {above} of them, {figure_name(metric)} on "
        f"{split} is above that of the encoder alone ({alone:.2f}). It ranges from {min(known):.2f} to "
        f"{max(known):.2f}."
    )


def _dev_table(courses: list[Course], split: str, metrics: Sequence[str]) -> Table:
    return Table.of(
        {
            Column("fine-tuning", None, "Epochs the encoder was fine-tuned for"): course.group.epochs,
            "head": title_of(course.group),
            "epoch": epoch,
            **{Column(figure_name(metric), 2): scores[metric] for metric in metrics},
            Column(
                "seconds", 1, "Of the pass that all heads share, for this epoch, without scoring"
            ): course.seconds.get(epoch),
        }
        for course in courses
        for epoch, scores in course.whole_dev(split, metrics).items()
    ).without_empty()


def _epoch_key(run: FinishedRun) -> str:
    """The metric that is logged after each epoch: the first of the task."""
    metric = run.task.metrics[0]
    return f"{CHOSEN}{metric}" if run.kind.has_threshold and run.has_held_out else metric


def _courses(run: FinishedRun) -> list[Course]:
    """Heads trained on all of the data, if anything was logged. The steps of a head on part of the data cannot be told
    from those of the others."""
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
    name = in_text(best)
    (first, early), (last, late) = _ends(course.losses if course.epochs > 1 else course.steps)
    if course.epochs > 1:
        start, end = f"The mean training loss of {name} was {early:.4f} in epoch {first}", f"in epoch {last}"
    else:
        start = f"The mean training loss of {name} was {early:.4f} up to step {first:,}"
        end = f"in the last steps up to {last:,}"
    sentences = [f"{start}." if first == last else f"{start} and {late:.4f} {end}."]
    if len(course.scores) > 1:
        high, end_epoch = max(course.scores, key=lambda epoch: course.scores[epoch]), max(course.scores)
        text = f"On held-out data, {name} was best after epoch {high} of {end_epoch} ({course.scores[high]:.2f})"
        scored = f"; after the last it scored {course.scores[end_epoch]:.2f}" if high != end_epoch else ""
        sentences.append(f"{text}{scored}.")
    several = [one.scores for one in courses if len(one.scores) > 1]
    if len(several) > 1:
        ended = sum(scores[max(scores)] >= max(scores.values()) for scores in several)
        sentences.append(f"The last epoch was the best one for {ended} of {len(several)} heads, the control included.")
    return sentences


def _ends(values: dict[int, float]) -> tuple[tuple[int, float], tuple[int, float]]:
    pairs = list(values.items())
    return pairs[0], pairs[-1]


def _table_of(courses: list[Course], score: str, ends_only: bool = False) -> Table:
    """`ends_only`: only the first and the last epoch of each head."""
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
    last = max(epoch for course in courses for epoch in course.scores)
    x = altair.X("epoch:Q", title="epochs of the head", axis=altair.Axis(values=_whole_ticks(last), format="d"))
    tooltip = tips(("model:N", "head"), "epoch:Q", ("score:Q", score, ".2f"), ("loss:Q", "training loss", ".4f"))
    return draw_curve(rows, x, off_zero("Y", "score:Q", score), tooltip)


def _whole_ticks(last: int) -> list[int]:
    """Epochs to label: Vega's own ticks fall between them."""
    return list(range(1, last + 1, max(1, -(-last // TICKS))))


def _draw_losses(courses: list[Course]) -> dict[str, Any]:
    rows = [
        {"model": title_of(course.group), "step": step, "loss": loss}
        for course in courses
        for step, loss in course.steps.items()
    ]
    x, y = import_altair().X("step:Q", title="steps"), off_zero("Y", "loss:Q", "training loss")
    return draw_curve(rows, x, y, tips(("model:N", "head"), "step:Q", ("loss:Q", None, ".4f")), size=24)
