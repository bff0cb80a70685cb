"""bertvision report RUN…"""

from pathlib import Path
from typing import Annotated

import typer

from bertvision.cli import app, quiet_libraries


@app.command("report", rich_help_panel="Run", epilog="example: bertvision report runs/demo")
def report(
    runs: Annotated[list[str], typer.Argument(help="The folders of runs that were scored.", show_default=False)],
    to: Annotated[
        Path | None,
        typer.Option(help="Folder that the report goes to; absent: the run's, or the one that holds them all."),
    ] = None,
    encoder: Annotated[
        bool, typer.Option(help="Run the encoder for what needs it: what each layer matters, the layer map.")
    ] = True,
) -> None:
    """Write report.html: what was found, tables that sort, pictures, analyses; one page that opens offline."""
    quiet_libraries()
    from bertvision.progress import RichReporter
    from bertvision.report.build import make_report

    page = make_report([Path(run) for run in runs], to, RichReporter(), with_encoder=encoder)
    typer.echo(f"report: {page}")
