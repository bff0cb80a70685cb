"""The location of a store: a local folder, or an address in an object store (`s3://bucket/states`), through fsspec.

Both offer only what a store needs: names with sizes, reads of byte ranges into given buffers, and atomic writes.
"""

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import fsspec

from bertvision.disk import (
    TEMPORARY,
    clear_disk_errors,
    existing_folder,
    fill_buffers,
    host_name,
    host_of,
    is_abandoned,
    temporary,
    writing_file,
)
from bertvision.errors import UserError
from bertvision.network import find_address_mistake, is_address

Buffer = memoryview
BLOCK = 4 << 20  # bytes per request while a remote file is hashed
MOST_BUFFERS = 512  # per system call; every system allows at least 1,024
# Object stores show a file only when it is complete. Elsewhere it is written under a temporary name, then renamed.
WHOLE_OR_NOTHING = {"s3", "gs", "az", "abfs", "hf", "memory"}


@dataclass(frozen=True)
class ByteRange:
    """Consecutive bytes of a file, and the buffers to read them into."""

    start: int
    buffers: Sequence[Buffer]

    @property
    def stop(self) -> int:
        return self.start + sum(len(buffer) for buffer in self.buffers)


def open_location(path: "str | Path | Location") -> "Location":
    """Open a folder or an address. Raise UserError if its scheme is not in the list, or if a package is missing."""
    if isinstance(path, Location):
        return path
    text = str(path)
    if mistake := find_address_mistake(text):
        raise UserError(mistake)
    if not is_address(text) or text.startswith("file://"):
        return Folder(text.removeprefix("file://"))
    return Location(text)


class Location:
    """An address in an object store."""

    at_once = 256 << 20
    """Bytes to request in one call when several threads read. A server answers many requests at once as fast as one."""

    def __init__(self, path: str) -> None:
        protocol = path.split("://")[0]
        try:
            self.files, root = fsspec.core.url_to_fs(path)
        except ImportError as error:
            extra = " (pip install 'bertvision[s3]')" if protocol == "s3" else ""
            raise UserError(f"'{path}' needs another package{extra}: {error}.") from None
        except ValueError as error:
            raise UserError(f"'{path}' is no address that fsspec can open: {error}.") from None
        self.path, self.root = path.rstrip("/"), root.rstrip("/")
        self.atomic = protocol in WHOLE_OR_NOTHING

    def __str__(self) -> str:
        return self.path

    def sizes(self) -> dict[str, int]:
        """Size of each file by name; empty if the location does not exist yet."""
        return {name: size for name, size, _ in self._entries() if size is not None and not name.startswith(TEMPORARY)}

    def half_written(self) -> dict[str, int]:
        """Size of each temporary file by name: files being written, or left behind by a killed writer."""
        return {name: size for name, size, _ in self._entries() if size is not None and name.startswith(TEMPORARY)}

    def subfolders(self) -> list[str]:
        return sorted(f"{self.path}/{name}" for name, _, is_folder in self._entries() if is_folder)

    def _entries(self) -> list[tuple[str, int | None, bool]]:
        """Return name, size (for files) and whether it is a folder, for everything at this location."""
        with self.clear_errors():
            self.files.invalidate_cache()  # another process may have written since
            try:
                found = self.files.ls(self.root, detail=True)
            except FileNotFoundError:
                return []
        paths = [entry["name"].rstrip("/") for entry in found]
        return [
            (path.split("/")[-1], int(entry["size"]) if entry["type"] == "file" else None, entry["type"] == "directory")
            for path, entry in zip(paths, found, strict=True)
            if path != self.root
        ]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        with self.clear_errors():
            return bytes(self.files.cat_file(self._name(name), start=start or None, end=stop))

    def hash(self, name: str) -> str:
        """Compute the SHA-256 of a file."""
        with self.clear_errors(), self.files.open(self._name(name), "rb", block_size=BLOCK) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def read_into(self, name: str, ranges: Sequence[ByteRange]) -> None:
        """Fill the buffers. Raise EOFError if the file is too short."""
        with self.clear_errors():
            starts, stops = [some.start for some in ranges], [some.stop for some in ranges]
            found = self.files.cat_ranges([self._name(name)] * len(ranges), starts, stops, on_error="raise")
        for some, data in zip(ranges, found, strict=True):
            if len(data) < some.stop - some.start:
                raise EOFError(f"{self.path}/{name} is too short")
            first, view = 0, memoryview(data)
            for buffer in some.buffers:
                buffer[:] = view[first : first + len(buffer)]
                first += len(buffer)

    def write(self, name: str, pieces: Sequence[Buffer]) -> None:
        """Write a file atomically. It is on disk when this returns."""
        with self.clear_errors(missing=True):
            if self.atomic:
                self.files.pipe_file(self._name(name), b"".join(pieces))
                return
            self.files.makedirs(self.root, exist_ok=True)
            unfinished = self._name(f"{temporary(Path(name))}{secrets.token_hex(4)}")
            self.files.pipe_file(unfinished, b"".join(pieces))
            self.files.mv(unfinished, self._name(name))

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """A file to write to from beginning to end. It is there, whole, when the block has succeeded."""
        with self.clear_errors(missing=True):
            file = self.files.open(self._name(name), "wb")
        try:
            yield file
        except BaseException:
            with contextlib.suppress(Exception):
                file.discard()
            with contextlib.suppress(AttributeError):
                file.closed = True  # else the file would be completed when it is collected
            raise
        with self.clear_errors(missing=True):
            file.close()

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with contextlib.suppress(FileNotFoundError), self.clear_errors():
            self.files.rm_file(self._name(name))

    def rename(self, name: str, other: str) -> None:
        with self.clear_errors():
            self.files.mv(self._name(name), self._name(other))

    def free_bytes(self) -> int | None:
        """Free space, or None if unknown."""
        return None

    def sweep(self, stems: Sequence[str], hosts: Collection[str] = ()) -> None:
        """Remove partial files that killed processes of this machine left behind, for file names with these stems, and
        all those of other machines (`host_name`) on which nobody writes any more."""

    def _name(self, name: str) -> str:
        return f"{self.root}/{name}"

    @contextlib.contextmanager
    def clear_errors(self, missing: bool = False) -> Iterator[None]:
        """Turn network and access errors into UserError, and with `missing` also a missing bucket."""
        try:
            yield
        except (EOFError, UserError):
            raise
        except Exception as error:  # each filesystem has its own exceptions
            if isinstance(error, FileNotFoundError) and not missing:
                raise
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise UserError(
                f"'{self.path}' can't be read or written ({type(error).__name__}: {reason}): check the URL, the "
                "network and the credentials. Files that were finished there are safe."
            ) from error


class Folder(Location):
    """A local folder."""

    at_once = 8 << 20

    def __init__(self, path: str) -> None:
        self.folder = Path(os.path.expanduser(path))
        self.path, self.root = str(self.folder), str(self.folder.absolute())
        self.files = fsspec.filesystem("file")

    def _entries(self) -> list[tuple[str, int | None, bool]]:
        if not self.folder.is_dir():
            return []
        found: list[tuple[str, int | None, bool]] = []
        with os.scandir(self.folder) as entries:  # fsspec's own listing does not follow links
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process may just have removed it
                    found.append((entry.name, entry.stat().st_size if entry.is_file() else None, entry.is_dir()))
        return found

    def read_into(self, name: str, ranges: Sequence[ByteRange]) -> None:
        # preadv fills many buffers from one range without an intermediate copy, and is thread-safe.
        with open(self.folder / name, "rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):  # the disk can fetch all ranges while the first one is copied
                for some in ranges:
                    os.posix_fadvise(file.fileno(), some.start, some.stop - some.start, os.POSIX_FADV_WILLNEED)
            for some in ranges:
                start = some.start
                for first in range(0, len(some.buffers), MOST_BUFFERS):
                    start = fill_buffers(file, start, some.buffers[first : first + MOST_BUFFERS])

    def write(self, name: str, pieces: Sequence[Buffer]) -> None:
        with clear_disk_errors(self.folder, "store.path"):
            with writing_file(self.folder / name) as file:
                for piece in pieces:
                    file.write(piece)
            _sync_folder(self.folder)

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        with clear_disk_errors(self.folder, "--out"):
            with writing_file(self.folder / name) as file:
                yield file
            _sync_folder(self.folder)

    def rename(self, name: str, other: str) -> None:
        os.rename(self.folder / name, self.folder / other)
        _sync_folder(self.folder)

    def free_bytes(self) -> int | None:
        return shutil.disk_usage(existing_folder(self.folder)).free

    def sweep(self, stems: Sequence[str], hosts: Collection[str] = ()) -> None:
        others = set(hosts) - {host_name()}
        begun = tuple(f"{TEMPORARY}{stem}" for stem in stems)
        for name in self.half_written():  # one listing: the folder may hold thousands of files
            # Another process may be writing the same range: files of live processes are not touched.
            if name.startswith(begun) and (is_abandoned(name) or host_of(name) in others):
                self.remove(name)

    @contextlib.contextmanager
    def clear_errors(self, missing: bool = False) -> Iterator[None]:
        yield  # local errors are clear already


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power failure. Some systems can't open folders; they are skipped."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
