"""Reading text files, plain or compressed (.gz, .xz): UTF-8 only, lines end only at "\\n".

For every kind of damaged file, a UserError names the file and, where known, the line. What a file can take in memory is
bounded, whatever it holds: a compressed file of some MB can hold terabytes.
"""

import codecs
import gzip
import io
import json
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any, cast

from bertvision.disk import parse_json, why_no_path
from bertvision.errors import UserError, shorten
from bertvision.tasks.data_file import Address, DataFile

MOST_MEGABYTES = 4096
"""Of a data file, if `task.most_megabytes` (`--most-megabytes`) does not say otherwise. A row counts its bytes and
`ROW_BYTES`: an Example is larger than a short text. Rows that are read one by one, and wait on disk if there are many,
count `SPOOLED_ROW_BYTES` each. A JSON document counts its bytes and `ITEM_BYTES` for each item."""
ROW_BYTES, SPOOLED_ROW_BYTES, ITEM_BYTES = 500, 50, 64
MOST_LINE = 16_000_000
"""Bytes of a line, and of a row of a table. The longest novels have 5 MB, and a list of empty lists takes 20 times its
JSON."""
MOST_COLUMNS = 2000
"""Of a table."""
XZ_MEMORY = 256_000_000
"""Bytes that a decoder of .xz may take; the highest level of xz needs 65 MB."""
CHUNK = 1 << 20
_most: ContextVar[float] = ContextVar("most_megabytes", default=MOST_MEGABYTES)

COMPRESSIONS = ("", ".gz", ".xz")
"""Extensions that may follow a file's own, in the order in which they are tried."""


def plain_stem(path: DataFile) -> str:
    """The file name without its extensions: "a" for both a.csv and a.csv.gz."""
    return (Path(path.stem) if path.suffix in COMPRESSIONS[1:] else path).stem


def plain_suffix(path: DataFile) -> str:
    """The extension that identifies the format: ".csv" for both a.csv and a.csv.gz."""
    return (Path(path.stem) if path.suffix in COMPRESSIONS[1:] else path).suffix.lower()


def find_file(folder: Path, name: str) -> Path | None:
    """`folder/name`, plain or compressed; None if there is no such file."""
    paths = (folder / (name + ending) for ending in COMPRESSIONS)
    return next((path for path in paths if os.path.isfile(path)), None)


def list_folder(folder: Path) -> list[Path]:
    """What is in a folder, sorted; UserError if it can't be read."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"{folder} can't be read: {error.strerror or error}.") from None


def the_only_file(folder: Path, split: str, paths: list[Path]) -> Path | None:
    """The file of a split in a folder, None without one; several are refused."""
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise UserError(
            f'{folder} has several {split} files: {names}. Choose one of them, such as task.{split}="{paths[0]}".'
        )
    return paths[0] if paths else None


@contextmanager
def reading_up_to(megabytes: float) -> Iterator[None]:
    """Inside the block, data files may take this much instead of `MOST_MEGABYTES`."""
    before = _most.set(megabytes)
    try:
        yield
    finally:
        _most.reset(before)


class Bound:
    """Adds up what a data file takes in memory, and refuses more than allowed."""

    def __init__(self, path: DataFile) -> None:
        self.path, self.most, self.taken = path, _most.get(), 0

    def add(self, count: int, unit: str = "", number: int = 0) -> None:
        """`unit` and `number` name the row for the message: "line", 7."""
        self.taken += count
        if self.taken > self.most * 1e6:
            place = f", {unit} {number}" if unit else ""
            raise UserError(
                f"{self.path}{place}: the file takes more than the {self.most:,.0f} MB allowed, decompressed and with "
                "what rows need. To read all of it, raise task.most_megabytes (of `fit` and `predict`: "
                "--most-megabytes)."
            )


def read_lines(path: DataFile, row_bytes: int = ROW_BYTES) -> Iterator[tuple[int, str]]:
    """Each line with its number (from 1), without its ending ("\\n" or "\\r\\n"). `row_bytes` is what a row takes
    besides its text."""
    for number, line in read_raw_lines(path, row_bytes):
        yield number, line.removesuffix("\n").removesuffix("\r")


def read_raw_lines(path: DataFile, row_bytes: int = ROW_BYTES) -> Iterator[tuple[int, str]]:
    """Like `read_lines`, but with line endings, which may be part of a quoted CSV cell."""
    number, any_text, bound = 0, False, Bound(path)
    try:
        with _open(path) as handle:
            # A binary file is split at b"\n" alone; text mode and str.splitlines also split at U+0085, U+2028 …
            while raw := handle.readline(MOST_LINE + 1):
                number += 1
                bound.add(len(raw) + row_bytes, "line", number)
                if len(raw) > MOST_LINE:
                    raise UserError(too_long(path, number))
                line = _decode(raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw, path, number)
                any_text = any_text or bool(line.strip())
                yield number, line
    except UNREADABLE as error:
        raise _unreadable(path, error, number) from error
    if not any_text:
        raise UserError(f"{path} is empty.")


def split_tabs(line: str) -> list[str]:
    """The cells of a line; of more than a table can have, the first."""
    return line.split("\t", MOST_COLUMNS)


def read_json(path: DataFile) -> Any:
    """The whole file as one JSON value."""
    chunks, bound = [], Bound(path)
    try:
        with _open(path) as handle:
            while chunk := handle.read(CHUNK):
                bound.add(len(chunk) + ITEM_BYTES * sum(map(chunk.count, (b",", b"[", b"{"))))
                chunks.append(chunk)
    except UNREADABLE as error:
        raise _unreadable(path, error, None) from error
    text = _decode(b"".join(chunks).removeprefix(codecs.BOM_UTF8), path, 1)
    if not text.strip():
        raise UserError(f"{path} is empty.")
    return read_value(text, f"{path} is not valid JSON")


def read_value(text: str, what: str) -> Any:
    """The value of a JSON text; `what` is wrong if it has none."""
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{what}: {error.msg} at line {error.lineno}, column {error.colno}. "
            "Fix it there, or download or copy the file again if it was cut off."
        ) from error
    except ValueError as error:
        raise UserError(f"{what}: {error}.") from None


def too_long(path: DataFile, line: int) -> str:
    return (
        f"{path}, line {line}: it has more than {MOST_LINE // 10**6} MB, the most that a row can have. Check where "
        "lines end, or cut the text."
    )


UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, MemoryError)


def _open(path: DataFile) -> IO[bytes]:
    raw = open_plain(path)
    if path.suffix == ".gz":
        return cast(IO[bytes], _Owning(raw))
    if path.suffix == ".xz":
        return cast(IO[bytes], io.BufferedReader(_Xz(raw)))
    return raw


def open_plain(path: DataFile) -> IO[bytes]:
    """The bytes of a file, as they are."""
    if why := why_no_path(str(path)):
        raise UserError(f"there is no file {shorten(str(path))}: {why}.")
    return path.open() if isinstance(path, Address) else open(path, "rb")


class _Owning(gzip.GzipFile):
    """Closes the compressed file too."""

    def __init__(self, file: IO[bytes]) -> None:
        self._compressed = file
        super().__init__(fileobj=file, mode="rb")

    def close(self) -> None:
        super().close()
        self._compressed.close()


class _Xz(io.RawIOBase):
    """An .xz file, of one or several streams. Unlike lzma.open, it bounds the decoder's memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decoder: lzma.LZMADecompressor | None = None

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._decoder is None or self._decoder.eof:
                rest = self._decoder.unused_data if self._decoder else b""
                rest = rest.lstrip(b"\0") or self._file.read(CHUNK).lstrip(b"\0")  # streams are padded with zeros
                if not rest and self._decoder is not None:
                    return 0
                self._decoder = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
            else:
                rest = self._file.read(CHUNK) if self._decoder.needs_input else b""
                if not rest and self._decoder.needs_input:
                    raise EOFError
            data = self._decoder.decompress(rest, max_length=len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)


def _decode(raw: bytes, path: DataFile, first_line: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + raw.count(b"\n", 0, error.start)
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise UserError(
            f"{path} is not UTF-8: invalid byte 0x{raw[error.start]:02x} at line {line}, byte {column}. "
            "Save the file as UTF-8."
        ) from error


def _unreadable(path: DataFile, error: Exception, line: int | None) -> UserError:
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
    if isinstance(error, MemoryError):
        return UserError(f"{path} needs more memory than there is{place}. Split it into several files.")
    assert isinstance(error, OSError)
    return UserError(f"{path} can't be read{place}: {error.strerror or error}.")
