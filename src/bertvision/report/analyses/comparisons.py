"""Is it more than chance? Every head compared with the encoder alone and with the control, and all pairs of models."""

from typing import Any

from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.report.analysis import analysis, several_snapshots
from bertvision.report.block import Block
from bertvision.report.certainty import DRAWS, ENOUGH, SURE, Against, Certainty
from bertvision.report.drawing import bare_chart, chart_of, colour_by, drawn_values, import_altair, tips
from bertvision.report.ranking import heading_of
from bertvision.report.summary import chance_of
from bertvision.report.wording import apart, in_text, joined, opening, show_p, signed
from bertvision.tables import Column, Headings, Table, counted


@analysis("Scores", 20, "Is it more than chance?", subject="snapshots")
def comparisons(certainty: Certainty) -> Block | None:
    """Every head and ensemble compared with the encoder alone and with the control."""
    if not certainty.compared:
        return None
    run, epochs = certainty.run, certainty.epochs
    others = [run.encoder(epochs), *filter(None, [run.control(epochs)])]
    found = [one for other in others for one in certainty.against(other)]
    return Block(
        f"comparisons_{certainty.split}_{epochs:g}".replace(".", "_"),
        sentences=[
            _describe_comparisons(certainty, other, [one for one in found if one.theirs is other]) for other in others
        ],
        table=_table_of(found),
        picture=_forest(run, found),
        drawn=["difference", "from", "to"],
        note=_note(certainty),
    )


@analysis("Scores", 30, "Less fine-tuning with a head, more without", [several_snapshots], "scores")
def across_snapshots(certainty: Certainty) -> Block | None:
    """Whether a head after less fine-tuning matches the encoder alone after more."""
    found = certainty.across()
    if not found:
        return None
    sentences = [
        f"{opening(in_text(one.ours))} after {counted(one.ours.epochs, 'epoch')} of fine-tuning is "
        f"{apart(one.gap.difference)} the encoder alone after {counted(one.theirs.epochs, 'epoch')} "
        f"({signed(one.gap.low)} to {signed(one.gap.high)}, corrected {show_p(one.p)}): {chance_of(one)}."
        for one in found
    ]
    return Block(
        sentences=sentences,
        table=_table_of(found),
        note="The best head of each snapshot, chosen on held-out training data, compared with the encoder alone at "
        "every later snapshot. Tests as above; p values are corrected over the rows of this table.",
    )


@analysis("Scores", 40, "All pairs of models", subject="scores")
def every_pair(certainty: Certainty) -> Block | None:
    """Paired tests between all pairs of models, for reference."""
    if len(certainty.groups) < 3:
        return None
    found = certainty.pairs()
    sure = sum(one.is_sure for one in found)
    return Block(
        f"pairs_{certainty.split}_{certainty.epochs:g}".replace(".", "_"),
        sentences=[
            f"{sure} of {counted(len(found), 'pair')} of models differ significantly after correction for their number."
        ],
        table=_table_of(found),
        note="Tests as above; p values are corrected over all pairs of this table.",
        folded=True,
    )


def _note(certainty: Certainty) -> str:
    """McNemar's test needs predictions that are right or wrong, which scores are not."""
    run, seeds = (
        certainty.run,
        ", first seed of each" if any(len(group.models) > 1 for group in certainty.groups) else "",
    )
    has_rights = certainty.results(run.encoder(certainty.epochs).models[0]).right() is not None
    mcnemar = f"McNemar: exact test on the examples that only one model got right{seeds}." if has_rights else ""
    enough = f"{ENOUGH} examples{' that only one model got right' if has_rights else ''}"
    return joined(
        f"Difference in {heading_of(run, run.main)}, mean over seeds. Interval and p: paired bootstrap over the "
        f"examples ({DRAWS['main']:,} samples, the same for all models).",
        mcnemar,
        "Corrected p: Holm's correction of the named test over all models compared with the same one. Significant: "
        f"below {SURE}, with at least {enough}. Examples of one text are not independent, which the bootstrap ignores.",
    )


def _describe_comparisons(certainty: Certainty, other: Group, found: list[Against]) -> str:
    better = sum(one.is_sure and one.gap.difference > 0 for one in found)
    worse = sum(one.is_sure and one.gap.difference < 0 for one in found)
    best = max(found, key=lambda one: one.gap.difference)
    return (
        f"Of {counted(len(found), 'model')} compared with {in_text(other)}, {better} {'is' if better == 1 else 'are'} "
        f"significantly better and {worse} significantly worse (corrected p below {SURE}). The highest on "
        f"{certainty.split} is {in_text(best.ours)}, with a difference of {signed(best.gap.difference)} "
        f"({signed(best.gap.low)} to {signed(best.gap.high)}, corrected {show_p(best.p)})."
    )


def _table_of(found: list[Against]) -> Table:
    columns: Headings = [
        "model", "compared with", Column("difference", 2), Column("from", 2), Column("to", 2), Column("p", 4),
        "only it right", "only the other right", Column("McNemar p", 4), "test", Column("corrected p", 4),
    ]  # fmt: skip
    rows = []
    for one in found:
        gap, rights = one.gap, one.rights
        mcnemar = [None] * 3 if rights is None else [rights.only_ours, rights.only_theirs, rights.p]
        names = [_at(one.ours, one.theirs), _at(one.theirs, one.ours)]
        rows.append([*names, gap.difference, gap.low, gap.high, gap.p, *mcnemar, one.test, one.p])
    return Table(columns, rows).without_empty()  # scores have no McNemar


def _at(group: Group, other: Group) -> str:
    """A model, with its snapshot if that of the other differs."""
    return group.title if group.epochs == other.epochs else f"{group.title} at {counted(group.epochs, 'epoch')}"


def _forest(run: FinishedRun, found: list[Against]) -> dict[str, Any]:
    altair, sure = import_altair(), ("significant", "could be chance")
    rows = [
        {
            "model": one.ours.title,
            "against": f"against {in_text(one.theirs)}",
            "difference": one.gap.difference,
            "low": one.gap.low,
            "high": one.gap.high,
            "p": one.p,
            "sure": sure[0] if one.is_sure else sure[1],
        }
        for one in found
    ]
    count = len({row["model"] for row in rows})
    base = chart_of(rows, 26 * count + 20).encode(y=altair.Y("model:N", sort=None, title=None))
    ends = [(f"{field}:Q", None, "+.2f") for field in ("difference", "low", "high")]
    hover = {
        "yOffset": altair.YOffset("against:N", sort=None),
        "color": colour_by("against", list(dict.fromkeys(str(row["against"]) for row in rows)), ""),
        "opacity": altair.Opacity(
            "sure:O",
            scale=altair.Scale(domain=list(sure), range=[1.0, 0.35]),
            title="",
            legend=altair.Legend(values=drawn_values(rows, "sure", sure)),
        ),
        "tooltip": tips("model:N", "against:N", *ends, ("p:Q", "corrected p", ".4f")),
    }
    x = altair.X("low:Q", title=f"difference in {heading_of(run, run.main)}")
    rules = base.mark_rule(strokeWidth=3).encode(x=x, x2="high:Q", **hover)
    points = base.mark_point(filled=True, size=70).encode(x="difference:Q", **hover)
    zero = bare_chart([{"zero": 0}]).mark_rule(strokeDash=[4, 4]).encode(x="zero:Q")
    return dict((zero + rules + points).properties(width="container", height=30 * count + 20).to_dict())
