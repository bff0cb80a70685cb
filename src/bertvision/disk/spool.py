"""Spool: bytes that wait on disk instead of in memory, in a file without a name. It is gone when the process ends, also
if the process is killed.

with spooling_in(run_folder):      spools are on the same disk as the run
    spool = Spool()
    start = spool.append(data)
    spool.read_into(start, buffer)
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import finalize

from bertvision.disk.writing import clear_disk_errors, existing_folder, temporary

_place: ContextVar[Path | None] = ContextVar("spool_place", default=None)


@contextmanager
def spooling_in(folder: Path) -> Iterator[None]:
    """Inside the block, spools are on the disk of this folder, which need not exist yet. TMPDIR, if set, comes
    first."""
    before = _place.set(folder)
    try:
        yield
    finally:
        _place.reset(before)


class Spool:
    """Threads can read at the same time."""

    def __init__(self) -> None:
        self.folder, self._file = _open()
        finalize(self, self._file.close)
        self.size = 0
        self._lock = Lock()

    def append(self, data: Any) -> int:
        """Write bytes, or the bytes of an array, at the end. Return where they begin."""
        start, view = self.size, memoryview(data).cast("B")
        with clear_disk_errors(self.folder, "TMPDIR"):
            while view:
                view = view[self._file.write(view) :]
        self.size += memoryview(data).nbytes
        return start

    def read(self, start: int, stop: int) -> bytes:
        found = bytearray(stop - start)
        self.read_into(start, memoryview(found))
        return bytes(found)

    def read_into(self, start: int, buffer: memoryview) -> None:
        if hasattr(os, "preadv"):
            fill_buffers(self._file, start, [buffer])
            return
        with self._lock:  # the file has one position
            fill_buffers(self._file, start, [buffer])


def _open() -> tuple[Path, Any]:
    """A file that has no name or, where the system can't do that, one that `disk.sweep` knows."""
    wanted, prefix = _place.get(), temporary(Path("spool"))
    if wanted is not None and not os.environ.get("TMPDIR"):
        folder = existing_folder(wanted)
        try:
            return folder, tempfile.TemporaryFile(buffering=0, dir=folder, prefix=prefix)
        except OSError:
            pass  # a folder that can be read only
    folder = Path(tempfile.gettempdir())
    with clear_disk_errors(folder, "TMPDIR"):
        return folder, tempfile.TemporaryFile(buffering=0, dir=folder, prefix=prefix)


def fill_buffers(file: Any, start: int, buffers: Sequence[memoryview]) -> int:
    """Fill the buffers one after the other from byte `start` on. Return the byte after the last one read."""
    left = [buffer for buffer in buffers if len(buffer)]
    while left:
        if hasattr(os, "preadv"):
            count = os.preadv(file.fileno(), left, start)
        else:
            file.seek(start)
            count = file.readinto(left[0])
        if not count:
            raise EOFError(f"{file.name} is too short: it ends at byte {start:,}")
        start += count
        while left and count >= len(left[0]):
            count -= len(left.pop(0))
        if count:
            left[0] = left[0][count:]
    return start
