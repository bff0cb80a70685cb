"""bertvision export MODEL_OR_KIT --onnx [--int8] --to FOLDER"""

from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision.cli import AsJson, Wait, app, print_json, quiet_libraries
from bertvision.errors import UserError


@app.command(
    "export",
    rich_help_panel="Main commands",
    epilog="Example: bertvision export models/intents --onnx --to intents_onnx",
)
def export(
    model: Annotated[
        str,
        typer.Argument(
            help="Folder of a fitted model, a finished run or a kit, or the name of a shipped kit ('default').",
            show_default=False,
        ),
    ],
    to: Annotated[Path, typer.Option(help="Folder of the export: new or empty.", show_default=False)],
    onnx: Annotated[bool, typer.Option("--onnx", help="Write an ONNX graph, the only format so far.")] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="Weights and embeddings as int8: a quarter of the size, and faster.")
    ] = False,
    head: Annotated[str | None, typer.Option(help="Head to export, of a model or run. Default: the best.")] = None,
    tasks: Annotated[str | None, typer.Option(help="With a kit: tasks to export, separated by commas.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Labelled data to measure threshold and trust again on: a path or, for a kit, TASK=PATH. May be "
            "repeated."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an export that exists.")] = False,
    wait: Wait = False,
    json: AsJson = False,
) -> None:
    """Export a model or kit, encoder and all heads as one graph, to predict without torch (docs/export.md).

    Prints how the graph's outputs and answers differ from torch's. Thresholds and trust are measured again on the graph
    where held-out data is at hand.
    """
    if not onnx:
        raise UserError("name the format: --onnx.")
    quiet_libraries()
    from bertvision.export.write import export_model, read_parity
    from bertvision.progress import RichReporter

    wanted = None if tasks in (None, "all") else [task.strip() for task in str(tasks).split(",") if task.strip()]
    places = dict(_read_place(one) for one in data or ())
    reporter = RichReporter()
    made = export_model(
        model, to, int8=int8, head=head, tasks=wanted, data=places, overwrite=overwrite, reporter=reporter, wait=wait
    )
    parity = read_parity(to)
    if json:
        print_json({"manifest": made, "parity": parity})
        return
    for task, facts in made["tasks"].items():
        typer.echo(_describe(task, facts, parity[task]))
    size = sum(path.stat().st_size for path in to.iterdir()) / 1e6
    typer.echo(f"{made['precision']}, {size:.0f} MB: {to}   (to use it: bertvision predict {to} --text …)")


def _read_place(given: str) -> tuple[str, str]:
    """TASK=PATH, or a path alone."""
    task, equals, path = given.partition("=")
    if not equals or "/" in task or Path(given).exists():
        return "", given
    return task, path


def _describe(task: str, facts: dict[str, Any], parity: dict[str, Any]) -> str:
    from bertvision.tables import counted

    equal = f"{100 * parity['equal_answers']:.1f} % of {counted(parity['examples'], 'answer')} as in torch"
    line = f"{task}: {equal} ({parity['examples_are']}), outputs differ by at most {parity['largest_difference']:.2g}"
    if facts["why_not"] is None:
        return f"{line}; threshold and trust measured again"
    return f"{line}; threshold and trust are torch's, because {facts['why_not']}"
