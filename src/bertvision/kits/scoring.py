"""Score a kit's head on the data of a config, to reproduce the scores on its card."""

from typing import Any

from bertvision.errors import UserError
from bertvision.kits.kit import Kit, KitTask
from bertvision.pipeline.finished import total_of
from bertvision.pipeline.folder import HELD_OUT
from bertvision.pipeline.job import Job
from bertvision.pipeline.score import columns_of, figure, score_figures
from bertvision.tables import Table


def score_kit(kit: Kit, job: Job) -> dict[str, Any]:
    """Return for each split the scores measured now, those on the card if it has the split, and the baseline's."""
    task = job.task
    if task.name not in kit.tasks:
        raise UserError(
            f"the config is for {task.name}, but kit '{kit.name}' has only {', '.join(kit.tasks)}: choose one of these."
        )
    own = kit.tasks[task.name]
    if tuple(own.task.labels) != tuple(task.labels):
        raise UserError(
            f"the labels of {task.name} must be equal: kit '{kit.name}' has {', '.join(own.task.labels)}, the data "
            f"has {', '.join(task.labels)}."
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
    """Whether the config holds out the same examples as the head's training did; if not, the head may have been trained
    on some of them."""
    asked = job.config.seed, len(job.examples(HELD_OUT))
    known = own.facts["seed"], total_of(own.facts["scores"].get(HELD_OUT, {}))
    if asked != known:
        job.reporter.say(
            f"skipping held-out examples: the head was trained with seed = {known[0]} and {known[1]:,} examples held "
            f"out, the config has seed = {asked[0]} and {asked[1]:,} (data.hold_out). The head may have been trained "
            "on some of these."
        )
    return asked == known


def kit_table(kit: Kit, scores: dict[str, Any]) -> Table:
    task = kit.tasks[scores["task"]].task
    columns = score_figures(task.kind, task.metrics, [s["head"] for s in scores["splits"].values()])
    rows = [
        [split, who, f"{total_of(figures):,}", *(figure(figures, one.key) for one in columns)]
        for split, found in scores["splits"].items()
        for who, figures in found.items()
        if figures
    ]
    title = f"{scores['head']} for {scores['task']}, kit {scores['kit']}"
    return Table(["split", "scores of", "examples", *columns_of(columns)], rows, title)
