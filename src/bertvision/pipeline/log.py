"""metrics.jsonl: losses and scores over time. Each line ends with its own checksum, which earlier versions lack."""

import json
import re
import time
import zlib
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

from msgspec import Meta

from bertvision.disk import clear_disk_errors, fit, parse_json, read_bytes
from bertvision.disk.forms import Epochs, Name, Seconds

LOG = "metrics.jsonl"
_CHECKSUM = re.compile(rb', "crc32": "([0-9a-f]{8})"\}$')
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
    damaged: int
    """How many lines were left out because they are damaged. Those cut off by a kill do not count."""


def append_line(folder: Path, event: str, **values: Any) -> None:
    line = json.dumps({"time": round(time.time(), 3), "event": event, **values}, ensure_ascii=False).encode()
    line = line[:-1] + f', "crc32": "{zlib.crc32(line):08x}"}}\n'.encode()
    with clear_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOG).open("ab") as file:
            file.write(line)


def read_log(folder: Path) -> Log:
    """The lines of a run's log, oldest first."""
    lines: list[Any] = []
    wrong = 0
    for line in (read_bytes(folder / LOG) or b"").splitlines():
        sealed = _CHECKSUM.search(line)
        content = line[: sealed.start()] + b"}" if sealed else line
        try:
            value = parse_json(content)
            if sealed and int(sealed[1], 16) != zlib.crc32(content):
                raise ValueError("its checksum is wrong")
        except ValueError:
            wrong += bool(sealed)
            continue
        try:
            event = fit(value, LogLine)["event"]
            lines.append(fit(value, FORMS.get(event, LogLine)))
        except ValueError:
            wrong += 1
    return Log(lines, wrong)
