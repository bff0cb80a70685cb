"""The runs: what was run, how far two runs of one seed differ, and which runs are missing."""

from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

from bertvision.heads import CONTROL
from bertvision.pipeline.finished import read_figure
from bertvision.pipeline.folder import BASELINE, ENCODER
from bertvision.report.block import Block
from bertvision.tables import Cell, Column, Table
from paper.claims import judge_at_lower
from paper.experiments import load_experiments
from paper.kept import AGAIN, LOWER, Experiment, Experiments, show_rate, show_seconds
from paper.names import JUDGED, LABELS, SECONDS


def tell_missing(seeds: dict[str, list[int]]) -> list[str]:
    """Name the missing runs in one paragraph; empty if there are none."""
    none, few = [], []
    for name, experiment in load_experiments().items():
        there = len(seeds.get(name, []))
        if there == 0:
            none.append(name)
        elif there < experiment.seeds:
            few.append(f"{name} ({there} of {experiment.seeds})")
    text = [f"Not run yet: {', '.join(none)}."] if none else []
    text += [f"Some seeds are missing: {', '.join(few)}."] if few else []
    return [" ".join(text)] if text else []


def runs_block(experiments: Experiments, rates: list[Experiment]) -> Block:
    columns = [Column("experiment"), Column("seeds"), Column("device"), Column("torch")]
    columns += [Column("fine-tuning, s", 0, SECONDS), Column("head passes, s", 0, SECONDS)]
    rows: list[list[Cell]] = []
    for one in sorted([*experiments.values(), *rates], key=lambda one: (one.name, one.lr or 0.0)):
        seeds = ", ".join([*map(str, one.seeds), *[f"{run['seed']} again" for run in one.again]])
        tuned = one.seconds(one.snapshots[-1], ENCODER)
        costs = [show_seconds(spent, 0) for spent in (tuned, one.seconds_of_passes())]
        rows.append([one.title, seeds, one.first["device"], one.first["packages"]["torch"], *costs])
    note = (
        "Where runs shared the GPU, the seconds are those of the fastest seed. The learning rate does not affect the "
        "time, so seconds may come from a run at another rate. Tokenizing, scoring and writing are not included."
    )
    return Block("runs", "All runs", table=Table(columns, rows), note=note)


# ---------------------------------------------------------------------- the same seed again


class Second(NamedTuple):
    """Another run of an experiment's seed."""

    name: str
    where: str
    """Its experiment, or AGAIN if that is the same one."""
    run: dict[str, Any]


def second_runs(experiments: Experiments) -> list[Second]:
    """Repeated runs, and runs of other experiments that fine-tuned the same encoder with the same seed, reduced to the
    models that both have."""
    found = [Second(name, AGAIN, run) for name, one in sorted(experiments.items()) for run in one.again]
    for name, one in sorted(experiments.items()):
        main = name.removesuffix("_kernels")
        # On untouched encoders the other experiment's control took more passes, so only fine-tuned ones compare.
        others = [f"{main}_zoo", main] if main != name and name.startswith("squad2") else []
        for other in (other for other in others if other in experiments):
            shared = {seed: experiments[other].runs[seed] for seed in one.seeds if seed in experiments[other].runs}
            found += [Second(name, experiments[other].title, _cut(run, one.runs[seed])) for seed, run in shared.items()]
    return found


def _cut(run: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """Only the snapshots and models that another run has as well."""
    shots = {
        epochs: {name: model for name, model in run["snapshots"].get(epochs, {}).items() if name in models}
        for epochs, models in like["snapshots"].items()
    }
    return run | {"snapshots": shots}


def again_block(experiments: Experiments, lower: Experiments) -> Block | None:
    """How far apart two runs of the same seed are. The zoos for spans have the lower learning rate."""
    zoos = {name: one for name, one in experiments.items() if name.startswith("squad2") and name.endswith("_zoo")}
    own = {name: one for name, one in experiments.items() if name not in zoos}
    rows = [row for runs in (own, lower | zoos) for row in _apart_rows(runs)]
    if not rows:
        return None
    columns = [Column("experiment"), Column("seed"), Column("second run"), Column("of")]
    columns.append(Column("models", None, "at all snapshots"))
    for key in JUDGED:
        columns += [Column(f"{LABELS[key]}, median", 2), Column(f"{LABELS[key]}, largest", 2)]
    return Block(
        key="again",
        title="Two runs of the same seed",
        sentences=[_changed_verdicts(experiments, lower, second_runs(lower | zoos))],
        table=Table(columns, rows),
        note="Differences in points between two runs of the same seed. A GPU does not always add in the same order, "
        "and small differences grow in training; F1* also depends on the chosen threshold. Repeated runs had the GPU "
        "to themselves; all pages show the scores of the first run. If the second run belongs to another experiment, "
        "only models that both have are compared. With one seed, a difference no larger than these may vanish in the "
        "next run.",
    )


def _apart_rows(experiments: Experiments) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for name, where, run in second_runs(experiments):
        one = experiments[name]
        both = (one.runs[run["seed"]], run)
        for what, scores in (("scores", _scores_of), ("heads over the control", _gaps_of)):
            apart = [_apart(*(scores(some, key) for some in both)) for key in JUDGED]
            if all(apart):
                ends = [end for gaps in apart for end in (median(gaps), max(gaps))]
                rows.append([one.title, run["seed"], where, what, len(apart[0]), *ends])
    return rows


Scores = dict[tuple[str, str], float]
"""By snapshot and model."""


def _scores_of(run: dict[str, Any], key: str) -> Scores:
    found = {}
    for epochs, models in run["snapshots"].items():
        for name in (name for name in models if name != BASELINE):
            value = read_figure(models[name]["scores"]["dev"], key)
            if value is not None:
                found[epochs, name] = value
    return found


def _gaps_of(run: dict[str, Any], key: str) -> Scores:
    """Points of heads over the control at the same snapshot."""
    scores = _scores_of(run, key)
    heads = [place for place in scores if "head" in run["snapshots"][place[0]][place[1]] and place[1] != CONTROL]
    return {(epochs, name): scores[epochs, name] - scores[epochs, CONTROL] for epochs, name in heads}


def _apart(one: Scores, other: Scores) -> list[float]:
    return [abs(value - other[place]) for place, value in one.items() if place in other]


def _changed_verdicts(experiments: Experiments, lower: Experiments, second: list[Second]) -> str:
    """Which verdicts at the lower rate would change if second runs that have all models replaced first ones: repeated
    runs, runs of other experiments, or both. The other rate has no such runs."""
    runs = experiments | lower
    whole = [one for one in second if _has_all(one.run, runs[one.name].runs[one.run["seed"]])]
    again, others = ([one for one in whole if (one.where == AGAIN) == made_again] for made_again in (True, False))
    judged, changed = judge_at_lower(experiments, lower), {}
    for taken in (again, others, whole):
        swapped = dict(runs)
        for one in taken:
            before = swapped[one.name]
            swapped[one.name] = replace(before, runs=before.runs | {one.run["seed"]: one.run})
        for claim, first in judged.items():
            verdict = claim(swapped).verdict
            if verdict != first.verdict:
                changed[claim] = f"“{first.text}” from “{first.verdict}” to “{verdict}”"
    text = f"At {show_rate(LOWER)}, with second runs in place of first ones (repeated runs, the runs of squad2_*_zoo "
    text += "for heads with kernels along tokens, or both), "
    return text + (
        f"{len(changed)} of {len(judged)} verdicts would change: {'; '.join(changed.values())}."
        if changed
        else "no verdict would change."
    )


def _has_all(run: dict[str, Any], like: dict[str, Any]) -> bool:
    shots = run["snapshots"]
    return all(name in shots.get(epochs, {}) for epochs, models in like["snapshots"].items() for name in models)
