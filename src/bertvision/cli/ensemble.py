"""bertvision ensemble RUN MEMBER…"""

from typing import Annotated

import typer

from bertvision.cli import AsJson, Wait, app, load_job, print_json, print_run
from bertvision.errors import UserError, list_names


@app.command(
    "ensemble",
    rich_help_panel="Individual stages",
    epilog="Example: bertvision ensemble runs/demo encoder adapter_64 --method max",
)
def ensemble(
    run: Annotated[str, typer.Argument(help="Folder of a scored run.", show_default=False)],
    members: Annotated[
        list[str],
        typer.Argument(
            help="Two or more models: NAME, NAME@EPOCHS (another snapshot) or RUN:NAME@EPOCHS.", show_default=False
        ),
    ],
    method: Annotated[
        str,
        typer.Option(
            help="max or mean (of probabilities), sum (of logits), or fitted (weights fitted on held-out data)."
        ),
    ] = "max",
    name: Annotated[str, typer.Option(help="Name of the ensemble. Default: built from the names of its members.")] = "",
    wait: Wait = False,
    json: AsJson = False,
) -> None:
    """Combine models, from one or several runs, into an ensemble and score it like any other model."""
    if len(members) < 2:
        raise UserError(f"an ensemble needs at least two members, got {list_names(members, 300) or 'none'}.")
    from bertvision.network import no_downloads

    with no_downloads():
        job = load_job(run, [])
        from bertvision.api import Run

        finished = Run(run)
        found = finished.ensemble(*members, method=method, name=name, wait=wait)
    if json:
        print_json(found)
    else:
        print_run(job, finished.scores, False)
