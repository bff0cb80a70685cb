"""bertvision predict MODEL [--head NAME | --tasks all] (--file FILE | --text TEXT [--text-pair TEXT] | …)

What can be wrong is checked from the cheapest to the dearest: options, file, folder, content of the file, encoder.
"""

import json as json_format
import math
import os
import sys
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision.cli import MOST_MEGABYTES, AsJson, MostMegabytes, app, importing, print_json, quiet_libraries
from bertvision.errors import UserError
from bertvision.progress import RichReporter
from bertvision.tables import counted

STANDARD_INPUT = Path("-")


@app.command(
    "predict",
    rich_help_panel="Main commands",
    epilog="Example: bertvision predict runs/demo --text 'Who …?' --text-pair 'In 1891 …'",
)
def predict(
    run: Annotated[
        str,
        typer.Argument(
            help="Folder of a fitted model, run or kit, a shipped kit ('default'), or USER/NAME on the hub.",
            show_default=False,
        ),
    ],
    head: Annotated[
        str | None, typer.Option(help="Head to use, or 'encoder'. Default: the best model on held-out data.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Text to predict on (or the question); '-' reads it from standard input.")
    ] = None,
    text_pair: Annotated[
        str | None, typer.Option(help="Second text of a pair (or the passage); '-' reads it from standard input.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="File to predict on: CSV, TSV, JSONL, TXT (one text per line) or SQuAD JSON; .gz or .xz too. '-' "
            "reads texts or JSON objects from standard input, line by line, and answers each at once."
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
    given = [text, file, submission]
    if all(value is None for value in given) and not sys.stdin.isatty():
        raise UserError("nothing to predict on: give --text, --file or --submission.")
    text, text_pair = (_read_standard_input(one, most_megabytes) for one in (text, text_pair))
    if file not in (None, STANDARD_INPUT):
        from bertvision.tasks.new_text import check_file

        check_file(file)
    asked = Asked(run, head, epochs, threshold, tasks)
    if asked.is_kit and submission is not None:
        _refuse_for_kits({"--submission": submission})
    examples = asked.read(file, most_megabytes) if file not in (None, STANDARD_INPUT) else []
    asked.open()
    if submission is not None:
        _write_submissions(asked, submission, data)
    elif file == STANDARD_INPUT:
        _answer_lines(asked, out, json)
    elif file is not None:
        _check_ids(examples, file, out)
        _show(asked, examples, asked.predict(examples), out, json)
    elif text is not None:
        _print_typed(asked, text, text_pair, json)
    else:
        _prompt(asked, json)


class Asked:
    """A run, fitted model or kit, and what was asked of it."""

    def __init__(
        self, name: str, head: str | None, epochs: float | None, threshold: float | None, tasks: str | None
    ) -> None:
        from bertvision.hub import is_hub_name, pull
        from bertvision.kits.folder import is_kit, shipped_kits

        folder = Path(os.path.expanduser(name))
        if is_hub_name(name) and not folder.exists():
            folder = pull(name, ("task.json", "kit.json"))
            name = str(folder)
        self.name, self.head, self.epochs, self.threshold = name, head, epochs, threshold
        self.is_kit = not (folder / "scores.json").is_file() and is_kit(name)
        self.tasks = None if tasks in (None, "all") else [one.strip() for one in str(tasks).split(",") if one.strip()]
        if self.is_kit:
            _refuse_for_kits({"--head": head, "--epochs": epochs, "--threshold": threshold})
        elif tasks is not None:
            raise UserError(f"--tasks is for kits, and '{name}' is not one: remove it, or pass a kit.")
        elif not folder.exists():
            known = ", ".join(shipped_kits())
            raise UserError(
                f"there is no model, run or kit '{name}': pass the folder of one, the name of a shipped kit ({known}), "
                "or USER/NAME on the Hugging Face hub."
            )

    def read(self, file: Path, most_megabytes: int) -> list[Any]:
        """The examples in a file."""
        from bertvision.tasks.new_text import read_any_text
        from bertvision.tasks.text_files import reading_up_to

        with reading_up_to(most_megabytes):
            return read_any_text(file) if self.is_kit else self.model.read(file)

    @cached_property
    def model(self) -> Any:
        """The kit or model, without its encoder if it is a model."""
        with importing():
            from bertvision.models.model import load

            quiet_libraries()
            return load(self.name, self.tasks, head=self.head, epochs=self.epochs, reporter=RichReporter())

    def open(self) -> None:
        """Load the encoder and the heads."""
        if not self.is_kit and self.model.predictor and self.head is None:
            predictor = self.model.predictor
            predictor.reporter.say(f"predicting with {predictor.model.title}: {predictor.why}")

    @property
    def title(self) -> str:
        return f"kit {self.model.name}" if self.is_kit else self.model.predictor.name

    def predict(self, examples: list[Any]) -> list[Any]:
        """The result of each example: of a kit, task → result. One that can't be predicted gets {"error": sentence}."""
        if self.is_kit:
            return list(self.model.predict_examples(examples))
        return list(self.model.predictor.predict_examples(examples, self.threshold))

    def predict_one(self, text: str, pair: str | None, name: str) -> Any:
        if self.is_kit:
            return self.model.predict([(text, pair)], ids=[name])[0]
        return self.model.predictor.predict_texts([(text, pair)], self.threshold)[0]


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
    if text == text_pair == "-":
        raise UserError("standard input is one text: give --text or --text-pair itself.")
    if out is not None and file is not None and out.resolve() == file.resolve():
        raise UserError(f"--out {out} is the input file: choose another path.")


def _refuse_for_kits(options: dict[str, Any]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise UserError(f"{', '.join(given)}: only for runs. A kit has one head per task, with its own threshold.")


def _read_standard_input(text: str | None, most_megabytes: int) -> str | None:
    """The text itself or, in place of '-', what is in standard input."""
    if text != "-":
        return text
    data = sys.stdin.buffer.read(most_megabytes * 1_000_000 + 1)
    if len(data) > most_megabytes * 1_000_000:
        raise UserError(f"standard input has more than {most_megabytes:,} MB: raise --most-megabytes.")
    try:
        return data.decode("utf-8-sig").removesuffix("\n")
    except UnicodeDecodeError:
        raise UserError("standard input is not UTF-8: convert it.") from None


def _check_ids(examples: list[Any], file: Path, out: Path | None) -> None:
    """Ids are the keys of a .json file, so they must be unique there."""
    from bertvision.tasks.base import check_unique_ids

    if out is not None and out.suffix == ".json":
        check_unique_ids((example.id for example in examples), str(file))


# ---------------------------------------------------------------------- output


def _show(asked: Asked, examples: list[Any], results: list[Any], out: Path | None, as_json: bool) -> None:
    """Print the results of a file, or write them to `out`."""
    rows = [_to_row(one, result) for one, result in zip(examples, results, strict=True)]
    failed = sum(_failed(result) for result in results)
    if out is not None:
        _write_rows(out, rows, {} if out.suffix != ".json" else _by_id(asked, examples, results))
        typer.echo(f"{counted(len(rows) - failed, 'prediction')} by {asked.title}: {out}", err=True)
    elif as_json:
        print_json(rows)
    else:
        for one, result in zip(examples, results, strict=True):
            _print_result(result, f"{one.id}\t")
    _exit_if_any_failed(failed, len(rows))


def _answer_lines(asked: Asked, out: Path | None, as_json: bool) -> None:
    """Answer the lines of standard input as they come. The encoder stays loaded in between."""
    from bertvision.tasks.new_text import read_waiting

    read: list[tuple[Any, Any]] = []
    failed = total = 0
    for lines in read_waiting(sys.stdin.buffer, None if asked.is_kit else asked.model.columns()):
        good = [line.example for line in lines if line.error is None]
        try:
            found = iter(asked.predict(good))
        except UserError as error:  # of all lines: a kit's tasks need two texts
            found = iter([{"error": str(error)}] * len(good))
        results = [next(found) if line.error is None else {"error": line.error} for line in lines]
        failed, total = failed + sum(map(_failed, results)), total + len(results)
        for line, result in zip(lines, results, strict=True):
            if out is not None:
                read.append((line.example, result))
            elif as_json:
                typer.echo(json_format.dumps(_to_row(line.example, result), ensure_ascii=False))
            else:
                _print_result(result, f"{line.example.id}\t")
        sys.stdout.flush()
    if out is not None:
        examples, results = [one for one, _ in read], [result for _, result in read]
        _check_ids(examples, Path("standard input"), out)
        _show(asked, examples, results, out, as_json)
    _exit_if_any_failed(failed, total)


def _failed(result: Any) -> bool:
    return isinstance(result, dict) and "error" in result


def _to_row(example: Any, result: Any) -> dict[str, Any]:
    from bertvision.data.texts import name_texts

    found = result if _failed(result) else result.to_dict()
    return {**name_texts(example.id, example.text, example.text_pair), **found}


def _by_id(asked: Asked, examples: list[Any], results: list[Any]) -> dict[str, Any]:
    """id → prediction: of a run, the bare one, without what failed; of a kit, all tasks."""
    found = {}
    for one, result in zip(examples, results, strict=True):
        if asked.is_kit:
            found[one.id] = result if _failed(result) else result.to_dict()
        elif not _failed(result):
            found[one.id] = asked.model.predictor.task.kind.value_of(result.to_dict())
    return found


def _print_result(result: Any, before: str = "") -> None:
    if _failed(result):
        typer.echo(f"{before}error: {result['error']}")
    elif isinstance(result, dict):
        width = max(map(len, result))
        for task, own in result.items():
            typer.echo(f"{before}{task:{width}}  {own.line()}")
    else:
        typer.echo(f"{before}{result.line()}")


def _exit_if_any_failed(failed: int, total: int) -> None:
    if failed:
        typer.echo(f"error: {failed:,} of {counted(total, 'row')} could not be predicted.", err=True)
        raise typer.Exit(1)


def _write_rows(out: Path, rows: list[dict[str, Any]], values: dict[str, Any]) -> None:
    """Write rows as JSON lines; to a .json file, write one object, id → value."""
    from bertvision.disk import write_json, write_text

    if out.suffix == ".json":
        write_json(out, values, "--out")
    else:
        write_text(out, "".join(json_format.dumps(row, ensure_ascii=False) + "\n" for row in rows), "--out")


def _print_typed(asked: Asked, text: str, pair: str | None, as_json: bool, name: str = "--text") -> None:
    result = asked.predict_one(text, pair, name)
    print_json(result.to_dict()) if as_json else _print_result(result)


def _prompt(asked: Asked, as_json: bool) -> None:
    """Ask for texts and print predictions until an empty line."""
    is_question = not asked.is_kit and asked.model.run.task.windowed
    first, second = ("question", "passage") if is_question else ("text or question", "second text or passage")
    while text := typer.prompt(f"{first} (empty to quit)", default="", show_default=False):
        pair = None
        if asked.is_kit:
            pair = typer.prompt(f"{second} (empty for none)", default="", show_default=False) or None
        elif asked.model.run.task.takes_pairs:
            pair = typer.prompt(second)
        try:
            _print_typed(asked, text, pair, as_json, "the text")
        except UserError as error:  # continue with the next text
            typer.echo(f"error: {error}", err=True)


def _write_submissions(asked: Asked, folder: Path, data: str | None) -> None:
    """Write the official submission file of each unlabelled split in the data."""
    from bertvision.tasks.submission import write_submission

    predictor = asked.model.predictor
    limit = predictor.threshold if asked.threshold is None else asked.threshold
    for split, examples in predictor.test_splits(data):
        predictions = predictor.predict(examples)
        path = write_submission(
            predictor.task.name, split, predictor.task.kind, predictions.ids, predictions.predicted(limit), folder
        )
        typer.echo(f"{counted(len(examples), 'prediction')} by {predictor.name}: {path}")
