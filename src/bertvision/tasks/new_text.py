"""New text to predict on: a user's file in any format that the task supports, with or without targets.

Tables and text files are read row by row, while the caller iterates. Empty texts are read as they are: whoever predicts
reports them, row by row.
"""

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from bertvision.data.examples import Example
from bertvision.disk import check_path, parse_json
from bertvision.errors import UserError, shorten
from bertvision.tasks import glue, squad
from bertvision.tasks.base import Task
from bertvision.tasks.data_file import DataFile, is_there
from bertvision.tasks.files import FORMATS, Columns, check_columns, read_rows, wrong_ending
from bertvision.tasks.table_source import number_of
from bertvision.tasks.text_files import CHUNK, MOST_LINE, SPOOLED_ROW_BYTES, plain_suffix, read_lines, split_tabs

OTHER_FORMATS = (".json", ".txt")
"""Besides tables: questions in SQuAD format, and one text per line."""
QUESTION_COLUMNS = ("question", "passage"), ("question", "context"), ("text", "text_pair")
ID = "id"
ANY_COLUMNS = *QUESTION_COLUMNS, ("sentence1", "sentence2"), ("text", None), ("sentence", None)


def read_new_text(task: Task, path: DataFile, columns: Columns) -> Iterable[Example]:
    """Read the examples of a file, ignoring any targets. `columns` are those of the run's own files."""
    check_file(path)
    suffix = plain_suffix(path)
    if suffix == ".json":
        if not task.windowed:
            raise UserError(
                f"{path} has questions in SQuAD format, but this run predicts {task.name}. Use a CSV, TSV or "
                "JSONL file."
            )
        return squad.read_squad(path)
    if suffix == ".txt":
        if task.takes_pairs:
            raise UserError(f"{path} has one text per line, but {task.name} reads two texts. Use CSV, TSV or JSONL.")
        return _read_text_lines(path)
    if task.name in glue.GLUE:
        row = glue.GLUE[task.name]
        if suffix == ".tsv":
            first = split_tabs(next(read_lines(path))[1])
            labelled = bool(row.headerless) and row.text not in first  # CoLA's train and dev have no header
            return glue.read_glue(row, path, "dev" if labelled else glue.split_of_file(row, path, "test"))
        columns = Columns(row.text, row.text_pair)
    elif task.windowed:
        choices = [Columns(*names) for names in QUESTION_COLUMNS]
        columns = next((choice for choice in choices if not check_columns(path, choice, labelled=False)), choices[0])
    wanted = [name for name in (columns.text, columns.text_pair, columns.id) if name]
    if check_columns(path, columns, labelled=False):
        raise UserError(f"{path}: a run on {task.name} reads the columns {', '.join(wanted)}, but some are missing.")
    return _read_unlabelled(path, columns)


def read_any_text(path: DataFile) -> Iterable[Example]:
    """Read texts or pairs from a file of any task. Columns are recognised by their names; `id` is optional."""
    check_file(path)
    suffix = plain_suffix(path)
    if suffix == ".json":
        return squad.read_squad(path)
    if suffix == ".txt":
        return _read_text_lines(path)
    for columns in (Columns(*names) for names in ANY_COLUMNS):
        if not check_columns(path, columns, labelled=False):
            return _read_unlabelled(path, columns)
    wanted = " · ".join(", ".join(name for name in names if name) for names in ANY_COLUMNS)
    raise UserError(
        f"{path}: expected one of these sets of columns: {wanted}. Rename the columns, or use a .txt file with one "
        "text per line."
    )


def check_file(path: DataFile) -> None:
    """Raise UserError if there is no such file, or if its ending is that of no format."""
    check_path(str(path), "the file to predict on")
    if not is_there(path):
        raise UserError(f"there is no file '{path}' to predict on.")
    if plain_suffix(path) not in (*FORMATS, *OTHER_FORMATS):
        raise wrong_ending(path, (*FORMATS, *OTHER_FORMATS))


def usual_columns(task: Task, own: Columns) -> list[Columns]:
    """The columns of a task's run, and the usual ones of texts or pairs."""
    usual = [Columns(*names) for names in ANY_COLUMNS if bool(names[1]) == task.takes_pairs]
    return [own, *usual] if bool(own.text_pair) == task.takes_pairs else usual


class Line(NamedTuple):
    """A line that was read from standard input."""

    example: Example
    error: str | None = None
    """Why it can't be predicted."""


def read_waiting(stream: BinaryIO, columns: Sequence[Columns] | None = None) -> Iterator[list[Line]]:
    """Read lines as they come, several at a time if they wait already. A line is a text, or all are JSON objects with
    one of these sets of columns."""
    choices = columns or [Columns(*names) for names in ANY_COLUMNS]
    number, rest, is_json = 0, b"", None
    while chunk := stream.read1(CHUNK):  # type: ignore[attr-defined]  # of every buffered stream
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MOST_LINE:
            raise UserError(f"standard input, line {number + len(lines) + 1}, is longer than {MOST_LINE:,} bytes.")
        found = []
        for line in lines:
            number += 1
            if line.strip():
                is_json = line.lstrip().startswith(b"{") if is_json is None else is_json
                found.append(_read_line(number, line, is_json, choices))
        if found:
            yield found
    if rest.strip():
        is_json = rest.lstrip().startswith(b"{") if is_json is None else is_json
        yield [_read_line(number + 1, rest, is_json, choices)]


def _read_line(number: int, line: bytes, is_json: bool, choices: Sequence[Columns]) -> Line:
    place = f"line {number}"
    try:
        text = line.removeprefix(codecs.BOM_UTF8).removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        return Line(Example(str(number), ""), f"{place} is not UTF-8.")
    if not is_json:
        return Line(Example(str(number), text))
    try:
        row = parse_json(text)
    except ValueError as error:
        return Line(Example(str(number), text), f"{place} is not a JSON object: {error}.")
    columns = next((c for c in choices if isinstance(row, dict) and {c.text, c.text_pair or c.text} <= set(row)), None)
    if columns is None:
        wanted = " · ".join(dict.fromkeys(", ".join(filter(None, (c.text, c.text_pair))) for c in choices))
        return Line(Example(str(number), text), f"{place}: expected a JSON object with the keys {wanted}..")
    try:
        return Line(_to_example(row, columns, place, str(number)))
    except UserError as error:
        return Line(Example(str(number), text), str(error))


def _read_text_lines(path: DataFile) -> Iterator[Example]:
    lines = read_lines(path, SPOOLED_ROW_BYTES)
    return (Example(str(number), line) for number, line in lines if line.strip())


def _read_unlabelled(path: DataFile, columns: Columns) -> Iterator[Example]:
    """Read every row. Its id is in the column that the run names, else in `id`, else it is the number of the line."""
    is_empty = True
    for place, row in read_rows(path, SPOOLED_ROW_BYTES):
        is_empty = False
        yield _to_example(row, columns, place, number_of(place))
    if is_empty:
        raise UserError(f"{path} has no rows.")


def _to_example(row: Mapping[str, Any], columns: Columns, place: str, number: str) -> Example:
    text = _text(row, columns.text, place)
    pair = _text(row, columns.text_pair, place) if columns.text_pair else None
    identity = row.get(columns.id or ID)
    return Example(number if identity in (None, "") else str(identity), text, pair)


def _text(row: Mapping[str, Any], column: str, place: str) -> str:
    cell = row.get(column)
    if cell is not None and not isinstance(cell, str):
        raise UserError(f"{place}: column '{column}' must be text, found {shorten(cell)}.")
    return cell or ""
