"""lengths.json: how many windows of each length there are, and where texts are cut into windows, how many texts of each
length before. Reports then need no tokenizer."""

from pathlib import Path
from typing import Annotated, NotRequired, TypedDict

import numpy as np
from msgspec import Meta

from bertvision.disk import DamagedError, damaged, inside, read_json, write_sealed
from bertvision.pipeline.job import Job

LENGTHS = "lengths.json"
Length = Annotated[int, Meta(ge=1, le=10**6)]
Times = Annotated[int, Meta(ge=0, le=10**9)]


class UncutLengths(TypedDict):
    lengths: list[Length]
    texts: list[Times]


class SplitLengths(TypedDict):
    stamp: NotRequired[str | None]
    """Of the data."""
    lengths: list[Length]
    windows: list[Times]
    uncut: NotRequired[UncutLengths]


LengthsFile = dict[str, SplitLengths]
"""Split → the lengths that occur, and how many windows or texts have each."""


def keep_lengths(job: Job) -> None:
    """Write lengths.json, where it is missing or the data has changed."""
    known, found = _read_again(job), LengthsFile()
    for split in ("train", *job.scored_splits):
        stamp, old = job.stamps.data(split), known.get(split)
        if old is not None and old.get("stamp") == stamp and ("uncut" in old or not job.task.windowed):
            found[split] = old  # older files lack `uncut`
            continue
        features = job.features(split)
        lengths, windows = _count(features.lengths)
        found[split] = {"stamp": stamp, "lengths": lengths, "windows": windows}
        if job.task.windowed:
            uncut, texts = _count(features.uncut_lengths(job.config.data.overlap))
            found[split]["uncut"] = {"lengths": uncut, "texts": texts}
    if found != known:
        write_sealed(job.folder.path / LENGTHS, {**found})


def _read_again(job: Job) -> LengthsFile:
    try:
        return read_lengths(job.folder.path)
    except DamagedError as error:
        job.folder.say(f"{error} It is made again.")
        return {}


def read_lengths(folder: Path) -> LengthsFile:
    """The contents of lengths.json; empty if there is none."""
    found: LengthsFile = read_json(inside(folder, LENGTHS), LengthsFile) or {}
    for split, one in found.items():
        uncut = one.get("uncut", UncutLengths(lengths=[], texts=[]))
        if len(one["lengths"]) != len(one["windows"]) or len(uncut["lengths"]) != len(uncut["texts"]):
            raise damaged(folder / LENGTHS, f"{split[:60]}: expected a number for each length")
    return found


def _count(lengths: np.ndarray) -> tuple[list[int], list[int]]:
    """The lengths that occur, and how often each does."""
    values, counts = np.unique(lengths, return_counts=True)
    return values.tolist(), counts.tolist()
