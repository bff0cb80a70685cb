"""bertvision settings"""

import typer

from bertvision.cli.output import AsJson, print_json, print_table
from bertvision.tables import Table


def add_to(app: typer.Typer) -> None:
    app.command("settings", rich_help_panel="Look")(settings)


def settings(json: AsJson = False) -> None:
    """List every setting of a config with its default (--json: and its type)."""
    from bertvision.config import list_settings

    rows = list_settings()
    if json:
        print_json([dict(zip(("key", "type", "default", "help"), row, strict=True)) for row in rows])
        return
    cells = [[key, "" if default is None else str(default), help] for key, _, default, help in rows]
    title = "settings: [section] key = value in a config, or section.key=value"
    print_table(Table(["setting", "default", "what"], cells, title))
