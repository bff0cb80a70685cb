"""Where a store lies: a folder of this machine, or any address fsspec knows (`s3://bucket/states`).

Both give what a store needs and no more: names with sizes, ranges read into given buffers, a file written whole or not
at all.
"""

import contextlib
import os
import shutil
import socket
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bertvision.disk import TEMPORARY, clear_disk_errors
from bertvision.errors import UserError

Buffer = memoryview
MOST_BUFFERS = 512  # of one call of the system; at least 1,024 are allowed wherever it exists
# Object stores show a file when it is whole. Elsewhere it is written beside its name first and then moved.
WHOLE_OR_NOTHING = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "memory"}


@dataclass(frozen=True)
class Run:
    """Bytes that lie one after the other in a file, and the buffers they go to."""

    start: int
    buffers: Sequence[Buffer]

    @property
    def stop(self) -> int:
        return self.start + sum(len(buffer) for buffer in self.buffers)


class Place(ABC):
    at_once: int
    """Bytes to ask for in one call, where several threads read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __str__(self) -> str:
        return self.path

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Bytes of each file by name; nothing where there is no such place yet."""

    @abstractmethod
    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes: ...

    @abstractmethod
    def read_into(self, name: str, runs: Sequence[Run]) -> None:
        """Fills the buffers; a file that ends before them is an EOFError."""

    @abstractmethod
    def write(self, name: str, pieces: Sequence[Buffer]) -> None:
        """A whole file or none, on the disk when this returns."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes a file, where it is there."""

    @abstractmethod
    def subplaces(self) -> list[str]:
        """Addresses of the folders in it."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """What can still be written; None where there is no telling."""

    def sweep(self, stems: Sequence[str]) -> None:
        """Removes what a killed process left half written of the files that begin like this, where it shows."""
        return None


def open_place(path: str | Path) -> Place:
    """The folder or address; errors say which package an address needs."""
    text = str(path)
    if "://" not in text or text.startswith("file://"):
        return Folder(text.removeprefix("file://"))
    return Address(text)


class Folder(Place):
    """A folder of this machine."""

    at_once = 8 << 20

    def __init__(self, path: str) -> None:
        self.folder = Path(path).expanduser()
        super().__init__(str(self.folder))

    def sizes(self) -> dict[str, int]:
        if not self.folder.is_dir():
            return {}
        with os.scandir(self.folder) as entries:
            sizes = {}
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process may have removed it just now
                    if entry.is_file() and not entry.name.startswith(TEMPORARY):
                        sizes[entry.name] = entry.stat().st_size
            return sizes

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        with (self.folder / name).open("rb") as file:
            file.seek(start)
            return file.read(-1 if stop is None else stop - start)

    def read_into(self, name: str, runs: Sequence[Run]) -> None:
        # The system's own call fills many buffers from one run of the disk without a copy between, in any thread.
        with open(self.folder / name, "rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):  # the disk can fetch all of it while the first is copied
                for run in runs:
                    os.posix_fadvise(file.fileno(), run.start, sum(map(len, run.buffers)), os.POSIX_FADV_WILLNEED)
            for run in runs:
                place = run.start
                for first in range(0, len(run.buffers), MOST_BUFFERS):
                    place = _fill(file, place, run.buffers[first : first + MOST_BUFFERS])

    def write(self, name: str, pieces: Sequence[Buffer]) -> None:
        with clear_disk_errors(self.folder, "store.path"):
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=f"{_temporary(name)}{os.getpid()}-")
            try:
                with os.fdopen(handle, "wb", buffering=0) as file:
                    for piece in pieces:
                        while len(piece):
                            piece = piece[file.write(piece) :]
                    os.fsync(file.fileno())
                os.chmod(temporary, 0o644)  # mkstemp makes it private
                os.replace(temporary, self.folder / name)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
            _sync_folder(self.folder)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def subplaces(self) -> list[str]:
        return sorted(str(entry) for entry in self.folder.iterdir() if entry.is_dir()) if self.folder.is_dir() else []

    def free_bytes(self) -> int | None:
        return shutil.disk_usage(self.existing_folder()).free

    def existing_folder(self) -> Path:
        """The folder, or the nearest one above it that is there."""
        place = self.folder.absolute()
        while not place.exists():
            place = place.parent
        return place

    def sweep(self, stems: Sequence[str]) -> None:
        begun = tuple(f"{TEMPORARY}{stem}" for stem in stems)
        for left in self.folder.glob(f"{TEMPORARY}*"):  # one look at a folder that may hold thousands of files
            if left.name.startswith(begun):
                host, process = left.name.split("@")[-1].split("-")[:2]
                # Another process may be at work on the same range: what a living one writes is not touched.
                if host == _host() and not psutil.pid_exists(int(process)):
                    left.unlink(missing_ok=True)


def _temporary(name: str) -> str:
    return f"{TEMPORARY}{name}@{_host()}-"


def _host() -> str:
    return socket.gethostname().replace("-", "_").replace("@", "_")


def _fill(file: Any, place: int, buffers: Sequence[Buffer]) -> int:
    """Reads into the buffers, one after the other, from `place` on; gives where they end."""
    left = list(buffers)
    while left:
        if hasattr(os, "preadv"):
            count = os.preadv(file.fileno(), left, place)
        else:
            file.seek(place)
            count = file.readinto(left[0])
        if not count:
            raise EOFError(f"{file.name} ends at byte {place:,}, before the states that should be there")
        place += count
        while left and count >= len(left[0]):
            count -= len(left.pop(0))
        if count:
            left[0] = left[0][count:]
    return place


def _sync_folder(folder: Path) -> None:
    """Makes the new name last through a power cut; some systems open no folders."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Address(Place):
    """Any address fsspec has a filesystem for."""

    at_once = 256 << 20  # a server answers many questions together as fast as one

    def __init__(self, path: str) -> None:
        import fsspec

        protocol = path.split("://")[0]
        try:
            self.files, self.root = fsspec.core.url_to_fs(path)
        except ImportError as error:
            extra = " (pip install 'bertvision[s3]')" if protocol in ("s3", "s3a") else ""
            raise UserError(f"'{path}' needs another package{extra}: {error}.") from None
        except ValueError as error:
            raise UserError(f"'{path}' is no folder and no address that fsspec knows: {error}.") from None
        super().__init__(path.rstrip("/"))
        self.root = self.root.rstrip("/")
        self.atomic = protocol in WHOLE_OR_NOTHING

    def sizes(self) -> dict[str, int]:
        with self._clear_errors():
            self.files.invalidate_cache()  # another process may have written meanwhile
            try:
                found = self.files.ls(self.root, detail=True)
            except FileNotFoundError:
                return {}
            files = [(entry["name"].rstrip("/").rsplit("/", 1)[-1], entry) for entry in found]
            return {
                name: int(entry["size"])
                for name, entry in files
                if entry["type"] == "file" and name and not name.startswith(TEMPORARY)
            }

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        with self._clear_errors():
            return bytes(self.files.cat_file(self._name(name), start=start or None, end=stop))

    def read_into(self, name: str, runs: Sequence[Run]) -> None:
        with self._clear_errors():
            starts, stops = [run.start for run in runs], [run.stop for run in runs]
            # All ranges at once: an address answers many questions together as fast as one.
            found = self.files.cat_ranges([self._name(name)] * len(runs), starts, stops, on_error="raise")
        for run, data in zip(runs, found, strict=True):
            if len(data) < run.stop - run.start:
                raise EOFError(f"{self.path}/{name} ends before the states that should be there")
            place, view = 0, memoryview(data)
            for buffer in run.buffers:
                buffer[:] = view[place : place + len(buffer)]
                place += len(buffer)

    def write(self, name: str, pieces: Sequence[Buffer]) -> None:
        with self._clear_errors(missing=True):
            if self.atomic:
                self.files.pipe_file(self._name(name), b"".join(pieces))
                return
            self.files.makedirs(self.root, exist_ok=True)
            beside = self._name(f"{_temporary(name)}{os.getpid()}")
            self.files.pipe_file(beside, b"".join(pieces))
            self.files.mv(beside, self._name(name))

    def remove(self, name: str) -> None:
        with self._clear_errors():
            if self.files.exists(self._name(name)):
                self.files.rm_file(self._name(name))

    def subplaces(self) -> list[str]:
        with self._clear_errors():
            self.files.invalidate_cache()
            try:
                found = self.files.ls(self.root, detail=True)
            except FileNotFoundError:
                return []
        folders = [entry["name"].rstrip("/") for entry in found if entry["type"] == "directory"]
        return sorted(f"{self.path}/{name.rsplit('/', 1)[-1]}" for name in folders if name != self.root)

    def free_bytes(self) -> int | None:
        return None

    def _name(self, name: str) -> str:
        return f"{self.root}/{name}"

    @contextlib.contextmanager
    def _clear_errors(self, missing: bool = False) -> Iterator[None]:
        """A server that does not answer or does not let us in becomes a sentence, and with `missing` also a bucket that
        is not there."""
        try:
            yield
        except (EOFError, UserError):
            raise
        except Exception as error:  # each filesystem has errors of its own
            if isinstance(error, FileNotFoundError) and not missing:
                raise
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise UserError(
                f"'{self.path}' can't be read or written ({type(error).__name__}: {reason}): check the address, the "
                "network and the credentials; what was finished there is kept."
            ) from error
