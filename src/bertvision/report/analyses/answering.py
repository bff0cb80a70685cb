"""What models do with questions (spans): who answers and who stays silent, what wrong predictions are, and whether the
second guess is right."""

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
    "said nothing": "said nothing where there is an answer",
    "overlapping span": "gave a span that shares words with the gold answer",
    "wrong span": "gave a span that shares no word with the gold answer",
    "answered anyway": "answered where there is no answer",
}
GUESSES = ("first is right", "second is right", "neither is right")
Measured = dict[str, Float]
"""Title of a group → (seed, number)."""


def _spoken_of(run: FinishedRun) -> list[Group]:
    """Whom sentences are about: the encoder alone, and the best head or else the control."""
    other = best_or_control(run, run.last)
    return [run.encoder(run.last), *([other] if other else [])]


def _measure(groups: Sequence[Group], split: str, measure: Callable[[float, SpanResults], list[float]]) -> Measured:
    """Some numbers of each seed that was trained to the end, from its threshold and results."""
    return {
        group.title: np.array([measure(one.threshold or 0.0, _results(one, split)) for one in group.trained])
        for group in groups
    }


def _results(model: Model, split: str) -> SpanResults:
    return results_of(model, split, SpanResults)


def _threshold_note(groups: Sequence[Group]) -> str:
    return threshold_note([model for group in groups for model in group.trained])


def _count_digits(groups: Sequence[Group]) -> int | None:
    """Means of counts over seeds have decimals."""
    return 1 if any(len(group.trained) > 1 for group in groups) else None


def _number(value: float) -> Cell:
    """A count: whole, unless it is a mean over seeds."""
    return int(value) if float(value).is_integer() else float(value)


def _spell_part(value: float, total: int, group: Group) -> str:
    average = " on average" if len(group.trained) > 1 else ""
    shown = f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
    return f"{shown} of {counted(total, 'question')}{average}"


def _percent(part: float, whole: float) -> float | None:
    return 100.0 * float(part) / float(whole) if whole else None


def _mean_and_deviation(values: Float) -> tuple[float | None, float | None]:
    """Of the seeds that have a value."""
    known = values[~np.isnan(values)].tolist()
    found = spread(known) if known else None
    return (found.mean, found.deviation) if found else (None, None)


# ---------------------------------------------------------------------- with and without an answer


@analysis("What the models say", 10, "Questions with and without an answer", [gives(SpanResults)])
def has_and_no_answer(run: FinishedRun, split: str) -> Block:
    """How often each model is right (EM) on questions with an answer and without, and how often it says nothing."""
    groups = run.groups(run.last)
    has = _results(groups[0].trained[0], split).has_answer  # (example)
    found = _measure(groups, split, _right_by_part)
    rows: Rows = [["baseline", 0.0 if has.any() else None, None, None if has.all() else 100.0, None, 100.0, None]]
    rows += [[name, *(cell for one in values.T for cell in _mean_and_deviation(one))] for name, values in found.items()]
    columns: Headings = [Column("model")]
    for heading in (*(f"EM {part}" for part in PARTS), "silent"):
        note = 'Percent of all questions to which it says "no answer"' if heading == "silent" else ""
        columns += [Column(heading, 2, note), Column(f"± {heading}", 2)]
    return Block(
        sentences=[_describe_silence(groups, found, has), _describe_parts(_spoken_of(run), found, has)],
        table=Table(columns, rows).without_empty(),
        picture=_draw_parts(rows),
        drawn=[f"EM {part}" for part in PARTS],
        note=joined("The baseline never answers.", _threshold_note(groups), seeds_note(groups)),
        folded=True,
    )


def _right_by_part(threshold: float, results: SpanResults) -> list[float]:
    """EM with an answer, EM without, and how often nothing is said, in percent; NaN where there are no questions."""
    right, has = results.right(threshold), results.has_answer  # (example), (example)
    parts = [100.0 * float(right[part].mean()) if part.any() else np.nan for part in (has, ~has)]
    return [*parts, 100.0 * float(results.says_nothing(threshold).mean())]


def _describe_silence(groups: Sequence[Group], found: Measured, has: Bool) -> str:
    # Rounded first: what reads the same is called the same.
    said = {in_text(group): round(found[group.title][:, 2].mean(), 1) for group in groups}
    high, low = max(said.values()), min(said.values())
    truth = f"Of {counted(len(has), 'question')} {100 * (~has).mean():.1f} % have no answer"
    if high == low:
        every = f"all {len(said)} models" if len(said) > 1 else next(iter(said))
        return f"{truth}; {every} said so of {high:.1f} %."
    names = [[name for name in said if said[name] == value] for value in (high, low)]
    most, least = (listed(some) if len(some) <= 3 else f"{len(some)} models" for some in names)
    return f"{truth}; {most} said so most often, of {high:.1f} %, and {least} least often, of {low:.1f} %."


def _describe_parts(groups: Sequence[Group], found: Measured, has: Bool) -> str:
    told: list[str] = []
    for place, (part, mask) in enumerate(zip(PARTS, (has, ~has), strict=True)):
        if not mask.any():
            continue
        shares = [f"{found[group.title][:, place].mean():.1f} %" for group in groups]
        if not told:  # whose shares they are is said once
            names = [in_text(group) for group in groups]
            shares = [f"{names[0]} got {shares[0]} right", *map(" ".join, zip(names[1:], shares[1:], strict=True))]
        told.append(f"of the {mask.sum():,} {part} {listed(shares)}")
    return opening(f"{'; '.join(told)}.")


def _draw_parts(rows: Rows) -> dict[str, Any]:
    altair = import_altair()
    bars = [bar for row in rows for bar in _part_bars(row)]
    base = chart_of(bars, ROW * len(rows)).encode(
        y=altair.Y("model:N", sort=[row[0] for row in rows], title=None),
        yOffset=altair.YOffset("questions:N", sort=list(PARTS)),
        tooltip=tips(
            ("model:N", "model"),
            ("questions:N", "questions"),
            ("right:Q", "right (EM), %", ".2f"),
            ("deviation:Q", "± over seeds", ".2f"),
        ),
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


# ---------------------------------------------------------------------- what wrong predictions were


@analysis("What the models say", 20, "What wrong predictions were", [gives(SpanResults)])
def wrong_predictions(run: FinishedRun, split: str) -> Block:
    """What wrong predictions were: silence, a span that overlaps the gold answer or one that does not, an answer to a
    question that has none."""
    groups = run.groups(run.last)
    by_seed = _measure(groups, split, _count_errors)
    found = {name: values.mean(axis=0) for name, values in by_seed.items()}  # each (kind)
    total, digits = len(_results(groups[0].trained[0], split)), _count_digits(groups)
    columns: Headings = [
        "model", Column("wrong", digits), Column("% wrong", 2, "Of all questions"), Column("± % wrong", 2),
    ]  # fmt: skip
    for error, meaning in ERRORS.items():
        columns += [Column(error, digits, f"It {meaning}"), Column(f"% {error}", 1, "Of the wrong predictions")]
    rows = []
    for name, counts in found.items():
        wrong = float(counts.sum())
        of_all = _mean_and_deviation(100.0 * by_seed[name].sum(axis=1) / total)
        kinds = [cell for count in counts for cell in (_number(count), _percent(count, wrong))]
        rows.append([name, _number(wrong), *of_all, *kinds])
    return Block(
        sentences=[_describe_errors(group, found[group.title], total) for group in _spoken_of(run)],
        table=Table(columns, rows).without_empty(),
        picture=_draw_stack(found, list(ERRORS), f"wrong predictions, of {counted(total, 'question')}", "what it did"),
        drawn=list(ERRORS),
        note=joined(
            "Wrong: no exact match. A span overlaps where it shares words with a gold answer (F1 above 0).",
            _threshold_note(groups),
            seeds_note(groups),
        ),
        folded=True,
    )


def _count_errors(threshold: float, results: SpanResults) -> list[float]:
    """How often each of ERRORS."""
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
        return f"{name} was never wrong."
    of = f"{name} was wrong on {_spell_part(wrong, total, group)} ({100 * wrong / total:.1f} %)"
    most = [meaning for meaning, count in zip(ERRORS.values(), counts, strict=True) if count == counts.max()]
    often = "each time" if counts.max() == wrong else f"most often, {100 * counts.max() / wrong:.1f} % of the time,"
    return f"{of}: {often} it {' or, as often, '.join(most)}."


def _draw_stack(found: Measured, kinds: Sequence[str], title: str, legend: str) -> dict[str, Any]:
    """A bar a model, of the counts of each kind."""
    altair = import_altair()
    bars = [
        {"model": name, "kind": kind, "place": place, "count": float(count), "share": _percent(count, counts.sum())}
        for name, counts in found.items()
        for place, (kind, count) in enumerate(zip(kinds, counts, strict=True))
    ]
    told = {
        "y": altair.Y("model:N", sort=list(found), title=None),
        "x": altair.X("count:Q", title=title, scale=altair.Scale(nice=False)),
        "color": colour_by("kind", kinds, legend).legend(orient="top"),
        "order": altair.Order("place:Q"),
        "tooltip": tips(
            ("model:N", "model"),
            ("kind:N", legend),
            ("count:Q", "questions", ",.4~r"),
            ("share:Q", "% of the bar", ".1f"),
        ),
    }
    return dict(chart_of(bars, ROW * len(found)).mark_bar().encode(**told).to_dict())


# ---------------------------------------------------------------------- the second most likely answer


@analysis("What the models say", 30, "Is the second most likely answer right?", [gives(SpanResults)])
def second_answer(run: FinishedRun, split: str) -> Block:
    """When the most likely answer is wrong, how often the second most likely one is right."""
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
                Column("second right", digits, "Exact match, where the first is wrong"): _number(second),
                Column("% second right", 1, "Of those where the first is wrong"): share,
                Column("± % second right", 1): share_spread,
                Column("F1 of second", 1, "Mean, where the first is wrong"): f1,
                Column("± F1 of second", 1): f1_spread,
                Column("% first right", 1, "Of all questions"): _percent(first, total),
                Column("% first or second right", 1, "Of all questions"): _percent(first + second, total),
            }
        )
    return Block(
        sentences=[_describe_second(group, by_seed[group.title], total) for group in _spoken_of(run)],
        table=Table.of(rows).without_empty(),
        picture=_draw_stack(found, GUESSES, "questions", "most likely answers"),
        drawn=["first wrong", "second right"],
        note=joined(
            'Spans and "no answer" are ranked together by their scores, at threshold 0; right: exact match.',
            seeds_note(groups),
        ),
        folded=True,
    )


def _count_guesses(threshold: float, results: SpanResults) -> list[float]:
    """How often each of GUESSES, at threshold 0 for all; EM and F1 of the second in percent where the first is wrong,
    NaN if it never is."""
    right, silent = results.right(), results.says_nothing()  # (example), (example)
    # Behind silence comes the best span; behind the best span whichever is better, the second span or silence.
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
    wrong = _spell_part(second + neither, total, group)
    return (
        f"When the most likely answer of {in_text(group)} is wrong ({wrong}), the second is right {share:.1f} % of the "
        f"time: one of the two is right for {100 * (first + second) / total:.1f} % of all questions, the first alone "
        f"for {100 * first / total:.1f} %."
    )
