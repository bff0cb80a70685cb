"""bertvision report RUN…"""

from pathlib import Path
from typing import Annotated

import typer

from bertvision.cli import Wait, app, quiet_libraries


@app.command("report", rich_help_panel="Main commands", epilog="Example: bertvision report runs/demo")
def report(
    runs: Annotated[
        list[str], typer.Argument(help="Folders of scored runs. Several are compared on one page.", show_default=False)
    ],
    to: Annotated[
        Path | None,
        typer.Option(help="Folder for the report. Default: the run folder, or the parent folder of several runs."),
    ] = None,
    encoder: Annotated[
        bool, typer.Option(help="Include the analyses that run the encoder: layer importance and the layer map.")
    ] = True,
    wait: Wait = False,
) -> None:
    """Write report.html, a single offline page with findings, sortable tables, charts and analyses."""
    quiet_libraries()
    from bertvision.progress import RichReporter
    from bertvision.report.build import make_report

    page = make_report([Path(run) for run in runs], to, RichReporter(), with_encoder=encoder, wait=wait)
    typer.echo(f"report: {page}")
