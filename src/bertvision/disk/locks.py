"""One writer at a time in a folder. Readers take no lock.

with writing_in(lock_in(folder)):           a file in the folder: it also locks out other machines on a shared disk
with writing_in(lock_beside(folder)):       for folders that are replaced as a whole: a file in the temporary folder

The system frees the lock of a process that died. What the file says about its holder is read only while it is held.
"""

import contextlib
import errno
import json
import os
import shlex
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.disk.seals import digest
from bertvision.disk.writing import clear_disk_errors
from bertvision.errors import UserError

LOCK, REPORT_LOCK = ".lock", ".lock-report"
"""In a run folder: of the stages of the run, and of its report."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems that have no locks."""
DISK = (
    errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOENT, errno.EEXIST, errno.ENOTDIR,
)  # fmt: skip
"""Errors of the disk, which `clear_disk_errors` explains."""
UNKNOWN = "it does not say which"
PAUSE, TURN = 0.2, 20.0
"""Seconds between two attempts while waiting, and of a turn of attempts, after which processes of one launch agree."""
Found = str | UserError | None
"""Who holds a lock, or why it can't be taken; None if it was taken."""


class _NoLockError(Exception):
    """The system refused the lock itself, for another reason than that it is held."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class Place:
    """A lock: its file, and the folder that it protects."""

    file: Path
    folder: Path
    setting: str
    """How a user chooses another folder."""

    @property
    def is_inside(self) -> bool:
        return self.file.parent == self.folder.absolute()


def lock_in(folder: Path, name: str = LOCK, setting: str = "run") -> Place:
    return Place(folder.absolute() / name, folder, setting)


def lock_beside(folder: Path, setting: str = "--to") -> Place:
    """A lock that leaves no file near the folder. Other users and machines do not see it."""
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    name = digest(os.fsencode(folder.resolve())) + ".lock"
    return Place(Path(tempfile.gettempdir()) / f"bertvision-locks-{user}" / name, folder, setting)


@contextmanager
def writing_in(
    place: Place,
    wait: bool = False,
    say: Callable[[str], None] = lambda _: None,
    first: Callable[[Callable[[], Found]], Found] = lambda find: find(),
) -> Iterator[bool]:
    """Hold the lock of a folder. Raise UserError if another process has it or, with `wait`, wait until it is free.
    Yield whether this process has it: not where the disk has no locks, nor in others than the main process.

    Of several processes of one launch, only the main one takes the lock; `first` hands what it found to all.
    """
    lock = _Lock(place, say)
    try:
        while (found := first(lambda: lock.try_for(TURN if lock.has_said else 0.0))) is not None:
            if isinstance(found, UserError):
                raise found
            if not wait:
                raise UserError(
                    f"another process is writing to '{place.folder}': {found}. Wait until it ends (--wait; in Python, "
                    f"wait=True), or set `{place.setting}` to another folder."
                )
            lock.say_once(f"waiting: another process is writing to '{place.folder}': {found}.")
        yield lock.held is not None
    finally:
        lock.release()


class _Lock:
    def __init__(self, place: Place, say: Callable[[str], None]) -> None:
        self.place, self.say, self.has_said = place, say, False
        self.held: Any = None
        self.made: list[Path] = []
        """Folders that did not exist before."""

    def say_once(self, text: str) -> None:
        if not self.has_said:
            self.say(text)
        self.has_said = True

    def try_for(self, seconds: float) -> Found:
        """Take the lock, for at most so many seconds. Return None if it was taken, else who has it, or why nobody can
        have it."""
        end = time.monotonic() + seconds
        try:
            while not self._take():
                if time.monotonic() >= end:
                    return _describe_holder(self.place.file)
                time.sleep(PAUSE)
        except UserError as error:
            return error
        return None

    def _take(self) -> bool:
        from filelock import FileLock, Timeout

        place = self.place
        lock = FileLock(place.file, timeout=0, thread_local=False, fallback_to_soft=False)
        try:
            with clear_disk_errors(place.folder, place.setting):
                try:
                    self._make_folder()
                    lock.acquire()
                except FileNotFoundError:  # another process has just removed the folder, which was empty
                    self._make_folder()
                    lock.acquire()
                except OSError as error:
                    if isinstance(error, Timeout) or error.errno in DISK:
                        raise
                    raise _NoLockError(error) from None
        except Timeout:
            return False
        except _NoLockError as found:
            reason = found.error.strerror or found.error
            if place.is_inside and found.error.errno not in NO_LOCKS:
                raise UserError(f"{place.file} can't be used as a lock ({reason}): remove it.") from None
            return self._go_without()
        except UserError:
            if place.is_inside:
                raise
            return self._go_without()  # no temporary folder
        self.held = lock
        with contextlib.suppress(OSError):  # only for messages
            _write_facts(place.file)
        return True

    def _go_without(self) -> bool:
        self.say_once(
            f"'{self.place.folder}' can't be locked on this disk: don't run another command on it at the same time."
        )
        return True

    def _make_folder(self) -> None:
        folder = self.place.file.parent
        if not self.place.is_inside:
            folder.mkdir(exist_ok=True, mode=0o700)
            facts = folder.lstat()
            if not stat.S_ISDIR(facts.st_mode) or (hasattr(os, "getuid") and facts.st_uid != os.getuid()):
                raise PermissionError(errno.EACCES, "somebody else's folder", str(folder))
            return
        self.made += [path for path in (folder, *folder.parents) if not path.exists() and path not in self.made]
        folder.mkdir(parents=True, exist_ok=True)

    def release(self) -> None:
        """Remove the file while it is locked: whoever opened it meanwhile finds out, and tries again."""
        if self.held is not None:
            with contextlib.suppress(OSError):
                self.place.file.unlink()
            self.held.release()
            self.held = None
        for folder in self.made:
            with contextlib.suppress(OSError):  # something was written to it
                folder.rmdir()


def _write_facts(file: Path) -> None:
    """Through no link: the folder may be a stranger's."""
    handle = os.open(file, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(handle, "w", encoding="utf-8") as opened:
        facts = os.fstat(handle)
        if stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1:
            opened.truncate()
            json.dump(_describe_this_process(), opened)


def _describe_this_process() -> dict[str, Any]:
    program, *words = sys.argv or [""]
    name = Path(program).name
    name = {"__main__.py": "bertvision", "": "python", "-": "python", "-c": "python"}.get(name, name)
    command = shlex.join([name, *words])
    return {
        "command": command if len(command) <= 200 else command[:200] + "…",
        "process": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _describe_holder(file: Path) -> str:
    """Who holds a lock. Whatever is in the file is text to show, no more."""
    try:
        if not file.is_file():  # it was just released
            return UNKNOWN
        with file.open(encoding="utf-8") as opened:
            found = json.loads(opened.read(2000))
        words = [str(found[name])[:300] for name in ("command", "process", "host", "since")]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return UNKNOWN
    command, process, host, since = ("".join(mark for mark in word if mark.isprintable()) for word in words)
    return f"`{command}`, process {process} on {host}, since {since}"
