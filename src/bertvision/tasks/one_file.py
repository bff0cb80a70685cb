"""A run on a data file alone (`bertvision run train.csv`): which files can be named instead of a config, and the task
that such a file makes. Columns and kind are guessed as `bertvision fit` guesses them.
"""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.tasks.build_table import Options, OwnTable, build_table
from bertvision.tasks.files import FORMATS, note_on_delimiter, read_rows
from bertvision.tasks.guess_columns import Given
from bertvision.tasks.table_source import Source
from bertvision.tasks.text_files import plain_suffix, read_json

DEV_SHARE = 0.2
"""Share of the rows that are scored as dev if no dev file is given."""
MOST_CONFIG = 64_000_000
"""Bytes. A longer JSON file is no config."""
COLUMNS = ("text", "text_pair", "label")


@dataclass(frozen=True)
class ConfigSource(Source):
    """A table whose columns are named by settings of the task."""

    def option(self, name: str, value: str = "") -> str:
        """`task.label=COLUMN`"""
        if name in ("skip_empty", "most_rows", "weight"):  # options of `fit` only
            return f"`bertvision fit`, option {super().option(name, value)}"
        return f"task.{name}={value or '…'}"


def is_data_file(path: Path) -> bool:
    """Whether a path names a table or a file in SQuAD format, not a config."""
    if plain_suffix(path) in FORMATS:
        return True
    if plain_suffix(path) != ".json" or not os.path.isfile(path):
        return False
    if path.suffix != ".json" or os.path.getsize(path) > MOST_CONFIG:
        return True
    try:
        found = read_json(path)
    except UserError:
        return False  # reported as a damaged config
    return isinstance(found, dict) and isinstance(found.get("data"), list)


def task_of_file(path: Path, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The task section for a data file, given the settings that the user chose, and notes on what was guessed."""
    task = {"name": "files", "train": str(path), **given}
    notes = []
    if plain_suffix(path) in FORMATS:
        table = _read_table(path, given)
        found = {key: getattr(table.columns, key) for key in COLUMNS} | {"kind": str(table.kind)}
        task |= {key: value for key, value in found.items() if value is not None and task.get(key) is None}
        notes += table.notes
    if not (task.get("dev") or task.get("data") or task.get("dev_share")):
        task["dev_share"] = DEV_SHARE
        notes.append(
            f"There is no dev file, so {DEV_SHARE:.0%} of {path.name} are kept out of training and scored as dev "
            "(task.dev=FILE, or task.dev_share)."
        )
    if plain_suffix(path) in FORMATS:
        notes.append(f"To try more models and fit the best to all rows: {_fit_command(path, task)}")
    return task, notes


def _read_table(path: Path, given: dict[str, Any]) -> OwnTable:
    kind = given.get("kind")
    columns = Given(*(given.get(key) for key in COLUMNS))
    options = Options(kind, skip_empty=False, most_rows=None, seed=0, like=None)
    return build_table(read_rows(path), ConfigSource(path.name), columns, options, note_on_delimiter(path))


def _fit_command(path: Path, task: dict[str, Any]) -> str:
    words = ["bertvision", "fit", str(path)]
    for key in (*COLUMNS, "kind", "dev"):
        if task.get(key):
            words += [f"--{key.replace('_', '-')}", str(task[key])]
    return shlex.join(words)
