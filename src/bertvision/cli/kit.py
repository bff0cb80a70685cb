"""bertvision kit RUN… --to FOLDER"""

import tomllib
from pathlib import Path
from typing import Annotated

import typer

from bertvision.cli import app
from bertvision.errors import UserError


@app.command("kit", rich_help_panel="Run", epilog="example: bertvision kit runs/sst2 runs/rte --to my_kit")
def kit(
    runs: Annotated[list[Path], typer.Argument(help="Finished runs, one a task, at 0 epochs.", show_default=False)],
    to: Annotated[
        Path, typer.Option(help="The kit's folder: new, empty or a kit, which is replaced.", show_default=False)
    ],
    head: Annotated[
        list[str] | None, typer.Option(help="TASK=NAME: this head instead of the best on held-out; may be repeated.")
    ] = None,
    about: Annotated[
        Path | None, typer.Option(help='TOML of TASK = "sentences about its data and their licence", for the cards.')
    ] = None,
) -> None:
    """Put heads of several tasks on one untouched encoder together; text goes through it once for all of them."""
    words = [word.partition("=") for word in head or []]
    if any(not (task and sign and name) for task, sign, name in words):
        raise UserError("--head is TASK=NAME, such as --head rte=adapter_64.")
    from bertvision.disk import read_json
    from bertvision.kits.make import make_kit
    from bertvision.tables import counted

    made = make_kit(runs, to, {task: name for task, _, name in words}, _read_about(about))
    tasks = (read_json(made / "kit.json") or {})["tasks"]
    for task, facts in tasks.items():
        typer.echo(f"{task}: {facts['head']}, {facts['parameters']:,} parameters")
    typer.echo(f"kit of {counted(len(tasks), 'task')}: {made}   (bertvision predict {made} --text …)")


def _read_about(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UserError(f"--about {path}: there is no such file that can be read.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"--about {path} is no TOML: {error}.") from None
    if not all(isinstance(text, str) for text in found.values()):
        raise UserError(f'--about {path}: expected lines such as  sst2 = "sentences about the data".')
    return found
