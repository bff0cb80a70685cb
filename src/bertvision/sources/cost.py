"""Estimate whether streaming or storing the states is faster, from measured speeds of the encoder and the disk."""

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
FEW_SECONDS = 2.0  # how long to measure the encoder


@dataclass(frozen=True)
class Rates:
    """Measured speeds, per second."""

    encoder_tokens: float
    write_bytes: float
    read_bytes: float


@dataclass(frozen=True)
class Choice:
    """The chosen source of the states, and the reason."""

    source: str
    """ "streamed", "stored", or "memory"."""
    reason: str
    figures: dict[str, float] = field(default_factory=dict)


def weigh(
    passes: float, tokens: int, store_bytes: int, missing: float, rates: Rates, free_bytes: int | None = None
) -> Choice:
    """Choose the faster source for `passes` passes over `tokens` tokens. `missing` is the fraction of the store that is
    not written yet.

    The heads take the same time either way. Encoding and writing overlap, so only the slower of the two counts.
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
        "encoder tokens per second": round(rates.encoder_tokens),
        "disk writes MB per second": round(rates.write_bytes / 1e6) if missing else 0,
        "disk reads MB per second": round(rates.read_bytes / 1e6),
    }
    writing = f"{write:,.0f} s to write and " if missing else ""
    estimate = (
        f"encoding {tokens:,} tokens {passes:.3g} times takes about {streamed:,.0f} s; "
        f"a {'' if missing else 'finished '}store of {store_bytes / 1e6:,.0f} MB takes {writing}{read:,.0f} s to read"
    )
    if missing and free_bytes is not None and free_bytes < ROOM * missing * store_bytes:
        return Choice(STREAMED, f"{estimate}, but only {free_bytes / 1e6:,.0f} MB are free on its disk", figures)
    return Choice(STORED if write + read < streamed else STREAMED, estimate, figures)


# ---------------------------------------------------------------------- measured


def measure_encoder(
    encoder: Encoder, features: Features, keep: Sequence[Part], encode_tokens: int, recorded: bool
) -> float:
    """Measure the frozen encoder in tokens per second, after warm-up batches."""
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
    """Measure how many bytes per second a location writes and reads. A store that fits in memory is read from the page
    cache after the first time. With `writes=False` (a finished store), nothing is written."""
    in_memory = store_bytes < psutil.virtual_memory().available / 2
    if not writes:
        sizes = location.sizes()
        name = max(sizes, key=lambda name: sizes[name])
        return math.inf, _read_rate(location, name, min(PROBE_BYTES, sizes[name]), in_memory)
    if isinstance(location, Folder):
        location = Folder(str(existing_folder(location.folder)))  # an estimate leaves nothing behind
    size, name = PROBE_BYTES, f"{TEMPORARY}probe-{secrets.token_hex(8)}"  # unique: other processes may also measure
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
        with contextlib.suppress(UserError, OSError):  # an error above is more informative
            location.remove(name)


def _read_rate(location: Location, name: str, size: int, in_memory: bool) -> float:
    buffer = bytearray(size)
    if isinstance(location, Folder) and not in_memory and hasattr(os, "posix_fadvise"):
        with open(location.folder / name, "rb") as file:  # drop it from the page cache, so that the disk is measured
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    started = time.monotonic()
    location.read_into(name, [ByteRange(0, [memoryview(buffer)])])
    return size / (time.monotonic() - started)
