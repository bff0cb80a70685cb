"""Finished folders. stamp.json is written last: its presence means that the folder is complete. It says what the
folder was made from, and holds a checksum of every file, which is compared when the file is read.

Folders of earlier versions have no checksums; they are read as they are.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertvision.disk.names import inside
from bertvision.disk.reading import DamagedError, damaged, read_json, repair_of, unreadable
from bertvision.disk.seals import digest_of, seal
from bertvision.disk.writing import write_text
from bertvision.errors import UserError

STAMP = "stamp.json"
NOT_CHECKED = (STAMP, "README.md")
"""Files without a checksum in the stamp, which has its own. Cards may be written again."""


def write_sealed(path: Path, value: dict[str, Any], setting: str = "run") -> None:
    """Write JSON that ends with its own checksum, which `read_json` checks."""
    write_text(path, seal(value), setting)


def mark_done(folder: Path, stamp: str, **facts: Any) -> None:
    """Write stamp.json, with a checksum of every file that is in the folder."""
    files = {name: digest_of(folder / name) for name in sorted(_names(folder))}
    write_sealed(folder / STAMP, {"stamp": stamp, **facts, "files": files})


def read_stamp(folder: Path) -> dict[str, Any] | None:
    """The contents of stamp.json; None if the folder is not complete."""
    found = read_json(folder / STAMP)
    if found is not None and not isinstance(found, dict):
        raise damaged(folder / STAMP, "it is not a JSON object")
    return found


def check_files(folder: Path, *names: str) -> None:
    """Compare files of a finished folder, by default all of them, with their checksums. Raise DamagedError if one
    differs or is missing."""
    known = (read_stamp(folder) or {}).get("files") or {}
    if not isinstance(known, dict):
        raise damaged(folder / STAMP, "files must be an object")
    for name in names or known:
        path = inside(folder, *name.split("/"))
        if name not in known:
            continue
        if not path.is_file():
            raise DamagedError(f"{path} is missing: {repair_of(path)}")
        try:
            is_whole = digest_of(path) == known[name]
        except OSError as error:
            raise UserError(unreadable(path, error)) from None
        if not is_whole:
            raise damaged(path, "its checksum is wrong")


def is_whole(folder: Path) -> bool:
    """Whether no file of a finished folder is damaged or missing."""
    try:
        check_files(folder)
    except UserError:
        return False
    return True


def _names(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in NOT_CHECKED:
            yield path.relative_to(folder).as_posix()
