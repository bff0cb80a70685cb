"""Several runs side by side: encoders, snapshots or tasks; and one table across tasks, as GLUE is reported."""

from typing import Any

from bertvision.analysis.block import Block, Cell, Column, Frame, Section
from bertvision.analysis.certainty import Certainty
from bertvision.analysis.drawing import chart_of, colour_by, import_altair
from bertvision.analysis.evidence import Evidence, Group
from bertvision.analysis.scores import heading_of
from bertvision.reports.summary import encoder_name
from bertvision.results import counted
from bertvision.stages import BASELINE

ENCODER, CONTROL, BEST = "encoder itself", "control", "best head"


def name_runs(found: list[Evidence]) -> list[str]:
    """The folders' names, numbered where two are alike."""
    plain = [evidence.name for evidence in found]
    return [name if plain.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(plain, start=1)]


def compare_runs(certainties: list[Certainty]) -> tuple[list[Section], list[str]]:
    """Tables and pictures over all runs, and what they say in plain words."""
    names = name_runs([certainty.evidence for certainty in certainties])
    lines = [_line(name, certainty) for name, certainty in zip(names, certainties, strict=True)]
    blocks = [_runs_block(lines), _tasks_block(certainties)]
    return [Section("Side by side", [block for block in blocks if block is not None])], _summary(lines)


def _line(name: str, certainty: Certainty) -> dict[str, Any]:
    """What one run comes to."""
    evidence, split, epochs = certainty.evidence, certainty.split, certainty.epochs
    key, best, control = evidence.main, evidence.best_head(epochs), evidence.control(epochs)
    against = next(
        (one for one in certainty.against(evidence.encoder(epochs)) if best and one.ours.name == best.name), None
    )
    baseline = next(model for model in evidence.models(epochs) if model.name == BASELINE).scores(split)
    return {
        "run": name,
        "task": evidence.task.name,
        "encoder": encoder_name(evidence),
        "epochs": epochs,
        "figure": heading_of(evidence, key),
        "baseline": baseline.get(key.removeprefix("at_threshold.")),
        ENCODER: evidence.encoder(epochs).mean(split, key),
        CONTROL: control.mean(split, key) if control else None,
        "head": best.name if best else None,
        BEST: best.mean(split, key) if best else None,
        "ensemble": _best_ensemble(evidence, epochs, split),
        "gap": against,
    }


def _best_ensemble(evidence: Evidence, epochs: float, split: str) -> float | None:
    """The score of the ensemble that was best on held-out data."""
    best = evidence.best(epochs, "ensemble")
    return best.mean(split, evidence.main) if best else None


def _runs_block(lines: list[dict[str, Any]]) -> Block:
    columns = [
        Column("run"), Column("task"), Column("encoder name"), Column("epochs"), Column("figure"),
        Column("baseline", 2), Column(ENCODER, 2), Column(CONTROL, 2), Column("head"), Column(BEST, 2),
        Column("difference", 2, "best head less the encoder itself"), Column("from", 2), Column("to", 2),
        Column("corrected p", 4), Column("ensemble", 2),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for line in lines:
        gap = line["gap"]
        told = [gap.gap.difference, gap.gap.low, gap.gap.high, gap.p] if gap else [None] * 4
        names = ("run", "task", "encoder", "epochs", "figure", "baseline", ENCODER, CONTROL, "head", BEST)
        rows.append([*(line[name] for name in names), *told, line["ensemble"]])
    return Block(
        "runs",
        "What each run comes to",
        [_runs_sentence(lines)],
        Frame(columns, rows),
        _dumbbells(lines),
        "For each run the score of the encoder itself, the control and the best head: "
        + "; ".join(
            f"{line['run']} {_shown(line[ENCODER])}, {_shown(line[CONTROL])}, {_shown(line[BEST])}" for line in lines
        )
        + ".",
        "The best head is the one with the highest score on held-out training data; tests as in each run's own report.",
    )


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.1f}"


def _runs_sentence(lines: list[dict[str, Any]]) -> str:
    sure = [line["run"] for line in lines if line["gap"] and line["gap"].is_sure and line["gap"].gap.difference > 0]
    told = f": {', '.join(sure)}" if sure else ""
    return f"In {len(sure)} of {counted(len(lines), 'run')} the best head is significantly above its encoder{told}."


def _dumbbells(lines: list[dict[str, Any]]) -> dict[str, Any]:
    altair = import_altair()
    rows = [
        {"run": line["run"], "model": name, "score": line[name], "task": line["task"], "figure": line["figure"]}
        for line in lines
        for name in (ENCODER, CONTROL, BEST)
        if line[name] is not None
    ]
    base = chart_of(rows, 34 * len(lines) + 20).encode(y=altair.Y("run:N", sort=None, title=None))
    tips = [altair.Tooltip("run:N"), altair.Tooltip("task:N"), altair.Tooltip("model:N"), altair.Tooltip("figure:N")]
    tips.append(altair.Tooltip("score:Q", format=".2f"))
    x = altair.X("score:Q", title="score", scale=altair.Scale(zero=False))
    bars = base.mark_line(opacity=0.4, strokeWidth=3).encode(x=x, detail="run:N")
    points = base.mark_point(filled=True, size=110, opacity=1).encode(
        x=x, color=colour_by("model", (ENCODER, CONTROL, BEST), ""), tooltip=tips
    )
    return dict((bars + points).to_dict())


def _tasks_block(certainties: list[Certainty]) -> Block | None:
    """Models down, tasks across: only where the runs are of several tasks, one run each."""
    tasks = [certainty.evidence.task.name for certainty in certainties]
    if len(tasks) < 2 or len(set(tasks)) < len(tasks):
        return None
    groups = [_groups_by_name(certainty) for certainty in certainties]
    names = list(dict.fromkeys(name for some in groups for name in some))
    shared = [name for name in names if sum(name in some for some in groups) > 1]
    rows: list[list[Cell]] = []
    for name in shared:
        found = [
            some[name].mean(certainty.split, certainty.evidence.main) if name in some else None
            for some, certainty in zip(groups, certainties, strict=True)
        ]
        known = [value for value in found if value is not None]
        rows.append([name, *found, sum(known) / len(known) if len(known) == len(found) else None])
    headings = [
        f"{task} ({heading_of(c.evidence, c.evidence.main)})" for task, c in zip(tasks, certainties, strict=True)
    ]
    whole = [(row[0], row[-1]) for row in rows if isinstance(row[-1], float)]
    sentences = []
    if whole:
        best = max(whole, key=lambda pair: pair[1])
        sentences.append(f"Over all {len(tasks)} tasks the highest mean is that of {best[0]}: {best[1]:.2f}.")
    return Block(
        "tasks",
        "Across tasks",
        sentences,
        Frame([Column("model"), *(Column(heading, 2) for heading in headings), Column("mean", 2)], rows),
        note="A mean is given only where a model has a score in every task; figures of tasks differ in kind.",
    )


def _groups_by_name(certainty: Certainty) -> dict[str, Group]:
    found = certainty.evidence.groups(certainty.epochs)
    return {ENCODER if group.role == "encoder" else group.name: group for group in found}


def _summary(lines: list[dict[str, Any]]) -> list[str]:
    known = [line for line in lines if line[BEST] is not None and line[ENCODER] is not None]
    sentences = [_runs_sentence(lines)]
    if known:
        most = max(known, key=lambda line: line[BEST] - line[ENCODER])
        gain = most[BEST] - most[ENCODER]
        sentences.append(
            f"The largest difference to the encoder is that of {most['head']} in {most['run']}: {gain:+.2f} "
            f"({most[ENCODER]:.2f} to {most[BEST]:.2f} {most['figure']})."
        )
    return sentences
