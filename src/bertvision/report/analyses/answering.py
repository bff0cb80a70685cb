"""Analyses of answers (spans): who answers and who stays silent, what wrong predictions are, and whether the second
guess is right. Each gives None for other kinds of task."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bertvision.evaluation.statistics import spread
from bertvision.kinds import SPAN
from bertvision.kinds.base import Bool, Float
from bertvision.kinds.span import SpanMarks
from bertvision.pipeline.finished import FinishedRun, Group, Model
from bertvision.report.analyses.thresholds import marks_of, threshold_note, threshold_of
from bertvision.report.block import Block, Cell, Column, Frame
from bertvision.report.drawing import chart_of, colour_by, import_altair, without_empty
from bertvision.report.ranking import best_or_control
from bertvision.report.wording import in_text, joined, listed, opening, seeds_note
from bertvision.words import counted

PARTS = ("with an answer", "without an answer")
ERRORS = {
    "said nothing": "said nothing where there is an answer",
    "overlapping span": "gave a span that shares words with the gold answer",
    "wrong span": "gave a span that shares no word with the gold answer",
    "answered anyway": "answered where there is no answer",
}
GUESSES = ("first is right", "second is right", "neither is right")
BASELINE = "baseline"
ROW = 36  # height of a model's bars


def _models(groups: Sequence[Group]) -> list[Model]:
    return [model for group in groups for model in group.trained]


def _spoken_of(evidence: FinishedRun) -> list[Group]:
    """Whom sentences are about: the encoder itself, and the best head or else the control."""
    other = best_or_control(evidence, evidence.last)
    return [evidence.encoder(evidence.last), *([other] if other else [])]


def _by_seed(group: Group, split: str, measure: Callable[[Model, SpanMarks], list[float]]) -> Float:
    """Some numbers of each seed that was trained to the end."""
    return np.array([measure(model, marks_of(model, split)) for model in group.trained])  # (seed, number)


def _count_digits(groups: Sequence[Group]) -> int | None:
    """Means of counts over seeds have decimals."""
    return 1 if any(len(group.trained) > 1 for group in groups) else None


def _number(value: float) -> Cell:
    """A count: whole, unless it is a mean over seeds."""
    return int(value) if float(value).is_integer() else float(value)


def _spell(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def _spell_part(value: float, total: int, group: Group) -> str:
    average = " on average" if len(group.trained) > 1 else ""
    return f"{_spell(value)} of {counted(total, 'question')}{average}"


def _percent(part: float, whole: float) -> float | None:
    return 100.0 * float(part) / float(whole) if whole else None


# ---------------------------------------------------------------------- with and without an answer


def has_and_no_answer(evidence: FinishedRun, split: str) -> Block | None:
    """How often each model is right (EM) on questions with an answer and without, and how often it says nothing."""
    if evidence.kind is not SPAN:
        return None
    groups = evidence.groups(evidence.last)
    has = marks_of(groups[0].trained[0], split).has_answer  # (example)
    rows: list[list[Cell]] = [_baseline_row(has)]
    for group in groups:
        columns = _by_seed(group, split, _right_by_part).T  # (number, seed)
        rows.append([group.title, *(cell for column in columns for cell in _mean_and_deviation(column))])
    return Block(
        f"has_and_no_answer_{split}",
        "Questions with and without an answer",
        [_told_of_silence(groups, split, has), _told_of_parts(_spoken_of(evidence), split, has)],
        _parts_frame(rows),
        _draw_parts(rows),
        _parts_in_words(rows),
        joined("The baseline never answers.", threshold_note(_models(groups)), seeds_note(groups)),
        folded=True,
    )


def _right_by_part(model: Model, marks: SpanMarks) -> list[float]:
    """EM with an answer, EM without, and how often nothing is said, in percent; NaN where there are no questions."""
    right, has = marks.right(threshold_of(model)), marks.has_answer  # (example), (example)
    parts = [100.0 * float(right[part].mean()) if part.any() else np.nan for part in (has, ~has)]
    return [*parts, 100.0 * float(marks.says_nothing(threshold_of(model)).mean())]


def _baseline_row(has: Bool) -> list[Cell]:
    return [BASELINE, 0.0 if has.any() else None, None, None if has.all() else 100.0, None, 100.0, None]


def _mean_and_deviation(values: Float) -> tuple[float | None, float | None]:
    """Of the seeds that have a value."""
    known = values[~np.isnan(values)].tolist()
    found = spread(known) if known else None
    return (found.mean, found.deviation) if found else (None, None)


def _parts_frame(rows: list[list[Cell]]) -> Frame:
    columns = [Column("model")]
    for heading in (f"EM {PARTS[0]}", f"EM {PARTS[1]}", "silent"):
        note = 'Percent of all questions to which it says "no answer"' if heading == "silent" else ""
        columns += [Column(heading, 2, note), Column(f"± {heading}", 2)]
    return without_empty(Frame(columns, rows))


def _told_of_silence(groups: Sequence[Group], split: str, has: Bool) -> str:
    # Rounded first: what reads the same is called the same.
    said = {in_text(group): round(_by_seed(group, split, _right_by_part)[:, 2].mean(), 1) for group in groups}
    high, low = max(said.values()), min(said.values())
    truth = f"Of {counted(len(has), 'question')} {100 * (~has).mean():.1f} % have no answer"
    if high == low:
        every = f"all {len(said)} models" if len(said) > 1 else next(iter(said))
        return f"{truth}; {every} said so of {high:.1f} %."
    most, least = (_list_models([name for name in said if said[name] == value]) for value in (high, low))
    return f"{truth}; {most} said so most often, of {high:.1f} %, and {least} least often, of {low:.1f} %."


def _told_of_parts(groups: Sequence[Group], split: str, has: Bool) -> str:
    told: list[str] = []
    for place, (part, mask) in enumerate(zip(PARTS, (has, ~has), strict=True)):
        shares = [f"{_by_seed(group, split, _right_by_part)[:, place].mean():.1f} %" for group in groups]
        if not mask.any():
            continue
        if not told:  # whose shares they are is said once
            names = [in_text(group) for group in groups]
            shares = [f"{names[0]} got {shares[0]} right", *map(" ".join, zip(names[1:], shares[1:], strict=True))]
        told.append(f"of the {mask.sum():,} {part} {listed(shares)}")
    return opening(f"{'; '.join(told)}.")


def _list_models(names: Sequence[str]) -> str:
    return listed(names) if len(names) <= 3 else f"{len(names)} models"


def _draw_parts(rows: list[list[Cell]]) -> dict[str, Any]:
    altair = import_altair()
    bars = [bar for row in rows for bar in _part_bars(row)]
    base = chart_of(bars, ROW * len(rows)).encode(
        y=altair.Y("model:N", sort=[row[0] for row in rows], title=None),
        yOffset=altair.YOffset("questions:N", sort=list(PARTS)),
        tooltip=[
            altair.Tooltip("model:N", title="model"),
            altair.Tooltip("questions:N", title="questions"),
            altair.Tooltip("right:Q", title="right (EM), %", format=".2f"),
            altair.Tooltip("deviation:Q", title="± over seeds", format=".2f"),
        ],
    )
    whole = base.mark_bar().encode(
        x=altair.X("right:Q", title="right (EM), % of these questions", scale=altair.Scale(domain=[0, 100])),
        color=colour_by("questions", PARTS, "questions").legend(orient="top"),
    )
    seeds = base.transform_filter("datum.deviation > 0").mark_rule(strokeWidth=1.5).encode(x="low:Q", x2="high:Q")
    return dict((whole + seeds).to_dict())


def _part_bars(row: list[Cell]) -> list[dict[str, Any]]:
    found = []
    for part, value, deviation in ((PARTS[0], row[1], row[2]), (PARTS[1], row[3], row[4])):
        if isinstance(value, float):
            around = deviation if isinstance(deviation, float) else 0.0
            bar = {"model": row[0], "questions": part, "right": value, "deviation": around}
            found.append({**bar, "low": max(0.0, value - around), "high": min(100.0, value + around)})
    return found


def _parts_in_words(rows: list[list[Cell]]) -> str:
    told = []
    for row in rows:
        shares = [f"{bar['right']:.1f} % {bar['questions']}" for bar in _part_bars(row)]
        told.append(f"{row[0]} {' and '.join(shares)}")
    return f"Bars of how many questions each model gets right: {'; '.join(told)}."


# ---------------------------------------------------------------------- what wrong predictions were


def wrong_predictions(evidence: FinishedRun, split: str) -> Block | None:
    """What wrong predictions were: silence, a span that overlaps the gold answer or one that does not, an answer to a
    question that has none."""
    if evidence.kind is not SPAN:
        return None
    groups = evidence.groups(evidence.last)
    by_seed = {group.title: _by_seed(group, split, _count_errors) for group in groups}  # each (seed, kind)
    found = {name: values.mean(axis=0) for name, values in by_seed.items()}  # each (kind)
    total = len(marks_of(groups[0].trained[0], split).silent)
    rows: list[list[Cell]] = []
    for name, counts in found.items():
        wrong = float(counts.sum())
        of_all = _mean_and_deviation(100.0 * by_seed[name].sum(axis=1) / total)
        kinds = [cell for count in counts for cell in (_number(count), _percent(count, wrong))]
        rows.append([name, _number(wrong), *of_all, *kinds])
    return Block(
        f"wrong_predictions_{split}",
        "What wrong predictions were",
        [_told_of_errors(group, found[group.title], total) for group in _spoken_of(evidence)],
        _errors_frame(rows, _count_digits(groups)),
        _draw_stack(found, list(ERRORS), f"wrong predictions, of {counted(total, 'question')}", "what it did"),
        _stack_in_words("wrong predictions", found, list(ERRORS)),
        joined(
            "Wrong: no exact match. A span overlaps where it shares words with a gold answer (F1 above 0).",
            threshold_note(_models(groups)),
            seeds_note(groups),
        ),
        folded=True,
    )


def _errors_frame(rows: list[list[Cell]], digits: int | None) -> Frame:
    columns = [
        Column("model"),
        Column("wrong", digits),
        Column("% wrong", 2, "Of all questions"),
        Column("± % wrong", 2),
    ]
    for error, meaning in ERRORS.items():
        columns += [Column(error, digits, f"It {meaning}"), Column(f"% {error}", 1, "Of the wrong predictions")]
    return without_empty(Frame(columns, rows))


def _count_errors(model: Model, marks: SpanMarks) -> list[float]:
    """How often each of ERRORS."""
    wrong, has, silent = (
        ~marks.right(threshold_of(model)),
        marks.has_answer,
        marks.says_nothing(threshold_of(model)),
    )  # (example) each
    spoke, overlaps = wrong & has & ~silent, marks.f1 > 0  # (example), (example)
    kinds = (wrong & has & silent, spoke & overlaps, spoke & ~overlaps, wrong & ~has)  # (example) each
    return [float(kind.sum()) for kind in kinds]


def _told_of_errors(group: Group, counts: Float, total: int) -> str:
    name, wrong = opening(in_text(group)), float(counts.sum())
    if not wrong:
        return f"{name} was never wrong."
    of = f"{name} was wrong on {_spell_part(wrong, total, group)} ({100 * wrong / total:.1f} %)"
    most = [meaning for meaning, count in zip(ERRORS.values(), counts, strict=True) if count == counts.max()]
    often = "each time" if counts.max() == wrong else f"most often, {100 * counts.max() / wrong:.1f} % of the time,"
    return f"{of}: {often} it {' or, as often, '.join(most)}."


def _draw_stack(found: dict[str, Float], kinds: Sequence[str], title: str, legend: str) -> dict[str, Any]:
    """A bar a model, of the counts of each kind."""
    altair = import_altair()
    bars = [
        {"model": name, "kind": kind, "place": place, "count": float(count), "share": _percent(count, counts.sum())}
        for name, counts in found.items()
        for place, (kind, count) in enumerate(zip(kinds, counts, strict=True))
    ]
    chart = (
        chart_of(bars, ROW * len(found))
        .mark_bar()
        .encode(
            y=altair.Y("model:N", sort=list(found), title=None),
            x=altair.X("count:Q", title=title, scale=altair.Scale(nice=False)),
            color=colour_by("kind", kinds, legend).legend(orient="top"),
            order=altair.Order("place:Q"),
            tooltip=[
                altair.Tooltip("model:N", title="model"),
                altair.Tooltip("kind:N", title=legend),
                altair.Tooltip("count:Q", title="questions", format=",.4~r"),
                altair.Tooltip("share:Q", title="% of the bar", format=".1f"),
            ],
        )
    )
    return dict(chart.to_dict())


def _stack_in_words(what: str, found: dict[str, Float], kinds: Sequence[str]) -> str:
    told = []
    for name, counts in found.items():
        parts = [f"{kind} {_spell(count)}" for kind, count in zip(kinds, counts, strict=True)]
        told.append(f"{name}: {', '.join(parts)}")
    return f"A bar for each model, of its {what}. {'; '.join(told)}."


# ---------------------------------------------------------------------- the second most likely answer


def second_answer(evidence: FinishedRun, split: str) -> Block | None:
    """When the most likely answer is wrong, how often the second most likely one is right."""
    if evidence.kind is not SPAN:
        return None
    groups = evidence.groups(evidence.last)
    by_seed = {group.title: _by_seed(group, split, _count_guesses) for group in groups}  # each (seed, number)
    found = {name: values[:, :3].mean(axis=0) for name, values in by_seed.items()}  # each (guess)
    total = len(marks_of(groups[0].trained[0], split).silent)
    rows: list[list[Cell]] = []
    for name, (first, second, neither) in found.items():
        shares = [cell for column in by_seed[name].T[3:] for cell in _mean_and_deviation(column)]
        either = [_percent(first, total), _percent(first + second, total)]
        rows.append([name, _number(second + neither), _number(second), *shares, *either])
    return Block(
        f"second_answer_{split}",
        "Is the second most likely answer right?",
        [_told_of_second(group, by_seed[group.title], total) for group in _spoken_of(evidence)],
        _second_frame(rows, _count_digits(groups)),
        _draw_stack(found, GUESSES, "questions", "most likely answers"),
        _stack_in_words("questions", found, GUESSES),
        joined(
            'Spans and "no answer" are ranked together by their scores, at threshold 0; right: exact match.',
            seeds_note(groups),
        ),
        folded=True,
    )


def _second_frame(rows: list[list[Cell]], digits: int | None) -> Frame:
    columns = [
        Column("model"),
        Column("first wrong", digits),
        Column("second right", digits, "Exact match, where the first is wrong"),
        Column("% second right", 1, "Of those where the first is wrong"),
        Column("± % second right", 1),
        Column("F1 of second", 1, "Mean, where the first is wrong"),
        Column("± F1 of second", 1),
        Column("% first right", 1, "Of all questions"),
        Column("% first or second right", 1, "Of all questions"),
    ]
    return without_empty(Frame(columns, rows))


def _count_guesses(model: Model, marks: SpanMarks) -> list[float]:
    """How often each of GUESSES; EM and F1 of the second in percent where the first is wrong, NaN if it never is."""
    right, silent = marks.right(), marks.says_nothing()  # (example), (example)
    # Behind silence comes the best span; behind the best span whichever is better, the second span or silence.
    span_next = marks.second_score >= marks.null_score  # (example)
    exact = np.where(silent, marks.exact, np.where(span_next, marks.second_exact, marks.silent))  # (example)
    f1 = np.where(silent, marks.f1, np.where(span_next, marks.second_f1, marks.silent))  # (example)
    second = ~right & (exact == 1)  # (example)
    counts = [float(some.sum()) for some in (right, second, ~right & ~second)]
    shares = [100.0 * float(values[~right].mean()) if not right.all() else np.nan for values in (exact, f1)]
    return [*counts, *shares]


def _told_of_second(group: Group, by_seed: Float, total: int) -> str:
    first, second, neither = by_seed[:, :3].mean(axis=0).tolist()
    share, _ = _mean_and_deviation(by_seed[:, 3])
    if share is None:
        return f"The most likely answer of {in_text(group)} is never wrong."
    wrong = _spell_part(second + neither, total, group)
    return (
        f"When the most likely answer of {in_text(group)} is wrong ({wrong}), the second is right {share:.1f} % of the "
        f"time: one of the two is right for {100 * (first + second) / total:.1f} % of all questions, the first alone "
        f"for {100 * first / total:.1f} %."
    )
