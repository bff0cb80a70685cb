"""bertvision settings"""

from bertvision.cli import AsJson, app, print_json, print_table
from bertvision.tables import Table


@app.command("settings", rich_help_panel="Inspect")
def settings(json: AsJson = False) -> None:
    """List every setting with its default and description (--json adds the type)."""
    from bertvision.config import RunConfig
    from bertvision.settings import list_settings

    rows = list_settings(RunConfig)
    if json:
        print_json([dict(zip(("key", "type", "default", "help"), row, strict=True)) for row in rows])
        return
    cells = [[key, "" if default is None else str(default), help] for key, _, default, help in rows]
    title = "settings: write `key = value` under [section] in a config, or section.key=value on the command line"
    print_table(Table(["setting", "default", "description"], cells, title))
