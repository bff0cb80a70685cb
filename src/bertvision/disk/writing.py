"""Atomic writes of files and folders, their hashes, and readable disk errors. All modes follow the umask."""

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from bertvision.disk.reading import unreadable
from bertvision.disk.seals import render
from bertvision.errors import UserError, shorten

TEMPORARY = ".writing-"
OLD = "old"
MOST_NAME = 150
"""Characters of a file's name that are part of its temporary name."""
_UNFINISHED = re.compile(rf"{re.escape(TEMPORARY)}(?P<name>.*)@(?P<host>[^@-]*)-(?P<process>\d+)-\w*")
_is_inner: ContextVar[bool] = ContextVar("is_inner", default=False)
"""Whether `clear_disk_errors` is at work further out."""
_swept: set[str] = set()
"""Folders that this process has swept."""


def fingerprint(*parts: Any) -> str:
    """A short hash of JSON-serialisable parts."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_fingerprint(paths: list[Path]) -> str:
    """A short hash of the bytes of files, in order."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                hashlib.file_digest(file, lambda: digest)  # continues the same digest
        except OSError as error:
            raise UserError(unreadable(path, error)) from None
    return digest.hexdigest()[:16]


@contextmanager
def clear_disk_errors(path: Path, setting: str = "run") -> Iterator[None]:
    """Turn errors from a full or read-only disk into a UserError that names the setting to change. Of nested blocks,
    the outermost knows what the user asked for.

    Existing files are untouched, since everything is written to a temporary name first.
    """
    if _is_inner.get():
        yield
        return
    before = _is_inner.set(True)
    try:
        yield
    except Exception as error:
        number = _error_number(error)
        if number in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(existing_folder(path)).free / 1e6
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
        if number is not None:
            raise UserError(
                f"{shorten(str(path), 300)} can't be written ({os.strerror(number)}): check the disk, or set "
                f"`{setting}` to another folder."
            ) from None
        raise
    finally:
        _is_inner.reset(before)


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
    """The beginning of temporary names next to `path` during a write. It names this process: see `is_abandoned`."""
    return f"{TEMPORARY}{path.name[:MOST_NAME]}@{host_name()}-{os.getpid()}-"


def host_name(host: str | None = None) -> str:
    """The name of this machine, or of another, as it is written in temporary names."""
    return (host or socket.gethostname()).replace("-", "_").replace("@", "_")


def is_abandoned(name: str) -> bool:
    """Whether a temporary file or folder was left behind by a process of this machine that has ended."""
    begun = _UNFINISHED.fullmatch(name)
    if begun is None or begun["host"] != host_name():
        return False
    import psutil  # takes a while, and is rarely needed

    return not psutil.pid_exists(int(begun["process"]))


def host_of(name: str) -> str | None:
    """The machine, as `host_name` calls it, whose process wrote a temporary file or folder."""
    begun = _UNFINISHED.fullmatch(name)
    return begun and begun["host"]


def _is_of_others(name: str) -> bool:
    """Whether a process of another machine wrote a temporary file or folder."""
    return host_of(name) not in (None, host_name())


def sweep(folder: Path, locked: bool = False) -> None:
    """Remove what killed processes left of writes into this folder. Files of other kinds are not touched. In a folder
    that is `locked`, those of other machines were abandoned as well."""
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.name.startswith(TEMPORARY)]
    except OSError:
        return
    for left in names:
        if not is_abandoned(left) and not (locked and _is_of_others(left)):
            continue
        former = folder / left / OLD
        if not any(path.is_symlink() for path in (folder / left, former)):  # the folder may be a stranger's
            for one in former.iterdir() if former.is_dir() else ():
                if not (folder / one.name).exists():  # killed between two renames
                    os.rename(one, folder / one.name)
        remove(folder / left)


def sweep_below(folder: Path, locked: bool = False) -> None:
    """`sweep` this folder and all folders in it."""
    for parent in {left.parent for left in folder.rglob(f"{TEMPORARY}*")}:
        sweep(parent, locked)


def _sweep_once(folder: Path) -> None:
    """Once in a process: a folder can have thousands of files."""
    if (place := str(folder.absolute())) not in _swept:
        _swept.add(place)
        sweep(folder)


def remove(path: Path) -> None:
    """Remove a file or folder, if it can be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()


def write_text(path: Path, text: str, setting: str = "run") -> None:
    # A lone surrogate is written as JSON writes it, with its number.
    write_bytes(path, text.encode("utf-8", "backslashreplace"), setting)


def write_bytes(path: Path, data: bytes, setting: str = "run") -> None:
    """Write a file atomically: to a temporary name, then renamed. Errors name the setting to change."""
    with clear_disk_errors(path, setting), writing_file(path) as file:
        file.write(data)


@contextmanager
def writing_file(path: Path) -> Iterator[IO[bytes]]:
    """A temporary file that replaces `path` if the block succeeds, and is deleted if it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep_once(path.parent)
    name = path.parent / f"{temporary(path)}{secrets.token_hex(4)}"
    try:
        with open(name, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any, setting: str = "run") -> None:
    write_text(path, render(value), setting)


def escape_line_ends(text: str) -> str:
    """JSON with the characters escaped that some readers treat as line ends."""
    for mark in "\x85\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def save_tensors(path: Path, tensors: dict[str, Any]) -> None:
    """Write torch tensors as a safetensors file, readable by the same people as other files."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path)  # makes private files
    path.chmod(mode)


@contextmanager
def writing_folder(path: Path, setting: str = "run") -> Iterator[Path]:
    """A temporary folder that replaces `path` if the block succeeds, and is deleted if it fails. Errors name the
    setting to change."""
    with clear_disk_errors(path, setting):
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep_once(path.parent)
        fresh = _make_folder(path)
        try:
            yield fresh
            mode = fresh.stat().st_mode & 0o666
            for file in fresh.rglob("*"):
                if file.is_file():
                    if not file.is_symlink():
                        file.chmod(mode)  # safetensors writes private files
                    with file.open("rb") as opened:
                        os.fsync(opened.fileno())
            _replace_folder(fresh, path)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise


def _make_folder(path: Path) -> Path:
    found = path.parent / f"{temporary(path)}{secrets.token_hex(4)}"
    found.mkdir()
    return found


def _replace_folder(fresh: Path, path: Path) -> None:
    """Put a folder in the place of another, in one step where the system can."""
    if not path.exists():
        os.rename(fresh, path)
    elif _exchange(fresh, path):
        remove(fresh)
    else:
        old = _make_folder(path)
        (old / OLD).mkdir()
        os.rename(path, old / OLD / path.name)
        os.rename(fresh, path)
        remove(old)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step (Linux); False if the system or the file system can't."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), swap) == 0)
