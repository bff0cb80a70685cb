"""The main results page: six questions, each answered by one sentence, one picture and one small table.

Every sentence is built from the kept scores. Words such as "little" follow from the numbers by the rules below.
"""

from collections.abc import Callable, Iterable
from statistics import fmean, median
from typing import Any, NamedTuple

from scipy.stats import spearmanr

from bertvision.heads import CONTROL
from bertvision.pipeline.folder import BASELINE, ENCODER
from bertvision.report.block import Block
from bertvision.report.drawing import chart_of, import_altair
from bertvision.report.wording import listed, signed
from bertvision.tables import Cell, Column, Table, counted
from paper.best_heads import best_rows, draw_gaps, first_metrics
from paper.claims import count_verdicts, is_own, judge_all, judge_at_lower
from paper.judging import FAILS, HOLDS, NOT_MEASURED, PARTLY, UNCLEAR, best_place, compare, signed_mean, spans
from paper.kept import LOWER, Experiment, Experiments, Place, by_encoder, compared_seconds, show_rate
from paper.names import AUC, ENCODERS, FORCED, LABELS, SPAN_NOTES, colour_by_place, title_of
from paper.rates import draw_gain, settings_of
from paper.sentences import glue_experiments
from paper.spans import SHARED, data_shares, head_names
from paper.untouched import bars_of, draw_bars, share_of
from paper.zoo import SPANS, look_of_spans

CLOSE = 1.0
"""Points within which a head on less data counts as nearly as good."""
SITUATIONS = {0.0: "untouched", 0.3: "0.3 epochs", 1.0: "1 epoch", 2.0: "2 epochs"}
VERDICTS = {HOLDS: 2, PARTLY: 4, FAILS: 6, UNCLEAR: 7}
"""Positions of their colours."""


class Question(NamedTuple):
    block: Block
    """Its title is the question."""
    pages: list[str]
    """Appendix pages with all scores."""


Ask = Callable[[Experiments, Experiments], Question]


def all_questions(experiments: Experiments, lower: Experiments) -> list[Question]:
    """None without the main runs on spans."""
    asked: list[Ask] = [what_heads_add, better_encoders, untouched_encoders, less_data, which_head, which_claims]
    return [ask(experiments, lower) for ask in asked] if spans(experiments) else []


# ---------------------------------------------------------------------- fine-tuned encoders


def amount(points: float) -> str:
    """How much heads add, in words."""
    if points <= 0:
        return "Nothing"
    return "Almost nothing" if points < 0.5 else "A little" if points < 1.5 else "A lot"


def what_heads_add(experiments: Experiments, lower: Experiments) -> Question:
    rows = list({row.task: row for row in first_metrics(best_rows(experiments))}.values())  # the last snapshots
    gaps = [row.over[CONTROL] for row in rows]
    means, epochs = [gap.mean for gap in gaps], sorted({row.head.epochs for row in rows})
    sentence = (
        f"{amount(median(means))}: after {epochs[0]:g} to {epochs[-1]:g} epochs of fine-tuning, the best head differs "
        f"from the control by {signed(min(means))} to {signed(max(means))} points (median {signed(median(means))}), "
        f"and beats it with every seed on {sum(min(gap.values) > 0 for gap in gaps)} of {len(gaps)} tasks."
    )
    columns = [Column("task"), Column("metric", None, f"answerable-only F1: {SPAN_NOTES[LABELS[FORCED]]}")]
    columns += [Column("encoder alone", 2), Column("control", 2), Column("best head"), Column("its score", 2)]
    cells: list[list[Cell]] = [
        [row.task, row.label, *[_score(row.other(model), row.metric) for model in (ENCODER, CONTROL)], row.head.model,
         _score(row.head, row.metric), row.show_gap(CONTROL)]
        for row in rows
    ]  # fmt: skip
    block = Block(
        "question_adds",
        "What do heads add after fine-tuning?",
        [sentence],
        Table([*columns, Column("over the control")], cells),
        draw_gaps(rows),
        "Dots with error bars, one row per task: points of the best head above the encoder alone and above the "
        "control.",
        "RTE is barely above chance, so differences there mean little. GLUE tasks use all-MiniLM-L6-v2.",
    )
    return Question(block, ["best_heads", "glue", "answerability"])


def better_encoders(experiments: Experiments, lower: Experiments) -> Question:
    lines = {short: settings_of(experiments, lower, short) for short in ENCODERS}
    lines = {short: settings for short, settings in lines.items() if len(settings) > 1}
    parts, trends = [], []
    for short, settings in lines.items():
        pairs = sorted((_score(one.other(ENCODER)), one.gaps(CONTROL)[FORCED].mean) for one in settings)
        trends.append(spearmanr(*zip(*pairs, strict=True)).statistic)
        (worst, first), (best, last) = pairs[0], pairs[-1]
        parts.append(f"{signed(first)} to {signed(last)} with {ENCODERS[short]} ({worst:.2f} to {best:.2f})")
    fewer, more = all(trend < -0.5 for trend in trends), all(trend > 0.5 for trend in trends)
    lead = (
        f"The better the encoder, the {'less' if fewer else 'more'} a head adds" if fewer or more else "No clear trend"
    )
    sentence = f"{lead}: from our worst to our best fine-tuned encoder (its answerable-only F1 in brackets), the best "
    sentence += f"head's gain over the control goes from {listed(parts)}."
    columns = [Column("learning rate"), Column("fine-tuned")]
    for title in (ENCODERS[short] for short in lines):
        columns += [Column(title, 2), Column("head over it"), Column("over the control")]
    cells: list[list[Cell]] = []
    for alike in zip(*lines.values(), strict=True):
        cells.append([alike[0].rate, alike[0].words])
        for one in alike:
            over, above = (one.gaps(model)[FORCED] for model in (ENCODER, CONTROL))
            cells[-1] += [_score(one.other(ENCODER)), signed(over.mean), signed_mean(above)]
    block = Block(
        "rates_gain",
        "How does that depend on how well the encoder was fine-tuned?",
        [sentence],
        Table(columns, cells),
        draw_gain(lines, ENCODERS),
        "Scatter plot for each encoder: points of best head and control above the encoder, against the encoder's "
        "score.",
        "Answerable-only F1 on SQuAD 2.0. “1 of 3 epochs” was stopped early, before the learning rate had decayed to "
        "0. Each encoder is that of the best head's run, so other tables may show another run of the same seeds.",
    )
    return Question(block, ["learning_rates", "spans_gte", "spans_minilm"])


def _score(place: Place, key: str = FORCED) -> float:
    mean = place.mean(key)
    assert mean is not None, f"{place.model} was scored"
    return mean.mean


# ---------------------------------------------------------------------- untouched encoders


class Untouched(NamedTuple):
    """The best head on an untouched encoder, and the encoder fine-tuned to the end."""

    task: str
    metric: str
    head: Place
    tuned: Place

    def other(self, model: str) -> Place:
        return Place(self.head.experiment, 0.0, model)

    def passes(self, place: Place) -> float | None:
        return place.passes(self.tuned.experiment.entry(1.0, ENCODER).tokens)


def untouched_rows(experiments: Experiments) -> list[Untouched]:
    found: list[tuple[str, str, Place | None, Experiment]] = []
    for (title, curve), (_, own) in zip(spans(experiments), by_encoder(experiments, "untouched_{}"), strict=False):
        found.append((f"spans, {title}", FORCED, best_place(own, None, 0.0, FORCED, theirs=False), curve))
    answerable = [(f"answerability, {title}", one, None) for title, one in by_encoder(experiments, "answerable_{}")]
    for title, one, zoo in [*answerable, *glue_experiments(experiments)]:
        metric = one.first["metrics"][0]
        found.append((title, metric, best_place(one, zoo, 0.0, metric, theirs=False), one))
    return [
        Untouched(title, metric, head, Place(one, one.snapshots[-1], ENCODER))
        for title, metric, head, one in found
        if head is not None
    ]


def untouched_encoders(experiments: Experiments, lower: Experiments) -> Question:
    rows = untouched_rows(experiments)
    parts: list[str] = []
    for row in (row for row in rows if row.metric == FORCED):
        times = compared_seconds(row.head, row.tuned)
        costs = f"{row.passes(row.head):.0f} passes instead of {row.passes(row.tuned):.0f}"
        costs += f", {times[0]:.0f} s instead of {times[1]:.0f} s" if times else ""
        name = row.task.removeprefix("spans, ")
        what = "" if parts else " of the answerable-only F1"
        parts.append(f"{share_of(row.head, row.tuned):.0f} %{what} with {name} ({costs})")
    epochs = counted(rows[0].tuned.epochs, "epoch")
    sentence = f"Compared with {epochs} of fine-tuning on spans, the best head on an untouched encoder reaches "
    sentence += f"{listed(parts)}."
    columns = [Column("task"), Column("metric"), Column("baseline", 2), Column("control", 2), Column("best head")]
    columns += [Column("its score", 2), Column(f"fine-tuned, {epochs}", 2), Column("gap")]
    cells: list[list[Cell]] = []
    for row in rows:
        baseline = row.other(BASELINE).mean(row.metric)
        control, head, tuned = (_score(place, row.metric) for place in (row.other(CONTROL), row.head, row.tuned))
        cells.append([row.task, LABELS.get(row.metric, row.metric), baseline.mean if baseline else None, control])
        cells[-1] += [row.head.model, head, tuned, signed(head - tuned)]
    bars = {title: bars_of(experiments, short) for short, title in ENCODERS.items()}
    block = Block(
        "question_untouched",
        "What can an untouched encoder do, and at what cost?",
        [sentence],
        Table(columns, cells),
        draw_bars({title: found for title, found in bars.items() if found}),
        "Bars of answerable-only F1 for heads on each untouched encoder, and for the fine-tuned encoder.",
        "A pass sends the training set through the encoder: forward counts 1, backward 2. One copy of an untouched "
        "encoder, and one pass per text, can serve the heads of several tasks.",
    )
    return Question(block, ["untouched", "alternatives"])


# ---------------------------------------------------------------------- less data


def less_data(experiments: Experiments, lower: Experiments) -> Question:
    """Heads at 1 epoch; the encoder saw all of the data."""
    found = {title: (one, data_shares(one, 1.0)) for title, one in spans(experiments) if 1.0 in one.head_snapshots}
    shares = sorted(set.intersection(*[{*models} for _, models in found.values()]))

    def gap(title: str, share: float, other: str) -> float:
        one, models = found[title]
        finding = compare("", Place(one, 1.0, models[share]), Place(one, 1.0, other), [FORCED])
        assert finding is not None, "both were scored"
        return finding.gaps[FORCED].mean

    enough = [share for share in shares if all(gap(title, share, SHARED) > -CLOSE for title in found)]
    least = enough[0]  # all of the data is always enough
    whole = listed([f"{signed(gap(title, least, SHARED))} with {title}" for title in found])
    control = listed([signed(gap(title, least, CONTROL)) for title in found])
    sentence = (
        f"{100 * least:g} % of the data is enough for a head to stay within {CLOSE:g} point of the answerable-only F1 "
        f"of the same head on all of it ({whole}); its difference from the control on all of it is {control} points."
    )
    models = [(f"{SHARED} on {100 * share:g} %", [own[share] for _, own in found.values()]) for share in shares]
    models += [(f"{title_of(CONTROL)} on 100 %", [CONTROL] * len(found)), (title_of(ENCODER), [ENCODER] * len(found))]
    columns = [Column("model")]
    columns += [Column(f"{title}, {LABELS[key]}") for title in found for key in (FORCED, AUC)]
    cells: list[list[Cell]] = []
    for name, own in models:
        places = [Place(one, 1.0, model) for (one, _), model in zip(found.values(), own, strict=True)]
        cells.append([name, *[place.show(key) for place in places for key in (FORCED, AUC)]])
    block = Block(
        "question_less_data",
        "How little data is enough?",
        [sentence],
        Table(columns, cells),
        _draw_less_data(found, shares),
        "Lines for each encoder: answerable-only F1 of a head against the fraction of the data it saw, with the "
        "control on all of the data as a dashed line.",
        "Spans, 1 of 3 epochs. Only the head saw less: the encoder was fine-tuned on all of the data.",
    )
    return Question(block, ["spans_gte", "spans_minilm", "claims"])


def _draw_less_data(found: dict[str, tuple[Experiment, dict[float, str]]], shares: list[float]) -> dict[str, Any]:
    altair = import_altair()
    colour, _ = colour_by_place("model", {SHARED: 4, "control": 1}, [SHARED, "control"])
    panels = []
    for title, (one, models) in found.items():
        ticks, scores = [100 * share for share in shares], [_score(Place(one, 1.0, models[share])) for share in shares]
        rows = [{"share": tick, "score": score, "model": SHARED} for tick, score in zip(ticks, scores, strict=True)]
        control = _score(Place(one, 1.0, CONTROL))
        middle = (min(control, *scores) + max(control, *scores)) / 2
        scale = altair.Scale(zero=False, nice=False, domain=[middle - CLOSE, middle + CLOSE])  # the same in all panels
        x = altair.X("share:Q", title="% of the data", axis=altair.Axis(values=ticks, tickCount=len(ticks)))
        y = altair.Y("score:Q", title=LABELS[FORCED], scale=scale)
        line = chart_of(rows, 200).encode(x=x, y=y, color=colour)
        level = altair.Chart(altair.Data(values=[{"score": control, "model": "control"}]))
        rule = level.mark_rule(strokeDash=[5, 4]).encode(y=y, color=colour)
        marks = line.mark_line() + line.mark_point(size=50, opacity=1, filled=True) + rule
        panels.append(marks.properties(width=280, title=title))
    return dict(altair.hconcat(*panels).to_dict())


# ---------------------------------------------------------------------- which head


def head_gains(experiments: Experiments, split: str = "dev") -> dict[str, dict[float, float]]:
    """Head → epochs → points of answerable-only F1 over the control of its run, mean over encoders that all have it.
    Separate adapters are left out: they score like shared ones and are larger."""
    found: dict[str, dict[float, list[float]]] = {}
    for _, main in spans(experiments):
        for epochs in SITUATIONS:
            along = experiments.get(f"{main.name if epochs else main.name.replace('squad2', 'untouched')}_kernels")
            for one in filter(None, (main, along)):
                for head in (name for name in head_names(one, epochs) if name != CONTROL and "separate" not in name):
                    gap = compare("", Place(one, epochs, head), Place(one, epochs, CONTROL), [FORCED], split=split)
                    if gap is not None:
                        found.setdefault(head, {}).setdefault(epochs, []).append(gap.gaps[FORCED].mean)
    whole = len(spans(experiments))
    gains = {
        head: {epochs: fmean(gaps) for epochs, gaps in own.items() if len(gaps) == whole} for head, own in found.items()
    }
    return dict(sorted(gains.items(), key=lambda item: -item[1].get(1.0, 0.0)))


def which_head(experiments: Experiments, lower: Experiments) -> Question:
    gains, chosen = head_gains(experiments), head_gains(experiments, "held_out")
    best = {
        epochs: max((head for head in chosen if epochs in chosen[head]), key=lambda head: chosen[head][epochs])
        for epochs in SITUATIONS
        if any(epochs in own for own in chosen.values())
    }
    parts = [f"{head} {_when(epochs)} ({signed(gains[head][epochs])})" for epochs, head in best.items()]
    parts[0] = f"{parts[0].removesuffix(')')} points over the control on dev)"
    lead = "No head is best everywhere" if len({*best.values()}) > 1 else "One head is best everywhere"
    sentence = f"{lead}: the best on held-out questions is {listed(parts)}."
    one, kernels = spans(experiments)[0][1], experiments.get(f"{spans(experiments)[0][1].name}_kernels")
    columns = [Column("head"), Column("looks at"), Column("parameters", None, "with gte-small")]
    columns += [Column(words) for words in SITUATIONS.values()]
    cells: list[list[Cell]] = []
    for head, own in gains.items():
        where = one if head in one.models(1.0) or kernels is None else kernels
        points = [signed(own[epochs]) if epochs in own else None for epochs in SITUATIONS]
        cells.append([head, look_of_spans(head), where.entry(1.0, head).parameters, *points])
    block = Block(
        "question_which",
        "Which head should I use?",
        [sentence],
        Table(columns, cells),
        _draw_heads(gains),
        "Bars, one panel per stage of fine-tuning: points of answerable-only F1 of each head over the control.",
        "Spans, points of answerable-only F1 over the control after one pass, mean of both encoders, 3 seeds each. The "
        "best heads for sentence tasks are in the first table.",
    )
    return Question(block, ["spans_all_heads", "best_heads", "glue"])


def _when(epochs: float) -> str:
    return f"after {counted(epochs, 'epoch')}" if epochs else "on untouched encoders"


def _draw_heads(gains: dict[str, dict[float, float]]) -> dict[str, Any]:
    altair = import_altair()
    colour, _ = colour_by_place("kind", SPANS.kinds, list(SPANS.kinds))
    panels: list[Any] = []
    for epochs, words in SITUATIONS.items():
        rows = [
            {"head": head, "kind": look_of_spans(head), "gain": own[epochs]}
            for head, own in gains.items()
            if epochs in own
        ]
        axis = altair.Axis(labelLimit=200) if not panels else None
        chart = chart_of(rows, 22 * len(gains)).encode(
            x=altair.X("gain:Q", title="points", axis=altair.Axis(tickCount=3)),
            y=altair.Y("head:N", sort=list(gains), scale=altair.Scale(domain=list(gains)), title=None, axis=axis),
            color=colour,
        )
        panels.append(chart.mark_bar().properties(width=120, title=words))
    return dict(altair.hconcat(*panels).to_dict())


# ---------------------------------------------------------------------- claims


def which_claims(experiments: Experiments, lower: Experiments) -> Question:
    there = judge_at_lower(experiments, lower)
    claims = {judge: claim for judge, claim in judge_all(experiments).items() if not is_own(claim)}
    cells: list[list[Cell]] = []
    unmeasured = [claim.text for claim in claims.values() if claim.verdict == NOT_MEASURED]
    for judge, claim in claims.items():
        if claim.verdict == NOT_MEASURED:
            continue
        found = claim.found
        if judge in there and (there[judge].verdict != claim.verdict or claim.verdict == UNCLEAR):
            verdict = "" if there[judge].verdict == claim.verdict else f"{there[judge].verdict}, "
            found += f"; at {show_rate(LOWER)}: {verdict}{there[judge].found}"
        cells.append([claim.text, claim.verdict, found, claim.paper])
    columns = [Column("claim"), Column("verdict"), Column("what we found"), Column("what the papers found (EM/F1)")]
    rows = [
        {"claim": claim.text, "verdict": claim.verdict, "share": sum(claim.agreeing) / len(claim.agreeing), "count":
         claim.count}
        for claim in claims.values() if claim.agreeing
    ]  # fmt: skip
    block = Block(
        "question_claims",
        "Which of the papers' claims hold?",
        [f"Of the papers' {len(claims)} claims, on our small encoders, {count_verdicts(list(claims.values()))}."],
        Table(columns, cells),
        _draw_claims(rows),
        "Bars, one per claim: the share of our scores that agree with it, coloured by verdict.",
        "BERT stands for our encoder, fine-tuned at 2e-4 (answerability: 5e-5). A claim holds if every score agrees "
        "with every seed, and partly if at least a third do; the papers used BERT-large, and BERT-base for GLUE."
        + (f" Not measured, and left out here: {'; '.join(unmeasured)}." if unmeasured else ""),
    )
    return Question(block, ["claims"])


def _draw_claims(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    altair, data = import_altair(), list(rows)
    colour, _ = colour_by_place("verdict", VERDICTS, list(VERDICTS))
    base = chart_of(data, 22 * len(data)).encode(
        x=altair.X(
            "share:Q", title="scores that agree", axis=altair.Axis(format="%"), scale=altair.Scale(domain=[0, 1.1])
        ),
        y=altair.Y("claim:N", sort=[row["claim"] for row in data], title=None, axis=altair.Axis(labelLimit=360)),
    )
    bars = base.mark_bar().encode(color=colour)
    counts = base.mark_text(align="left", dx=4).encode(text="count:N", color=colour)
    return dict((bars + counts).properties(width=300).to_dict())
