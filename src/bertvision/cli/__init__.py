"""The command line: one file a command. Heavy imports wait inside the commands, so that --help answers at once."""

import typer

from bertvision.cli import check, demo, evaluate, finetune, heads, predict, run, settings, tasks, train

app = typer.Typer(
    name="bertvision",
    help="Train very small heads on the hidden states of every layer of a BERT, all of them in one pass.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (demo, run, check, tasks, heads, settings, finetune, train, evaluate, predict):
    module.add_to(app)


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", help="Print the version and leave.", is_eager=True),
) -> None:
    if version:
        from bertvision import __version__

        typer.echo(__version__)
        raise typer.Exit
