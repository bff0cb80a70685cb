"""Names in the folder of a kit, the shipped kits, and how to recognise one. Imports nothing that is slow."""

import os
from pathlib import Path

from bertvision.disk import as_path
from bertvision.errors import UserError
from bertvision.pipeline.folder import SHIPPED

FILE, FORMAT = "kit.json", 1
OWN_ENCODER = "_encoder"
"""The folder of an encoder that has no name elsewhere and travels with the kit."""


def find_kit(name: str | Path) -> Path:
    """The folder of a shipped kit by name, or of any kit."""
    path = as_path(name, "the kit")  # raises for what is no path
    if not is_kit(name):
        known = ", ".join(shipped_kits())
        raise UserError(f"no kit '{name}': give a shipped kit ({known}) or a folder with {FILE} in it.")
    return path if os.path.isfile(path / FILE) else SHIPPED / str(name)


def shipped_kits() -> list[str]:
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{FILE}"))


def is_kit(name: str | Path) -> bool:
    return os.path.isfile(Path(os.path.expanduser(name)) / FILE) or str(name) in shipped_kits()
