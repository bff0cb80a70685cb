"""Curves: scores against epochs of fine-tuning and against the share of the data, heads from epoch to epoch; and how
long the texts are."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertvision.analysis.block import Block, Cell, Column, Frame
from bertvision.analysis.drawing import chart_of, colour_by, import_altair
from bertvision.analysis.evidence import Evidence, Group, Model
from bertvision.evaluation.statistics import spread
from bertvision.job import HELD_OUT
from bertvision.results import NAMES, counted, read_figure
from bertvision.tasks.base import TargetKind

ENCODER = "encoder itself"
SERIES = 6  # lines or colours that one picture can hold
BINS = 32  # of a histogram, about
POINTS = 60  # of a line of losses
SHARE = re.compile(r"_data_fraction[0-9.e-]+")


# ---------------------------------------------------------------------- words and figures that curves share


def figure_name(key: str) -> str:
    """A figure's name for people."""
    name = NAMES.get(key.split(".")[-1], key)
    return f"{name} at the chosen threshold" if key.startswith("at_threshold.") else name


def figure_keys(evidence: Evidence) -> list[str]:
    """The main figure first, then the task's others: for spans EM beside F1, at the same threshold."""
    start = "at_threshold." if evidence.main.startswith("at_threshold.") else ""
    others = [f"{start}{metric}" for metric in evidence.task.metrics]
    return [evidence.main, *(key for key in others if key != evidence.main)]


def in_text(group: Group) -> str:
    """A model inside a sentence, without its seeds."""
    named = {"encoder": "the encoder itself", "control": f"the control ({group.name})"}
    return named.get(group.role, group.name)


def as_series(group: Group) -> str:
    """A model in a picture's legend, without its seeds."""
    named = {"encoder": ENCODER, "control": f"{group.name} (control)"}
    return named.get(group.role, group.name)


def opening(text: str) -> str:
    """The text as a sentence begins; names of heads stay as they are written."""
    return f"The {text[4:]}" if text.startswith("the ") else text


def apart(difference: float) -> str:
    """3.21 above; 0.50 below; level with."""
    shown = f"{abs(difference):.2f}"
    if float(shown) == 0:
        return "level with"
    return f"{shown} {'above' if difference > 0 else 'below'}"


def deviation_of(values: Sequence[float]) -> float | None:
    return spread(values).deviation if values else None


def with_spread(values: Sequence[float]) -> str:
    """62.00, or 62.00 ± 2.00 of several seeds."""
    found = spread(values)
    return f"{found.mean:.2f}" if found.deviation is None else f"{found.mean:.2f} ± {found.deviation:.2f}"


def is_whole(group: Group) -> bool:
    """Whether it learnt from all of the training data."""
    return bool(group.facts.get("data_fraction", 1) == 1)


def judged_on(evidence: Evidence) -> str:
    """What heads are ranked on: dev only where nothing was held out."""
    return "held-out data" if evidence.has_held_out else evidence.splits[0]


def best_first(evidence: Evidence, groups: Iterable[Group]) -> list[Group]:
    """By the main figure on held-out data, or on the first dev split without any; those without a figure last."""
    split = HELD_OUT if evidence.has_held_out else evidence.splits[0]

    def rank(group: Group) -> float:
        value = group.mean(split, evidence.main)
        return -math.inf if value is None else value

    return sorted(groups, key=rank, reverse=True)


def baseline_figure(evidence: Evidence, split: str, key: str) -> float | None:
    """The baseline of spans never answers, so its scores hang on no threshold."""
    (model,) = [model for model in evidence.models(evidence.last) if model.role == "baseline"]
    return read_figure(model.scores(split), key.split(".")[-1])


def seeds_note(groups: Iterable[Group]) -> str:
    several = any(len(group.models) > 1 for group in groups)
    return "Of several seeds the mean is given; ±: standard deviation over the seeds." if several else ""


def first_of(group: Group) -> Model:
    """The model that stands for its seeds where one is needed: the first that was trained to the end."""
    return group.well[0]


def stand_in_note(groups: Iterable[Group]) -> str:
    """Which model stands for each group of several seeds."""
    several = [group for group in groups if len(group.models) > 1]
    return " ".join(
        f"Of the {len(group.models)} seeds of {group.name} the first that was trained to the end is shown: "
        f"{first_of(group).name}."
        for group in several
    )


def without_empty(frame: Frame) -> Frame:
    """Without the columns that no row has a value for."""
    kept = [place for place in range(len(frame.columns)) if any(row[place] is not None for row in frame.rows)]
    return Frame([frame.columns[place] for place in kept], [[row[place] for place in kept] for row in frame.rows])


def joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def colour_models(names: Sequence[str]) -> Any:
    """The encoder itself has the first colour in every picture, there or not, and so the control has the second."""
    order = list(names) if ENCODER in names else [ENCODER, *names]
    return colour_by("model", order).legend(values=list(names), title=None)


def level_line(score: float, name: str) -> Any:
    """A dashed line across the picture at a score, with its name over it."""
    altair = import_altair()
    base = altair.Chart(altair.Data(values=[{"score": score, "model": name}])).encode(
        y=altair.Y("score:Q"), tooltip=[altair.Tooltip("model:N"), altair.Tooltip("score:Q", format=".2f")]
    )
    words = base.mark_text(align="right", dy=-7, dx=-4, opacity=0.8).encode(x=altair.value("width"), text="model:N")
    return base.mark_rule(strokeDash=[5, 4], opacity=0.8) + words


# ---------------------------------------------------------------------- fine-tuning


def finetuning_curve(evidence: Evidence, split: str) -> Block | None:
    """The encoder's scores against epochs of fine-tuning, and those of heads over it."""
    if len(evidence.snapshots) < 2:
        return None
    encoders = [evidence.encoder(epochs) for epochs in evidence.snapshots]
    keys, baseline = figure_keys(evidence), baseline_figure(evidence, split, evidence.main)
    drawn = _drawn_heads(evidence)
    groups = [*encoders, *(group for epochs in evidence.head_snapshots for group in _whole(evidence, epochs))]
    shown = [*encoders, *(group for name in drawn for group in groups if group.name == name)]
    left = len({group.name for group in groups if group.role == "head"} - set(drawn))
    unseen = (
        f"The picture leaves out {counted(left, 'head')} that did less well on {judged_on(evidence)}." if left else ""
    )
    return Block(
        f"finetuning_curve_{split}",
        "Scores against epochs of fine-tuning",
        [_tell_curve(evidence, split, encoders), *(_tell_head(evidence, split, e) for e in evidence.head_snapshots)],
        _curve_frame(groups, split, keys),
        _draw_curve(evidence, split, shown, baseline),
        _curve_in_words(evidence, split, encoders, shown, baseline),
        joined(
            "Heads and control stand at the snapshot whose states they were trained on.", unseen, seeds_note(groups)
        ),
        folded=True,
    )


def _whole(evidence: Evidence, epochs: float) -> list[Group]:
    return [group for group in evidence.groups(epochs, "control", "head") if is_whole(group)]


def _drawn_heads(evidence: Evidence) -> list[str]:
    """The control, and the heads that do best on held-out data at the last snapshot that has them."""
    names: list[str] = []
    control = evidence.control(evidence.last)
    for epochs in reversed(evidence.head_snapshots):
        heads = [group for group in _whole(evidence, epochs) if group.role == "head"]
        names += [group.name for group in best_first(evidence, heads) if group.name not in names]
    return [*([control.name] if control else []), *names[: SERIES - 2]]


def _tell_curve(evidence: Evidence, split: str, encoders: list[Group]) -> str:
    found = [(group.epochs, group.mean(split, evidence.main)) for group in encoders]
    known = [(epochs, value) for epochs, value in found if value is not None]
    (first, early), (last, late) = known[0], known[-1]
    best, high = max(known, key=lambda pair: pair[1])
    text = (
        f"The encoder itself scores {early:.2f} ({figure_name(evidence.main)}) after {counted(first, 'epoch')} of "
        f"fine-tuning and {late:.2f} after {counted(last, 'epoch')}"
    )
    return f"{text}; it is highest, {high:.2f}, after {counted(best, 'epoch')}." if high > late else f"{text}."


def _tell_head(evidence: Evidence, split: str, epochs: float) -> str:
    """How the best head at a snapshot stands to the encoder, there and later."""
    heads = best_first(evidence, (group for group in _whole(evidence, epochs) if group.role == "head"))
    head = heads[0] if heads else evidence.control(epochs)
    value = head.mean(split, evidence.main) if head else None
    there = evidence.encoder(epochs).mean(split, evidence.main)
    if head is None or value is None or there is None:
        return f"After {counted(epochs, 'epoch')} no head has a score."
    best = f"the best head on {judged_on(evidence)}, " if heads else ""
    text = (
        f"After {counted(epochs, 'epoch')} {best}{in_text(head)}{',' if best else ''} scores {value:.2f}, "
        f"{apart(value - there)} the encoder itself there"
    )
    if round(value - there, 2) <= 0:
        return f"{text}."
    later = [other for other in evidence.snapshots if other > epochs]
    for other in later:
        reached = evidence.encoder(other).mean(split, evidence.main)
        if reached is not None and reached >= value:
            return f"{text}; the encoder itself first reaches that at its snapshot of {counted(other, 'epoch')}."
    return f"{text}; the encoder itself reaches that at none of its later snapshots." if later else f"{text}."


def _curve_frame(groups: list[Group], split: str, keys: list[str]) -> Frame:
    columns = [Column("epochs", None, "How far the encoder was fine-tuned"), Column("model")]
    columns += [Column(figure_name(key), 2) for key in keys]
    columns += [Column("±", 2, f"Standard deviation of {figure_name(keys[0])} over the seeds"), Column("seeds")]
    rows: list[list[Cell]] = []
    for group in sorted(groups, key=lambda group: group.epochs):
        figures: list[Cell] = [group.mean(split, key) for key in keys]
        deviation = deviation_of(group.figures(split, keys[0]))
        rows.append([group.epochs, as_series(group), *figures, deviation, len(group.well)])
    return without_empty(Frame(columns, rows))


def _curve_rows(groups: list[Group], split: str, key: str) -> list[dict[str, Any]]:
    rows = []
    for group in groups:
        values = group.figures(split, key)
        if values:
            found = spread(values)
            around = found.deviation or 0.0
            rows.append(
                {
                    "epochs": group.epochs,
                    "model": as_series(group),
                    "score": found.mean,
                    "low": found.mean - around,
                    "high": found.mean + around,
                    "seeds": found.count,
                }
            )
    return rows


def _draw_curve(evidence: Evidence, split: str, groups: list[Group], baseline: float | None) -> dict[str, Any]:
    altair, rows = import_altair(), _curve_rows(groups, split, evidence.main)
    order = list(dict.fromkeys(row["model"] for row in rows))
    base = chart_of(rows).encode(
        x=altair.X("epochs:Q", title="epochs of fine-tuning"),
        y=altair.Y("score:Q", title=figure_name(evidence.main), scale=altair.Scale(zero=False)),
        color=colour_models(order),
        tooltip=[
            altair.Tooltip("model:N"),
            altair.Tooltip("epochs:Q"),
            altair.Tooltip("score:Q", title=figure_name(evidence.main), format=".2f"),
            altair.Tooltip("seeds:Q"),
        ],
    )
    line = base.transform_filter(f"datum.model == '{ENCODER}'").mark_line()
    spreads = base.transform_filter("datum.high > datum.low").mark_rule(strokeWidth=1.5, opacity=0.6)
    chart = line + spreads.encode(y=altair.Y("low:Q"), y2="high:Q") + base.mark_point()
    return dict((chart if baseline is None else altair.layer(chart, level_line(baseline, "baseline"))).to_dict())


def _curve_in_words(
    evidence: Evidence, split: str, encoders: list[Group], shown: list[Group], baseline: float | None
) -> str:
    rows = _curve_rows(encoders, split, evidence.main)
    points = ", ".join(f"{row['score']:.1f} at {row['epochs']:g}" for row in rows)
    heads = sorted(row["score"] for row in _curve_rows(shown, split, evidence.main) if row["model"] != ENCODER)
    text = f"Line of {figure_name(evidence.main)} of the encoder itself against epochs: {points}."
    if heads:
        text += f" Heads and control are points from {heads[0]:.1f} to {heads[-1]:.1f}."
    return text if baseline is None else f"{text} The baseline is a line at {baseline:.1f}."


# ---------------------------------------------------------------------- share of the data


def data_share(evidence: Evidence, split: str) -> Block | None:
    """Scores of heads against the share of the training data they learnt from."""
    series = {epochs: _share_series(evidence, epochs) for epochs in evidence.head_snapshots}
    if not any(shares for shares in series.values()):
        return None
    at = max(epochs for epochs, shares in series.items() if shares)
    lines, encoder = series[at], evidence.encoder(at)
    groups = [group for shares in series.values() for found in shares.values() for group in found.values()]
    some = [lines[name] for name in list(lines)[:SERIES]]
    known = [found for found in some if any(group.figures(split, evidence.main) for group in found.values())]
    told = sorted(known, key=lambda found: next(iter(found.values())).role == "control")
    note = (
        f"Heads on the encoder after {counted(at, 'epoch')} of fine-tuning, which itself learnt from all of the data."
    )
    return Block(
        f"data_share_{split}",
        "Scores against the share of the training data",
        [_tell_share(evidence, split, found) for found in told[:3]],
        _share_frame(series, split, figure_keys(evidence)),
        _draw_shares(evidence, split, some, encoder),
        _shares_in_words(evidence, split, some),
        joined(note, "Shares are nested: a smaller one is a part of each larger one.", seeds_note(groups)),
        folded=True,
    )


def _share_series(evidence: Evidence, epochs: float) -> dict[str, dict[float, Group]]:
    """Name without the share → share → group, of heads that were trained on less than all of the data: the control
    first, then the best. A head's name tells all of its settings, so that those alike but for the share differ in its
    word alone."""
    found: dict[str, dict[float, Group]] = {}
    for group in evidence.groups(epochs, "control", "head"):
        shares = found.setdefault(SHARE.sub("", group.name), {})
        shares.setdefault(float(group.facts.get("data_fraction", 1)), group)
    varied = {name: dict(sorted(shares.items())) for name, shares in found.items() if set(shares) != {1.0}}
    largest = best_first(evidence, [list(shares.values())[-1] for shares in varied.values()])
    names = [SHARE.sub("", group.name) for group in sorted(largest, key=lambda group: group.role != "control")]
    return {name: varied[name] for name in names}


def _share_name(group: Group) -> str:
    name = SHARE.sub("", group.name)
    return f"{name} (control)" if group.role == "control" else name


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _tell_share(evidence: Evidence, split: str, shares: dict[float, Group]) -> str:
    known = {share: group.figures(split, evidence.main) for share, group in shares.items()}
    known = {share: values for share, values in known.items() if values}
    (least, few), (most, many) = list(known.items())[0], list(known.items())[-1]
    name = _share_name(next(iter(shares.values())))
    if least == most:
        return f"{name}, trained on {_percent(least)} of the data, scores {with_spread(few)}."
    difference = spread(few).mean - spread(many).mean
    return (
        f"{name} scores {with_spread(few)} with {_percent(least)} of the training data, {apart(difference)} "
        f"the {with_spread(many)} that it scores with {_percent(most)}."
    )


def _share_frame(series: dict[float, dict[str, dict[float, Group]]], split: str, keys: list[str]) -> Frame:
    columns = [Column("epochs", None, "How far the encoder was fine-tuned"), Column("model")]
    columns += [Column("share of the data (%)", None), *(Column(figure_name(key), 2) for key in keys)]
    columns += [Column("±", 2, f"Standard deviation of {figure_name(keys[0])} over the seeds"), Column("seeds")]
    rows: list[list[Cell]] = []
    for epochs, lines in series.items():
        for shares in lines.values():
            for share, group in shares.items():
                figures: list[Cell] = [group.mean(split, key) for key in keys]
                deviation = deviation_of(group.figures(split, keys[0]))
                rows.append([epochs, _share_name(group), 100 * share, *figures, deviation, len(group.well)])
    return without_empty(Frame(columns, rows))


def _share_rows(evidence: Evidence, split: str, lines: list[dict[float, Group]]) -> list[dict[str, Any]]:
    groups = [(share, group) for shares in lines for share, group in shares.items()]
    rows = []
    for share, group in groups:
        for row in _curve_rows([group], split, evidence.main):
            rows.append({**row, "model": _share_name(group), "share": 100 * share})
    return rows


def _draw_shares(
    evidence: Evidence, split: str, lines: list[dict[float, Group]], encoder: Group
) -> dict[str, Any] | None:
    altair, rows = import_altair(), _share_rows(evidence, split, lines)
    if not rows:
        return None
    order = list(dict.fromkeys(row["model"] for row in rows))
    base = chart_of(rows).encode(
        x=altair.X("share:Q", title="share of the training data (%)", scale=altair.Scale(domain=[0, 100])),
        y=altair.Y("score:Q", title=figure_name(evidence.main), scale=altair.Scale(zero=False)),
        color=colour_models(order),
        tooltip=[
            altair.Tooltip("model:N"),
            altair.Tooltip("share:Q", title="share of the data (%)"),
            altair.Tooltip("score:Q", title=figure_name(evidence.main), format=".2f"),
            altair.Tooltip("seeds:Q"),
        ],
    )
    spreads = base.transform_filter("datum.high > datum.low").mark_rule(strokeWidth=1.5, opacity=0.6)
    chart = base.mark_line() + spreads.encode(y=altair.Y("low:Q"), y2="high:Q") + base.mark_point()
    level = encoder.mean(split, evidence.main)
    return dict((chart if level is None else altair.layer(chart, level_line(level, ENCODER))).to_dict())


def _shares_in_words(evidence: Evidence, split: str, lines: list[dict[float, Group]]) -> str:
    texts = []
    for shares in lines:
        rows = _share_rows(evidence, split, [shares])
        if rows:
            texts.append(f"{rows[0]['model']} " + ", ".join(f"{r['score']:.1f} at {r['share']:g} %" for r in rows))
    return f"Lines of {figure_name(evidence.main)} against the share of the training data: {'; '.join(texts)}."


# ---------------------------------------------------------------------- heads from epoch to epoch


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


def passes_by_snapshot(evidence: Evidence, name: str) -> dict[float, Pass]:
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
class Course:
    """How a head went through its epochs on a snapshot, in the mean over its seeds."""

    group: Group
    passes: list[Pass]
    last: float | None
    """Held-out score after the last epoch."""

    @property
    def epochs(self) -> int:
        return int(self.group.facts.get("epochs", 1))

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


def epochs_of_heads(evidence: Evidence, split: str) -> Block | None:
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
        "of held-out training data" + (", spans at the threshold that is best there." if _is_span(evidence) else ".")
    )
    partly = any(
        not is_whole(group) for e in evidence.head_snapshots for group in evidence.groups(e, "control", "head")
    )
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


def _is_span(evidence: Evidence) -> bool:
    return evidence.kind is TargetKind.SPAN


def _epoch_key(evidence: Evidence) -> str:
    """The figure that is logged after each epoch: the task's first."""
    metric = evidence.task.metrics[0]
    return f"at_threshold.{metric}" if _is_span(evidence) and evidence.has_held_out else metric


def _courses(evidence: Evidence) -> list[Course]:
    """Heads on all of the data, of which something was logged; a head on a share takes steps at the pass's end, which
    can't be told from the others'."""
    found: list[Course] = []
    passes: dict[str, dict[float, Pass]] = {}
    for epochs in evidence.head_snapshots:
        for group in _whole(evidence, epochs):
            for model in group.well:
                passes.setdefault(model.name, passes_by_snapshot(evidence, model.name))
            own = [passes[model.name][epochs] for model in group.well if epochs in passes[model.name]]
            course = Course(group, own, group.mean(HELD_OUT, _epoch_key(evidence)))
            if course.losses:
                found.append(course)
    return found


def _shown_courses(evidence: Evidence, courses: list[Course]) -> list[Course]:
    """The control and the best heads."""
    by_name = {course.group.name: course for course in courses}
    ranked = [by_name[group.name] for group in best_first(evidence, (course.group for course in courses))]
    controls = [course for course in ranked if course.group.role == "control"][:1]
    heads = [course for course in ranked if course.group.role == "head"]
    return [*controls, *heads[: SERIES - len(controls)]]


def _tell_epochs(evidence: Evidence, courses: list[Course]) -> list[str]:
    ranked = best_first(evidence, (course.group for course in courses))
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


def _epochs_frame(evidence: Evidence, courses: list[Course]) -> Frame:
    score = Column(f"held-out {figure_name(_epoch_key(evidence))}", 2)
    columns = [Column("fine-tuning", None, "Epochs the encoder was fine-tuned for"), Column("head"), Column("epoch")]
    rows: list[list[Cell]] = []
    for course in courses:
        losses, scores = course.losses, course.scores
        for epoch in sorted({*losses, *scores}):
            name = as_series(course.group)
            rows.append([course.group.epochs, name, epoch, losses.get(epoch), scores.get(epoch)])
    return without_empty(Frame([*columns, Column("training loss", 4), score], rows))


def _draw_epochs(evidence: Evidence, courses: list[Course]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {"model": as_series(course.group), "epoch": epoch, "score": score, "loss": course.losses.get(epoch)}
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


def _epochs_in_words(evidence: Evidence, courses: list[Course]) -> str:
    texts = []
    for course in courses:
        if course.scores:
            (first, early), (last, late) = list(course.scores.items())[0], list(course.scores.items())[-1]
            texts.append(f"{as_series(course.group)} from {early:.1f} after epoch {first} to {late:.1f} after {last}")
    return f"Lines of held-out {figure_name(_epoch_key(evidence))} by epoch: {'; '.join(texts)}."


def _loss_line(course: Course) -> dict[int, float]:
    """Step → loss in the mean over seeds; of a long pass the means of neighbouring steps."""
    losses = _mean_by_key([one.losses for one in course.passes if one.losses])
    steps, values = np.array(list(losses)), np.array(list(losses.values()))  # (logged), (logged)
    parts = np.array_split(np.arange(len(steps)), min(POINTS, len(steps)))
    return {int(steps[part[-1]]): float(values[part].mean()) for part in parts}


def _draw_losses(courses: list[Course]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {"model": as_series(course.group), "step": step, "loss": loss}
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


def _losses_in_words(courses: list[Course]) -> str:
    texts = []
    for course in courses:
        (first, early), (last, late) = list(_loss_line(course).items())[0], list(_loss_line(course).items())[-1]
        texts.append(f"{as_series(course.group)} from {early:.3f} at step {first:,} to {late:.3f} at step {last:,}")
    return f"Lines of training loss by step: {'; '.join(texts)}."


# ---------------------------------------------------------------------- lengths


def length_histogram(evidence: Evidence, split: str) -> Block | None:
    """How long the windows of train and of a split are, in tokens."""
    found = {
        name: np.repeat(*map(np.array, evidence.lengths[name])) for name in ("train", split) if name in evidence.lengths
    }
    found = {name: lengths for name, lengths in found.items() if len(lengths)}  # each (window)
    if not found:
        return None
    limit = int(evidence.config.get("data", {}).get("max_length") or evidence.task.max_length)
    width = _bin_width(max(int(lengths.max()) for lengths in found.values()))
    what = "Lengths are of windows as the encoder sees them, special tokens included."
    return Block(
        f"length_histogram_{split}",
        "Lengths in tokens",
        [_tell_lengths(name, lengths) for name, lengths in found.items()] + [_tell_limit(evidence, found, limit)],
        _lengths_frame(found, limit),
        _draw_lengths(found, width),
        f"Histogram of window lengths: {'; '.join(_lengths_in_words(*pair) for pair in found.items())}.",
        f"{what} Bars are {counted(width, 'token')} wide.",
    )


def _middle(lengths: np.ndarray, share: float) -> int:
    """The shortest length that this share of the windows does not exceed."""
    return int(np.quantile(lengths, share, method="inverted_cdf"))


def _bin_width(longest: int) -> int:
    """A power of two that makes about as many bins as a picture can show."""
    return int(2 ** max(0, math.ceil(math.log2(longest / BINS))))


def _tell_lengths(name: str, lengths: np.ndarray) -> str:
    return (
        f"Of {counted(len(lengths), 'window')} of {name} half have at most {_middle(lengths, 0.5)} tokens and 95 % at "
        f"most {_middle(lengths, 0.95)}; the longest has {int(lengths.max())}."
    )


def _tell_limit(evidence: Evidence, found: dict[str, np.ndarray], limit: int) -> str:
    full = {name: int((lengths >= limit).sum()) for name, lengths in found.items()}
    if not any(full.values()):
        return f"None is as long as a window may be ({counted(limit, 'token')}): no text was cut."
    counts = " and ".join(
        f"{number:,} of {name} ({100 * number / len(found[name]):.1f} %)" for name, number in full.items()
    )
    what = "longer passages go on in further windows" if evidence.task.windowed else "their text may have been cut"
    return f"As long as a window may be ({counted(limit, 'token')}) are {counts}: {what}."


def _lengths_frame(found: dict[str, np.ndarray], limit: int) -> Frame:
    columns = [Column("split"), Column("windows"), Column("mean", 1), Column("median"), Column("95th percentile")]
    columns += [Column("longest"), Column("at the limit", None, f"Windows of {limit} tokens, the most there can be")]
    rows: list[list[Cell]] = []
    for name, lengths in found.items():
        middles = [_middle(lengths, 0.5), _middle(lengths, 0.95)]
        full = int((lengths >= limit).sum())
        figures: list[Cell] = [float(lengths.mean()), *middles, int(lengths.max()), full, 100 * full / len(lengths)]
        rows.append([name, len(lengths), *figures])
    return Frame([*columns, Column("at the limit (%)", 1)], rows)


def _draw_lengths(found: dict[str, np.ndarray], width: int) -> dict[str, Any]:
    longest = max(int(lengths.max()) for lengths in found.values())
    edges = np.arange(0, longest + width + 1, width)  # (edge); a bin holds from + 1 to its end
    rows = []
    for name, lengths in found.items():
        counts = np.bincount((lengths - 1) // width, minlength=len(edges) - 1)  # (bin)
        rows += [
            {
                "split": name,
                "from": int(start) + 1,
                "to": int(start) + width,
                "left": int(start),
                "right": int(start) + width,
                "share": 100 * int(count) / len(lengths),
                "windows": int(count),
            }
            for start, count in zip(edges, counts, strict=False)
            if count
        ]
    altair = import_altair()
    chart = chart_of(rows).encode(
        x=altair.X("left:Q", title="tokens"),
        x2="right:Q",
        y=altair.Y("share:Q", title="windows (%)", scale=altair.Scale(zero=True)),
        y2=altair.datum(0),
        color=colour_by("split", list(found)),
        tooltip=[
            altair.Tooltip("split:N"),
            altair.Tooltip("from:Q", title="from (tokens)"),
            altair.Tooltip("to:Q", title="to (tokens)"),
            altair.Tooltip("windows:Q", format=","),
            altair.Tooltip("share:Q", title="share (%)", format=".1f"),
        ],
    )
    return dict(chart.mark_rect(opacity=0.5).to_dict())


def _lengths_in_words(name: str, lengths: np.ndarray) -> str:
    return f"{name} with a median of {_middle(lengths, 0.5)} and at most {int(lengths.max())} tokens"
