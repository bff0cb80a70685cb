"""Scores of heads against the share of the training data they learnt from."""

import re
from typing import Any

from bertvision.evaluation.statistics import spread
from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.report.block import Block, Cell, Column, Frame
from bertvision.report.drawing import (
    chart_of,
    colour_models,
    import_altair,
    level_line,
    score_rows,
    spread_rules,
    without_empty,
)
from bertvision.report.ranking import SERIES, figure_keys
from bertvision.report.wording import ENCODER, apart, deviation_of, figure_name, joined, seeds_note, with_spread
from bertvision.words import counted

SHARE = re.compile(r"_data_fraction[0-9.e-]+")


def data_share(evidence: FinishedRun, split: str) -> Block | None:
    """Scores of heads against the share of the training data they learnt from."""
    series = {epochs: _share_series(evidence, epochs) for epochs in evidence.head_snapshots}
    if not any(shares for shares in series.values()):
        return None
    at = max(epochs for epochs, shares in series.items() if shares)
    lines, encoder = series[at], evidence.encoder(at)
    groups = [group for shares in series.values() for found in shares.values() for group in found.values()]
    some = [lines[name] for name in list(lines)[:SERIES]]
    known = [found for found in some if any(group.figures(split, evidence.main) for group in found.values())]
    told = sorted(known, key=lambda found: next(iter(found.values())).role == "control")
    note = (
        f"Heads on the encoder after {counted(at, 'epoch')} of fine-tuning, which itself learnt from all of the data."
    )
    return Block(
        f"data_share_{split}",
        "Scores against the share of the training data",
        [_tell_share(evidence, split, found) for found in told[:3]],
        _share_frame(series, split, figure_keys(evidence)),
        _draw_shares(evidence, split, some, encoder),
        _shares_in_words(evidence, split, some),
        joined(note, "Shares are nested: a smaller one is a part of each larger one.", seeds_note(groups)),
        folded=True,
    )


def _share_series(evidence: FinishedRun, epochs: float) -> dict[str, dict[float, Group]]:
    """Name without the share → share → group, of heads that were trained on less than all of the data: the control
    first, then the best. A head's name tells all of its settings, so that those alike but for the share differ in its
    word alone."""
    found: dict[str, dict[float, Group]] = {}
    for group in evidence.groups(epochs, "control", "head"):
        shares = found.setdefault(SHARE.sub("", group.name), {})
        shares.setdefault(group.first.data_fraction, group)
    varied = {name: dict(sorted(shares.items())) for name, shares in found.items() if set(shares) != {1.0}}
    largest = evidence.ranked([list(shares.values())[-1] for shares in varied.values()])
    names = [SHARE.sub("", group.name) for group in sorted(largest, key=lambda group: group.role != "control")]
    return {name: varied[name] for name in names}


def _share_name(group: Group) -> str:
    name = SHARE.sub("", group.name)
    return f"{name} (control)" if group.role == "control" else name


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _tell_share(evidence: FinishedRun, split: str, shares: dict[float, Group]) -> str:
    known = {share: group.figures(split, evidence.main) for share, group in shares.items()}
    known = {share: values for share, values in known.items() if values}
    (least, few), (most, many) = list(known.items())[0], list(known.items())[-1]
    name = _share_name(next(iter(shares.values())))
    if least == most:
        return f"{name}, trained on {_percent(least)} of the data, scores {with_spread(few)}."
    difference = spread(few).mean - spread(many).mean
    return (
        f"{name} scores {with_spread(few)} with {_percent(least)} of the training data, {apart(difference)} "
        f"the {with_spread(many)} that it scores with {_percent(most)}."
    )


def _share_frame(series: dict[float, dict[str, dict[float, Group]]], split: str, keys: list[str]) -> Frame:
    columns = [Column("epochs", None, "How far the encoder was fine-tuned"), Column("model")]
    columns += [Column("share of the data (%)", None), *(Column(figure_name(key), 2) for key in keys)]
    columns += [Column("±", 2, f"Standard deviation of {figure_name(keys[0])} over the seeds"), Column("seeds")]
    rows: list[list[Cell]] = []
    for epochs, lines in series.items():
        for shares in lines.values():
            for share, group in shares.items():
                figures: list[Cell] = [group.mean(split, key) for key in keys]
                deviation = deviation_of(group.figures(split, keys[0]))
                rows.append([epochs, _share_name(group), 100 * share, *figures, deviation, len(group.trained)])
    return without_empty(Frame(columns, rows))


def _share_rows(evidence: FinishedRun, split: str, lines: list[dict[float, Group]]) -> list[dict[str, Any]]:
    groups = [(share, group) for shares in lines for share, group in shares.items()]
    rows = []
    for share, group in groups:
        for row in score_rows([group], split, evidence.main):
            rows.append({**row, "model": _share_name(group), "share": 100 * share})
    return rows


def _draw_shares(
    evidence: FinishedRun, split: str, lines: list[dict[float, Group]], encoder: Group
) -> dict[str, Any] | None:
    altair, rows = import_altair(), _share_rows(evidence, split, lines)
    if not rows:
        return None
    order = list(dict.fromkeys(row["model"] for row in rows))
    base = chart_of(rows).encode(
        x=altair.X("share:Q", title="share of the training data (%)", scale=altair.Scale(domain=[0, 100])),
        y=altair.Y("score:Q", title=figure_name(evidence.main), scale=altair.Scale(zero=False)),
        color=colour_models(order),
        tooltip=[
            altair.Tooltip("model:N"),
            altair.Tooltip("share:Q", title="share of the data (%)"),
            altair.Tooltip("score:Q", title=figure_name(evidence.main), format=".2f"),
            altair.Tooltip("seeds:Q"),
        ],
    )
    chart = altair.layer(base.mark_line(), *spread_rules(base, rows), base.mark_point())
    level = encoder.mean(split, evidence.main)
    return dict((chart if level is None else altair.layer(chart, level_line(level, ENCODER))).to_dict())


def _shares_in_words(evidence: FinishedRun, split: str, lines: list[dict[float, Group]]) -> str:
    texts = []
    for shares in lines:
        rows = _share_rows(evidence, split, [shares])
        if rows:
            texts.append(f"{rows[0]['model']} " + ", ".join(f"{r['score']:.1f} at {r['share']:g} %" for r in rows))
    return f"Lines of {figure_name(evidence.main)} against the share of the training data: {'; '.join(texts)}."
