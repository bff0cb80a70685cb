"""Which is cheaper, to stream states or to store them: seconds of both, from rates that are measured here."""

import contextlib
import math
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import psutil
import torch

from bertvision.data.packing import fill_batches
from bertvision.data.windows import Features
from bertvision.disk import TEMPORARY, existing_folder
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import Part
from bertvision.errors import UserError
from bertvision.sources.store.location import ByteRange, Folder, Location
from bertvision.sources.store.writer import ROOM
from bertvision.sources.streamed import StreamedSource

MEMORY, STREAMED, STORED = "memory", "streamed", "stored"
PROBE_BYTES = 64 << 20
FEW_SECONDS = 2.0  # of encoding, to measure its rate


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
    """ "streamed", "stored", or "memory"."""
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
        return Choice(STREAMED, f"{sums}, but only {free_bytes / 1e6:,.0f} MB are free there", figures)
    return Choice(STORED if write + read < streamed else STREAMED, sums, figures)


# ---------------------------------------------------------------------- measured


def measure_encoder(
    encoder: Encoder, features: Features, keep: Sequence[Part], encode_tokens: int, recorded: bool
) -> float:
    """Tokens a second of the frozen encoder, after a batch or a few to warm up."""
    groups = fill_batches(features.lengths, np.arange(len(features)), tokens=encode_tokens)
    warm = 3 if recorded else 1  # the second batch of a size is recorded
    plan = [*groups[:1] * warm, *groups[1:], *groups[:1]]
    source = StreamedSource(encoder, features, plan, keep, encode_tokens=1, recorded=recorded)
    started, tokens = time.monotonic(), 0
    for step, batch in enumerate(source.batches()):
        if encoder.device.type == "cuda":
            torch.cuda.synchronize(encoder.device)
        if step < warm:
            started = time.monotonic()
            continue
        tokens += int(features.lengths[batch.windows].sum())
        if time.monotonic() - started > FEW_SECONDS:
            break
    return tokens / (time.monotonic() - started)


def measure_disk(location: Location, store_bytes: int, writes: bool = True) -> tuple[float, float]:
    """Bytes a second that the location of a store of this size writes and reads; what fits in memory is read from
    there after the first time. Where the whole store is there, only that is read."""
    in_memory = store_bytes < psutil.virtual_memory().available / 2
    if not writes:
        sizes = location.sizes()
        name = max(sizes, key=lambda name: sizes[name])
        return math.inf, _read_rate(location, name, min(PROBE_BYTES, sizes[name]), in_memory)
    if isinstance(location, Folder):
        location = Folder(str(existing_folder(location.folder)))  # an estimate leaves nothing behind
    size, name = PROBE_BYTES, f"{TEMPORARY}probe-{secrets.token_hex(8)}"  # others may look at the same moment
    free = location.free_bytes()
    if free is not None and free < 2 * size:
        size = max(1, free // 4)
    data = memoryview(os.urandom(size))
    try:
        started = time.monotonic()
        location.write(name, [data])
        write = size / (time.monotonic() - started)
        return write, _read_rate(location, name, size, in_memory)
    finally:
        with contextlib.suppress(UserError, OSError):  # the error above says more
            location.remove(name)


def _read_rate(location: Location, name: str, size: int, in_memory: bool) -> float:
    buffer = bytearray(size)
    if isinstance(location, Folder) and not in_memory and hasattr(os, "posix_fadvise"):
        with open(location.folder / name, "rb") as file:  # the system drops it from memory: it is read from the disk
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    started = time.monotonic()
    location.read_into(name, [ByteRange(0, [memoryview(buffer)])])
    return size / (time.monotonic() - started)
