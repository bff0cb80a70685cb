"""The command line: the app, what its commands share, and the order in which --help shows them. One file a command;
heavy imports wait inside the commands, so that --help answers at once.
"""

import dataclasses
import importlib
import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bertvision.errors import UserError
from bertvision.progress import RichReporter
from bertvision.tables import Table

COMMANDS = (
    "demo", "run", "report", "search", "predict", "kit", "check", "tasks", "heads", "settings", "store",
    "finetune", "encode", "train", "evaluate", "ensemble",
)  # fmt: skip
RESUMABLE = ("demo", "run", "search", "finetune", "encode", "train", "evaluate")

Config = Annotated[str, typer.Argument(help="A TOML config, or a run folder.", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings over the config's: section.key=value …", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]


class Commands(TyperGroup):
    """The group of commands; without it typer leaves at Ctrl-C and says nothing."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            kept = " What was done is kept: the same command goes on from there."
            typer.echo("\nstopped." + (kept if ctx.invoked_subcommand in RESUMABLE else ""), err=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    name="bertvision",
    cls=Commands,
    help="Train very small heads on the hidden states of every layer of a BERT, all of them in one pass.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from bertvision import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", help="Print the version and leave.", is_eager=True, callback=_print_version
    ),
) -> None: ...


def main() -> None:
    """The `bertvision` command: what a user can put right is said in a sentence, without a traceback."""
    try:
        app()
    except UserError as error:
        sys.exit(_say(f"error: {error}", 2))
    except KeyboardInterrupt:
        sys.exit(_say("\nstopped.", 130))  # before a command began; the commands say more
    except BrokenPipeError:
        sys.exit(1)
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not imported here
            raise
        advice = "set smaller train.encode_tokens and finetune.memory_tokens. What was done is kept."
        sys.exit(_say(f"error: the GPU's memory has run out: {advice}", 2))


def _say(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code


# ---------------------------------------------------------------------- what commands share


def load_job(config: str, overrides: list[str] | None, find_more: Callable[[Any], list[str]] | None = None) -> Any:
    """The job a command works on, with progress on the terminal; `find_more` finds mistakes besides the heads'."""
    from bertvision.config import load_config

    settings = load_config(config, overrides or [], find_more or find_mistakes)
    if Path(config).is_dir() and not any(word.startswith("run=") for word in overrides or []):
        settings = dataclasses.replace(settings, run=config)  # the folder may have been moved since it was made
    quiet_libraries()
    from bertvision.pipeline.job import Job

    return Job(settings, RichReporter())


def find_mistakes(config: Any) -> list[str]:
    """Mistakes in the heads and ensembles, to be shown with those of the other settings."""
    from bertvision.pipeline import job

    return job.find_mistakes(config)


def quiet_libraries() -> None:
    """transformers' own bars and advice would stand between ours; errors still come through."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in ("accelerate", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("default", module="bertvision")


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(table: Table, with_notes: bool = True) -> None:
    """A table that fits the terminal: numbers to the right, the note under it."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    # Into a file or pipe nothing is folded: whoever reads it has room.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    headings, rows, shown = table.headings, table.texts(), _fitting_columns(table, console.width)
    drawn = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_header=any(headings))
    for number in shown:
        is_figure = all(_is_figure(row[number]) for row in rows)
        drawn.add_column(headings[number], justify="right" if is_figure else "left")
    for row in rows:
        drawn.add_row(*(Text(row[number]) for number in shown))
    console.print(table.title, style="bold", highlight=False, markup=False)
    console.print(drawn)
    left_out = [heading for number, heading in enumerate(headings) if number not in shown]
    meanings = table.explain(headings[number] for number in shown) if with_notes else ""
    notes = [table.note, meanings, f"(left out here: {', '.join(left_out)}; --json has all)" if left_out else ""]
    console.print(*filter(None, notes), style="dim", highlight=False, markup=False)


def _fitting_columns(table: Table, width: int) -> list[int]:
    sizes = [max(map(len, cells)) + 3 for cells in zip(table.headings, *table.texts(), strict=True)]
    shown = list(range(len(table.columns)))
    for name in table.first_to_go:
        if sum(sizes[number] for number in shown) <= width:
            break
        shown = [number for number in shown if table.headings[number] != name]
    return shown


def _is_figure(cell: str) -> bool:
    return not cell.strip("0123456789.,-+±% ")


def print_run(job: Any, scores: dict[str, Any], as_json: bool) -> None:
    """The scores of a run and where its folder is; only the first process speaks."""
    from bertvision.pipeline.finished import FinishedRun
    from bertvision.pipeline.score import score_tables

    if not job.machine.is_main:
        return
    if as_json:
        print_json({"run": str(job.folder.path), **scores})
        return
    tables = score_tables(FinishedRun(job.folder.path, scores))
    for table in tables:
        print_table(table, with_notes=table is tables[-1])  # what headings mean is said once, under the last
    typer.echo(f"run folder: {job.folder.path}   (bertvision report {job.folder.path})")


for _command in COMMANDS:
    importlib.import_module(f"{__name__}.{_command}")
