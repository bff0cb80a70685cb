"""Atomic writes of files and folders, their hashes, and readable disk errors."""

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
    """A short hash of JSON-serialisable parts."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_fingerprint(paths: list[Path]) -> str:
    """A short hash of the bytes of files, in order."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)  # continues the same digest
    return digest.hexdigest()[:16]


@contextmanager
def clear_disk_errors(path: Path, setting: str = "run") -> Iterator[None]:
    """Turn errors from a full or read-only disk into a UserError that names the setting to change.

    Existing files are untouched, since everything is written to a temporary name first.
    """
    try:
        yield
    except Exception as error:
        number = _error_number(error)
        if number in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(path if path.exists() else path.parent).free / 1e6
            raise UserError(
                f"no space left on the disk for '{path}' ({free:.0f} MB free). Finished work is saved: free up "
                f"space, or set `{setting}` to a folder on another disk, and run the command again."
            ) from None
        if number in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOENT):
            raise UserError(
                f"'{path}' can't be written ({os.strerror(number)}): set `{setting}` to a writable folder."
            ) from None
        if number in (errno.EEXIST, errno.ENOTDIR):
            raise UserError(
                f"'{path}' can't be created: a file is in the way. Set `{setting}` to another folder."
            ) from None
        raise


def existing_folder(path: Path) -> Path:
    """The folder itself, or its nearest parent that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _error_number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    # safetensors raises its own error, with the system's error number at the end of the text.
    found = re.search(r"\(os error (\d+)\)", str(error)) if type(error).__name__ == "SafetensorError" else None
    return int(found[1]) if found else None


def temporary(path: Path) -> str:
    """The prefix of temporary names next to `path` during a write; `RunFolder.sweep` finds leftovers by it."""
    return f"{TEMPORARY}{path.name}-"


def write_text(path: Path, text: str, setting: str = "run") -> None:
    write_bytes(path, text.encode("utf-8"), setting)


def write_bytes(path: Path, data: bytes, setting: str = "run") -> None:
    """Write a file atomically: to a temporary name, then renamed. Errors name the setting to change."""
    with clear_disk_errors(path, setting), writing_file(path) as file:
        file.write(data)


@contextmanager
def writing_file(path: Path, prefix: str | None = None) -> Iterator[IO[bytes]]:
    """A temporary file that replaces `path` if the block succeeds, and is deleted if it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix or temporary(path))
    os.close(handle)
    try:
        with open(name, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp creates it private
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The value in a JSON file; None if there is no such file."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(
            f"{path} is damaged ({error}): restore it, or write it again with the command that made it."
        ) from None


def escape_line_ends(text: str) -> str:
    """JSON with the characters escaped that some readers treat as line ends."""
    for mark in "\x85\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


@contextmanager
def writing_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that replaces `path` if the block succeeds, and is deleted if it fails."""
    with clear_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=path.parent, prefix=temporary(path)))
        try:
            yield fresh
            for file in fresh.rglob("*"):
                if file.is_file():
                    with file.open("rb") as opened:
                        os.fsync(opened.fileno())
            os.chmod(fresh, 0o755)  # mkdtemp creates it private
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
