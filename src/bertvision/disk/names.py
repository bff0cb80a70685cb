"""Names from files are not paths: `inside` joins them to a folder only if they are plain and nothing leads out."""

import os
from pathlib import Path

from bertvision.errors import UserError, shorten

MOST_BYTES = 200
"""Of a name. Most file systems allow 255; temporary names are longer than the file's own."""
MOST_PART, MOST_PATH = 255, 4000
"""Bytes of a name in a path, and of a path, that systems allow."""
FORBIDDEN = '/\\:<>|"?*'
"""Characters that separate folders, or that some systems refuse in names."""


def why_not_plain(name: object) -> str:
    """Why something can't be the name of a file or folder, in words; '' if it can."""
    if not isinstance(name, str):
        return f"it is not a string but {type(name).__name__}"
    if not name:
        return "it is empty"
    if name.startswith(".") or name != name.strip():
        return "it begins with a dot, or begins or ends with a space"
    if found := [mark for mark in name if mark in FORBIDDEN]:
        return f"it has {found[0]!r}"
    if not name.isprintable():
        return "it has characters that can't be printed"
    if len(name.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        return f"it is longer than {MOST_BYTES} bytes"
    return ""


def why_no_text(text: str) -> str:
    """Why a text can't be saved, in words; '' if it can."""
    if "\0" in text:
        return "it has a null character"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "it has characters that are not Unicode"
    return ""


def why_no_path(path: str | Path) -> str:
    """Why something can't be the path of a file or folder on any system, in words; '' if it can."""
    text = str(path)
    if why := why_no_text(text):
        return why
    if len(text.encode()) > MOST_PATH:
        return f"it is longer than {MOST_PATH:,} bytes"
    if any(len(part.encode()) > MOST_PART for part in text.split("/")):
        return f"a name in it is longer than {MOST_PART} bytes"
    return ""


def check_path(path: str | Path, what: str) -> None:
    """Raise UserError if no system could open the path. `what` is the option or setting that names it."""
    if why := why_no_path(path):
        raise UserError(f"{what} can't be {shorten(str(path))}: {why}.")


def as_path(path: object, what: str) -> Path:
    """The path that a user gave, with ~ expanded. Raise UserError if it is none, or if no system could open it."""
    if not isinstance(path, str | Path) or path == "":
        raise UserError(f"{what} must be the path of a file or folder, not {shorten(path)}.")
    check_path(path, what)
    return Path(os.path.expanduser(path))  # unlike Path.expanduser, accepts ~nobody


def plain_name(name: object, what: str) -> str:
    """The name itself. Raise UserError if it could be a path. `what` says where it is from, for the message."""
    if reason := why_not_plain(name):
        raise UserError(
            f"{what} can't be the name of a folder: {reason} ({shorten(name, 60)}). Use letters, digits, '_', '-' and "
            "'.'."
        )
    assert isinstance(name, str)
    return name


def inside(folder: Path, *names: str) -> Path:
    """The path of a file or folder in `folder`, by its plain names. Raise UserError if a name could be a path, or if a
    symbolic link leads out of the folder."""
    path, has_link = folder, False
    for name in names:
        path = path / plain_name(name, f"a name in '{folder}'")
        has_link = has_link or path.is_symlink()
    if has_link and not path.resolve().is_relative_to(folder.resolve()):  # without a link, plain names stay inside
        raise UserError(
            f"'{path}' leads out of '{folder}' through a symbolic link. Nothing was read or written there: put the "
            "files themselves into the folder."
        )
    return path
