"""Finished folders. stamp.json is written last: its presence means that the folder is complete. It says what the
folder was made from, and holds a checksum of every file, which is compared when the file is read.

Folders of earlier versions have no checksums; they are read as they are.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict, overload

from bertvision.disk.names import inside
from bertvision.disk.reading import DamagedError, Form, as_form, damaged, read_json, repair_of, unreadable
from bertvision.disk.seals import digest_of, seal
from bertvision.disk.writing import write_text
from bertvision.errors import UserError

STAMP = "stamp.json"
NOT_CHECKED = (STAMP, "README.md")
"""Files without a checksum in the stamp, which has its own. Cards may be written again."""


class Stamp(TypedDict):
    """stamp.json. Those of encoders, heads, predictions and checkpoints have more, which extends this form."""

    stamp: str
    """Hash of everything that the folder was made from."""
    files: NotRequired[dict[str, str]]
    """Name of each file → its checksum. Earlier versions lack it."""


def write_sealed(path: Path, value: dict[str, Any], setting: str = "run") -> None:
    """Write JSON that ends with its own checksum, which `read_json` checks."""
    write_text(path, seal(value), setting)


def mark_done(folder: Path, stamp: str, **facts: Any) -> None:
    """Write stamp.json, with a checksum of every file that is in the folder."""
    files = {name: digest_of(folder / name) for name in sorted(_names(folder))}
    write_sealed(folder / STAMP, {"stamp": stamp, **facts, "files": files})


@overload
def read_stamp(folder: Path) -> dict[str, Any] | None: ...
@overload
def read_stamp(folder: Path, form: type[Form]) -> Form | None: ...
def read_stamp(folder: Path, form: Any = None) -> Any:
    """The contents of stamp.json, of the given form if there is one; None if the folder is not complete."""
    found = read_json(folder / STAMP, form or dict[str, Any])
    if form is None and found is not None:
        try:
            as_form(found, Stamp)
        except ValueError as error:
            raise damaged(folder / STAMP, error) from None
    return found


def check_files(folder: Path, *names: str) -> None:
    """Compare files of a finished folder, by default all of them, with their checksums. Raise DamagedError if one
    differs or is missing."""
    found = read_stamp(folder)
    known = found.get("files", {}) if found else {}
    for name in names or known:
        path = inside(folder, *name.split("/"))
        if name not in known:
            continue
        if not path.is_file():
            raise DamagedError(f"{path} is missing: {repair_of(path)}")
        try:
            is_same = digest_of(path) == known[name]
        except OSError as error:
            raise UserError(unreadable(path, error)) from None
        if not is_same:
            raise damaged(path, "its checksum is wrong")


def _names(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in NOT_CHECKED:
            yield path.relative_to(folder).as_posix()
