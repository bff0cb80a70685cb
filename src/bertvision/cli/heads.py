"""bertvision heads [--encoder NAME] [--task NAME]"""

from typing import Annotated, Any

import typer

from bertvision.cli.output import AsJson, print_json, print_table, quiet_libraries
from bertvision.results import Table


def add_to(app: typer.Typer) -> None:
    app.command(
        "heads", rich_help_panel="Look", epilog="example: bertvision heads --encoder bert-large-uncased --task squad2"
    )(heads)


def heads(
    encoder: Annotated[str, typer.Option(help="Name or folder; BERT's sizes are known offline.")] = "bert-base-uncased",
    task: Annotated[str, typer.Option(help="A task that `bertvision tasks` lists.")] = "squad2",
    labels: Annotated[int, typer.Option(min=2, help="For a task of your own: how many labels.")] = 2,
    json: AsJson = False,
) -> None:
    """List the heads with their parameters and their share of the encoder's."""
    rows, whole = _rows(encoder, task, labels)
    if json:
        print_json(rows)
        return
    cells = [[r["name"], f"{r['parameters']:,}", f"{100 * r['share']:.3f}", r["what"]] for r in rows]
    title = f"heads for {task} on {encoder} ({whole:,} parameters)"
    print_table(Table(title, ["head", "parameters", "% of encoder", "what"], cells, ""))


def _rows(encoder: str, task: str, labels: int) -> tuple[list[dict[str, Any]], int]:
    quiet_libraries()
    import sys

    from bertvision.encoder.loading import shape_of
    from bertvision.errors import UserError, suggest
    from bertvision.heads import CONTROL, HEADS, Target, count_parameters
    from bertvision.tasks import TASKS, TargetKind

    if task not in TASKS:
        raise UserError(f"there is no task '{task}': {suggest(task, TASKS)}")
    info, size = TASKS[task], shape_of(encoder)
    target = Target(info.kind or TargetKind.LABEL, len(info.labels) or labels)
    rows = []
    for name in sorted(HEADS, key=lambda name: (name != CONTROL, name)):  # the control first
        if target.kind not in HEADS[name].kinds:
            continue
        head = HEADS[name](HEADS[name].Config(), size.shape, target)
        what = (sys.modules[HEADS[name].__module__].__doc__ or "").splitlines()[0].partition(": ")[2]
        rows.append(
            {
                "name": name,
                "parameters": count_parameters(head),
                "trainable": sum(p.numel() for p in head.parameters() if p.requires_grad),
                "share": count_parameters(head) / size.parameters,
                "what": what.split(". ")[0].rstrip("."),
            }
        )
    return rows, size.parameters
