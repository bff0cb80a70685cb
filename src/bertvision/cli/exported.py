"""`bertvision predict` with an exported model or kit: without torch, so that it answers at once."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from bertvision.cli import print_json
from bertvision.errors import UserError
from bertvision.models.exported import open_export


def predict_with_export(
    folder: str,
    tasks: str | None,
    text: str | None,
    text_pair: str | None,
    file: Path | None,
    out: Path | None,
    most_megabytes: int,
    json: bool,
) -> None:
    if text is None and file is None and not sys.stdin.isatty():
        raise UserError("nothing to predict on: give --text or --file.")
    wanted = None if tasks in (None, "all") else [task.strip() for task in str(tasks).split(",") if task.strip()]
    model = open_export(folder, wanted)
    if file is not None:
        _predict_file(model, file, out, most_megabytes, json)
    elif text is not None:
        _show(_ask(model, text, text_pair), json)
    else:
        while text := typer.prompt("text or question (empty to quit)", default="", show_default=False):
            pair = typer.prompt("second text or passage (empty for none)", default="", show_default=False) or None
            try:
                _show(_ask(model, text, pair), json)
            except UserError as error:  # continue with the next text
                typer.echo(f"error: {error}", err=True)


@contextmanager
def _for_users() -> Iterator[None]:
    from bertvision_runtime import ExportError

    try:
        yield
    except ExportError as error:
        raise UserError(str(error)) from None


def _ask(model: Any, text: str, pair: str | None) -> Any:
    with _for_users():
        return model.predict(text if pair is None else (text, pair))


def _plain(found: Any) -> dict[str, Any]:
    own: dict[str, Any] = {t: one.to_dict() for t, one in found.items()} if isinstance(found, dict) else found.to_dict()
    return own


def _lines(found: Any) -> list[str]:
    if not isinstance(found, dict):
        return [found.line()]
    width = max(map(len, found))
    return [f"{task:{width}}  {one.line()}" for task, one in found.items()]


def _show(found: Any, json: bool) -> None:
    if json:
        print_json(_plain(found))
        return
    for line in _lines(found):
        typer.echo(line)


def _predict_file(model: Any, file: Path, out: Path | None, most_megabytes: int, json: bool) -> None:
    from bertvision.cli.predict import _check_ids, _exit_if_any_failed, _write_rows
    from bertvision.data.texts import name_texts
    from bertvision.tasks.new_text import read_any_text
    from bertvision.tasks.text_files import reading_up_to

    with reading_up_to(most_megabytes):
        examples = read_any_text(file)
    _check_ids(examples, file, out)
    found = _ask_each(model, [one.text if one.text_pair is None else (one.text, one.text_pair) for one in examples])
    rows = [{"error": one} if isinstance(one, str) else _plain(one) for one in found]
    named = [{**name_texts(one.id, one.text, one.text_pair), **row} for one, row in zip(examples, rows, strict=True)]
    if out is not None:
        _write_rows(out, named, {one.id: row for one, row in zip(examples, rows, strict=True)})
        typer.echo(f"predictions: {out}", err=True)
    elif json:
        print_json(named)
    else:
        for one, prediction in zip(examples, found, strict=True):
            for line in [f"error: {prediction}"] if isinstance(prediction, str) else _lines(prediction):
                typer.echo(f"{one.id}\t{line}")
    _exit_if_any_failed(rows)


def _ask_each(model: Any, texts: list[Any]) -> list[Any]:
    """The result of each text, or what is wrong with it."""
    try:
        with _for_users():
            return list(model.predict(texts))
    except UserError:
        found: list[Any] = []
        for text in texts:
            try:
                with _for_users():
                    found.append(model.predict(text))
            except UserError as error:
                found.append(str(error))
        return found
