"""Spans: how often models predict "no answer", the types of their errors, and whether the second most likely answer is
right, at every snapshot with heads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertvision.evaluation.statistics import spread
from bertvision.kinds.base import Bool, Float
from bertvision.kinds.span import SpanResults
from bertvision.pipeline.finished import FinishedRun, Group, Model
from bertvision.report.analysis import analysis, gives
from bertvision.report.block import Block
from bertvision.report.drawing import ROW, chart_of, colour_by, import_altair, tips
from bertvision.report.ranking import best_or_control, results_of
from bertvision.report.snapshots import (
    BAR,
    NUMBERS,
    begin,
    described_snapshots,
    drawn_groups,
    label_bars,
    named,
    shown_snapshots,
    unseen_note,
)
from bertvision.report.wording import in_text, joined, listed, opening, seeds_note, threshold_note, title_of
from bertvision.tables import Cell, Column, Row, Table, counted

PARTS = ("with an answer", "without an answer")
ERRORS = {
    "missed answer": 'predicting "no answer" for a question that has an answer',
    "overlapping span": "predicting a span that shares words with the gold answer",
    "wrong span": "predicting a span that shares no words with the gold answer",
    "false answer": "answering a question that has no answer",
}
GUESSES = ("first", "second", "neither")


@dataclass(frozen=True)
class _Measured:
    """What was measured of a group at its snapshot."""

    group: Group
    values: Float  # (seed, value)

    @property
    def mean(self) -> Float:
        found: Float = self.values.mean(axis=0)
        return found  # (value)

    def known(self, place: int) -> tuple[float | None, float | None]:
        """Mean and standard deviation of a value over the seeds that have it."""
        found = self.values[:, place]  # (seed)
        there = found[~np.isnan(found)].tolist()
        over = spread(there) if there else None
        return (over.mean, over.deviation) if over else (None, None)


def _measure(
    run: FinishedRun, split: str, measure: Callable[[float, SpanResults], list[float]]
) -> tuple[list[float], list[_Measured]]:
    """The snapshots with heads, and the values of all groups there: of each seed that finished training, from its
    threshold and per-example results."""
    shots = shown_snapshots(run)
    return shots, [
        _Measured(group, np.array([measure(one.threshold or 0.0, _results(one, split)) for one in group.trained]))
        for epochs in shots
        for group in run.groups(epochs)
    ]


def _pick(found: list[_Measured], groups: Sequence[Group]) -> list[_Measured]:
    """What was measured of these groups, in their order."""
    by_place = {(one.group.epochs, one.group.name): one for one in found}
    return [by_place[group.epochs, group.name] for group in groups]


def _described(run: FinishedRun, shots: list[float], found: list[_Measured]) -> list[list[_Measured]]:
    """What the sentences describe, by snapshot: the encoder alone and the best head (or the control)."""
    some = []
    for epochs in described_snapshots(shots):
        other = best_or_control(run, epochs)
        some.append(_pick(found, [run.encoder(epochs), *([other] if other else [])]))
    return some


def _block(
    run: FinishedRun,
    shots: list[float],
    found: list[_Measured],
    row_of: Callable[[_Measured], Row],
    draw: Callable[[list[_Measured], list[float]], dict[str, Any]],
    notes: Sequence[str],
    drawn: Sequence[str],
    sentences: list[str],
    first: Sequence[Row] = (),
) -> Block:
    """A block with a row for each model at each snapshot. `first` are rows above those."""
    groups = [one.group for one in found]
    shown = _pick(found, drawn_groups(run, shots))
    table, of_picture = (Table.of([*first, *map(row_of, some)]).without_empty() for some in (found, shown))
    several = len(shots) > 1
    return Block(
        sentences=sentences,
        table=table,
        picture=draw(shown, shots),
        drawn=["epochs", *drawn] if several else drawn,
        drawn_rows=of_picture,
        note=joined(
            *notes,
            seeds_note(groups),
            unseen_note(groups, drawn_groups(run, shots)) if several else "",
        ),
        folded=True,
    )


def _results(model: Model, split: str) -> SpanResults:
    return results_of(model, split, SpanResults)


def _threshold_note(groups: Sequence[Group]) -> str:
    return threshold_note([model for group in groups for model in group.trained])


def _count_digits(groups: Sequence[Group]) -> int | None:
    """Digits of a count: means over seeds have decimals."""
    return 1 if any(len(group.trained) > 1 for group in groups) else None


def _number(value: float) -> Cell:
    """A count: an integer unless it is a mean over seeds."""
    return int(value) if float(value).is_integer() else float(value)


def _spell_part(value: float, total: int, group: Group) -> str:
    average = " on average" if len(group.trained) > 1 else ""
    shown = f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
    return f"{shown} of {counted(total, 'question')}{average}"


def _percent(part: float, whole: float) -> float | None:
    return 100.0 * float(part) / float(whole) if whole else None


# ---------------------------------------------------------------------- with and without an answer


@analysis("Predictions", 10, "Questions with and without an answer", [gives(SpanResults)])
def has_and_no_answer(run: FinishedRun, split: str) -> Block:
    """EM of each model on questions with and without an answer, and how often it predicts "no answer"."""
    shots, found = _measure(run, split, _right_by_part)
    has = _results(found[0].group.trained[0], split).has_answer  # (example)
    baseline = [0.0 if has.any() else None, None, None if has.all() else 100.0, None, 100.0, None]
    names = dict.fromkeys(named(found[0].group, shots))
    return _block(
        run,
        shots,
        found,
        lambda one: named(one.group, shots) | _part_cells([cell for place in range(3) for cell in one.known(place)]),
        lambda some, shots: _draw_parts(some, shots, baseline),
        ["The baseline never answers.", _threshold_note([one.group for one in found])],
        [f"EM {part}" for part in PARTS],
        _describe_parts(run, shots, found, has),
        [{**names, "model": "baseline"} | _part_cells(baseline)],
    )


def _part_cells(values: Sequence[Cell]) -> Row:
    columns: list[Column | str] = []
    notes = {f"EM {part}": f"Exact match on the questions {part}" for part in PARTS}
    notes["no answer (%)"] = 'Percentage of all questions for which the model predicts "no answer"'
    for heading, note in notes.items():
        columns += [Column(heading, 2, note), Column(f"± {heading}", 2)]
    return dict(zip(columns, values, strict=True))


def _right_by_part(threshold: float, results: SpanResults) -> list[float]:
    """EM with an answer, EM without, and how often "no answer" is predicted, in percent; NaN without questions."""
    right, has = results.right(threshold), results.has_answer  # (example), (example)
    parts = [100.0 * float(right[part].mean()) if part.any() else np.nan for part in (has, ~has)]
    return [*parts, 100.0 * float(results.says_nothing(threshold).mean())]


def _describe_parts(run: FinishedRun, shots: list[float], found: list[_Measured], has: Bool) -> list[str]:
    truth = f"{100 * (~has).mean():.1f} % of {counted(len(has), 'question')} have no answer."
    said = []
    for some in _described(run, shots, found):
        epochs = some[0].group.epochs
        silences = _describe_no_answers([one for one in found if one.group.epochs == epochs])
        said.append((begin(silences, epochs, shots), _describe_scores(some, has, len(shots) == 1)))
    if len(shots) == 1:
        ((silences, scores),) = said
        return [joined(truth, silences), scores]
    return [truth, *(joined(*pair) for pair in said)]


def _describe_no_answers(found: list[_Measured]) -> str:
    # Rounded first, so that values that read the same count as equal.
    rates = {in_text(one.group): round(float(one.mean[2]), 1) for one in found}
    high, low = max(rates.values()), min(rates.values())
    if high == low:
        every = f"all {len(rates)} models predict" if len(rates) > 1 else f"{next(iter(rates))} predicts"
        return f'{every} "no answer" for {high:.1f} %.'
    names = [[name for name in rates if rates[name] == value] for value in (high, low)]
    most, least = (listed(some) if len(some) <= 3 else f"{len(some)} models" for some in names)
    verb = "predicts" if len(names[0]) == 1 else "predict"
    return f'{most} {verb} "no answer" most often ({high:.1f} %), {least} least often ({low:.1f} %).'


def _describe_scores(some: list[_Measured], has: Bool, counts: bool) -> str:
    """EM of each model with and without an answer; `counts`: of how many questions."""
    parts: list[str] = []
    for column, (part, mask) in enumerate(zip(PARTS, (has, ~has), strict=True)):
        if mask.any():
            scores = [f"{one.mean[column]:.1f} for {in_text(one.group)}" for one in some]
            verb = "it is" if parts else "is"
            of = counted(int(mask.sum()), "question") if counts else "questions"
            parts.append(f"on the {of} {part} {verb} {listed(scores)}")
    return f"EM {'; '.join(parts)}."


def _draw_parts(found: list[_Measured], shots: list[float], baseline: Sequence[Cell]) -> dict[str, Any]:
    """With several snapshots, those of each kind of question are side by side, and the baseline is left out."""
    altair, several = import_altair(), len(shots) > 1
    bars = [] if several else _part_bars("baseline", shots[0], baseline)
    for one in found:
        name = title_of(one.group) if several else one.group.title
        bars += _part_bars(name, one.group.epochs, [cell for place in range(2) for cell in one.known(place)])
    names = list(dict.fromkeys(bar["model"] for bar in bars))
    places = [f"{part} {epochs:g}" for part in PARTS for epochs in shots] if several else list(PARTS)
    field = "place" if several else "questions"
    height = ROW * len(names) if not several else BAR * len(places) * len(names)
    base = chart_of(bars, height).encode(
        y=altair.Y("model:N", sort=names, title=None),
        yOffset=altair.YOffset(f"{field}:N", sort=places),
        tooltip=tips(
            ("model:N", "model"),
            *(["epochs:Q"] if several else []),
            ("questions:N", "questions"),
            ("right:Q", "EM (%)", ".2f"),
            ("deviation:Q", "± over seeds", ".2f"),
        ),
    )
    whole = base.mark_bar().encode(
        x=altair.X("right:Q", title="EM (%)", scale=altair.Scale(domain=[0, 100])),
        color=colour_by("questions", PARTS, ["questions", NUMBERS] if several else "questions").legend(orient="top"),
    )
    chart = whole + base.transform_filter("datum.deviation > 0").mark_rule(strokeWidth=1.5).encode(
        x="low:Q", x2="high:Q"
    )
    if several:
        chart = label_bars(chart, [{**bar, "end": bar["high"]} for bar in bars], names, field, places)
    return dict(chart.to_dict())


def _part_bars(model: str, epochs: float, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Bars of a model at a snapshot from EM and its deviation with an answer, then without."""
    found = []
    for part, value, deviation in ((PARTS[0], cells[0], cells[1]), (PARTS[1], cells[2], cells[3])):
        if isinstance(value, float):
            around = deviation if isinstance(deviation, float) else 0.0
            bar = {"model": model, "epochs": epochs, "questions": part, "place": f"{part} {epochs:g}", "right": value}
            ends = {"low": max(0.0, value - around), "high": min(100.0, value + around)}
            found.append({**bar, "deviation": around, **ends})
    return found


# ---------------------------------------------------------------------- types of errors


@analysis("Predictions", 20, "Types of errors", [gives(SpanResults)])
def wrong_predictions(run: FinishedRun, split: str) -> Block:
    """The types of errors: a missed answer, a span that overlaps the gold answer or does not, a false answer."""
    shots, found = _measure(run, split, _count_errors)
    groups = [one.group for one in found]
    total, digits = len(_results(groups[0].trained[0], split)), _count_digits(groups)
    has_threshold = any(model.threshold is not None for group in groups for model in group.trained)
    said = _described(run, shots, found)
    return _block(
        run,
        shots,
        found,
        lambda one: named(one.group, shots) | _error_cells(one, total, digits, has_threshold),
        lambda some, shots: _draw_stack(
            some, shots, list(ERRORS), f"errors (of {counted(total, 'question')})", "error"
        ),
        [
            "A prediction is wrong if it is not an exact match. A span overlaps if it shares words with a gold answer "
            "(F1 above 0).",
            _threshold_note(groups),
        ],
        list(ERRORS),
        [_describe_errors(one, total) for one in said[0]]
        if len(shots) == 1
        else [_compare_errors(some, total, shots) for some in said],
    )


def _count_errors(threshold: float, results: SpanResults) -> list[float]:
    """The number of errors of each type in ERRORS, then the share of "no answer" among the errors on questions that
    have an answer, in percent: at the threshold and at 0; NaN without such errors."""
    wrong, has, silent = (
        ~results.right(threshold),
        results.has_answer,
        results.says_nothing(threshold),
    )  # (example) each
    spoke, overlaps = wrong & has & ~silent, results.f1 > 0  # (example), (example)
    kinds = (wrong & has & silent, spoke & overlaps, spoke & ~overlaps, wrong & ~has)  # (example) each
    return [*(float(kind.sum()) for kind in kinds), _missed(results, threshold), _missed(results, 0.0)]


def _missed(results: SpanResults, threshold: float) -> float:
    wrong = ~results.right(threshold) & results.has_answer  # (example)
    return 100.0 * float(results.says_nothing(threshold)[wrong].mean()) if wrong.any() else np.nan


def _error_cells(one: _Measured, total: int, digits: int | None, has_threshold: bool) -> Row:
    by_seed, counts = one.values[:, : len(ERRORS)], one.mean[: len(ERRORS)]  # (seed, kind), (kind)
    wrong = float(counts.sum())
    of_all = spread((100.0 * by_seed.sum(axis=1) / total).tolist())
    row: Row = {
        Column("wrong", digits): _number(wrong),
        Column("% wrong", 2, "Of all questions"): of_all.mean,
        Column("± % wrong", 2): of_all.deviation,
    }
    for (error, meaning), count in zip(ERRORS.items(), counts, strict=True):
        row[Column(error, digits, meaning[0].upper() + meaning[1:])] = _number(count)
        row[Column(f"% {error}", 1, "Of all errors")] = _percent(count, wrong)
    note = 'Predictions of "no answer", of the wrong ones on questions that have an answer'
    (share, around), (at_zero, _) = one.known(4), one.known(5)
    row |= {Column("missed, % of errors with an answer", 1, note): share, Column("± missed", 1): around}
    return row | {Column("missed, % at threshold 0", 1, f"{note}, at threshold 0"): at_zero if has_threshold else None}


def _describe_errors(one: _Measured, total: int) -> str:
    name, counts = opening(in_text(one.group)), one.mean[: len(ERRORS)]  # (kind)
    wrong = float(counts.sum())
    if not wrong:
        return f"{name} is never wrong."
    text = f"{name} is wrong on {_spell_part(wrong, total, one.group)} ({100 * wrong / total:.1f} %)."
    most = [meaning for meaning, count in zip(ERRORS.values(), counts, strict=True) if count == counts.max()]
    if counts.max() == wrong:
        return f"{text} Its only type of error is {most[0]}."
    share = f"{100 * counts.max() / wrong:.1f} %"
    several = len(most) > 1
    text += f" Its most common error{'s are' if several else ' is'} {listed(most)} "
    text += f"({share} of the errors{' each' if several else ''})."
    missed, _ = one.known(4)
    silent = f'Of its wrong predictions on questions with an answer, {missed or 0.0:.1f} % are "no answer".'
    return joined(text, silent if missed is not None else "")


def _compare_errors(some: list[_Measured], total: int, shots: list[float]) -> str:
    """How often models are wrong at a snapshot, and how much of it is "no answer" to a question with one."""
    rates = [
        f"{in_text(one.group)} is wrong on {100 * float(one.mean[: len(ERRORS)].sum()) / total:.1f} % of the questions"
        if not place
        else f"{in_text(one.group)} on {100 * float(one.mean[: len(ERRORS)].sum()) / total:.1f} %"
        for place, one in enumerate(some)
    ]
    shares = [(one.known(4)[0], in_text(one.group)) for one in some]
    missed = [f"{share:.1f} % for {name}" for share, name in shares if share is not None]
    silent = (
        f'Of the wrong predictions on questions with an answer, {listed(missed)} are "no answer".' if missed else ""
    )
    return joined(f"{begin(listed(rates), some[0].group.epochs, shots)}.", silent)


def _draw_stack(
    found: list[_Measured], shots: list[float], kinds: Sequence[str], title: str, legend: str
) -> dict[str, Any]:
    """One bar per model and snapshot, stacked from the counts of each kind."""
    altair, several = import_altair(), len(shots) > 1
    bars: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    for one in found:
        counts = one.mean[: len(kinds)]  # (kind)
        place = {"model": title_of(one.group) if several else one.group.title, "epochs": one.group.epochs}
        ends.append({**place, "end": float(counts.sum())})
        bars += [
            {**place, "kind": kind, "place": at, "count": float(count), "share": _percent(count, counts.sum())}
            for at, (kind, count) in enumerate(zip(kinds, counts, strict=True))
        ]
    names, order = list(dict.fromkeys(bar["model"] for bar in bars)), [f"{epochs:g}" for epochs in shots]
    encoding = {
        "y": altair.Y("model:N", sort=names, title=None),
        "x": altair.X("count:Q", title=title, scale=altair.Scale(nice=False)),
        "color": colour_by("kind", kinds, [legend, NUMBERS] if several else legend).legend(orient="top"),
        "order": altair.Order("place:Q"),
        "tooltip": tips(
            ("model:N", "model"),
            *(["epochs:Q"] if several else []),
            ("kind:N", legend),
            ("count:Q", "questions", ",.4~r"),
            ("share:Q", "share of the bar (%)", ".1f"),
        ),
    }
    if not several:
        return dict(chart_of(bars, ROW * len(names)).mark_bar().encode(**encoding).to_dict())
    chart = chart_of(bars, BAR * (len(shots) + 1) * len(names)).mark_bar()
    chart = chart.encode(**encoding, yOffset=altair.YOffset("epochs:N", sort=order))
    return dict(label_bars(chart, ends, names, "epochs", order).to_dict())


# ---------------------------------------------------------------------- the second most likely answer


@analysis("Predictions", 30, "Is the second most likely answer right?", [gives(SpanResults)])
def second_answer(run: FinishedRun, split: str) -> Block:
    """How often the second most likely answer is right when the most likely one is wrong."""
    shots, found = _measure(run, split, _count_guesses)
    groups = [one.group for one in found]
    total, digits = len(_results(groups[0].trained[0], split)), _count_digits(groups)
    said = _described(run, shots, found)
    return _block(
        run,
        shots,
        found,
        lambda one: named(one.group, shots) | _guess_cells(one, total, digits),
        lambda some, shots: _draw_stack(some, shots, GUESSES, "questions", "right answer"),
        ['Spans and "no answer" are ranked together by score at threshold 0. Only an exact match counts as right.'],
        ["first wrong", "second right"],
        [_describe_second(one, total) for one in said[0]]
        if len(shots) == 1
        else [_compare_seconds(some, shots) for some in said],
    )


def _guess_cells(one: _Measured, total: int, digits: int | None) -> Row:
    first, second, neither = one.mean[:3].tolist()
    (share, share_spread), (f1, f1_spread), (has, has_spread) = (one.known(place) for place in (3, 4, 5))
    meaning = "The first answer is wrong, the second is an exact match"
    return {
        Column("first wrong", digits): _number(second + neither),
        Column("second right", digits, meaning): _number(second),
        Column("% second right", 1, "Of the questions whose first answer is wrong"): share,
        Column("± % second right", 1): share_spread,
        Column("% with an answer", 1, "Of the questions counted under “second right”"): has,
        Column("± % with an answer", 1): has_spread,
        Column("F1 of second", 1, "Mean F1 of the second answer where the first is wrong"): f1,
        Column("± F1 of second", 1): f1_spread,
        Column("% first right", 1, "Of all questions"): _percent(first, total),
        Column("% first or second right", 1, "Of all questions"): _percent(first + second, total),
    }


def _count_guesses(threshold: float, results: SpanResults) -> list[float]:
    """The count of each of GUESSES at threshold 0; then EM and F1 of the second answer where the first is wrong, in
    percent, and the share of questions with an answer among those whose second is right; NaN if there are none."""
    right, silent = results.right(), results.says_nothing()  # (example), (example)
    # After "no answer" comes the best span; after the best span, the better of the second span and "no answer".
    span_next = results.second_score >= results.null_score  # (example)
    exact = np.where(silent, results.exact, np.where(span_next, results.second_exact, results.silent))  # (example)
    f1 = np.where(silent, results.f1, np.where(span_next, results.second_f1, results.silent))  # (example)
    second = ~right & (exact == 1)  # (example)
    counts = [float(some.sum()) for some in (right, second, ~right & ~second)]
    shares = [100.0 * float(values[~right].mean()) if not right.all() else np.nan for values in (exact, f1)]
    has = 100.0 * float(results.has_answer[second].mean()) if second.any() else np.nan
    return [*counts, *shares, has]


def _describe_second(one: _Measured, total: int) -> str:
    name, (first, second, neither) = in_text(one.group), one.mean[:3].tolist()
    (share, _), (has, _) = one.known(3), one.known(5)
    if share is None:
        return f"The most likely answer of {name} is never wrong."
    of_these = "" if has is None else f"; {has:.1f} % of these questions have an answer"
    return (
        f"The most likely answer of {name} is wrong for {_spell_part(second + neither, total, one.group)}. In "
        f"{share:.1f} % of these cases the second most likely answer is right{of_these}. The first answer is right for "
        f"{100 * first / total:.1f} % of all questions, the first or the second for "
        f"{100 * (first + second) / total:.1f} %."
    )


def _compare_seconds(some: list[_Measured], shots: list[float]) -> str:
    """How often the second answers of models at a snapshot are right, and for how many questions with an answer."""
    parts = []
    for one in some:
        (share, _), (has, _) = one.known(3), one.known(5)
        if share is not None:
            of_these = "" if has is None else f" ({has:.1f} % of these questions have an answer)"
            parts.append(f"in {share:.1f} % of the cases for {in_text(one.group)}{of_these}")
    if not parts:
        return begin("no most likely answer is wrong.", some[0].group.epochs, shots)
    text = f"where the most likely answer is wrong, the second is right {listed(parts)}."
    return begin(text, some[0].group.epochs, shots)
