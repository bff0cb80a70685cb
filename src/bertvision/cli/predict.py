"""bertvision predict RUN_OR_KIT [--head NAME | --tasks all] (--file FILE | --text TEXT [--text-pair TEXT] | …)"""

import json as json_format
import math
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision.cli import MOST_MEGABYTES, AsJson, MostMegabytes, app, print_json, quiet_libraries
from bertvision.errors import UserError
from bertvision.progress import RichReporter
from bertvision.tables import counted


@app.command(
    "predict",
    rich_help_panel="Main commands",
    epilog="Example: bertvision predict runs/demo --text 'Who …?' --text-pair 'In 1891 …'",
)
def predict(
    run: Annotated[
        str,
        typer.Argument(
            help="Folder of a fitted model or a finished run, or a kit (a folder, or 'default').", show_default=False
        ),
    ],
    head: Annotated[
        str | None, typer.Option(help="Head to use, or 'encoder'. Default: the best model on held-out data.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="Text to predict on (or the question).")] = None,
    text_pair: Annotated[str | None, typer.Option(help="Second text of a pair (or the passage).")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="File to predict on: CSV, TSV, JSONL, TXT (one text per line) or SQuAD JSON; .gz or .xz too."
        ),
    ] = None,
    submission: Annotated[
        Path | None,
        typer.Option(help="Predict the test splits and write the official submission files to this folder."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="With --submission: folder with the test files. Default: the data of the run.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="With --file: save predictions here as JSON lines, or in a .json file as one object, id → prediction."
        ),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="No-answer threshold. Default: the one chosen on held-out data.")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Snapshot to use, in epochs of fine-tuning. Default: the last with heads.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="With a kit: tasks to predict, separated by commas. Default: all.")
    ] = None,
    most_megabytes: MostMegabytes = MOST_MEGABYTES,
    json: AsJson = False,
) -> None:
    """Predict on new text: the answer to a question, a label with probabilities, or a score.

    Without --text, --file or --submission, asks for texts one by one. Rows of a file that can't be predicted get an
    error instead of a prediction; the exit code is then 1.
    """
    _check_options(text, text_pair, file, out, submission, data, threshold, epochs)
    from bertvision.models.exported import is_export

    if is_export(run):  # first: it needs neither torch nor transformers
        from bertvision.cli.exported import predict_with_export

        _refuse_for_kits({"--head": head, "--epochs": epochs, "--threshold": threshold, "--submission": submission})
        predict_with_export(run, tasks, text, text_pair, file, out, most_megabytes, json)
        return
    quiet_libraries()
    if not os.path.isfile(Path(run) / "scores.json"):  # not a run: it may be a kit
        from bertvision.kits.kit import is_kit

        if is_kit(run):
            _refuse_for_kits({"--head": head, "--epochs": epochs, "--threshold": threshold, "--submission": submission})
            _predict_with_kit(run, tasks, text, text_pair, file, out, most_megabytes, json)
            return
    if tasks is not None:
        raise UserError(f"--tasks is for kits, and '{run}' is not one: remove it, or pass a kit.")
    from bertvision.models.folder import is_fitted
    from bertvision.pipeline.predict import Predictor

    if not os.path.exists(run):
        from bertvision.kits.kit import shipped_kits

        raise UserError(
            f"there is no model, run or kit '{run}': pass the folder of one, or the name of a shipped kit "
            f"({', '.join(shipped_kits())})."
        )
    if is_fitted(run):
        from bertvision.models.predict import FittedPredictor

        predictor: Predictor = FittedPredictor(run, head, RichReporter())
    else:
        predictor = Predictor(run, head, epochs, RichReporter())
    if head is None:
        predictor.reporter.say(f"predicting with {predictor.model.title}: {predictor.why}")
    limit = predictor.threshold if threshold is None else threshold
    if submission is not None:
        _write_submissions(predictor, submission, data, limit)
    elif file is not None:
        _predict_file(predictor, file, out, limit, most_megabytes, json)
    elif text is not None:
        _print_typed(predictor, text, text_pair, limit, json)
    else:
        _prompt(predictor, limit, json)


def _check_options(
    text: str | None,
    text_pair: str | None,
    file: Path | None,
    out: Path | None,
    submission: Path | None,
    data: str | None,
    threshold: float | None,
    epochs: float | None,
) -> None:
    """Raise a UserError for options that do not go together."""
    for option, number in (("--threshold", threshold), ("--epochs", epochs)):
        if number is not None and not math.isfinite(number):
            raise UserError(f"{option} must be a number, not {number}.")
    if sum(value is not None for value in (text, file, submission)) > 1:
        raise UserError("give only one of --text, --file and --submission.")
    for option, value, partner, there in (
        ("--text-pair", text_pair, "--text", text), ("--out", out, "--file", file),
        ("--data", data, "--submission", submission),
    ):  # fmt: skip
        if value is not None and there is None:
            raise UserError(f"{option} needs {partner}: add {partner}, or remove {option}.")
    if out is not None and file is not None and out.resolve() == file.resolve():
        raise UserError(f"--out {out} is the input file: choose another path.")


def _refuse_for_kits(options: dict[str, Any]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise UserError(f"{', '.join(given)}: only for runs. A kit has one head per task, with its own threshold.")


def _predict_with_kit(
    name: str,
    tasks: str | None,
    text: str | None,
    text_pair: str | None,
    file: Path | None,
    out: Path | None,
    most_megabytes: int,
    json: bool,
) -> None:
    from bertvision.kits import load
    from bertvision.tasks.new_text import read_any_text
    from bertvision.tasks.text_files import reading_up_to

    if text is None and file is None and not sys.stdin.isatty():
        raise UserError("nothing to predict on: give --text or --file.")
    wanted = None if tasks in (None, "all") else [task.strip() for task in str(tasks).split(",") if task.strip()]
    with reading_up_to(most_megabytes):
        examples = read_any_text(file) if file is not None else []
    kit = load(name, wanted, reporter=RichReporter())
    if text is None and file is None:
        _prompt_kit(kit, json)
        return
    if file is not None:
        _predict_file_with_kit(kit, file, examples, out, json)
        return
    (row,) = kit.predict([(str(text), text_pair)], ids=["--text"])
    print_json(row) if json else _print_kit_row(kit, row, max(map(len, row)))


def _predict_file_with_kit(kit: Any, file: Path, examples: list[Any], out: Path | None, as_json: bool) -> None:
    from bertvision.data.texts import name_texts

    _check_ids(examples, file, out)
    rows = kit.predict_rows([(one.text, one.text_pair) for one in examples])
    named = [{**name_texts(one.id, one.text, one.text_pair), **row} for one, row in zip(examples, rows, strict=True)]
    if out is not None:
        _write_rows(out, named, {one.id: row for one, row in zip(examples, rows, strict=True)})
        tasks = {task for row in rows if "error" not in row for task in row}
        predicted = sum("error" not in row for row in rows)
        typer.echo(f"predictions for {counted(predicted, 'text')}, {counted(len(tasks), 'task')}: {out}", err=True)
    elif as_json:
        print_json(named)
    else:
        width = max((len(task) for row in rows for task in row), default=0)
        for one, row in zip(examples, rows, strict=True):
            if "error" in row:
                typer.echo(f"{one.id}\terror: {row['error']}")
            else:
                _print_kit_row(kit, row, width, f"{one.id}\t")
    _exit_if_any_failed(rows)


def _check_ids(examples: list[Any], file: Path, out: Path | None) -> None:
    """Ids are the keys of a .json file, so they must be unique there."""
    from bertvision.tasks.base import check_unique_ids

    if out is not None and out.suffix == ".json":
        check_unique_ids((example.id for example in examples), str(file))


def _exit_if_any_failed(rows: list[dict[str, Any]]) -> None:
    failed = sum("error" in row for row in rows)
    if failed:
        typer.echo(f"error: {failed:,} of {counted(len(rows), 'row')} could not be predicted.", err=True)
        raise typer.Exit(1)


def _prompt_kit(kit: Any, as_json: bool) -> None:
    """Ask for texts and print predictions until an empty line."""
    while text := typer.prompt("text or question (empty to quit)", default="", show_default=False):
        pair = typer.prompt("second text or passage (empty for none)", default="", show_default=False) or None
        try:
            (row,) = kit.predict([(text, pair)], ids=["the text"])
        except UserError as error:  # continue with the next text
            typer.echo(f"error: {error}", err=True)
            continue
        print_json(row) if as_json else _print_kit_row(kit, row, max(map(len, row)))


def _print_kit_row(kit: Any, row: dict[str, Any], width: int, before: str = "") -> None:
    for task, answer in row.items():
        described = kit.tasks[task].task.kind.describe_row(answer)
        typer.echo(f"{before}{task:{width}}  {described}  [{_describe_trust(answer['trust'])}]")


def _describe_trust(trust: dict[str, float]) -> str:
    if not trust["examples"]:
        return "no similar answers on held-out data"
    if "off_by" in trust:
        return f"off by {trust['off_by']:.2f} on average on {trust['examples']} held-out examples"
    verb = "was" if trust["examples"] == 1 else "were"
    return f"{100 * trust['right']:.0f} % of {counted(trust['examples'], 'similar held-out answer')} {verb} right"


def _predict_file(
    predictor: Any, file: Path, out: Path | None, threshold: float, most_megabytes: int, as_json: bool
) -> None:
    from bertvision.tasks.text_files import reading_up_to

    with reading_up_to(most_megabytes):
        kind, examples = predictor.task.kind, predictor.read(file)
    _check_ids(examples, file, out)
    rows = predictor.predict_rows(examples, threshold)
    predicted = [row for row in rows if "error" not in row]
    if out is not None:
        _write_rows(out, rows, {row["id"]: kind.value_of(row) for row in predicted})
        typer.echo(f"{counted(len(predicted), 'prediction')} by {predictor.name}: {out}", err=True)
    elif as_json:
        print_json(rows)
    else:
        for row in rows:
            typer.echo(f"{row['id']}\t{'error: ' + row['error'] if 'error' in row else kind.describe_row(row)}")
    _exit_if_any_failed(rows)


def _write_rows(out: Path, rows: list[dict[str, Any]], values: dict[str, Any]) -> None:
    """Write rows as JSON lines; to a .json file, write one object, id → value."""
    from bertvision.disk import write_json, write_text

    if out.suffix == ".json":
        write_json(out, values, "--out")
    else:
        write_text(out, "".join(json_format.dumps(row, ensure_ascii=False) + "\n" for row in rows), "--out")


def _print_typed(predictor: Any, text: str, text_pair: str | None, threshold: float, as_json: bool) -> None:
    row = predictor.predict_texts([(text, text_pair)], threshold)[0]
    print_json(row) if as_json else typer.echo(_describe(predictor, row))


def _describe(predictor: Any, row: dict[str, Any]) -> str:
    """A prediction as a line of output; that of a fitted model with its trust."""
    described = predictor.task.kind.describe_row(row)
    return f"{described}  [{_describe_trust(row['trust'])}]" if "trust" in row else str(described)


def _prompt(predictor: Any, threshold: float, as_json: bool) -> None:
    """Ask for texts and print predictions until an empty line."""
    if not sys.stdin.isatty():
        raise UserError("nothing to predict on: give --text, --file or --submission.")
    first, second = ("question", "passage") if predictor.task.windowed else ("text", "second text")
    while text := typer.prompt(f"{first} (empty to quit)", default="", show_default=False):
        pair = typer.prompt(second) if predictor.takes_pairs else None
        _print_typed(predictor, text, pair, threshold, as_json)


def _write_submissions(predictor: Any, folder: Path, data: str | None, threshold: float) -> None:
    """Write the official submission file of each unlabelled split in the data."""
    from bertvision.tasks.submission import write_submission

    for split, examples in predictor.test_splits(data):
        predictions = predictor.predict(examples)
        path = write_submission(
            predictor.task.name, split, predictor.task.kind, predictions.ids, predictions.predicted(threshold), folder
        )
        typer.echo(f"{counted(len(examples), 'prediction')} by {predictor.name}: {path}")
