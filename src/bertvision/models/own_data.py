"""From a file or data frame to a saved model: what `bertvision fit` and `bv.fit` share."""

from pathlib import Path
from typing import Any

from bertvision.models.fit import Fit, Options, fit_table
from bertvision.models.save import check_free, save_fit
from bertvision.progress import Reporter
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
) -> tuple[Fit, Path]:
    """Read the tables, fit, and save the model. Return the fit and the model's folder."""
    folder = Path(to).expanduser() if to is not None else default_folder(train)
    check_free(folder, overwrite)
    table = _read(train, **columns, kind=kind, skip_empty=skip_empty, most_rows=rows, seed=options.seed)
    held = None if dev is None else _read(dev, **columns, skip_empty=skip_empty, like=table)
    found = fit_table(table, options, held, reporter)
    return found, save_fit(found, folder, _path(train), _path(dev), overwrite)


def default_folder(train: Any) -> Path:
    """models/<file stem>; models/own for data in memory."""
    return Path("models") / (plain_stem(Path(train)) if isinstance(train, str | Path) else "own")


def _read(given: Any, **options: Any) -> OwnTable:
    if isinstance(given, str | Path):
        return read_own_table(given, **options)
    return from_frame(given, **options)


def _path(given: Any) -> str | None:
    return str(Path(given).expanduser()) if isinstance(given, str | Path) else None
