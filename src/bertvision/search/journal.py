"""The file of a search's studies: one JSON line per operation of Optuna, each with its own checksum.

It has the format of Optuna's journal files, so `JournalFileBackend` and optuna-dashboard read it, too.
"""

import json
import os
from functools import cached_property
from pathlib import Path
from typing import Any

from optuna import copy_study, get_all_study_summaries
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import BaseJournalBackend

from bertvision.disk import clear_disk_errors, damaged, read_bytes, seal_line, unseal_line, writing_file


class Journal(BaseJournalBackend):
    """No lock of its own: whoever searches holds that of the run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _lines(self) -> list[dict[str, Any]]:
        return self._read()

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return self._lines[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        known = self._lines
        lines = [seal_line(json.dumps(log)) for log in logs]
        with clear_disk_errors(self.path), self.path.open("ab") as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
            file.flush()
            os.fsync(file.fileno())
        known.extend(json.loads(line) for line in lines)

    def _read(self) -> list[dict[str, Any]]:
        """All lines. A last one that a kill cut off is removed: its operation is done again."""
        data = read_bytes(self.path) or b""
        whole = data[: data.rfind(b"\n") + 1]
        if unseal_line(data[len(whole) : -1]) is not None:
            raise damaged(self.path, "its last byte is no line end")
        found = []
        for number, line in enumerate(whole.splitlines(), start=1):
            value = unseal_line(line)
            if value is None:
                raise damaged(self.path, f"line {number} has a wrong checksum")
            found.append(value)
        if len(whole) < len(data):
            os.truncate(self.path, len(whole))
        return found


def open_journal(path: Path) -> JournalStorage:
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.with_name("study.db")
    if before.exists() and not path.exists():
        _copy_studies(before, path)
    return JournalStorage(Journal(path))


def _copy_studies(before: Path, path: Path) -> None:
    """Earlier versions kept the studies in SQLite, which can't tell whether a byte has changed."""
    with writing_file(path) as file:
        try:
            old, new = RDBStorage(f"sqlite:///{before.absolute()}"), JournalStorage(Journal(Path(file.name)))
            for study in get_all_study_summaries(old):
                copy_study(from_study_name=study.study_name, from_storage=old, to_storage=new)
        except Exception as error:  # SQLAlchemy's, sqlite3's or Optuna's own
            raise damaged(before, type(error).__name__) from None
