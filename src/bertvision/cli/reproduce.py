"""bertvision reproduce EXPERIMENT [section.key=value …]"""

from pathlib import Path
from typing import Annotated

import typer

from bertvision.cli import Overrides, Wait, app, print_table, quiet_libraries


@app.command(
    "reproduce",
    rich_help_panel="Main commands",
    epilog="Example: bertvision reproduce 2020-spans --quick --data data/squad",
)
def reproduce(
    experiment: Annotated[
        str | None,
        typer.Argument(help="2020-spans, 2020-answerability, 2021-squad or 2021-glue. Default: list them."),
    ] = None,
    overrides: Overrides = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="A hub name, a folder or 'embedded'. Default: the papers' encoder.", show_default=False),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder with SQuAD 2.0, or with GLUE; may be repeated. Default: the hub.", show_default=False
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few examples and the embedded encoder: proves in minutes that all works.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this run, such as last_rte; may be repeated.", show_default=False)
    ] = None,
    cost: Annotated[bool, typer.Option("--cost", help="Show what it would cost, and stop.")] = False,
    to: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs and the report. Default: runs/reproduce/…", show_default=False),
    ] = None,
    wait: Wait = False,
) -> None:
    """Repeat a published experiment, and show every score of the papers beside ours."""
    from bertvision.papers.published import find_paper, list_papers

    if experiment is None:
        print_table(list_papers())
        return
    paper = find_paper(experiment)
    quiet_libraries()
    from bertvision.papers.reproduce import Reproduction
    from bertvision.progress import RichReporter

    words = list(overrides or [])
    work = Reproduction(paper, encoder, data or [], quick, only or [], words, to, RichReporter(), wait)
    work.reporter.say(work.describe_sources())
    is_main = next(iter(work.jobs.values())).machine.is_main
    if is_main and (cost or not quick):
        print_table(work.cost())
    if cost:
        return
    work.run()
    if not is_main:
        return
    tables = work.tables()
    for table in tables:  # headings are explained once, under the last table
        print_table(table, with_notes=table is tables[-1], elsewhere=f"see {work.page}")
    for line in (*work.notes(), work.finding()):
        typer.echo(line)
    typer.echo(f"report: {work.write_report()}")  # last, since it needs the report extra
