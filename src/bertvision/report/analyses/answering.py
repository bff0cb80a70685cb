"""Spans: how often models predict "no answer", the types of their errors, and whether the second most likely answer is
right."""

from collections.abc import Callable, Sequence
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
from bertvision.report.wording import in_text, joined, listed, opening, seeds_note, threshold_note
from bertvision.tables import Cell, Column, Headings, Row, Rows, Table, counted

PARTS = ("with an answer", "without an answer")
ERRORS = {
    "missed answer": 'predicting "no answer" for a question that has an answer',
    "overlapping span": "predicting a span that shares words with the gold answer",
    "wrong span": "predicting a span that shares no words with the gold answer",
    "false answer": "answering a question that has no answer",
}
GUESSES = ("first", "second", "neither")
Measured = dict[str, Float]
"""Title of a group → (seed, value)."""


def _described_groups(run: FinishedRun) -> list[Group]:
    """The groups that the sentences describe: the encoder alone and the best head (or the control)."""
    other = best_or_control(run, run.last)
    return [run.encoder(run.last), *([other] if other else [])]


def _measure(groups: Sequence[Group], split: str, measure: Callable[[float, SpanResults], list[float]]) -> Measured:
    """Compute the values of each seed that finished training, from its threshold and per-example results."""
    return {
        group.title: np.array([measure(one.threshold or 0.0, _results(one, split)) for one in group.trained])
        for group in groups
    }


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


def _mean_and_deviation(values: Float) -> tuple[float | None, float | None]:
    """Mean and standard deviation over the seeds that have a value."""
    known = values[~np.isnan(values)].tolist()
    found = spread(known) if known else None
    return (found.mean, found.deviation) if found else (None, None)


# ---------------------------------------------------------------------- with and without an answer


@analysis("Predictions", 10, "Questions with and without an answer", [gives(SpanResults)])
def has_and_no_answer(run: FinishedRun, split: str) -> Block:
    """EM of each model on questions with and without an answer, and how often it predicts "no answer"."""
    groups = run.groups(run.last)
    has = _results(groups[0].trained[0], split).has_answer  # (example)
    found = _measure(groups, split, _right_by_part)
    rows: Rows = [["baseline", 0.0 if has.any() else None, None, None if has.all() else 100.0, None, 100.0, None]]
    rows += [[name, *(cell for one in values.T for cell in _mean_and_deviation(one))] for name, values in found.items()]
    columns: Headings = [Column("model")]
    notes = {f"EM {part}": f"Exact match on the questions {part}" for part in PARTS}
    notes["no answer (%)"] = 'Percentage of all questions for which the model predicts "no answer"'
    for heading, note in notes.items():
        columns += [Column(heading, 2, note), Column(f"± {heading}", 2)]
    return Block(
        sentences=[_describe_no_answers(groups, found, has), _describe_parts(_described_groups(run), found, has)],
        table=Table(columns, rows).without_empty(),
        picture=_draw_parts(rows),
        drawn=[f"EM {part}" for part in PARTS],
        note=joined("The baseline never answers.", _threshold_note(groups), seeds_note(groups)),
        folded=True,
    )


def _right_by_part(threshold: float, results: SpanResults) -> list[float]:
    """EM with an answer, EM without, and how often "no answer" is predicted, in percent; NaN without questions."""
    right, has = results.right(threshold), results.has_answer  # (example), (example)
    parts = [100.0 * float(right[part].mean()) if part.any() else np.nan for part in (has, ~has)]
    return [*parts, 100.0 * float(results.says_nothing(threshold).mean())]


def _describe_no_answers(groups: Sequence[Group], found: Measured, has: Bool) -> str:
    # Rounded first, so that values that read the same count as equal.
    rates = {in_text(group): round(found[group.title][:, 2].mean(), 1) for group in groups}
    high, low = max(rates.values()), min(rates.values())
    truth = f"{100 * (~has).mean():.1f} % of {counted(len(has), 'question')} have no answer."
    if high == low:
        every = f"All {len(rates)} models predict" if len(rates) > 1 else f"{opening(next(iter(rates)))} predicts"
        return f'{truth} {every} "no answer" for {high:.1f} %.'
    names = [[name for name in rates if rates[name] == value] for value in (high, low)]
    most, least = (listed(some) if len(some) <= 3 else f"{len(some)} models" for some in names)
    verb = "predicts" if len(names[0]) == 1 else "predict"
    return f'{truth} {opening(most)} {verb} "no answer" most often ({high:.1f} %), {least} least often ({low:.1f} %).'


def _describe_parts(groups: Sequence[Group], found: Measured, has: Bool) -> str:
    parts: list[str] = []
    for column, (part, mask) in enumerate(zip(PARTS, (has, ~has), strict=True)):
        if mask.any():
            scores = [f"{found[group.title][:, column].mean():.1f} for {in_text(group)}" for group in groups]
            verb = "it is" if parts else "is"
            parts.append(f"on the {counted(int(mask.sum()), 'question')} {part} {verb} {listed(scores)}")
    return f"EM {'; '.join(parts)}."


def _draw_parts(rows: Rows) -> dict[str, Any]:
    altair = import_altair()
    bars = [bar for row in rows for bar in _part_bars(row)]
    base = chart_of(bars, ROW * len(rows)).encode(
        y=altair.Y("model:N", sort=[row[0] for row in rows], title=None),
        yOffset=altair.YOffset("questions:N", sort=list(PARTS)),
        tooltip=tips(
            ("model:N", "model"),
            ("questions:N", "questions"),
            ("right:Q", "EM (%)", ".2f"),
            ("deviation:Q", "± over seeds", ".2f"),
        ),
    )
    whole = base.mark_bar().encode(
        x=altair.X("right:Q", title="EM (%)", scale=altair.Scale(domain=[0, 100])),
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


# ---------------------------------------------------------------------- types of errors


@analysis("Predictions", 20, "Types of errors", [gives(SpanResults)])
def wrong_predictions(run: FinishedRun, split: str) -> Block:
    """The types of errors: a missed answer, a span that overlaps the gold answer or does not, a false answer."""
    groups = run.groups(run.last)
    by_seed = _measure(groups, split, _count_errors)
    found = {name: values.mean(axis=0) for name, values in by_seed.items()}  # each (kind)
    total, digits = len(_results(groups[0].trained[0], split)), _count_digits(groups)
    columns: Headings = [
        "model", Column("wrong", digits), Column("% wrong", 2, "Of all questions"), Column("± % wrong", 2),
    ]  # fmt: skip
    for error, meaning in ERRORS.items():
        columns += [Column(error, digits, meaning[0].upper() + meaning[1:]), Column(f"% {error}", 1, "Of all errors")]
    rows = []
    for name, counts in found.items():
        wrong = float(counts.sum())
        of_all = _mean_and_deviation(100.0 * by_seed[name].sum(axis=1) / total)
        kinds = [cell for count in counts for cell in (_number(count), _percent(count, wrong))]
        rows.append([name, _number(wrong), *of_all, *kinds])
    return Block(
        sentences=[_describe_errors(group, found[group.title], total) for group in _described_groups(run)],
        table=Table(columns, rows).without_empty(),
        picture=_draw_stack(found, list(ERRORS), f"errors (of {counted(total, 'question')})", "error"),
        drawn=list(ERRORS),
        note=joined(
            "A prediction is wrong if it is not an exact match. A span overlaps if it shares words with a gold answer "
            "(F1 above 0).",
            _threshold_note(groups),
            seeds_note(groups),
        ),
        folded=True,
    )


def _count_errors(threshold: float, results: SpanResults) -> list[float]:
    """The number of errors of each type in ERRORS."""
    wrong, has, silent = (
        ~results.right(threshold),
        results.has_answer,
        results.says_nothing(threshold),
    )  # (example) each
    spoke, overlaps = wrong & has & ~silent, results.f1 > 0  # (example), (example)
    kinds = (wrong & has & silent, spoke & overlaps, spoke & ~overlaps, wrong & ~has)  # (example) each
    return [float(kind.sum()) for kind in kinds]


def _describe_errors(group: Group, counts: Float, total: int) -> str:
    name, wrong = opening(in_text(group)), float(counts.sum())
    if not wrong:
        return f"{name} is never wrong."
    text = f"{name} is wrong on {_spell_part(wrong, total, group)} ({100 * wrong / total:.1f} %)."
    most = [meaning for meaning, count in zip(ERRORS.values(), counts, strict=True) if count == counts.max()]
    if counts.max() == wrong:
        return f"{text} Its only type of error is {most[0]}."
    share = f"{100 * counts.max() / wrong:.1f} %"
    if len(most) == 1:
        return f"{text} Its most common error is {most[0]} ({share} of the errors)."
    return f"{text} Its most common errors are {listed(most)} ({share} of the errors each)."


def _draw_stack(found: Measured, kinds: Sequence[str], title: str, legend: str) -> dict[str, Any]:
    """One bar per model, stacked from the counts of each kind."""
    altair = import_altair()
    bars = [
        {"model": name, "kind": kind, "place": place, "count": float(count), "share": _percent(count, counts.sum())}
        for name, counts in found.items()
        for place, (kind, count) in enumerate(zip(kinds, counts, strict=True))
    ]
    encoding = {
        "y": altair.Y("model:N", sort=list(found), title=None),
        "x": altair.X("count:Q", title=title, scale=altair.Scale(nice=False)),
        "color": colour_by("kind", kinds, legend).legend(orient="top"),
        "order": altair.Order("place:Q"),
        "tooltip": tips(
            ("model:N", "model"),
            ("kind:N", legend),
            ("count:Q", "questions", ",.4~r"),
            ("share:Q", "share of the bar (%)", ".1f"),
        ),
    }
    return dict(chart_of(bars, ROW * len(found)).mark_bar().encode(**encoding).to_dict())


# ---------------------------------------------------------------------- the second most likely answer


@analysis("Predictions", 30, "Is the second most likely answer right?", [gives(SpanResults)])
def second_answer(run: FinishedRun, split: str) -> Block:
    """How often the second most likely answer is right when the most likely one is wrong."""
    groups = run.groups(run.last)
    by_seed = _measure(groups, split, _count_guesses)
    found = {name: values[:, :3].mean(axis=0) for name, values in by_seed.items()}  # each (guess)
    total, digits = len(_results(groups[0].trained[0], split)), _count_digits(groups)
    rows: list[Row] = []
    for name, (first, second, neither) in found.items():
        (share, share_spread), (f1, f1_spread) = map(_mean_and_deviation, by_seed[name].T[3:])
        rows.append(
            {
                "model": name,
                Column("first wrong", digits): _number(second + neither),
                Column("second right", digits, "The first answer is wrong, the second is an exact match"): _number(
                    second
                ),
                Column("% second right", 1, "Of the questions whose first answer is wrong"): share,
                Column("± % second right", 1): share_spread,
                Column("F1 of second", 1, "Mean F1 of the second answer where the first is wrong"): f1,
                Column("± F1 of second", 1): f1_spread,
                Column("% first right", 1, "Of all questions"): _percent(first, total),
                Column("% first or second right", 1, "Of all questions"): _percent(first + second, total),
            }
        )
    return Block(
        sentences=[_describe_second(group, by_seed[group.title], total) for group in _described_groups(run)],
        table=Table.of(rows).without_empty(),
        picture=_draw_stack(found, GUESSES, "questions", "right answer"),
        drawn=["first wrong", "second right"],
        note=joined(
            'Spans and "no answer" are ranked together by score at threshold 0. Only an exact match counts as right.',
            seeds_note(groups),
        ),
        folded=True,
    )


def _count_guesses(threshold: float, results: SpanResults) -> list[float]:
    """The count of each of GUESSES at threshold 0, then EM and F1 of the second answer where the first is wrong, in
    percent; NaN if it never is."""
    right, silent = results.right(), results.says_nothing()  # (example), (example)
    # After "no answer" comes the best span; after the best span, the better of the second span and "no answer".
    span_next = results.second_score >= results.null_score  # (example)
    exact = np.where(silent, results.exact, np.where(span_next, results.second_exact, results.silent))  # (example)
    f1 = np.where(silent, results.f1, np.where(span_next, results.second_f1, results.silent))  # (example)
    second = ~right & (exact == 1)  # (example)
    counts = [float(some.sum()) for some in (right, second, ~right & ~second)]
    shares = [100.0 * float(values[~right].mean()) if not right.all() else np.nan for values in (exact, f1)]
    return [*counts, *shares]


def _describe_second(group: Group, by_seed: Float, total: int) -> str:
    first, second, neither = by_seed[:, :3].mean(axis=0).tolist()
    share, _ = _mean_and_deviation(by_seed[:, 3])
    if share is None:
        return f"The most likely answer of {in_text(group)} is never wrong."
    return (
        f"The most likely answer of {in_text(group)} is wrong for {_spell_part(second + neither, total, group)}. In "
        f"{share:.1f} % of these cases the second most likely answer is right. The first answer is right for "
        f"{100 * first / total:.1f} % of all questions, the first or the second for "
        f"{100 * (first + second) / total:.1f} %."
    )
