"""The scores of a run with all that says how sure they are: the first tables of a report."""

from typing import Any

from bertvision.analysis.block import Block, Cell, Column, Frame
from bertvision.analysis.certainty import Against, Certainty
from bertvision.analysis.drawing import chart_of, colour_by, import_altair
from bertvision.analysis.evidence import Evidence, Group
from bertvision.evaluation.statistics import spread
from bertvision.job import HELD_OUT
from bertvision.results import BASELINE_NOTES, NAMES, SPAN_COLUMNS, counted
from bertvision.stages import BASELINE
from bertvision.tasks.base import TargetKind

WITH_INTERVALS = ("at_threshold.exact", "at_threshold.f1", "exact", "f1")
HEADING_NOTES = {
    "EM": "exact match, official, threshold 0",
    "F1": "F1, official, threshold 0",
    "F1 has": "F1 on questions with an answer, threshold 0",
    "F1 no": "F1 on questions without one, threshold 0",
    "EM*": "exact match at the no-answer threshold chosen on held-out training questions",
    "F1*": "F1 at that threshold",
    "forced EM": "exact match on answerable questions, when the model must answer",
    "forced F1": "F1 on answerable questions, when the model must answer",
    "AUC": "how well the no-answer score tells questions without an answer from the others",
}


def figure_columns(evidence: Evidence) -> list[tuple[str, str]]:
    """(key in the scores, heading) of the figures of a run, the main one first."""
    if evidence.kind is TargetKind.SPAN:
        known = evidence.encoder(evidence.last).models[0].scores(evidence.splits[0])
        some = [(k, h) for k, h in SPAN_COLUMNS if k in known or (k.startswith("at_") and "at_threshold" in known)]
    else:
        some = [(metric, NAMES.get(metric, metric)) for metric in evidence.task.metrics]
    return sorted(some, key=lambda pair: pair[0] != evidence.main)


def heading_of(evidence: Evidence, key: str) -> str:
    return dict(figure_columns(evidence)).get(key, key)


def in_words(evidence: Evidence) -> str:
    """The main figure as a sentence names it."""
    if evidence.main == "at_threshold.f1":
        return "F1"
    return heading_of(evidence, evidence.main)


def scores_table(certainty: Certainty) -> Block:
    """Every model with its figures; the mean and spread over seeds, and an interval for the main figures."""
    evidence, split, epochs = certainty.evidence, certainty.split, certainty.epochs
    columns = figure_columns(evidence)
    sure = [key for key, _ in columns if evidence.kind is not TargetKind.SPAN or key in WITH_INTERVALS]
    certainty.prepare(sure)
    several = any(len(group.models) > 1 for group in certainty.groups)
    rows = [_baseline_row(evidence, split, epochs, columns, sure, several)]
    for group in certainty.groups:
        rows.append([group.title, group.facts["parameters"], _share(group)])
        for key, _ in columns:
            rows[-1] += _cells(certainty, group, key, key in sure, several)
    frame = Frame(_headings(columns, sure, several), rows)
    return Block(
        f"scores_{split}_{epochs:g}".replace(".", "_"),
        f"Scores on {split}, encoder fine-tuned for {counted(epochs, 'epoch')}",
        _score_sentences(certainty),
        frame,
        _intervals_picture(certainty),
        _intervals_alt(certainty),
        _score_note(evidence, split, several),
    )


def _headings(columns: list[tuple[str, str]], sure: list[str], several: bool) -> list[Column]:
    found = [Column("model"), Column("parameters"), Column("% of encoder", 3)]
    for key, heading in columns:
        found.append(Column(heading, 2, _heading_note(key, heading)))
        if several:
            found.append(Column(f"± {heading}", 2, "standard deviation over the seeds"))
        if key in sure:
            found += [Column(f"{heading} from", 2), Column(f"{heading} to", 2)]
    return found


def _heading_note(key: str, heading: str) -> str:
    return HEADING_NOTES.get(heading, "") if key in dict(SPAN_COLUMNS) and heading != key else ""


def _cells(certainty: Certainty, group: Group, key: str, sure: bool, several: bool) -> list[Cell]:
    found = group.figures(certainty.split, key)
    if not found:
        return [None] * (1 + several + 2 * sure)
    over = spread(found)
    return [over.mean, *([over.deviation] if several else []), *(certainty.interval(group, key) if sure else ())]


def _baseline_row(
    evidence: Evidence, split: str, epochs: float, columns: list[tuple[str, str]], sure: list[str], several: bool
) -> list[Cell]:
    scores = next(model for model in evidence.models(epochs) if model.name == BASELINE).scores(split)
    row: list[Cell] = ["baseline", 0, None]
    for key, _ in columns:
        # It says the same whatever the threshold.
        row += [scores.get(key.removeprefix("at_threshold.")), *([None] * (several + 2 * (key in sure)))]
    return row


def _share(group: Group) -> float | None:
    share = group.facts.get("share")
    return None if share is None else 100 * share


def _score_sentences(certainty: Certainty) -> list[str]:
    evidence, split, key = certainty.evidence, certainty.split, certainty.evidence.main
    ranked = sorted(certainty.groups, key=lambda group: group.mean(split, key) or 0.0, reverse=True)
    first, name = ranked[0], in_words(evidence)
    low, high = certainty.interval(first, key)
    sentences = [
        f"The highest {name} on {split} is that of {_the(first)}: {first.mean(split, key):.2f} "
        f"(95 % interval {low:.2f} to {high:.2f})."
    ]
    if len(ranked) > 1:
        last = ranked[-1]
        sentences.append(f"The lowest of the trained models is that of {_the(last)}: {last.mean(split, key):.2f}.")
    return sentences


def _the(group: Group) -> str:
    return f"the {group.title}" if group.role == "encoder" else group.title


def _score_note(evidence: Evidence, split: str, several: bool) -> str:
    notes = [
        BASELINE_NOTES[str(evidence.kind)],
        "From … to: the 95 % interval, by 2,000 draws of the examples with replacement; it says what other examples "
        "could have given, not other seeds.",
    ]
    if several:
        notes.append("±: standard deviation over the seeds, which change a head's start and dropout.")
    return " ".join(notes)


def _intervals_picture(certainty: Certainty) -> dict[str, Any]:
    altair, key, name = (
        import_altair(),
        certainty.evidence.main,
        heading_of(certainty.evidence, certainty.evidence.main),
    )
    rows = []
    for group in certainty.groups:
        low, high = certainty.interval(group, key)
        mean = group.mean(certainty.split, key)
        rows.append({"model": group.title, "role": group.role, "low": low, "score": mean, "high": high})
    base = chart_of(rows, 26 * len(rows) + 20).encode(y=altair.Y("model:N", sort=None, title=None))
    tips = [altair.Tooltip("model:N")]
    tips += [altair.Tooltip(f"{field}:Q", format=".2f") for field in ("score", "low", "high")]
    colour = colour_by("role", ("encoder", "control", "head", "ensemble"), "")
    bars = base.mark_rule(strokeWidth=3, opacity=0.45).encode(
        x=altair.X("low:Q", title=name, scale=altair.Scale(zero=False)), x2="high:Q", color=colour, tooltip=tips
    )
    points = base.mark_point(filled=True, size=90, opacity=1).encode(x="score:Q", color=colour, tooltip=tips)
    return dict((bars + points).to_dict())


def _intervals_alt(certainty: Certainty) -> str:
    key, split = certainty.evidence.main, certainty.split
    told = [f"{group.title} {group.mean(split, key):.1f}" for group in certainty.groups]
    return f"{in_words(certainty.evidence)} of each model with its 95 % interval: {', '.join(told)}."


# ---------------------------------------------------------------------- comparisons


def comparisons(certainty: Certainty) -> Block | None:
    """Every head and ensemble against the encoder itself and against the last-layer control."""
    if not certainty.compared:
        return None
    evidence, epochs = certainty.evidence, certainty.epochs
    others = [evidence.encoder(epochs), *filter(None, [evidence.control(epochs)])]
    found = [one for other in others for one in certainty.against(other)]
    return Block(
        f"comparisons_{certainty.split}_{epochs:g}".replace(".", "_"),
        "Is it more than chance?",
        [_against_sentence(certainty, other, [one for one in found if one.theirs is other]) for other in others],
        _against_frame(found),
        _forest(certainty, found),
        "Differences with 95 % intervals: " + ", ".join(_gap_words(one) for one in found) + ".",
        f"Difference in {heading_of(evidence, evidence.main)}, mean over seeds; interval and p by a paired bootstrap "
        "over the examples (2,000 draws, the same for all models); corrected p: Holm, over all models compared with "
        "the same one. McNemar: who alone was right, exact test"
        + (", first seed of each." if any(len(group.models) > 1 for group in certainty.groups) else "."),
    )


def _gap_words(one: Against) -> str:
    return f"{one.ours.title} {one.gap.difference:+.2f} to {one.theirs.title}"


def _against_sentence(certainty: Certainty, other: Group, found: list[Against]) -> str:
    better = [one for one in found if one.is_sure and one.gap.difference > 0]
    worse = [one for one in found if one.is_sure and one.gap.difference < 0]
    best = max(found, key=lambda one: one.gap.difference)
    words = [
        f"Of {counted(len(found), 'model')} compared with the {_plain(other)}, {len(better)} {_are(better)} "
        f"significantly better and {len(worse)} significantly worse (corrected p below 0.05)."
    ]
    words.append(
        f"The largest gain is that of {best.ours.title}: {best.gap.difference:+.2f} "
        f"({best.gap.low:+.2f} to {best.gap.high:+.2f}, corrected p {_p(best.p)})."
    )
    return " ".join(words)


def _plain(group: Group) -> str:
    return "encoder itself" if group.role == "encoder" else "last-layer control"


def _are(found: list[Against]) -> str:
    return "is" if len(found) == 1 else "are"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _against_frame(found: list[Against]) -> Frame:
    columns = [
        Column("model"), Column("compared with"), Column("difference", 2), Column("from", 2), Column("to", 2),
        Column("p", 4), Column("corrected p", 4), Column("only it right"), Column("only the other right"),
        Column("McNemar p", 4),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for one in found:
        rights = one.rights
        mcnemar = [None] * 3 if rights is None else [rights.only_ours, rights.only_theirs, rights.p]
        gap = one.gap
        rows.append([one.ours.title, one.theirs.title, gap.difference, gap.low, gap.high, gap.p, one.p, *mcnemar])
    return Frame(columns, rows)


def _forest(certainty: Certainty, found: list[Against]) -> dict[str, Any]:
    altair = import_altair()
    rows = [
        {
            "model": one.ours.title,
            "against": f"against the {_plain(one.theirs)}",
            "difference": one.gap.difference,
            "low": one.gap.low,
            "high": one.gap.high,
            "p": one.p,
            "sure": "significant" if one.is_sure else "could be chance",
        }
        for one in found
    ]
    count = len({row["model"] for row in rows})
    title = f"difference in {heading_of(certainty.evidence, certainty.evidence.main)}"
    base = chart_of(rows, 26 * count + 20).encode(y=altair.Y("model:N", sort=None, title=None))
    tips = [altair.Tooltip("model:N"), altair.Tooltip("against:N")]
    tips += [altair.Tooltip(f"{field}:Q", format="+.2f") for field in ("difference", "low", "high")]
    tips.append(altair.Tooltip("p:Q", format=".4f", title="corrected p"))
    colour = colour_by("against", [f"against the {name}" for name in ("encoder itself", "last-layer control")], "")
    shape = altair.Opacity(
        "sure:O", scale=altair.Scale(domain=["significant", "could be chance"], range=[1.0, 0.35]), title=""
    )
    offset = altair.YOffset("against:N", sort=None)
    rules = base.mark_rule(strokeWidth=3).encode(
        x=altair.X("low:Q", title=title), x2="high:Q", yOffset=offset, color=colour, opacity=shape, tooltip=tips
    )
    points = base.mark_point(filled=True, size=70).encode(
        x="difference:Q", yOffset=offset, color=colour, opacity=shape, tooltip=tips
    )
    zero = altair.Chart(altair.Data(values=[{"zero": 0}])).mark_rule(strokeDash=[4, 4]).encode(x="zero:Q")
    return dict((zero + rules + points).properties(width="container", height=30 * count + 20).to_dict())


def every_pair(certainty: Certainty) -> Block | None:
    """Paired tests between any two models, as a table to look things up in."""
    if len(certainty.groups) < 3:
        return None
    found = certainty.pairs()
    sure = [one for one in found if one.is_sure]
    return Block(
        f"pairs_{certainty.split}_{certainty.epochs:g}".replace(".", "_"),
        "Every two models",
        [f"Of {counted(len(found), 'pair')} of models, {len(sure)} differ significantly, corrected for all of them."],
        _against_frame(found),
        note="Tests as above; the correction is over all pairs of this table.",
        folded=True,
    )


# ---------------------------------------------------------------------- choices


def choices(evidence: Evidence) -> Block:
    """What was chosen on what."""
    held = evidence.has_held_out
    total = evidence.encoder(evidence.last).models[0].scores(HELD_OUT).get("total") if held else None
    place = f"held-out part of train ({counted(int(total), 'example')})" if total else "the reported dev split itself"
    best = evidence.best_head(evidence.last)
    rows: list[list[Cell]] = []
    if evidence.kind is TargetKind.SPAN:
        rows.append(["no-answer threshold of each model", place if held else "not chosen: 0"])
    if best is not None:
        rows.append([f"the head that this report calls best ({best.name})", place])
    if any(group.facts.get("method") == "fitted" for group in evidence.groups(evidence.last, "ensemble")):
        rows.append(["weights of fitted ensembles", place])
    rows.append(["learning rates, epochs and sizes", "given in the config"])
    sentences = [
        "Nothing that BERTVision chose was chosen on the examples reported here."
        if held
        else "No part of train was held out: the best head was found on the reported examples, which flatters it."
    ]
    return Block("choices", "What was chosen on what", sentences, Frame([Column("choice"), Column("made on")], rows))
