"""Scores of heads against the fraction of the training data they were trained on."""

import re
from typing import Any

from bertvision.evaluation.statistics import spread
from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.report.analysis import analysis
from bertvision.report.block import Block
from bertvision.report.curves import EPOCHS, draw_scores, drawn_keys, score_cells, score_columns, score_rows
from bertvision.report.drawing import import_altair
from bertvision.report.ranking import SERIES
from bertvision.report.wording import ENCODER, apart, joined, percent, seeds_note, with_spread
from bertvision.tables import Table, counted

SHARE = re.compile(r"_data_fraction[0-9.e-]+")
PERCENT = "training data (%)"

Shares = dict[float, Group]
"""Fraction → the group trained on it; the groups differ in nothing else."""


def shares_of_data(run: FinishedRun, split: str) -> bool:
    """Need: some heads were trained on less than all of the data."""
    return any(_find_shares(run, epochs) for epochs in run.head_snapshots)


@analysis("Training", 20, "Scores against the amount of training data", [shares_of_data])
def data_share(run: FinishedRun, split: str) -> Block:
    found = {epochs: _find_shares(run, epochs) for epochs in run.head_snapshots}
    at = max(epochs for epochs, some in found.items() if some)
    drawn = found[at][:SERIES]
    known = [shares for shares in drawn if any(group.figures(split, run.main) for group in shares.values())]
    described = sorted(known, key=lambda shares: next(iter(shares.values())).role == "control")
    every = [
        (share, group) for some in found.values() for shares in some for share, group in shares.items()
    ]  # fmt: skip
    table = Table(
        [EPOCHS, "model", PERCENT, *score_columns(run)],
        [[group.epochs, _name(group), 100 * share, *score_cells(run, group, split)] for share, group in every],
    ).without_empty()

    def rows_of(key: str) -> list[dict[str, Any]]:
        return [
            {**row, "model": _name(group), "share": 100 * share}
            for shares in drawn
            for share, group in shares.items()
            for row in score_rows([group], split, key)
        ]

    altair = import_altair()
    x = altair.X("share:Q", title="training data used (%)", scale=altair.Scale(domain=[0, 100]))
    level_of = lambda key: (run.encoder(at).mean(split, key), ENCODER)  # noqa: E731
    return Block(
        sentences=[_describe_share(run, split, shares) for shares in described[:3]],
        table=table,
        picture=draw_scores(run, rows_of, x, ("share:Q", PERCENT), level_of) if rows_of(run.main) else None,
        drawn=[PERCENT, *drawn_keys(run).values()],
        note=joined(
            f"The picture shows heads on the encoder after {counted(at, 'epoch')} of fine-tuning; fine-tuning used all "
            "of the training data.",
            "Smaller fractions are subsets of larger ones.",
            seeds_note(group for _, group in every),
        ),
        folded=True,
    )


def _find_shares(run: FinishedRun, epochs: float) -> list[Shares]:
    """The groups of each head trained on less than all of the data: the control first, then the best heads. A head's
    name contains all its settings, so names without the fraction identify heads that differ only in it."""
    found: dict[str, Shares] = {}
    for group in run.groups(epochs, "control", "head"):
        found.setdefault(SHARE.sub("", group.name), {}).setdefault(group.first.data_fraction, group)
    varied = [dict(sorted(shares.items())) for shares in found.values() if set(shares) != {1.0}]
    ranked = run.ranked(map(_largest, varied))
    return sorted(varied, key=lambda some: (_largest(some).role != "control", ranked.index(_largest(some))))


def _largest(shares: Shares) -> Group:
    return list(shares.values())[-1]


def _name(group: Group) -> str:
    name = SHARE.sub("", group.name)
    return f"{name} (control)" if group.role == "control" else name


def _describe_share(run: FinishedRun, split: str, shares: Shares) -> str:
    known = [(share, values) for share, group in shares.items() if (values := group.figures(split, run.main))]
    (least, few), (most, many) = known[0], known[-1]
    name = _name(next(iter(shares.values())))
    if least == most:
        return f"{name} scores {with_spread(few)} with {percent(least)} of the training data."
    return (
        f"{name} scores {with_spread(few)} with {percent(least)} of the training data, "
        f"{apart(spread(few).mean - spread(many).mean)} its {with_spread(many)} with {percent(most)}."
    )
