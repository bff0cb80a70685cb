"""bertvision features CONFIG [section.key=value …]"""

from pathlib import Path
from typing import Annotated

import typer

from bertvision.cli import Config, Overrides, Wait, app, load_job
from bertvision.tables import counted


@app.command(
    "features",
    rich_help_panel="Individual stages",
    epilog="Example: bertvision features configs/rte.toml --to features",
)
def features(
    config: Config,
    overrides: Overrides = None,
    to: Annotated[
        Path | None,
        typer.Option(help="Folder for the files. Default: 'features' in the run folder.", show_default=False),
    ] = None,
    wait: Wait = False,
) -> None:
    """Write the token ids, offsets and targets of every window as JSON lines, for use outside BERTVision."""
    job = load_job(config, overrides, wait=wait)
    from bertvision.pipeline.token_features import write_token_features

    for path, found in write_token_features(job, to).items():
        tokens = counted(len(found.input_ids), "token")
        typer.echo(f"{path}: {counted(len(found), 'window')}, {tokens}, {path.stat().st_size / 1e3:,.0f} kB")
