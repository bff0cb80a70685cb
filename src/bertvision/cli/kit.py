"""bertvision kit make | add | replace | rm | ls"""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bertvision.cli import App, AsJson, Wait, app, print_json, print_table
from bertvision.errors import UserError
from bertvision.tables import Table, counted

Runs = Annotated[
    list[Path], typer.Argument(help="Finished runs with finetune.epochs = 0, one per task.", show_default=False)
]
Heads = Annotated[
    list[str] | None,
    typer.Option("--head", help="TASK=NAME: use this head instead of the best on held-out data. May be repeated."),
]
About = Annotated[
    Path | None,
    typer.Option(help='TOML file with notes on data and licence for the model cards: TASK = "…" for each task.'),
]
KitFolder = Annotated[Path, typer.Argument(help="Folder of the kit.", show_default=False)]


class Kits(TyperGroup):
    """The commands of kits. `bertvision kit RUN… --to KIT` is the same as `bertvision kit make RUN… --to KIT`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help", "-h", "--verbose", "-v"):
            args = ["make", *args]
        return super().parse_args(ctx, args)


group = App(cls=Kits, help="Make kits: heads for several tasks on one untouched encoder.", no_args_is_help=True)
app.add_typer(group, name="kit", rich_help_panel="Main commands")


@group.command("make", epilog="Example: bertvision kit make runs/sst2 runs/rte --to my_kit")
def make(
    runs: Runs,
    to: Annotated[
        Path,
        typer.Option(help="Folder of the kit: new or empty, or an existing kit to replace.", show_default=False),
    ],
    head: Heads = None,
    about: About = None,
    wait: Wait = False,
) -> None:
    """Combine heads for several tasks into a kit. A text then goes through the encoder once for all tasks."""
    choices = _read_choices(head)
    from bertvision.kits.kit import read_kit_file
    from bertvision.kits.make import make_kit
    from bertvision.progress import RichReporter

    made = make_kit(runs, to, choices, _read_about(about), wait, RichReporter())
    written = read_kit_file(made)
    assert written is not None, "it has just been written"
    _say(written["tasks"])
    tasks = counted(len(written["tasks"]), "task")
    typer.echo(f"kit of {tasks}: {made}   (to use it: bertvision predict {made} --text …)")


@group.command("add", epilog="Example: bertvision kit add my_kit runs/cola")
def add(kit: KitFolder, runs: Runs, head: Heads = None, about: About = None, wait: Wait = False) -> None:
    """Add heads for further tasks to a kit. Its other heads stay byte-identical."""
    _add(kit, runs, head, about, wait, replace=False)


@group.command("replace", epilog="Example: bertvision kit replace my_kit runs/rte_again")
def replace(kit: KitFolder, runs: Runs, head: Heads = None, about: About = None, wait: Wait = False) -> None:
    """Replace the heads of some of a kit's tasks. Its other heads stay byte-identical."""
    _add(kit, runs, head, about, wait, replace=True)


@group.command("rm", epilog="Example: bertvision kit rm my_kit rte")
def rm(
    kit: KitFolder,
    tasks: Annotated[list[str], typer.Argument(help="Tasks whose heads to remove.", show_default=False)],
    wait: Wait = False,
) -> None:
    """Remove heads from a kit. Its other heads stay byte-identical."""
    from bertvision.kits.edit import remove_heads
    from bertvision.progress import RichReporter

    remove_heads(kit, tasks, wait, RichReporter())
    typer.echo(f"removed from {kit}: {', '.join(tasks)}")


@group.command("ls", epilog="Example: bertvision kit ls default")
def ls(
    kit: Annotated[str, typer.Argument(help="Folder of a kit, or the name of a shipped one.")] = "default",
    json: AsJson = False,
) -> None:
    """List the heads of a kit with their sizes and scores."""
    from bertvision.kits.folder import find_kit
    from bertvision.kits.kit import read_kit_file
    from bertvision.kits.listing import kit_rows

    found = read_kit_file(find_kit(kit))
    assert found is not None, "find_kit found it"
    rows = kit_rows(found)
    if json:
        print_json({"kit": kit, "encoder": found["encoder"], "layers": found["layers"], "tasks": rows})
        return
    title = f"{found['name']}: {counted(len(rows), 'head')} on {found['encoder']}, not fine-tuned"
    print_table(Table(list(rows[0]), [[_cell(value) for value in row.values()] for row in rows], title))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value or "")


def _add(kit: Path, runs: list[Path], head: list[str] | None, about: Path | None, wait: bool, replace: bool) -> None:
    choices = _read_choices(head)
    from bertvision.kits.edit import add_heads
    from bertvision.progress import RichReporter

    written = add_heads(kit, runs, choices, _read_about(about), replace, wait, RichReporter())
    _say({task: entry.facts for task, entry in written.items()})
    typer.echo(f"{'replaced in' if replace else 'added to'} {kit}: {', '.join(written)}")


def _say(tasks: Any) -> None:
    for task, facts in tasks.items():
        typer.echo(f"{task}: {facts['head']}, {facts['parameters']:,} parameters")


def _read_choices(head: list[str] | None) -> dict[str, str]:
    choices = [choice.partition("=") for choice in head or []]
    if any(not (task and equals and name) for task, equals, name in choices):
        raise UserError("--head must be TASK=NAME, such as --head rte=adapter_64.")
    return {task: name for task, _, name in choices}


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
