"""bertvision check CONFIG"""

import typer

from bertvision.cli import AsJson, Config, Overrides, app, load_job, print_json, print_table
from bertvision.tables import Table


@app.command("check", rich_help_panel="Look", epilog="example: bertvision check configs/rte.toml")
def check(config: Config, overrides: Overrides = None, json: AsJson = False) -> None:
    """Say beforehand whether all is there and what it will cost: seconds, memory, disk."""
    job = load_job(config, overrides)
    from bertvision.pipeline.check import estimate_costs

    found = estimate_costs(job)
    if json:
        print_json(found)
        return
    for section, rows in found.items():
        cells = [[key, _value(value)] for key, value in rows.items()]
        print_table(Table(["", ""], cells, section))
    typer.echo("all is there.")


def _value(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
