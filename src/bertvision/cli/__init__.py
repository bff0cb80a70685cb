"""The command line: the app, the helpers its commands share, and their order in --help.

Each command has its own file. Heavy imports happen inside the commands, so that --help is fast.
"""

import dataclasses
import gc
import importlib
import io
import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from bertvision import interrupts, progress
from bertvision.errors import UserError
from bertvision.progress import RichReporter
from bertvision.tables import MINUS, MISSING, Table

COMMANDS = (
    "fit", "predict", "demo", "run", "report", "search", "kit", "push", "export", "reproduce", "check", "tasks",
    "heads", "settings", "store", "features", "finetune", "encode", "train", "evaluate", "ensemble",
)  # fmt: skip
RESUMABLE = ("demo", "run", "reproduce", "search", "finetune", "encode", "train", "evaluate")

Config = Annotated[
    str,
    typer.Argument(
        help="A TOML config file, a run folder, or your data: a table or SQuAD-format JSON.", show_default=False
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings that override the config, as section.key=value.", show_default=False),
]
MOST_MEGABYTES = 4096
"""As in `tasks.text_files`, which this module does not import, so that --help is fast."""
MostMegabytes = Annotated[
    int, typer.Option(min=1, max=10**9, help="Largest data file, decompressed, with what rows need besides their text.")
]
Wait = Annotated[
    bool, typer.Option("--wait", help="If another command is writing to the same folder, wait until it ends.")
]
ClusterAddress = Annotated[
    str | None,
    typer.Option(help="Run on a Ray cluster: 'local' (this machine), 'auto', or HOST:PORT.", show_default=False),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, max=100_000, help="With --cluster: workers. Default: one for each GPU, else for each core."),
]
CpusPerWorker = Annotated[
    float | None, typer.Option(min=0.1, max=10_000, help="With --cluster: CPU cores of each worker. Default: 1.")
]
GpusPerWorker = Annotated[
    float | None,
    typer.Option(min=0, max=1000, help="With --cluster: GPUs of each worker. Default: 1 if there are any, else 0."),
]
PATIENCE = 900.0
"""As in `cluster.engine`."""
Patience = Annotated[
    float, typer.Option(min=1, max=1e7, help="With --cluster: seconds without any progress after which to give up.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]


PATHS = ("config", "run", "runs", "path", "train", "encoder", "data", "kit", "model", "file", "output")
"""Parameters of commands that are paths, although they are strings: they can also be names or addresses."""


class Command(TyperCommand):
    """A command that checks its paths before it begins."""

    def invoke(self, ctx: Any) -> Any:
        from bertvision.disk import check_path

        for param in self.params:
            value = ctx.params.get(param.name)
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, Path) or (isinstance(one, str) and param.name in PATHS):
                    check_path(one, max(param.opts, key=len) if param.param_type_name == "option" else str(param.name))
        return super().invoke(ctx)


class App(typer.Typer):
    """All commands are of the class `Command`."""

    def command(self, *words: Any, **settings: Any) -> Any:
        return super().command(*words, **{"cls": Command, **settings})


class Commands(TyperGroup):
    """The group of commands. Prints a message on Ctrl-C and SIGTERM, where typer would exit silently. --verbose may
    also follow the command's name."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command and not any(option.name == "verbose" for option in command.params):
            command.params.append(next(option for option in self.params if option.name == "verbose"))
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        found = super().resolve_command(ctx, args)
        interrupts.resumes = found[0] in RESUMABLE
        return found

    def invoke(self, ctx: Any) -> Any:
        interrupts.orderly = True
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            number = getattr(error, "number", signal.SIGINT)
        except (UserError, typer.Exit):
            raise
        except Exception:  # a library may turn an interrupt into an error of its own, as typer's prompt does
            if not interrupts.received:
                raise
            number = interrupts.received[0]
        finally:
            interrupts.orderly = False
        if os.environ.get("LOCAL_RANK", "0") == "0":  # of several processes, one of each machine
            typer.echo(f"\n{interrupts.sentence(number)}", err=True)
        raise typer.Exit(interrupts.exit_code(number))


app = App(
    name="bertvision",
    cls=Commands,
    help="Train very small heads on the hidden states of every layer of a BERT, all in one pass.",
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


def _show_details(ctx: typer.Context, wanted: bool) -> None:
    if ctx.parent is None:  # before the command's name
        progress.verbose = wanted
    elif wanted:
        progress.verbose = True


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", is_eager=True, callback=_print_version
    ),
    verbose: bool = typer.Option(
        False,
        "--verbose",
        "-v",
        help="Show details, such as the number of CPU threads.",
        callback=_show_details,
        expose_value=False,
    ),
) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for lone surrogates in users' texts


def main() -> None:
    """Run the `bertvision` command. Errors that the user can fix are printed as a message, without a traceback."""
    try:
        app()
    except UserError as error:
        sys.exit(_print_error(f"error: {error}", 2))
    except BrokenPipeError:
        sys.exit(1)
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's; torch is not imported here
            raise
        advice = "lower train.encode_tokens and finetune.memory_tokens, then run the same command again to resume."
        sys.exit(_print_error(f"error: the GPU ran out of memory: {advice}", 2))


def _print_error(text: str, code: int) -> int:
    """Print an error. Each of several processes of a launch says which it is: the cause may be in one of them."""
    processes, rank = os.environ.get("WORLD_SIZE", "1"), os.environ.get("RANK", "")
    which = f"process {int(rank) + 1} of {processes}: " if processes != "1" and rank.isdecimal() else ""
    sys.stderr.write(f"{which}{text}\n")  # in one piece: other processes write too
    return code


# ---------------------------------------------------------------------- shared by the commands


def load_job(
    config: str,
    overrides: list[str] | None,
    find_more: Callable[[Any], list[str]] | None = None,
    wait: bool = False,
) -> Any:
    """Return the job of a config, with progress shown on the terminal.

    `wait`: if another process is writing to the run folder, wait until it ends. `find_more` checks more than the
    settings; by default it checks the heads and ensembles.
    """
    from bertvision.config import load_config

    reporter = RichReporter()
    settings = load_config(config, overrides or [], find_more or find_mistakes, reporter.say)
    if os.path.isdir(config) and not any(override.startswith("run=") for override in overrides or []):
        settings = dataclasses.replace(settings, run=config)  # the folder may have been moved
    quiet_libraries()
    from bertvision.pipeline.job import Job

    return Job(settings, reporter, wait)


def find_mistakes(config: Any) -> list[str]:
    """Mistakes in the heads and ensembles, reported along with those in the other settings."""
    from bertvision.pipeline import job

    return job.find_mistakes(config)


def quiet_libraries() -> None:
    """Silence progress bars and advice of other libraries; their errors still come through."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in ("accelerate", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("default", module="bertvision")


def read_cluster(
    address: str | None, workers: int | None, cpus: float | None, gpus: float | None, patience: float
) -> Any:
    """Where and on how much to run; None without --cluster, which the other options need."""
    if address is not None:
        from bertvision.cluster.engine import Cluster

        return Cluster(address, workers, cpus, gpus, patience)
    given = {"--workers": workers, "--cpus-per-worker": cpus, "--gpus-per-worker": gpus}
    named = [name for name, value in given.items() if value is not None] + ["--patience"] * (patience != PATIENCE)
    if named:
        raise UserError(f"{', '.join(named)}: only with --cluster. Add --cluster local, or leave it out.")
    return None


@contextmanager
def importing() -> Iterator[None]:
    """Around heavy imports, which make a million objects that stay. The garbage collector would look through them
    again and again, also when the process ends: a third of the time that `predict` takes."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(table: Table, with_notes: bool = True, elsewhere: str = "use --json") -> list[str]:
    """Print a table that fits the terminal, with numbers right-aligned and the notes below. Return the headings of the
    columns for which there was no room; `elsewhere` says where else to see them."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(width=_table_width())
    headings, rows, shown = table.headings, table.texts(), _fitting_columns(table, console.width)
    is_tight = sum(_column_widths(table)[number] for number in shown) > console.width
    drawn = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_header=any(headings))
    for number in shown:
        is_number = all(_is_number(row[number]) for row in rows)
        heading = headings[number].replace(" ", "\n") if is_tight and is_number else headings[number]
        drawn.add_column(heading, justify="right" if is_number else "left")
    for row in rows:
        drawn.add_row(*(Text(row[number]) for number in shown))
    console.print(table.title, style="bold", highlight=False, markup=False)
    console.print(drawn)
    hidden = [heading for number, heading in enumerate(headings) if number not in shown]
    meanings = table.explain(headings[number] for number in shown) if with_notes else ""
    advice = f"(columns not shown: {', '.join(hidden)}; widen the terminal or {elsewhere})" if hidden else ""
    console.print(*filter(None, [table.note, meanings, advice]), style="dim", highlight=False, markup=False)
    return hidden


def _table_width() -> int | None:
    """The width of a table; None: as wide as the terminal. Output to a pipe or file is as wide as COLUMNS, if set."""
    if sys.stdout.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and len(columns) < 6 and int(columns) else 200


def _column_widths(table: Table) -> list[int]:
    return [max(map(len, cells)) + 3 for cells in zip(table.headings, *table.texts(), strict=True)]


def _fitting_columns(table: Table, width: int) -> list[int]:
    sizes = _column_widths(table)
    shown = list(range(len(table.columns)))
    for name in table.first_to_go:
        if sum(sizes[number] for number in shown) <= width:
            break
        shown = [number for number in shown if table.headings[number] != name]
    return shown


def _is_number(cell: str) -> bool:
    return not cell.strip(f"0123456789.,-+±% {MINUS}{MISSING}")


def print_run(job: Any, scores: Any, as_json: bool) -> None:
    """Print the scores of a run and the path of its folder, from the main process only."""
    from bertvision.pipeline.finished import FinishedRun
    from bertvision.pipeline.score import score_tables

    if not job.machine.is_main:
        return
    if as_json:
        print_json({"run": str(job.folder.path), **scores})
        return
    run = FinishedRun(job.folder.path, scores)
    tables = score_tables(run)
    for table in tables:
        print_table(table, with_notes=table is tables[-1])  # headings are explained once, under the last table
    best = run.best_model(run.last)
    if best is not None:
        typer.echo(f"`bertvision predict` uses {best.title}, {run.reason}.")
    typer.echo(f"run folder: {job.folder.path}   (for a report: bertvision report {job.folder.path})")


for _command in COMMANDS:
    importlib.import_module(f"{__name__}.{_command}")
