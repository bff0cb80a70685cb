"""bertvision kit RUN… --to FOLDER"""

from pathlib import Path
from typing import Annotated

import typer

from bertvision.cli import app
from bertvision.errors import UserError


@app.command("kit", rich_help_panel="Main commands", epilog="Example: bertvision kit runs/sst2 runs/rte --to my_kit")
def kit(
    runs: Annotated[
        list[Path], typer.Argument(help="Finished runs with finetune.epochs = 0, one per task.", show_default=False)
    ],
    to: Annotated[
        Path,
        typer.Option(help="Folder of the kit: new or empty, or an existing kit to replace.", show_default=False),
    ],
    head: Annotated[
        list[str] | None,
        typer.Option(help="TASK=NAME: use this head instead of the best on held-out data. May be repeated."),
    ] = None,
    about: Annotated[
        Path | None,
        typer.Option(help='TOML file with notes on data and licence for the model cards: TASK = "…" for each task.'),
    ] = None,
) -> None:
    """Combine heads for several tasks into a kit. A text then goes through the encoder once for all tasks."""
    choices = [choice.partition("=") for choice in head or []]
    if any(not (task and equals and name) for task, equals, name in choices):
        raise UserError("--head must be TASK=NAME, such as --head rte=adapter_64.")
    from bertvision.kits.kit import read_kit_file
    from bertvision.kits.make import make_kit
    from bertvision.tables import counted

    made = make_kit(runs, to, {task: name for task, _, name in choices}, _read_about(about))
    written = read_kit_file(made)
    assert written is not None, "it has just been written"
    tasks = written["tasks"]
    for task, facts in tasks.items():
        typer.echo(f"{task}: {facts['head']}, {facts['parameters']:,} parameters")
    typer.echo(f"kit of {counted(len(tasks), 'task')}: {made}   (to use it: bertvision predict {made} --text …)")


def _read_about(path: Path | None) -> dict[str, str]:
    from bertvision.disk import parse_toml, read_bytes

    if path is None:
        return {}
    data = read_bytes(path)
    if data is None:
        raise UserError(f"--about {path}: there is no such file.")
    try:
        found = parse_toml(data.decode("utf-8-sig"))
    except ValueError as error:
        raise UserError(f"--about {path} is not valid TOML: {error}.") from None
    if not all(isinstance(text, str) for text in found.values()):
        raise UserError(f'--about {path}: expected lines such as  sst2 = "sentences about the data".')
    return found
