"""Memory and descriptors that stay flat, and disks that are full, read-only or gone while something is written."""

import errno
import gc
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import bertvision as bv
from bertvision.disk import write_json, writing_folder
from tests.reliability.judging import judge, resident
from tests.reliability.made import fit_model
from tests.reliability.trials import Outcome

NAME, TRIALS, SLICE = "resources", 150, 8
ABOUT = "20,000 rows and 50 reloads; writes on a disk that is too small, full, read-only or vanishes at any step."
ROWS, RELOADS = 20_000, 50
FLAT = 60
"""MB that the second half of the rows, or of the reloads, may add."""
STEPS = ("fsync", "replace", "rename", "mkdir", "chmod")
ERRORS = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO, errno.ENOENT, errno.EMFILE)


@dataclass
class Made:
    place: Path
    model: Any
    run: Path

    @property
    def kilobytes(self) -> int:
        """What the run takes."""
        return sum(path.stat().st_size for path in self.run.rglob("*") if path.is_file()) // 1000


def prepare(place: Path) -> Made:
    made = Made(place, fit_model(place), place / "run")
    bv.run(**_settings(made), train={"epochs": 1}, run=str(made.run))
    return made


def attempt(made: Made, number: int, random: Random) -> Outcome:
    if number == 0:
        texts = [f"this text {at}" for at in range(ROWS // 4)]
        return _flat("rows predicted", lambda: made.model.predict(texts), 4)
    if number == 1:
        return _flat("models loaded again", lambda: bv.load(made.model.folder).predict(["a text"]), RELOADS)
    if number % 5 == 4:
        return _attempt_small_disk(made, random)
    case, act = random.choice(_writes(made, random))
    step, code, first = random.choice(STEPS), random.choice(ERRORS), random.randrange(12)
    what = f"{case}: {errno.errorcode[code]} from {step} call {first} on"
    with _failing(step, code, first):
        outcome = judge(f"disk: {case}", what, act)
    left = [path.name for path in made.place.rglob(".writing-*")]
    _tidy(made)
    return Outcome(outcome.case, "leftovers", False, f"{what}: {left[:3]}") if outcome.is_good and left else outcome


def _attempt_small_disk(made: Made, random: Random) -> Outcome:
    """A disk that runs full somewhere in a run. With more room, the same command must end as on a large disk."""
    small, kilobytes = made.place / "small", random.randrange(20, int(1.1 * made.kilobytes))
    case, said = "small disk", f"{kilobytes} KB of {made.kilobytes}"
    settings: dict[str, Any] = {**_settings(made), "train": {"epochs": 1}, "run": str(small / "run")}
    small.mkdir(exist_ok=True)
    if not _mount(small, f"size={kilobytes}k"):
        return Outcome(case, "no right to mount", True)
    try:
        outcome = judge(case, said, lambda: bv.run(**settings))
        left = [path.name for path in small.rglob(".writing-*")]
        if not outcome.is_good or left:
            return Outcome(case, "leftovers" if left else outcome.result, False, f"{said}: {outcome.detail} {left[:3]}")
        _mount(small, "remount,size=1g")
        bv.run(**settings)
        wrong = [
            str(path.relative_to(made.run))
            for path in sorted(made.run.rglob("*.safetensors"))
            if path.read_bytes() != (small / "run" / path.relative_to(made.run)).read_bytes()
        ]
        return Outcome(
            case, "other weights" if wrong else outcome.result, not wrong, f"{said}: {wrong}" if wrong else ""
        )
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=False, capture_output=True)


def _mount(folder: Path, options: str) -> bool:
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return not subprocess.run(words, check=False, capture_output=True).returncode


def _writes(made: Made, random: Random) -> list[tuple[str, Callable[[], Any]]]:
    """What writes: the folder of a model, a file, a run that is done again, a kit, predictions."""
    from typer.testing import CliRunner

    from bertvision.cli import app

    def command(*words: str) -> None:
        done = CliRunner().invoke(app, list(words))
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception

    def folder() -> None:
        with writing_folder(made.place / "new" / "folder") as fresh:
            (fresh / "file").write_text("x")

    again = made.place / "again"
    texts = made.place / "texts.txt"
    texts.write_text("a text\nanother\n")
    options: dict[str, Any] = {"train": {"epochs": random.choice([1, 2])}, "run": str(again)}
    predict = ["predict", str(made.model.folder), "--file", str(texts), "--out", str(made.place / "new" / "out")]
    return [
        ("predict --out", lambda: command(*predict)),
        ("file", lambda: write_json(made.place / "new" / "file.json", {"a": 1})),
        ("folder", folder),
        ("run", lambda: bv.run(**_settings(made), **options)),
        ("kit", lambda: command("kit", str(made.run), "--to", str(made.place / "new" / "kit"))),
        ("features", lambda: command("features", str(made.run), "--to", str(made.place / "new" / "features"))),
    ]


def _settings(made: Made) -> dict[str, Any]:
    data = str(made.place / "data.csv")
    task = {"name": "files", "train": data, "dev": data}
    return {"task": task, "encoder": str(made.place / "encoder"), "heads": ["adapter_64"], "data": {"max_length": 48}}


def _tidy(made: Made) -> None:
    for name in ("new", "again"):
        shutil.rmtree(made.place / name, ignore_errors=True)


@contextmanager
def _failing(step: str, code: int, first: int) -> Iterator[None]:
    """Every call of a function of `os` fails from one on, as on a disk that is full or gone."""
    real, calls = getattr(os, step), 0

    def fail(*words: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > first:
            raise OSError(code, os.strerror(code), str(words[0]) if words else None)
        return real(*words, **options)

    setattr(os, step, fail)
    try:
        yield
    finally:
        setattr(os, step, real)


def _flat(case: str, act: Callable[[], Any], times: int) -> Outcome:
    """Repeat, and compare what is in use after the first half with the end."""
    found = []
    for _ in range(2):
        for _ in range(times // 2):
            act()
        gc.collect()
        found.append((resident(), len(os.listdir("/proc/self/fd"))))
    (half, before), (end, after) = found
    is_flat = end - half < FLAT and after <= before
    return Outcome(
        case, "flat" if is_flat else "grows", is_flat, f"{end - half:.0f} MB, {after - before} descriptors more"
    )
