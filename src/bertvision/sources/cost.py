"""Which is cheaper, to stream states or to store them: seconds of both from rates that were measured here."""

import contextlib
import math
import os
import secrets
import time
from dataclasses import dataclass, field

from bertvision.disk import TEMPORARY
from bertvision.errors import UserError
from bertvision.sources.store.places import Folder, Place, Run
from bertvision.sources.store.writer import ROOM

PROBE_BYTES = 64 << 20


@dataclass(frozen=True)
class Rates:
    """What was measured, a second."""

    encoder_tokens: float
    write_bytes: float
    read_bytes: float


@dataclass(frozen=True)
class Choice:
    """Where the states come from, and why."""

    source: str
    """ "streamed", "stored", or "kept" in memory."""
    reason: str
    figures: dict[str, float] = field(default_factory=dict)


def weigh(
    passes: float, tokens: int, store_bytes: int, missing: float, rates: Rates, free_bytes: int | None = None
) -> Choice:
    """The cheaper source for so many passes over so many tokens; `missing` is the share of the store not yet there.

    The heads' own time is the same in both. Encoding and writing go on side by side, so the slower of them counts.
    """
    streamed = passes * tokens / rates.encoder_tokens
    write = missing * max(tokens / rates.encoder_tokens, store_bytes / rates.write_bytes)
    read = passes * store_bytes / rates.read_bytes
    figures = {
        "passes": round(passes, 2),
        "tokens": tokens,
        "store MB": round(store_bytes / 1e6, 1),
        "seconds streamed": round(streamed, 1),
        "seconds stored": round(write + read, 1),
        "encoder tokens a second": round(rates.encoder_tokens),
        "disk writes MB a second": round(rates.write_bytes / 1e6) if missing else 0,
        "disk reads MB a second": round(rates.read_bytes / 1e6),
    }
    there = "all of it is there" if not missing else f"writing it takes {write:,.0f} s"
    sums = (
        f"{passes:.3g} times {tokens:,} tokens take about {streamed:,.0f} s through the encoder; a store has "
        f"{store_bytes / 1e6:,.0f} MB, {there}, and reading it {read:,.0f} s"
    )
    if missing and free_bytes is not None and free_bytes < ROOM * missing * store_bytes:
        return Choice("streamed", f"{sums}, but only {free_bytes / 1e6:,.0f} MB are free there", figures)
    return Choice("stored" if write + read < streamed else "streamed", sums, figures)


def measure_place(place: Place, fits_in_memory: bool = False, writes: bool = True) -> tuple[float, float]:
    """Bytes a second that a place writes and reads; what fits in memory is read from there after the first time. Where
    all is written, only what is there is read."""
    if not writes:
        return math.inf, _measure_reading(place, fits_in_memory)
    if isinstance(place, Folder):
        place = Folder(str(place.existing_folder()))  # a look at what work would cost leaves nothing behind
    size, name = PROBE_BYTES, f"{TEMPORARY}probe-{secrets.token_hex(8)}"  # others may look at the same moment
    free = place.free_bytes()
    if free is not None and free < 2 * size:
        size = max(1, free // 4)
    data = memoryview(os.urandom(size))
    try:
        started = time.monotonic()
        place.write(name, [data])
        write = size / (time.monotonic() - started)
        return write, _read_rate(place, name, size, fits_in_memory)
    finally:
        with contextlib.suppress(UserError, OSError):  # the error above says more
            place.remove(name)


def _measure_reading(place: Place, fits_in_memory: bool) -> float:
    sizes = place.sizes()
    name = max(sizes, key=lambda name: sizes[name])
    return _read_rate(place, name, min(PROBE_BYTES, sizes[name]), fits_in_memory)


def _read_rate(place: Place, name: str, size: int, fits_in_memory: bool) -> float:
    buffer = bytearray(size)
    if isinstance(place, Folder) and not fits_in_memory:
        _forget(place.folder / name)
    started = time.monotonic()
    place.read_into(name, [Run(0, [memoryview(buffer)])])
    return size / (time.monotonic() - started)


def _forget(path: os.PathLike[str]) -> None:
    """Asks the system to drop a file from memory, so that it is read from the disk."""
    if hasattr(os, "posix_fadvise"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
