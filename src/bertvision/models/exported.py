"""Exported models and kits (docs/export.md), opened by the runtime, which needs no torch."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertvision.errors import UserError

MANIFEST = "manifest.json"


def is_export(folder: Path | str) -> bool:
    """Whether `bertvision export` wrote this folder."""
    return os.path.isfile(Path(os.path.expanduser(folder)) / MANIFEST)


def open_export(folder: Path | str, tasks: Iterable[str] | None = None) -> Any:
    """The exported model or kit in a folder: an object with `predict`."""
    try:
        import bertvision_runtime
    except ImportError:
        raise UserError(
            f"'{folder}' is an exported model, which another package runs: pip install 'bertvision[runtime]'."
        ) from None
    try:
        return bertvision_runtime.load(os.path.expanduser(folder), tasks)
    except bertvision_runtime.ExportError as error:
        raise UserError(str(error)) from None
