"""bertvision predict RUN_OR_KIT [--head NAME | --tasks all] (--file FILE | --text TEXT [--text-pair TEXT] | …)"""

import json as json_format
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
    print_json,
    quiet_libraries,
    read_cluster,
)
from bertvision.errors import UserError
from bertvision.progress import RichReporter
from bertvision.tables import counted

STYLE: dict[str, Any] = {"indent": 2, "ensure_ascii": False}
"""Of JSON for people."""


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
        str | None,
        typer.Option(
            help="File to predict on, or its address (s3://…): CSV, TSV, JSONL, Parquet, TXT (one text per line) or "
            "SQuAD JSON; .gz or .xz too. With --cluster, also a folder, or a pattern for several files."
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
    if out is not None and file is not None and out.resolve() == Path(file).resolve():
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
    file: str | None,
    out: Path | None,
    most_megabytes: int,
    json: bool,
) -> None:
    from bertvision.data.spooled import collect_examples
    from bertvision.disk import spooling_in
    from bertvision.kits import load
    from bertvision.tasks.data_file import find_data_file
    from bertvision.tasks.new_text import read_any_text
    from bertvision.tasks.text_files import reading_up_to

    if text is None and file is None and not sys.stdin.isatty():
        raise UserError("nothing to predict on: give --text or --file.")
    wanted = _split_tasks(tasks)
    with reading_up_to(most_megabytes), spooling_in(_place_of(out)):
        examples = collect_examples(read_any_text(find_data_file(file))) if file is not None else []
    kit = load(name, wanted, reporter=RichReporter())
    if text is None and file is None:
        _prompt_kit(kit, json)
        return
    if file is not None:
        _predict_file_with_kit(kit, file, examples, out, json)
        return
    (row,) = kit.predict([(str(text), text_pair)], ids=["--text"])
    print_json(row) if json else _print_kit_row(kit, row, max(map(len, row)))


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


def _predict_file_with_kit(kit: Any, file: str, examples: Sequence[Any], out: Path | None, as_json: bool) -> None:
    from bertvision.data.texts import name_texts

    _check_ids(examples, file, out)
    tasks: set[str] = set()
    rows = kit.predict_file(examples, one_bar=out is not None)

    def named() -> Iterator[tuple[dict[str, Any], Any]]:
        for one, row in zip(examples, rows, strict=True):
            tasks.update(row if "error" not in row else ())
            yield {**name_texts(one.id, one.text, one.text_pair), **row}, row

    def show(row: dict[str, Any]) -> None:
        name, found = row["id"], {task: row[task] for task in kit.tasks if task in row}
        if "error" in row:
            typer.echo(f"{name}\terror: {row['error']}")
        else:
            _print_kit_row(kit, found, max(map(len, found), default=0), f"{name}\t")

    counts = _put_out(named(), out, as_json, show)
    if out is not None:
        typer.echo(f"predictions for {counted(counts.good, 'text')}, {counted(len(tasks), 'task')}: {out}", err=True)
    counts.exit_if_any_failed()


def _check_ids(examples: Sequence[Any], file: str, out: Path | None) -> None:
    """Ids are the keys of a .json file, so they must be unique there."""
    from bertvision.tasks.base import check_unique_ids

    if out is not None and out.suffix == ".json":
        check_unique_ids(lambda: (example.id for example in examples), file)


@dataclass
class _Counts:
    """Rows that were predicted, and rows that could not be."""

    good: int = 0
    bad: int = 0

    def add(self, row: dict[str, Any]) -> None:
        is_bad = "error" in row
        self.good, self.bad = self.good + (not is_bad), self.bad + is_bad

    def exit_if_any_failed(self) -> None:
        if self.bad:
            rows = counted(self.good + self.bad, "row")
            typer.echo(f"error: {self.bad:,} of {rows} could not be predicted.", err=True)
            raise typer.Exit(1)


def _put_out(
    rows: Iterable[tuple[dict[str, Any], Any]], out: Path | None, as_json: bool, show: Callable[[dict[str, Any]], None]
) -> _Counts:
    """Write or print rows as they are predicted. `rows` are pairs: a row, and its value in a .json file."""
    counts = _Counts()
    rows = _counting(rows, counts)
    if out is not None:
        _write_rows(out, rows)
    elif as_json:
        for piece in _json_items((json_format.dumps(row, **STYLE) for row, _ in rows), "[]"):
            typer.echo(piece, nl=False)
        typer.echo()
    else:
        for row, _ in rows:
            show(row)
    return counts


def _counting(rows: Iterable[tuple[dict[str, Any], Any]], counts: _Counts) -> Iterator[tuple[dict[str, Any], Any]]:
    for row, value in rows:
        counts.add(row)
        yield row, value


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
    predictor: Any, file: str, out: Path | None, threshold: float, most_megabytes: int, as_json: bool
) -> None:
    from bertvision.disk import spooling_in
    from bertvision.tasks.text_files import reading_up_to

    with reading_up_to(most_megabytes), spooling_in(_place_of(out)):
        kind, examples = predictor.task.kind, predictor.read(file)
    _check_ids(examples, file, out)
    rows = predictor.predict_file(examples, threshold, one_bar=out is not None)

    def show(row: dict[str, Any]) -> None:
        typer.echo(f"{row['id']}\t{'error: ' + row['error'] if 'error' in row else kind.describe_row(row)}")

    counts = _put_out(((row, None if "error" in row else kind.value_of(row)) for row in rows), out, as_json, show)
    if out is not None:
        typer.echo(f"{counted(counts.good, 'prediction')} by {predictor.name}: {out}", err=True)
    counts.exit_if_any_failed()


def _write_rows(out: Path, rows: Iterable[tuple[dict[str, Any], Any]]) -> None:
    """Write rows as JSON lines; to a .json file, write one object, id → value."""
    from bertvision.disk import clear_disk_errors, writing_file

    pieces: Iterable[str] = (json_format.dumps(row, ensure_ascii=False) + "\n" for row, _ in rows)
    if out.suffix == ".json":
        items = (
            f"{json_format.dumps(row['id'], ensure_ascii=False)}: {json_format.dumps(value, **STYLE)}"
            for row, value in rows
            if "error" not in row
        )
        pieces = chain(_json_items(items, "{}"), "\n")
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
