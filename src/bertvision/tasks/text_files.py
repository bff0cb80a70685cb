"""Reading text files, plain or compressed (.gz, .xz): UTF-8 only, lines end only at "\\n".

For every kind of damaged file, a UserError names the file and, where known, the line.
"""

import codecs
import gzip
import json
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from bertvision.errors import UserError

COMPRESSIONS = ("", ".gz", ".xz")
"""Extensions that may follow a file's own, in the order in which they are tried."""


def plain_stem(path: Path) -> str:
    """The file name without its extensions: "a" for both a.csv and a.csv.gz."""
    return (Path(path.stem) if path.suffix in COMPRESSIONS[1:] else path).stem


def plain_suffix(path: Path) -> str:
    """The extension that identifies the format: ".csv" for both a.csv and a.csv.gz."""
    return (Path(path.stem) if path.suffix in COMPRESSIONS[1:] else path).suffix.lower()


def find_file(folder: Path, name: str) -> Path | None:
    """`folder/name`, plain or compressed; None if there is no such file."""
    paths = (folder / (name + ending) for ending in COMPRESSIONS)
    return next((path for path in paths if path.is_file()), None)


def the_only_file(folder: Path, split: str, paths: list[Path]) -> Path | None:
    """The file of a split in a folder, None without one; several are refused."""
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise UserError(
            f'{folder} has several {split} files: {names}. Choose one of them, such as task.{split}="{paths[0]}".'
        )
    return paths[0] if paths else None


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Each line with its number (from 1), without its ending ("\\n" or "\\r\\n")."""
    for number, line in read_raw_lines(path):
        yield number, line.removesuffix("\n").removesuffix("\r")


def read_raw_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Like `read_lines`, but with line endings, which may be part of a quoted CSV cell."""
    number, any_text = 0, False
    try:
        with _open(path) as handle:
            # A binary file is split at b"\n" alone; text mode and str.splitlines also split at U+0085, U+2028 …
            for number, raw in enumerate(handle, start=1):
                line = _decode(raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw, path, number)
                any_text = any_text or bool(line.strip())
                yield number, line
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise _unreadable(path, error, number) from error
    if not any_text:
        raise UserError(f"{path} is empty.")


def read_json(path: Path) -> Any:
    """The whole file as one JSON value."""
    try:
        with _open(path) as handle:
            raw = handle.read().removeprefix(codecs.BOM_UTF8)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise _unreadable(path, error, None) from error
    text = _decode(raw, path, 1)
    if not text.strip():
        raise UserError(f"{path} is empty.")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}. "
            "Fix it there, or download or copy the file again if it was cut off."
        ) from error


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return cast(IO[bytes], lzma.open(path, "rb"))
    return open(path, "rb")


def _decode(raw: bytes, path: Path, first_line: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + raw.count(b"\n", 0, error.start)
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise UserError(
            f"{path} is not UTF-8: invalid byte 0x{raw[error.start]:02x} at line {line}, byte {column}. "
            "Save the file as UTF-8."
        ) from error


def _unreadable(path: Path, error: Exception, line: int | None) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(f"there is no file {path}.")
    if isinstance(error, IsADirectoryError):
        return UserError(f"{path} is a folder, but a file was expected.")
    again = "Download or copy it again."
    place = f" after line {line}" if line else ""
    if isinstance(error, EOFError):
        return UserError(f"{path} is truncated: its compressed data ends too early{place}. {again}")
    if isinstance(error, gzip.BadGzipFile | zlib.error | lzma.LZMAError):
        return UserError(f"{path} is not a valid {path.suffix} file{place}: {error}. {again}")
    assert isinstance(error, OSError)
    return UserError(f"{path} can't be read{place}: {error.strerror or error}.")
