"""bertvision ensemble RUN MEMBER…"""

from typing import Annotated

import typer

from bertvision.cli import AsJson, app, load_job, print_json, print_run
from bertvision.errors import UserError


@app.command(
    "ensemble",
    rich_help_panel="The stages of run",
    epilog="example: bertvision ensemble runs/demo encoder adapter_64 --method max",
)
def ensemble(
    run: Annotated[str, typer.Argument(help="The folder of a run that was scored.", show_default=False)],
    members: Annotated[
        list[str],
        typer.Argument(help="Two models or more: NAME, NAME@EPOCHS, or RUN:NAME@EPOCHS.", show_default=False),
    ],
    method: Annotated[
        str, typer.Option(help="max or mean of probabilities, sum of logits, or weights fitted on held-out data.")
    ] = "max",
    name: Annotated[str, typer.Option(help="What to call it; absent: made of its members' names.")] = "",
    json: AsJson = False,
) -> None:
    """Let several models answer together, of one run or several; scored and kept like any other model."""
    if len(members) < 2:
        raise UserError(f"an ensemble has two members or more, not {', '.join(members) or 'none'}.")
    job = load_job(run, [])
    from bertvision.api import Run

    finished = Run(run)
    found = finished.ensemble(*members, method=method, name=name)
    if json:
        print_json(found)
    else:
        print_run(job, finished.scores, False)
