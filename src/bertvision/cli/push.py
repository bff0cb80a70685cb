"""bertvision push MODEL USER/NAME"""

from typing import Annotated

import typer

from bertvision.cli import app, quiet_libraries
from bertvision.errors import UserError


@app.command("push", rich_help_panel="Main commands", epilog="Example: bertvision push models/intents me/intents")
def push(
    model: Annotated[
        str,
        typer.Argument(help="Folder of a fitted model, a finished run or a kit, or a shipped kit.", show_default=False),
    ],
    repo: Annotated[str, typer.Argument(help="Repository on the hub, USER/NAME.", show_default=False)],
    private: Annotated[bool, typer.Option("--private", help="If the repository is new, only you can see it.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch to push to. Default: main.")] = None,
    head: Annotated[
        str | None, typer.Option(help="Push this model of a run or leaderboard. Default: the one that `predict` uses.")
    ] = None,
    license: Annotated[
        str | None, typer.Option(help="Licence for the card, such as mit or cc-by-sa-4.0. The hub lists the names.")
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help="Dataset on the hub that it was trained on, for the card. May be repeated.")
    ] = None,
    message: Annotated[str, typer.Option(help="Message of the commit.")] = "Upload with BERTVision",
) -> None:
    """Share a model or kit on the Hugging Face hub, with a card. `bv.load("USER/NAME")` opens it anywhere.

    Pushes what predicts and nothing else. Log in with `hf auth login` before, or set HF_TOKEN.
    """
    from bertvision.hub import is_hub_name

    if not is_hub_name(repo):
        raise UserError(f"'{repo}' is not the name of a repository on the hub: give USER/NAME.")
    quiet_libraries()
    from bertvision.models.model import load
    from bertvision.progress import RichReporter

    found = load(model, head=head, reporter=RichReporter())
    done = found.push_to_hub(
        repo, private=private, revision=revision, commit_message=message, license=license, datasets=dataset or ()
    )
    typer.echo(f"pushed {found!r}: {done}")
    if license is None:
        typer.echo("no licence is on the card: others may not use it. Add one with --license.", err=True)
