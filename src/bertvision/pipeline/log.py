"""metrics.jsonl: losses and scores over time. Each line ends with its own checksum, which earlier versions lack."""

import json
import math
import os
import time
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple, NotRequired, TypedDict

from msgspec import Meta

from bertvision.disk import as_form, clear_disk_errors, inside, read_bytes, seal_line, unseal_line
from bertvision.disk.forms import Epochs, Name, Seconds

LOG = "metrics.jsonl"
Step = Annotated[int, Meta(ge=0, le=10**12)]


class LogLine(TypedDict):
    """Any line. The forms below are those of the events that are read."""

    event: str


class TrainLine(LogLine):
    """The losses of heads in training."""

    step: Step
    loss: dict[Name, float | None]


class EpochLine(LogLine):
    """The scores of a head after an epoch."""

    head: Name
    snapshot: Epochs
    epoch: Step
    held_out: float | None
    dev: NotRequired[dict[Name, dict[Name, float | None]]]
    seconds: NotRequired[Seconds]


class LastEpochLine(LogLine):
    """The seconds of the last epoch of heads."""

    epochs: dict[Name, Step]
    seconds: Seconds


FORMS: dict[str, type[LogLine]] = {"train": TrainLine, "epoch": EpochLine, "last_epoch": LastEpochLine}


class Log(NamedTuple):
    lines: list[Any]
    """Each of the form of its event."""
    lost: int
    """How many lines were left out because they are damaged or were cut off by a kill."""


def append_line(folder: Path, event: str, **values: Any) -> None:
    line = json.dumps({"time": round(time.time(), 3), "event": event, **values}, ensure_ascii=False)
    with clear_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with inside(folder, LOG).open("ab+") as file:
            if file.tell() and not _ends_a_line(file):  # cut off by a kill
                file.write(b"\n")
            file.write(f"{seal_line(line)}\n".encode("utf-8", "surrogatepass"))


def _ends_a_line(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def read_log(folder: Path) -> Log:
    """The lines of a run's log, oldest first."""
    lines: list[Any] = []
    data = (read_bytes(inside(folder, LOG), math.inf) or b"").split(b"\n")
    found = [unseal_line(line) for line in data if line]
    for value in found:
        try:
            event = as_form(value, LogLine)["event"]
            lines.append(as_form(value, FORMS.get(event, LogLine)))
        except ValueError:
            continue
    return Log(lines, len(found) - len(lines))
