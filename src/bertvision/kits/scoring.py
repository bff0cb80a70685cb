"""A kit's head on the data of a config: do the figures on its card come out again?"""

from typing import Any

from bertvision.errors import UserError
from bertvision.kits.kit import Kit, KitTask
from bertvision.pipeline.folder import HELD_OUT
from bertvision.pipeline.job import Job
from bertvision.pipeline.score import columns_of, figure, score_figures
from bertvision.tables import Table


def score_kit(kit: Kit, job: Job) -> dict[str, Any]:
    """Of each split the figures now, those on the card where it has the split, and the baseline's."""
    task = job.task
    if task.name not in kit.tasks:
        raise UserError(
            f"the config is about {task.name}, and kit '{kit.name}' has {', '.join(kit.tasks)}: give one of those."
        )
    own = kit.tasks[task.name]
    if tuple(own.task.labels) != tuple(task.labels):
        raise UserError(
            f"kit '{kit.name}' has the labels {', '.join(own.task.labels)} for {task.name}, the data "
            f"{', '.join(task.labels)}: they must be the same."
        )
    found = {}
    for split in job.scored_splits:
        if split == HELD_OUT and not _holds_out_the_same(own, job):
            continue
        examples = job.examples(split)
        found[split] = {
            "baseline": task.kind.baseline(task.metrics, job.examples("train"), examples),
            "head": kit.score(task.name, examples),
            "card": own.facts["scores"].get(split, {}),
        }
    return {"kit": kit.name, "task": task.name, "head": own.facts["head"], "splits": found}


def _holds_out_the_same(own: KitTask, job: Job) -> bool:
    """Whether what the config holds out is what was held out when the head was trained; else some of it was learnt."""
    asked = job.config.seed, job.config.data.hold_out, len(job.examples(HELD_OUT))
    known = own.facts["seed"], own.facts["hold_out"], own.facts["scores"][HELD_OUT]["total"]
    if asked != known:
        job.reporter.say(
            f"held-out examples are left out: seed {asked[0]} and data.hold_out = {asked[1]:g} are not what the head "
            f"was trained with (seed {known[0]}, {known[1]:g}, {known[2]:,} examples), so it may have learnt some."
        )
    return asked == known


def kit_table(kit: Kit, scores: dict[str, Any]) -> Table:
    task = kit.tasks[scores["task"]].task
    columns = score_figures(task.kind, task.metrics, [s["head"] for s in scores["splits"].values()])
    rows = [
        [split, who, f"{figures['total']:,}", *(figure(figures, one.key) for one in columns)]
        for split, found in scores["splits"].items()
        for who, figures in found.items()
        if figures
    ]
    title = f"{scores['head']} for {scores['task']}, kit {scores['kit']}"
    return Table(["split", "figures of", "examples", *columns_of(columns)], rows, title)
