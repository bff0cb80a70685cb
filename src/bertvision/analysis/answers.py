"""Analyses of answers (spans): who answers and who stays silent, what wrong predictions are, whether the second guess
is right, how long the passages are, and what the no-answer threshold does. Each gives None for other kinds of task."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertvision.analysis.block import Block, Cell, Column, Frame
from bertvision.analysis.disagreements import name_of, pair_of, right_of, seeds_note, shown_p, the
from bertvision.analysis.drawing import chart_of, colour_by, import_altair
from bertvision.analysis.evidence import Evidence, Group, Model
from bertvision.evaluation.marks import Bool, Float, SpanMarks
from bertvision.evaluation.spans import NO_SPAN
from bertvision.evaluation.statistics import spread
from bertvision.results import counted
from bertvision.tasks.base import TargetKind

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
FEWEST = 8  # questions on each side that a test of lengths needs
POINTS = 60  # of a curve
MINUS = "\N{MINUS SIGN}"

Words = npt.NDArray[np.int64]


def marks_of(model: Model, split: str) -> SpanMarks:
    found = model.marks(split)
    assert isinstance(found, SpanMarks), f"{model.name} has no answers"
    return found


def _at(model: Model) -> float:
    """The threshold it answers at: the one chosen for it, else 0."""
    return model.threshold or 0.0


def _threshold_note(models: Sequence[Model]) -> str:
    without = [model.name for model in models if model.threshold is None]
    if len(without) == len(models):
        return "At no-answer threshold 0: none was chosen on held-out training questions."
    exceptions = f" ({', '.join(without)}: at 0)" if without else ""
    return f"Each model at its own no-answer threshold, chosen on held-out training questions{exceptions}."


def _models(groups: Sequence[Group]) -> list[Model]:
    return [model for group in groups for model in group.well]


def _spoken_of(evidence: Evidence) -> list[Group]:
    """Whom sentences are about: the encoder itself, and the best head or else the control."""
    other = evidence.best_head(evidence.last) or evidence.control(evidence.last)
    return [evidence.encoder(evidence.last), *([other] if other else [])]


def _by_seed(group: Group, split: str, measure: Callable[[Model, SpanMarks], list[float]]) -> Float:
    """Some numbers of each seed that was trained to the end."""
    return np.array([measure(model, marks_of(model, split)) for model in group.well])  # (seed, number)


def _seeds_note(groups: Sequence[Group]) -> str:
    several = any(len(group.well) > 1 for group in groups)
    return "Of several seeds the mean is given (±: their standard deviation)." if several else ""


def _count_digits(groups: Sequence[Group]) -> int | None:
    """Means of counts over seeds have decimals."""
    return 1 if any(len(group.well) > 1 for group in groups) else None


def _number(value: float) -> Cell:
    """A count: whole, unless it is a mean over seeds."""
    return int(value) if float(value).is_integer() else float(value)


def _spell(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def _spell_part(value: float, total: int, group: Group) -> str:
    average = " on average" if len(group.well) > 1 else ""
    return f"{_spell(value)} of {counted(total, 'question')}{average}"


def _percent(part: float, whole: float) -> float | None:
    return 100.0 * float(part) / float(whole) if whole else None


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _name(group: Group) -> str:
    """Inside a sentence, without the seeds."""
    return the(name_of(group.well[0]))


def _start(sentence: str) -> str:
    """A model's name at the start of a sentence stays as it is; other words do not."""
    return sentence[0].upper() + sentence[1:] if sentence.startswith(("the ", "of ")) else sentence


def _list_names(names: Sequence[str]) -> str:
    if len(names) > 3:
        return f"{len(names)} models"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# ---------------------------------------------------------------------- with and without an answer


def has_and_no_answer(evidence: Evidence, split: str) -> Block | None:
    """How often each model is right (EM) on questions with an answer and without, and how often it says nothing."""
    if evidence.kind is not TargetKind.SPAN:
        return None
    groups = evidence.groups(evidence.last)
    has = marks_of(groups[0].well[0], split).has_answer  # (example)
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
        _joined("The baseline never answers.", _threshold_note(_models(groups)), _seeds_note(groups)),
        folded=True,
    )


def _right_by_part(model: Model, marks: SpanMarks) -> list[float]:
    """EM with an answer, EM without, and how often nothing is said, in percent; NaN where there are no questions."""
    right, has = marks.right(_at(model)), marks.has_answer  # (example), (example)
    parts = [100.0 * float(right[part].mean()) if part.any() else np.nan for part in (has, ~has)]
    return [*parts, 100.0 * float(marks.says_nothing(_at(model)).mean())]


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
    return _without_empty(columns, rows)


def _without_empty(columns: list[Column], rows: list[list[Cell]]) -> Frame:
    """Without the columns that no model has a value for."""
    kept = [place for place in range(len(columns)) if any(row[place] is not None for row in rows)]
    return Frame([columns[place] for place in kept], [[row[place] for place in kept] for row in rows])


def _told_of_silence(groups: Sequence[Group], split: str, has: Bool) -> str:
    # Rounded first: what reads the same is called the same.
    said = {_name(group): round(_by_seed(group, split, _right_by_part)[:, 2].mean(), 1) for group in groups}
    high, low = max(said.values()), min(said.values())
    truth = f"Of {counted(len(has), 'question')} {100 * (~has).mean():.1f} % have no answer"
    if high == low:
        every = f"all {len(said)} models" if len(said) > 1 else next(iter(said))
        return f"{truth}; {every} said so of {high:.1f} %."
    most, least = (_list_names([name for name in said if said[name] == value]) for value in (high, low))
    return f"{truth}; {most} said so most often, of {high:.1f} %, and {least} least often, of {low:.1f} %."


def _told_of_parts(groups: Sequence[Group], split: str, has: Bool) -> str:
    told: list[str] = []
    for place, (part, mask) in enumerate(zip(PARTS, (has, ~has), strict=True)):
        shares = [f"{_by_seed(group, split, _right_by_part)[:, place].mean():.1f} %" for group in groups]
        if not mask.any():
            continue
        if not told:  # whose shares they are is said once
            names = [_name(group) for group in groups]
            shares = [f"{names[0]} got {shares[0]} right", *map(" ".join, zip(names[1:], shares[1:], strict=True))]
        told.append(f"of the {mask.sum():,} {part} {_list_names(shares)}")
    return _start(f"{'; '.join(told)}.")


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


def wrong_predictions(evidence: Evidence, split: str) -> Block | None:
    """What wrong predictions were: silence, a span that overlaps the gold answer or one that does not, an answer to a
    question that has none."""
    if evidence.kind is not TargetKind.SPAN:
        return None
    groups = evidence.groups(evidence.last)
    by_seed = {group.title: _by_seed(group, split, _count_errors) for group in groups}  # each (seed, kind)
    found = {name: values.mean(axis=0) for name, values in by_seed.items()}  # each (kind)
    total = len(marks_of(groups[0].well[0], split).silent)
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
        _joined(
            "Wrong: no exact match. A span overlaps where it shares words with a gold answer (F1 above 0).",
            _threshold_note(_models(groups)),
            _seeds_note(groups),
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
    return _without_empty(columns, rows)


def _count_errors(model: Model, marks: SpanMarks) -> list[float]:
    """How often each of ERRORS."""
    wrong, has, silent = ~marks.right(_at(model)), marks.has_answer, marks.says_nothing(_at(model))  # (example) each
    spoke, overlaps = wrong & has & ~silent, marks.f1 > 0  # (example), (example)
    kinds = (wrong & has & silent, spoke & overlaps, spoke & ~overlaps, wrong & ~has)  # (example) each
    return [float(kind.sum()) for kind in kinds]


def _told_of_errors(group: Group, counts: Float, total: int) -> str:
    name, wrong = _start(_name(group)), float(counts.sum())
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


def second_answer(evidence: Evidence, split: str) -> Block | None:
    """When the most likely answer is wrong, how often the second most likely one is right."""
    if evidence.kind is not TargetKind.SPAN:
        return None
    groups = evidence.groups(evidence.last)
    by_seed = {group.title: _by_seed(group, split, _count_guesses) for group in groups}  # each (seed, number)
    found = {name: values[:, :3].mean(axis=0) for name, values in by_seed.items()}  # each (guess)
    total = len(marks_of(groups[0].well[0], split).silent)
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
        _joined(
            'Spans and "no answer" are ranked together by their scores, at threshold 0; right: exact match.',
            _seeds_note(groups),
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
    return _without_empty(columns, rows)


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
        return f"The most likely answer of {_name(group)} is never wrong."
    wrong = _spell_part(second + neither, total, group)
    return (
        f"When the most likely answer of {_name(group)} is wrong ({wrong}), the second is right {share:.1f} % of the "
        f"time: one of the two is right for {100 * (first + second) / total:.1f} % of all questions, the first alone "
        f"for {100 * first / total:.1f} %."
    )


# ---------------------------------------------------------------------- passage lengths


def passage_lengths(evidence: Evidence, split: str) -> Block | None:
    """How long the passages are of what only the encoder itself and only the best head got right."""
    pair = pair_of(evidence) if evidence.kind is TargetKind.SPAN else None
    examples = evidence.examples(split) if pair else None
    if pair is None or examples is None:
        return None
    words = np.array([len((example.text_pair or "").split()) for example in examples], dtype=np.int64)  # (example)
    ours, theirs = right_of(pair.head, split), right_of(pair.encoder, split)  # (example), (example)
    name = name_of(pair.head)
    sets = {
        "only encoder itself": words[theirs & ~ours],
        f"only {name}": words[ours & ~theirs],
        "both": words[ours & theirs],
        "neither": words[~ours & ~theirs],
    }
    rows = [[title, len(found), *_ranges(found)] for title, found in sets.items()]
    columns = [Column("right"), Column("questions"), Column("median", 1), Column("lower quartile", 1)]
    columns += [Column("upper quartile", 1), Column("shortest"), Column("longest")]
    return Block(
        f"passage_lengths_{split}",
        "Passage length of what only one of them got right",
        _told_of_lengths(name, *list(sets.values())[:2]),
        Frame(columns, rows),
        _draw_ranges(rows),
        _ranges_in_words(rows),
        _joined(
            "Words of the passage, counted by white space; right: exact match.",
            _threshold_note([pair.encoder, pair.head]),
            pair.note,
        ),
        folded=True,
    )


def _ranges(words: Words) -> list[Cell]:
    """Median, quartiles and ends; nothing of nothing."""
    if not len(words):
        return [None] * 5
    middle = [float(value) for value in np.percentile(words, [50, 25, 75])]
    return [*middle, int(words.min()), int(words.max())]


def _told_of_lengths(head: str, encoder_only: Words, head_only: Words) -> list[str]:
    told = []
    for name, words in (("the encoder itself", encoder_only), (head, head_only)):
        middle = f"{np.median(words):g} words in the median" if len(words) else "none"
        told.append(f"of what only {name} got right ({counted(len(words), 'question')}): {middle}")
    return [f"Passages {'; '.join(told)}.", _told_of_chance(encoder_only, head_only)]


def _told_of_chance(one: Words, other: Words) -> str:
    from scipy.stats import mannwhitneyu

    if min(len(one), len(other)) < FEWEST:
        return f"That is too few to test: it takes {FEWEST} questions on each side."
    p = float(mannwhitneyu(one, other).pvalue)
    verdict = "a difference that chance would seldom give" if p < 0.05 else "no more of a difference than chance gives"
    return f"Between the two there is {verdict} (Mann-Whitney: {shown_p(p)})."


def _draw_ranges(rows: list[list[Cell]]) -> dict[str, Any]:
    """From the shortest to the longest, the middle half as a bar, the median as a tick."""
    altair = import_altair()
    keys = ("right", "questions", "median", "lower", "upper", "shortest", "longest")
    known: list[dict[str, Any]] = [dict(zip(keys, row, strict=True)) for row in rows if row[1]]
    base = chart_of(known, ROW * len(known) + ROW).encode(
        y=altair.Y("right:N", sort=[row["right"] for row in known], title="got right by"),
        tooltip=[altair.Tooltip(f"{key}:{'N' if key == 'right' else 'Q'}", title=key) for key in keys],
    )
    words = altair.X("shortest:Q", title="words of the passage", scale=altair.Scale(zero=False))
    whole = base.mark_rule(strokeWidth=1).encode(x=words, x2="longest:Q")
    middle = base.mark_bar(size=16, opacity=0.4, cornerRadiusEnd=0).encode(x="lower:Q", x2="upper:Q")
    tick = base.mark_tick(size=24, thickness=3).encode(x="median:Q")
    return dict((whole + middle + tick).to_dict())


def _ranges_in_words(rows: list[list[Cell]]) -> str:
    told = [f"{row[0]} {row[2]:g} ({row[3]:g} to {row[4]:g})" for row in rows if row[1]]
    return f"Ranges of passage lengths in words, with median and middle half: {'; '.join(told)}."


# ---------------------------------------------------------------------- the no-answer threshold


def threshold_curve(evidence: Evidence, split: str) -> Block | None:
    """F1 and EM against the no-answer threshold, with the chosen one; the best one on this split is never used."""
    if evidence.kind is not TargetKind.SPAN:
        return None
    at = evidence.last
    groups = [group for group in (evidence.encoder(at), evidence.control(at), evidence.best_head(at)) if group]
    models = [group.well[0] for group in groups]
    marks = [marks_of(model, split) for model in models]
    rows = [_threshold_row(model, one, split) for model, one in zip(models, marks, strict=True)]
    return Block(
        f"threshold_curve_{split}",
        "Scores against the no-answer threshold",
        _told_of_thresholds(models, marks),
        Frame(_threshold_columns(), rows),
        _draw_curves(models, marks, _thresholds(models, marks)),
        _curves_in_words(models, marks),
        _joined(
            'A model says nothing where the score of "no answer" leads that of the best span by more than the '
            "threshold. The best threshold on this split is for diagnosis only: it was not used for any figure.",
            seeds_note((group.well[0], len(group.models)) for group in groups),
        ),
        folded=True,
    )


def _threshold_columns() -> list[Column]:
    return [
        Column("model"),
        Column("threshold", 3, "Chosen on held-out training questions"),
        Column("F1", 2, "At the chosen threshold"),
        Column("EM", 2, "At the chosen threshold"),
        Column("F1 at 0", 2),
        Column("EM at 0", 2),
        Column("best threshold", 3, "On this split, for diagnosis only"),
        Column("best F1", 2, "At the best threshold on this split"),
        Column("AUC", 2, "Of the no-answer score"),
        Column("forced EM", 2, "On answerable questions, when the model must answer"),
        Column("forced F1", 2, "On answerable questions, when the model must answer"),
    ]


def _threshold_row(model: Model, marks: SpanMarks, split: str) -> list[Cell]:
    chosen, scores = model.threshold, model.scores(split)
    own = [None, None] if chosen is None else [_f1(marks, chosen), _em(marks, chosen)]
    free = [scores.get(key) for key in ("no_answer_auc", "forced_exact", "forced_f1")]
    best = best_threshold(marks)
    return [name_of(model), chosen, *own, _f1(marks, 0.0), _em(marks, 0.0), best, _f1(marks, best), *free]


def _f1(marks: SpanMarks, threshold: float) -> float:
    return 100.0 * float(marks.f1_at(threshold).mean())


def _em(marks: SpanMarks, threshold: float) -> float:
    return 100.0 * float(marks.exact_at(threshold).mean())


def best_threshold(marks: SpanMarks) -> float:
    """The threshold with the highest F1 on these very questions; of equals the one nearest 0."""
    order = np.argsort(marks.lead)  # (example)
    leads = marks.lead[order]  # (example)
    gains = np.concatenate([[0.0], np.cumsum((marks.f1 - marks.silent)[order])])  # (answered questions)
    tried = np.unique(np.concatenate([[0.0, np.nextafter(leads[0], -np.inf)], leads]))  # (threshold)
    # Rounded: sums of fractions may differ in their last digits where the scores are equal.
    totals = np.round(gains[np.searchsorted(leads, tried, side="right")], 9)  # (threshold)
    best = tried[totals == totals.max()]  # (threshold)
    return float(best[np.argmin(np.abs(best))])


def _thresholds(models: Sequence[Model], marks: Sequence[SpanMarks]) -> list[float]:
    """Those a curve is drawn through: evenly over the leads without their long tails, 0, the chosen and best ones."""
    leads = np.concatenate([one.lead[one.score > NO_SPAN] for one in marks])  # (lead)
    low, high = np.quantile(leads, [0.05, 0.9]).tolist() if len(leads) else (0.0, 0.0)
    best = [at for at in map(best_threshold, marks) if low < at < high]
    return sorted({0.0, *(_at(model) for model in models), *best, *np.linspace(low, high, POINTS).tolist()})


def _told_of_thresholds(models: Sequence[Model], marks: Sequence[SpanMarks]) -> list[str]:
    missed: list[str] = []
    changed: list[str] = []
    for model, one in zip(models, marks, strict=True):
        name, used = the(name_of(model)), _f1(one, _at(model))
        points = "" if missed else " points of F1"
        missed.append(f"{max(0.0, _f1(one, best_threshold(one)) - used):.2f}{points} to {name}")
        if model.threshold is not None:
            changed.append(f"{_signed(used - _f1(one, 0.0))} for {name}")
    over = "chosen on held-out questions" if len(changed) == len(models) else "that they are scored at"
    best = f"Over those {over}, the best threshold on this split would add {_list_names(missed)}."
    unused = "It is for diagnosis only and was not used"
    if not changed:
        return [best, f"{unused}; no threshold was chosen on held-out questions, so 0 stands."]
    return [best, f"{unused}; against threshold 0 the chosen ones changed F1 by {_list_names(changed)}."]


def _signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", MINUS)  # + 0.0: no minus before nothing


def _draw_curves(models: Sequence[Model], marks: Sequence[SpanMarks], tried: Sequence[float]) -> dict[str, Any]:
    altair, names = import_altair(), [name_of(model) for model in models]
    rows = [row for name, one in zip(names, marks, strict=True) for row in _curve(name, one, tried)]
    chosen = [
        row
        for model, one in zip(models, marks, strict=True)
        if model.threshold is not None
        for row in _curve(name_of(model), one, [model.threshold])
    ]
    shown = {
        "x": altair.X("threshold:Q", title="no-answer threshold (to the right, more is answered)"),
        "y": altair.Y("score:Q", title="score, %", scale=altair.Scale(zero=False)),
        "tooltip": [
            altair.Tooltip("model:N", title="model"),
            altair.Tooltip("measure:N", title="score"),
            altair.Tooltip("threshold:Q", title="threshold", format=".3f"),
            altair.Tooltip("score:Q", title="%", format=".2f"),
        ],
    }
    colour = colour_by("model", names, "model")
    dash = altair.StrokeDash(
        "measure:N", scale=altair.Scale(domain=["F1", "EM"], range=[[1, 0], [4, 3]]), title="score"
    )
    lines = chart_of(rows).mark_line().encode(**shown, color=colour, strokeDash=dash)
    points = chart_of(chosen).mark_point(size=70, filled=True, opacity=1).encode(**shown, color=colour)
    zero = (
        chart_of([{"threshold": 0.0}])
        .mark_rule(strokeDash=[2, 3])
        .encode(x="threshold:Q", tooltip=altair.value("threshold 0"))
    )
    return dict((zero + lines + points).to_dict())


def _curve(name: str, marks: SpanMarks, thresholds: Iterable[float]) -> list[dict[str, Any]]:
    return [
        {"model": name, "measure": measure, "threshold": round(at, 4), "score": round(score(marks, at), 3)}
        for at in thresholds
        for measure, score in (("F1", _f1), ("EM", _em))
    ]


def _curves_in_words(models: Sequence[Model], marks: Sequence[SpanMarks]) -> str:
    told = []
    for model, one in zip(models, marks, strict=True):
        best = best_threshold(one)
        own = "" if model.threshold is None else f", {_f1(one, _at(model)):.2f} at the chosen {_at(model):.2f}"
        told.append(f"{name_of(model)} F1 {_f1(one, 0.0):.2f} at 0{own}, at most {_f1(one, best):.2f} at {best:.2f}")
    return f"F1 and EM of each model as lines over the threshold, a point at the chosen one: {'; '.join(told)}."
