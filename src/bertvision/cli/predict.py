"""bertvision predict MODEL [--head NAME | --tasks all] (--file FILE | --text TEXT [--text-pair TEXT] | …)

What can be wrong is checked from the cheapest to the dearest: options, file, folder, content of the file, encoder.
"""

import json as json_format
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision import interrupts
from bertvision.cli import (
    MOST_MEGABYTES,
    PATIENCE,
    AsJson,
    ClusterAddress,
    CpusPerWorker,
    GpusPerWorker,
    MostMegabytes,
    Patience,
    Workers,
    app,
    importing,
    print_json,
    quiet_libraries,
    read_cluster,
)
from bertvision.errors import UserError
from bertvision.progress import RichReporter
from bertvision.tables import counted

STYLE: dict[str, Any] = {"indent": 2, "ensure_ascii": False}
"""Of JSON for people."""
STANDARD_INPUT = "-"


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
        str | None,
        typer.Option(
            help="File to predict on, or its address (s3://…): CSV, TSV, JSONL, Parquet, TXT (one text per line) or "
            "SQuAD JSON; .gz or .xz too. '-' reads texts or JSON objects from standard input, line by line, and "
            "answers each at once. With --cluster, also a folder, or a pattern for several files."
        ),
    ] = None,
    submission: Annotated[
        Path | None,
        typer.Option(help="Predict the test splits and write the official submission files to this folder."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="With --submission: folder with the test files. Default: the data of the run.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--out",
            help="With --file: save predictions here as JSON lines, or in a .json file as one object, id → prediction. "
            "With --cluster: the folder or address for a Parquet file for each file.",
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
    cluster: ClusterAddress = None,
    workers: Workers = None,
    cpus_per_worker: CpusPerWorker = None,
    gpus_per_worker: GpusPerWorker = None,
    patience: Patience = PATIENCE,
    texts: Annotated[bool, typer.Option(help="With --cluster: save the texts beside the predictions.")] = True,
) -> None:
    """Predict on new text: the answer to a question, a label with probabilities, or a score.

    Without --text, --file or --submission, asks for texts one by one. Rows of a file that can't be predicted get an
    error instead of a prediction; the exit code is then 1.
    """
    chosen = read_cluster(cluster, workers, cpus_per_worker, gpus_per_worker, patience)
    if chosen is not None:
        if file is None or output is None or text is not None or submission is not None:
            raise UserError(
                "--cluster predicts files: give --file FILES and --out FOLDER, without --text or --submission."
            )
        quiet_libraries()
        choice = {"head": head, "tasks": _split_tasks(tasks), "threshold": threshold, "epochs": epochs}
        _predict_on_cluster(run, file, output, chosen, texts, choice, json)
        return
    if not texts:
        raise UserError("--no-texts is only for --cluster: add --cluster local, or leave it out.")
    if output and "://" in output:
        raise UserError(f"--out {output} is an address, which is written with --cluster: add --cluster local.")
    out = Path(output) if output else None
    _check_options(text, text_pair, file, out, submission, data, threshold, epochs)
    given = [text, file, submission]
    if all(value is None for value in given) and not sys.stdin.isatty():
        raise UserError("nothing to predict on: give --text, --file or --submission.")
    text, text_pair = (_read_standard_input(one, most_megabytes) for one in (text, text_pair))
    if file not in (None, STANDARD_INPUT):
        from bertvision.tasks.data_file import find_data_file
        from bertvision.tasks.new_text import check_file

        check_file(find_data_file(file))
    asked = _open(run, head, epochs, threshold, tasks)
    if asked.is_kit and submission is not None:
        _refuse_for_kits({"--submission": submission})
    examples = [] if file in (None, STANDARD_INPUT) else asked.read(file, most_megabytes, _place_of(out))
    asked.open()
    if submission is not None:
        _write_submissions(asked, submission, data)
    elif file == STANDARD_INPUT:
        _answer_lines(asked, out, json)
    elif file is not None:
        _check_ids(examples, file, out)
        _show(asked, examples, asked.predict_file(examples, one_bar=out is not None), out, json)
    elif text is not None:
        _print_typed(asked, text, text_pair, json)
    else:
        _prompt(asked, json)


def _open(run: str, head: str | None, epochs: float | None, threshold: float | None, tasks: str | None) -> Any:
    from bertvision.models.exported import is_export

    if not is_export(run):
        return Asked(run, head, epochs, threshold, tasks)
    from bertvision.cli.exported import Exported  # needs neither torch nor transformers

    _refuse_for_kits({"--head": head, "--epochs": epochs, "--threshold": threshold})
    return Exported(run, _split_tasks(tasks))


def read_texts_of(file: str, most_megabytes: int, place: Path) -> Sequence[Any]:
    """Texts or pairs from a file of any task. Those of a long one wait on disk, in the folder `place`."""
    from bertvision.data.spooled import collect_examples
    from bertvision.disk import spooling_in
    from bertvision.tasks.data_file import find_data_file
    from bertvision.tasks.new_text import read_any_text
    from bertvision.tasks.text_files import reading_up_to

    with reading_up_to(most_megabytes), spooling_in(place):
        return collect_examples(read_any_text(find_data_file(file)))


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
        self.tasks = _split_tasks(tasks)
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

    def read(self, file: str, most_megabytes: int, place: Path) -> Sequence[Any]:
        """The examples in a file. Those of a long one wait on disk."""
        if self.is_kit:
            return read_texts_of(file, most_megabytes, place)
        from bertvision.disk import spooling_in
        from bertvision.tasks.text_files import reading_up_to

        with reading_up_to(most_megabytes), spooling_in(place):
            read: Sequence[Any] = self.model.read(file)
        return read

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

    def predict_file(self, examples: Sequence[Any], one_bar: bool) -> Iterator[Any]:
        """The same, in batches."""
        if self.is_kit:
            return iter(self.model.predict_file(examples, one_bar))
        return iter(self.model.predictor.predict_file(examples, self.threshold, one_bar))

    def predict_one(self, text: str, pair: str | None, name: str) -> Any:
        if self.is_kit:
            return self.model.predict([(text, pair)], ids=[name])[0]
        return self.model.predictor.predict_texts([(text, pair)], self.threshold)[0]


def _check_options(
    text: str | None,
    text_pair: str | None,
    file: str | None,
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
    if out is not None and file is not None and out.resolve() == Path(file).resolve():
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


def _place_of(out: Path | None) -> Path:
    """A folder on a disk with room for as much as is read."""
    return Path(tempfile.gettempdir()) if out is None else out.parent


def _split_tasks(tasks: str | None) -> list[str] | None:
    return None if tasks in (None, "all") else [task.strip() for task in str(tasks).split(",") if task.strip()]


def _predict_on_cluster(
    run: str, files: str, out: str, cluster: Any, with_texts: bool, choice: dict[str, Any], as_json: bool
) -> None:
    from bertvision.cluster.files import predict_files

    interrupts.resumes = True
    found = predict_files(run, files, out, cluster, with_texts, RichReporter(), **choice)
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo(
            f"predictions for {counted(found.rows, 'row')} of {counted(found.files, 'file')}: {found.out}", err=True
        )
    for name, problem in found.problems.items():
        typer.echo(f"error: {name} has no output: {problem}", err=True)
    if found.errors:
        typer.echo(f"error: {found.errors:,} of {counted(found.rows, 'row')} could not be predicted.", err=True)
    if not found.is_clean:
        raise typer.Exit(1)


def _check_ids(examples: Sequence[Any], file: str, out: Path | None) -> None:
    """Ids are the keys of a .json file, so they must be unique there."""
    from bertvision.tasks.base import check_unique_ids

    if out is not None and out.suffix == ".json":
        check_unique_ids(lambda: (example.id for example in examples), file)


# ---------------------------------------------------------------------- output


@dataclass
class _Counts:
    """Results, and how many of them are errors."""

    total: int = 0
    failed: int = 0

    def add(self, result: Any) -> None:
        self.total, self.failed = self.total + 1, self.failed + _failed(result)


def _show(asked: Asked, examples: Sequence[Any], results: Iterable[Any], out: Path | None, as_json: bool) -> None:
    """Print the results of a file as they are predicted, or write them to `out`."""
    counts = _Counts()

    def pairs() -> Iterator[tuple[Any, Any]]:
        for one, result in zip(examples, results, strict=True):
            counts.add(result)
            yield one, result

    if out is not None:
        _write_rows(out, _by_id(asked, pairs()) if out.suffix == ".json" else _lines(pairs()))
        typer.echo(f"{counted(counts.total - counts.failed, 'prediction')} by {asked.title}: {out}", err=True)
    elif as_json:
        for piece in _json_items((json_format.dumps(_to_row(*pair), **STYLE) for pair in pairs()), "[]"):
            typer.echo(piece, nl=False)
        typer.echo()
    else:
        for one, result in pairs():
            _print_result(result, f"{one.id}\t")
    _exit_if_any_failed(counts.failed, counts.total)


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
        _check_ids(examples, "standard input", out)
        _show(asked, examples, results, out, as_json)
    _exit_if_any_failed(failed, total)


def _failed(result: Any) -> bool:
    return isinstance(result, dict) and "error" in result


def _to_row(example: Any, result: Any) -> dict[str, Any]:
    from bertvision.data.texts import name_texts

    found = result if _failed(result) else result.to_dict()
    return {**name_texts(example.id, example.text, example.text_pair), **found}


def _lines(pairs: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    return (json_format.dumps(_to_row(*pair), ensure_ascii=False) + "\n" for pair in pairs)


def _by_id(asked: Asked, pairs: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    """The pieces of an object, id → prediction, without what failed: of a run, the bare one; of a kit, all tasks."""

    def items() -> Iterator[str]:
        for one, result in pairs:
            if _failed(result):
                continue
            value = result.to_dict()
            if not asked.is_kit:
                value = asked.model.predictor.task.kind.value_of(value)
            yield f"{json_format.dumps(one.id, ensure_ascii=False)}: {json_format.dumps(value, **STYLE)}"

    return chain(_json_items(items(), "{}"), "\n")


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


def _write_rows(out: Path, pieces: Iterable[str]) -> None:
    from bertvision.disk import clear_disk_errors, writing_file

    with clear_disk_errors(out, "--out"), writing_file(out) as file:
        for piece in pieces:
            # A lone surrogate is written as JSON writes it, with its number.
            file.write(piece.encode("utf-8", "backslashreplace"))


def _json_items(items: Iterable[str], brackets: str) -> Iterator[str]:
    """The pieces of a JSON list or object with these items, as `json.dumps` with an indent of 2 renders it."""
    is_first = True
    for item in items:
        yield (brackets[0] if is_first else ",") + "\n  " + item.replace("\n", "\n  ")
        is_first = False
    yield brackets if is_first else "\n" + brackets[1]


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
