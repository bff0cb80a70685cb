"""Is it more than chance? Every head against the encoder itself and the control, and every two models."""

from typing import Any

from bertvision.pipeline.finished import Group
from bertvision.report.analyses.scores_table import heading_of
from bertvision.report.block import Block, Cell, Column, Frame
from bertvision.report.certainty import DRAWS, ENOUGH, SURE, Against, Certainty
from bertvision.report.drawing import chart_of, colour_by, import_altair
from bertvision.report.wording import apart, in_text, opening, show_p, signed
from bertvision.words import counted


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
        _note(certainty),
    )


def _note(certainty: Certainty) -> str:
    seeds = ", first seed of each" if any(len(group.models) > 1 for group in certainty.groups) else ""
    figure = heading_of(certainty.evidence, certainty.evidence.main)
    return (
        f"Difference in {figure}, mean over seeds; interval and p by a paired bootstrap over the examples "
        f"({DRAWS['main']:,} draws, the same for all models). McNemar: who alone was right, exact test{seeds}. "
        "Corrected p: Holm, over all models compared with the same one, of the test that is named. Significant: below "
        f"{SURE}, with at least {ENOUGH} examples on which only one is right. All of it is about these examples; "
        "examples of one text lean on each other, which the draws do not know."
    )


def _gap_words(one: Against) -> str:
    return f"{one.ours.title} {signed(one.gap.difference)} to {one.theirs.title}"


def _against_sentence(certainty: Certainty, other: Group, found: list[Against]) -> str:
    better = [one for one in found if one.is_sure and one.gap.difference > 0]
    worse = [one for one in found if one.is_sure and one.gap.difference < 0]
    best = max(found, key=lambda one: one.gap.difference)
    words = [
        f"Of {counted(len(found), 'model')} compared with {in_text(other)}, {len(better)} {_are(better)} "
        f"significantly better and {len(worse)} significantly worse (corrected p below 0.05)."
    ]
    words.append(
        f"Seen on {certainty.split} itself, the largest difference is that of {in_text(best.ours)}: "
        f"{signed(best.gap.difference)} ({signed(best.gap.low)} to {signed(best.gap.high)}, "
        f"corrected {show_p(best.p)})."
    )
    return " ".join(words)


def _are(found: list[Against]) -> str:
    return "is" if len(found) == 1 else "are"


def _against_frame(found: list[Against]) -> Frame:
    columns = [
        Column("model"), Column("compared with"), Column("difference", 2), Column("from", 2), Column("to", 2),
        Column("p", 4), Column("only it right"), Column("only the other right"), Column("McNemar p", 4),
        Column("test"), Column("corrected p", 4),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for one in found:
        rights = one.rights
        mcnemar = [None] * 3 if rights is None else [rights.only_ours, rights.only_theirs, rights.p]
        gap = one.gap
        names = [_at(one.ours, one.theirs), _at(one.theirs, one.ours)]
        rows.append([*names, gap.difference, gap.low, gap.high, gap.p, *mcnemar, one.test, one.p])
    return Frame(columns, rows)


def _at(group: Group, other: Group) -> str:
    """A model, with its snapshot where the other is of another one."""
    return group.title if group.epochs == other.epochs else f"{group.title} at {counted(group.epochs, 'epoch')}"


def _forest(certainty: Certainty, found: list[Against]) -> dict[str, Any]:
    altair = import_altair()
    rows = [
        {
            "model": one.ours.title,
            "against": f"against {in_text(one.theirs)}",
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
    colour = colour_by("against", list(dict.fromkeys(str(row["against"]) for row in rows)), "")
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


def across_snapshots(certainty: Certainty) -> Block | None:
    """Does a head reach what the encoder needs more fine-tuning for?"""
    found = certainty.across()
    if not found:
        return None
    sentences = []
    for one in found:
        words = "more than chance" if one.is_sure else "could be chance"
        sentences.append(
            f"{opening(in_text(one.ours))} on the states after {counted(one.ours.epochs, 'epoch')} is "
            f"{apart(one.gap.difference)} the encoder itself after {counted(one.theirs.epochs, 'epoch')} "
            f"({signed(one.gap.low)} to {signed(one.gap.high)}, corrected {show_p(one.p)}): {words}."
        )
    return Block(
        f"across_snapshots_{certainty.split}",
        "Less fine-tuning with a head, more without",
        sentences,
        _against_frame(found),
        note="The best head of each snapshot, chosen on held-out training data, against the encoder itself at every "
        "later snapshot; tests as above, corrected over the rows of this table.",
    )


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
