"""Files and folders that are written whole or not at all, hashes of them, and disk errors in words."""

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from bertvision.errors import UserError

TEMPORARY = ".writing-"


def fingerprint(*parts: Any) -> str:
    """A short hash over JSON-able parts: equal parts, equal stamp."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_fingerprint(paths: list[Path]) -> str:
    """A hash over the bytes of files, in order."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)  # goes on with the digest so far
    return digest.hexdigest()[:16]


@contextmanager
def clear_disk_errors(path: Path, setting: str = "run") -> Iterator[None]:
    """Turns a full or read-only disk into a sentence that names the setting to change. What was there before is
    untouched: writes go beside it first."""
    try:
        yield
    except Exception as error:
        number = _error_number(error)
        if number in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(path if path.exists() else path.parent).free / 1e6
            raise UserError(
                f"no room on the disk for '{path}' ({free:.0f} MB free). What was finished is kept: "
                f"make room, or set `{setting}` to a folder on another disk, and start again."
            ) from None
        if number in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOENT):
            raise UserError(
                f"'{path}' can't be written ({os.strerror(number)}): set `{setting}` to a folder you can write."
            ) from None
        if number in (errno.EEXIST, errno.ENOTDIR):
            raise UserError(f"'{path}' can't be made, a file stands in its way: set `{setting}` elsewhere.") from None
        raise


def existing_folder(path: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _error_number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    # safetensors has an error of its own, which names the system's at the end of its text.
    found = re.search(r"\(os error (\d+)\)", str(error)) if type(error).__name__ == "SafetensorError" else None
    return int(found[1]) if found else None


def temporary(path: Path) -> str:
    """How names begin beside `path` while it is being written; `RunFolder.sweep` knows them by it."""
    return f"{TEMPORARY}{path.name}-"


def write_text(path: Path, text: str, setting: str = "run") -> None:
    write_bytes(path, text.encode("utf-8"), setting)


def write_bytes(path: Path, data: bytes, setting: str = "run") -> None:
    """Writes a whole file or nothing: beside it first, then renamed over it. Errors name the setting to change."""
    with clear_disk_errors(path, setting), writing_file(path) as file:
        file.write(data)


@contextmanager
def writing_file(path: Path, prefix: str | None = None) -> Iterator[IO[bytes]]:
    """A temporary file that takes the place of `path` when the block ends well, and vanishes when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix or temporary(path))
    os.close(handle)
    try:
        with open(name, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp makes it private
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The value in a JSON file, or None where there is no file."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): remove it, and the stage that wrote it is done again.") from None


def escape_line_ends(text: str) -> str:
    """JSON without the characters that some readers take for the end of a line."""
    for mark in "\x85\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


@contextmanager
def writing_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of `path` when the block ends well, and vanishes when it does not."""
    with clear_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=path.parent, prefix=temporary(path)))
        try:
            yield fresh
            for file in fresh.rglob("*"):
                if file.is_file():
                    with file.open("rb") as opened:
                        os.fsync(opened.fileno())
            os.chmod(fresh, 0o755)  # mkdtemp makes it private
            if path.exists():
                old = Path(tempfile.mkdtemp(dir=path.parent, prefix=temporary(path)))
                os.rename(path, old / "old")
                os.rename(fresh, path)
                shutil.rmtree(old, ignore_errors=True)
            else:
                os.rename(fresh, path)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
