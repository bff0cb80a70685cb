"""bertvision heads [NAME] [--encoder NAME] [--task NAME]"""

import dataclasses
import sys
from typing import Annotated, Any

import typer

from bertvision.cli import AsJson, app, print_json, print_table, quiet_libraries
from bertvision.errors import UserError, suggest
from bertvision.tables import Table


@app.command(
    "heads", rich_help_panel="Inspect", epilog="Example: bertvision heads --encoder bert-large-uncased --task squad2"
)
def heads(
    name: Annotated[str | None, typer.Argument(help="Head to describe, with its settings. Default: list all.")] = None,
    encoder: Annotated[
        str, typer.Option(help="Hub name or folder of the encoder. The original BERT models need no network.")
    ] = "bert-base-uncased",
    task: Annotated[str, typer.Option(help="Task to predict; `bertvision tasks` lists them.")] = "squad2",
    labels: Annotated[int, typer.Option(min=2, max=100_000, help="With --task files: number of labels.")] = 2,
    json: AsJson = False,
) -> None:
    """List the heads with their parameter counts, or describe one head and its settings."""
    quiet_libraries()
    if name is not None:
        _describe_head(name, json)
        return
    rows, whole = _rows(encoder, task, labels)
    if json:
        print_json(rows)
        return
    cells = [[r["name"], f"{r['parameters']:,}", f"{100 * r['share']:.3f}", r["head"], r["what"]] for r in rows]
    columns = ["name", "parameters", "% of encoder", "head", "description"]
    title = f"heads for {task} on {encoder} ({whole:,} parameters)"
    note = "Use these names in the `heads` of a config. `bertvision heads NAME` describes a head and its settings."
    print_table(Table(columns, cells, title, note, ("description", "head")))


def _rows(encoder: str, task: str, labels: int) -> tuple[list[dict[str, Any]], int]:
    """Every preset that can predict the task's target, smallest first, and the number of the encoder's parameters."""
    import torch

    from bertvision.encoder.loading import shape_of
    from bertvision.heads import CONTROL, HEADS, Target, count_parameters, list_presets
    from bertvision.kinds import LABEL
    from bertvision.tasks import TASKS

    if task not in TASKS:
        raise UserError(f"there is no task '{task}': {suggest(task, TASKS)}")
    info, size = TASKS[task], shape_of(encoder)
    target = Target(info.kind or LABEL, len(info.labels) or labels)
    rows = []
    for name, (head, settings) in list_presets().items():
        if not HEADS[head].takes(target.kind):
            continue
        try:
            with torch.device("meta"):  # counts the weights without allocating them
                built = HEADS[head](HEADS[head].Config(**settings), size.shape, target)
        except UserError:  # a preset that reads more layers than this encoder has
            continue
        rows.append(
            {
                "name": name,
                "parameters": count_parameters(built),
                "trainable": sum(p.numel() for p in built.parameters() if p.requires_grad),
                "share": count_parameters(built) / size.parameters,
                "head": head,
                "settings": settings,
                "what": _what(HEADS[head])[0],
            }
        )
    return sorted(rows, key=lambda row: (row["name"] != CONTROL, row["parameters"])), size.parameters


def _what(head: type) -> tuple[str, str]:
    """The first sentence of the docstring of a head's file, and the whole docstring."""
    text = (sys.modules[head.__module__].__doc__ or "").partition(": ")[2]
    first, _, rest = text.partition("\n\n")
    return " ".join(first.split()).split(". ")[0].rstrip("."), " ".join(f"{first}\n{rest}".split())


def _describe_head(name: str, as_json: bool) -> None:
    from bertvision.heads import HEADS, default_reads, find_preset, list_presets, setting_types
    from bertvision.kinds import KINDS
    from bertvision.settings import describe_type

    if name not in HEADS and name not in list_presets():
        raise UserError(f"there is no head '{name}': {suggest(name, sorted({*HEADS, *list_presets()}))}")
    head, given = find_preset(name)
    types, config = setting_types(head), HEADS[head].Config(**given)
    settings = [
        {
            "name": item.name,
            "type": describe_type(types[item.name]),
            "value": "as made" if item.name == "read" and default_reads(name, ["cls"]) else getattr(config, item.name),
            "help": item.metadata["help"],
        }
        for item in dataclasses.fields(config)
    ]
    facts: dict[str, Any] = {
        "name": name,
        "head": head,
        "what": _what(HEADS[head])[1],
        "predicts": [kind for kind in KINDS if HEADS[head].takes(KINDS[kind])],
        "presets": HEADS[head].presets,
        "settings": settings,
    }
    if as_json:
        print_json(facts)
        return
    cells = [[s["name"], str(s["value"]), s["type"], s["help"]] for s in settings]
    presets = f" Presets: {', '.join(HEADS[head].presets)}." if HEADS[head].presets else ""
    what = facts["what"][:1].upper() + facts["what"][1:]
    note = f"{what} Predicts: {', '.join(facts['predicts'])}.{presets}"
    print_table(Table(["setting", "value" if given else "default", "type", "description"], cells, name, note))
