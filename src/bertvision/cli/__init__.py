"""The command line: one file a command. Heavy imports wait inside the commands, so that --help answers at once."""

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from bertvision.cli import (
    check,
    demo,
    encode,
    ensemble,
    evaluate,
    finetune,
    heads,
    kit,
    predict,
    report,
    run,
    search,
    settings,
    store,
    tasks,
    train,
)
from bertvision.errors import UserError

RESUMABLE = ("demo", "run", "search", "finetune", "encode", "train", "evaluate")


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
# In the order of --help.
SHOWN = (
    demo, run, report, search, predict, kit, check, tasks, heads, settings, store,
    finetune, encode, train, evaluate, ensemble,
)  # fmt: skip
for module in SHOWN:
    module.add_to(app)


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
