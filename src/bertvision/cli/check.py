"""bertvision check CONFIG"""

import typer

from bertvision.cli import AsJson, Config, Overrides, app, load_job, print_json, print_table
from bertvision.tables import Table


@app.command("check", rich_help_panel="Inspect", epilog="Example: bertvision check configs/rte.toml")
def check(config: Config, overrides: Overrides = None, json: AsJson = False) -> None:
    """Check data, encoder and settings, and estimate time, memory and disk space."""
    job = load_job(config, overrides)
    from bertvision.pipeline.check import estimate_costs

    found = estimate_costs(job)
    if json:
        print_json(found)
        return
    for section, rows in found.items():
        cells = [[key, _value(value)] for key, value in rows.items()]
        print_table(Table(["", ""], cells, section))
    typer.echo("Everything is in place.")


def _value(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
