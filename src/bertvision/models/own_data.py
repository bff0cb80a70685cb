"""From a file or data frame to a saved model: what `bertvision fit` and `bv.fit` share."""

import os
from pathlib import Path
from typing import Any

from bertvision.disk import as_path, lock_beside, sweep, writing_in
from bertvision.errors import UserError, shorten
from bertvision.models.fit import Fit, Options, check_options, fit_table
from bertvision.models.save import check_free, save_fit
from bertvision.models.spans.fit import SpanFit, fit_questions
from bertvision.models.spans.save import save_span_fit
from bertvision.progress import Reporter
from bertvision.tasks.own_questions import has_questions, read_own_questions, refuse_question_table
from bertvision.tasks.own_table import OwnTable, from_frame, read_own_table
from bertvision.tasks.text_files import plain_stem

MOST_ROWS = 100_000
"""A longer table is sampled: more rows take long to encode and hardly change a small head."""


def fit_own_data(
    train: Any,
    dev: Any = None,
    to: str | Path | None = None,
    *,
    options: Options,
    columns: dict[str, str | None],
    kind: str | None = None,
    overwrite: bool = False,
    skip_empty: bool = False,
    rows: int | None = MOST_ROWS,
    reporter: Reporter,
    wait: bool = False,
) -> tuple[Fit | SpanFit, Path]:
    """Read the data, fit, and save the model. Return the fit and the model's folder. `wait`: if another process is
    writing to that folder, wait until it ends."""
    for name, given in (("train", train), ("dev", dev)):
        if isinstance(given, str | Path):
            as_path(given, name)  # raises for what is no path
    _check_arguments(columns, kind, rows)
    check_options(options)
    folder = as_path(to, "the folder of the model") if to is not None else default_folder(train)
    with writing_in(lock_beside(folder), wait, reporter.say):
        sweep(folder.resolve().parent)
        return _fit(train, dev, folder, options, columns, kind, overwrite, skip_empty, rows, reporter)


def _fit(
    train: Any,
    dev: Any,
    folder: Path,
    options: Options,
    columns: dict[str, str | None],
    kind: str | None,
    overwrite: bool,
    skip_empty: bool,
    rows: int | None,
    reporter: Reporter,
) -> tuple[Fit | SpanFit, Path]:
    if has_questions(train):
        not_for_questions = {
            **columns, "kind": None if kind == "span" else kind, "skip_empty": skip_empty, "metric": options.metric,
            "balanced (class_weight)": options.class_weight, "tune": options.tune is True,
        }  # fmt: skip
        _refuse_options(Path(train), not_for_questions)
        check_free(folder, overwrite)
        return _fit_own_questions(train, dev, folder, options, overwrite, rows, reporter)
    if kind == "span":
        raise UserError("kind 'span' needs questions in SQuAD's JSON format, a file that ends in .json (.gz, .xz).")
    if isinstance(train, str | Path) and columns.get("label") is None and os.path.isfile(as_path(train, "train")):
        refuse_question_table(as_path(train, "train"))
    check_free(folder, overwrite)
    table = _read(train, **columns, kind=kind, skip_empty=skip_empty, most_rows=rows, seed=options.seed)
    held = None if dev is None else _read(dev, **columns, skip_empty=skip_empty, like=table)
    found = fit_table(table, options, held, reporter)
    return found, save_fit(found, folder, _path(train), _path(dev), overwrite)


def _check_arguments(columns: dict[str, str | None], kind: Any, rows: Any) -> None:
    for name, value in {**columns, "kind": kind}.items():
        if value is not None and not isinstance(value, str):
            raise UserError(f"{name} must be a text, not {shorten(value)}.")
    if rows is not None and (not isinstance(rows, int) or isinstance(rows, bool)):
        raise UserError(f"rows must be a whole number, or None for all rows, not {shorten(rows)}.")


def _fit_own_questions(
    train: str | Path,
    dev: Any,
    folder: Path,
    options: Options,
    overwrite: bool,
    rows: int | None,
    reporter: Reporter,
) -> tuple[SpanFit, Path]:
    if dev is not None and not has_questions(dev):
        raise UserError(f"dev must have questions in SQuAD's JSON format (.json), as {train} has, not {dev!s:.80}.")
    questions = read_own_questions(train, rows, options.seed)
    held = None if dev is None else read_own_questions(dev, training=False)
    found = fit_questions(questions, options, held, reporter)
    return found, save_span_fit(found, folder, _path(train), _path(dev), overwrite)


def _refuse_options(path: Path, given: dict[str, Any]) -> None:
    wrong = [name.replace("_", "-") for name, value in given.items() if value]
    if wrong:
        raise UserError(f"{', '.join(wrong)}: not for questions in SQuAD's format, which {path} has. Leave it out.")


def default_folder(train: Any) -> Path:
    """models/<file stem>; models/own for data in memory."""
    return Path("models") / (plain_stem(Path(train)) if isinstance(train, str | Path) else "own")


def _read(given: Any, **options: Any) -> OwnTable:
    if isinstance(given, str | Path):
        return read_own_table(given, **options)
    return from_frame(given, **options)


def _path(given: Any) -> str | None:
    return str(Path(os.path.expanduser(given))) if isinstance(given, str | Path) else None
