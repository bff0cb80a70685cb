"""The store compared with a raw memmap, the original project's HDF5 files and zarr: size, and speed in shuffled order.

    python benchmarks/store.py [--megabytes 2000] [--folder FOLDER] [--rounds 3]

All hold the same random numbers in the shape of all-MiniLM-L6-v2's states (7 layers of size 384) and with the lengths
of SQuAD 2.0's train windows (`reading_order.read_train`): every n-th window, so that the unpadded float32 numbers take
--megabytes. Nine times as much is written, and removed at the end.

- ours: `StoredSource` with its defaults, each dtype.
- memmap: one file of the same stored bytes, (token, layer, hidden). Each window is copied from the mapping into a new
  batch; nothing is read ahead. This is the reference for ours.
- hdf5: the original project's layout, (window, 384, layer, hidden) in padded float32, one window per chunk. The file is
  opened once, or for each batch, as in the original.
- zarr: (token, layer, hidden), unpadded, in chunks of 1 MB, with and without its default compression. Random numbers
  hardly compress, so only the time matters. zarr has no bfloat16.

An epoch is every window once, shuffled, 16 per batch. "stored" ends when a batch is in memory in its stored form,
contiguous; "float32" when it is a float32 tensor. Cold: no page of the files is in memory (pages are dropped, and that
is verified), and the reader is opened in a new process. Warm: the same reader repeats the same epoch; the median of up
to three. Rounds cycle through all readers; the median counts. The last table, from `reading_order`, models a spinning
disk.
"""

import argparse
import ctypes
import mmap
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from reading_order import (
    BERT_LARGE,
    MAX_LENGTH,
    MINILM,
    ROWS,
    Train,
    build_table,
    contents_of,
    make_features,
    read_train,
    tabulate_order,
)
from rich.console import Console
from rich.table import Table

from bertvision.data.packing import plan_batches
from bertvision.encoder.states import HiddenStates, PackedTokens
from bertvision.sources.store import DTYPES, Store, StoredSource, StoreWriter, build_identity, open_location
from bertvision.sources.store.dtypes import TORCH, from_stored, to_stored

try:
    import h5py
    import zarr
except ImportError as error:
    raise SystemExit(f"{error.name} is missing: pip install h5py 'zarr>=3'") from None

TRAIN_QUESTIONS = 130_319  # in the official train set of SQuAD 2.0
TARGETS = {"bfloat16": 0.23, "float16": 0.23, "int8": 0.12}
NUMPY = {"float32": np.float32, "bfloat16": np.int16, "float16": np.float16, "int8": np.int8}
HDF5, HDF5_AGAIN = "hdf5, padded, opened once", "hdf5, padded, opened for each batch"
ZARR, ZARR_COMPRESSED = "zarr, no compression", "zarr, default compression"
CHUNK = 1 << 20  # bytes per zarr chunk
PIECE = 1 << 14  # tokens written at once

Epoch = Callable[[], Iterator[Any]]


def token_bytes(dtype: str) -> int:
    return contents_of(MINILM, dtype).record_bytes("tokens")


@dataclass(frozen=True)
class Windows:
    """The lengths of windows stored end to end, and the batches of an epoch."""

    lengths: np.ndarray  # (window)

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    @property
    def plan(self) -> list[np.ndarray]:
        return plan_batches(self.lengths, 1, 0, rows=ROWS).epochs[0]

    def shape(self, dtype: str) -> tuple[int, int, int]:
        return contents_of(MINILM, dtype).shape("tokens", len(self.lengths), self.tokens)

    def gather(self, stored: Any) -> Iterator[np.ndarray]:
        """Yield each batch as a new array with its windows end to end."""
        starts = np.cumsum(self.lengths) - self.lengths  # (window)
        for windows in self.plan:
            batch = np.empty((int(self.lengths[windows].sum()), *stored.shape[1:]), stored.dtype)
            filled = 0
            for window in windows:
                start, length = starts[window], self.lengths[window]
                batch[filled : filled + length] = stored[start : start + length]
                filled += length
            yield batch  # (token, layer, hidden)


@dataclass(frozen=True)
class Reader:
    """One way to read the batches."""

    name: str
    dtype: str
    path: Path

    @property
    def padded(self) -> bool:
        return self.name in (HDF5, HDF5_AGAIN)

    @property
    def files(self) -> list[Path]:
        return [path for path in self.path.rglob("*") if path.is_file()] if self.path.is_dir() else [self.path]

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    def open(self, windows: Windows, form: str) -> Epoch:
        """Return a function that reads an epoch, as "stored" bytes or as "float32" tensors."""
        if self.name == "ours":
            source = StoredSource(Store.open(self.path), make_features(windows.lengths), windows.plan, ("tokens",))
            return source.stored if form == "stored" else source.batches
        epoch = self._open_stored(windows)
        if form == "stored":
            return epoch
        return lambda: (from_stored(torch.from_numpy(x).view(TORCH[self.dtype]), torch.float32) for x in epoch())

    def _open_stored(self, windows: Windows) -> Epoch:
        if self.name == "memmap":
            mapped = np.memmap(self.path, NUMPY[self.dtype], "r", shape=windows.shape(self.dtype))
            return lambda: windows.gather(mapped)
        if not self.padded:
            array = zarr.open_array(self.path, mode="r")
            return lambda: windows.gather(array)
        if self.name == HDF5:
            opened = h5py.File(self.path, "r")
            return lambda: (read_padded(opened, batch) for batch in windows.plan)
        return lambda: (read_padded(self.path, batch) for batch in windows.plan)


def read_padded(file: Any, windows: np.ndarray) -> np.ndarray:
    """Read a batch in the original project's layout from an open file or a path."""
    if isinstance(file, Path):
        with h5py.File(file, "r") as opened:
            return read_padded(opened, windows)
    data = file["hidden_states"]
    batch = np.empty((len(windows), *data.shape[1:]), np.float32)  # (window, token, layer, hidden)
    for row, window in enumerate(windows):
        data.read_direct(batch, np.s_[window], np.s_[row])
    return batch


# ---------------------------------------------------------------------- writing


class Numbers:
    """Random numbers, drawn once, and the code that writes them in each format."""

    def __init__(self, folder: Path, windows: Windows) -> None:
        self.folder, self.windows = folder, windows
        self.drawn = np.memmap(folder / "drawn", np.float32, "w+", shape=windows.shape("float32"))
        generator = np.random.default_rng(0)
        for first in range(0, windows.tokens, PIECE):
            piece = self.drawn[first : first + PIECE]  # (token, layer, hidden)
            piece[:] = generator.standard_normal(piece.shape, np.float32)

    def write_all(self) -> list[Reader]:
        readers = []
        for dtype in DTYPES:
            readers += [self.write_memmap(dtype), self.write_ours(dtype)]
        padded = self.write_padded()
        readers += [Reader(HDF5, "float32", padded), Reader(HDF5_AGAIN, "float32", padded)]
        readers += [
            self.write_zarr(*form) for form in ((ZARR, "float32"), (ZARR, "float16"), (ZARR_COMPRESSED, "float32"))
        ]
        os.sync()  # pages that are not on disk yet can't be dropped
        return readers

    def stored(self, dtype: str) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the numbers in their stored form, piece by piece."""
        for first in range(0, self.windows.tokens, PIECE):
            some = slice(first, min(first + PIECE, self.windows.tokens))
            stored = to_stored(torch.from_numpy(np.array(self.drawn[some])), dtype)  # (token, layer, width)
            yield some, stored.view(torch.int16).numpy() if dtype == "bfloat16" else stored.numpy()

    def write_memmap(self, dtype: str) -> Reader:
        path = self.folder / f"memmap-{dtype}"
        with path.open("wb") as file:
            for _, stored in self.stored(dtype):
                file.write(stored.data)
        return Reader("memmap", dtype, path)

    def write_ours(self, dtype: str) -> Reader:
        path, contents = self.folder / f"ours-{dtype}", contents_of(MINILM, dtype)
        identity = build_identity(contents, "drawn", "none", "drawn", {"max_length": MAX_LENGTH}, "drawn", "float32")
        features, encoder = make_features(self.windows.lengths), LookUp(self.drawn)
        ids = [str(window) for window in range(len(features))]
        writer = StoreWriter(open_location(path), encoder, features, ids, contents, identity)  # type: ignore[arg-type]
        writer.write()
        assert writer.finish()
        return Reader("ours", dtype, path)

    def write_zarr(self, name: str, dtype: str) -> Reader:
        path, shape = self.folder / f"{name}-{dtype}", self.windows.shape(dtype)
        chunks = (CHUNK // token_bytes(dtype), *shape[1:])
        how = None if name == ZARR else "auto"
        array = zarr.create_array(path, shape=shape, chunks=chunks, dtype=dtype, compressors=how)
        for some, stored in self.stored(dtype):
            array[some] = stored
        return Reader(name, dtype, path)

    def write_padded(self) -> Path:
        path, lengths = self.folder / "padded.h5", self.windows.lengths
        shape = (len(lengths), MAX_LENGTH, MINILM.layers, MINILM.hidden)
        with h5py.File(path, "w") as file:
            data = file.create_dataset("hidden_states", shape, "float32", chunks=(1, *shape[1:]))
            for window, stop in enumerate(np.cumsum(lengths)):
                padded = np.zeros(shape[1:], np.float32)  # (token, layer, hidden)
                padded[: lengths[window]] = self.drawn[stop - lengths[window] : stop]
                data[window] = padded
        return path


class LookUp:
    """A fake encoder: a token's id is the position of its states among the drawn numbers."""

    shape = MINILM

    def __init__(self, drawn: np.ndarray) -> None:
        self.drawn = drawn  # (token, layer, hidden)

    def eval(self) -> "LookUp":
        return self

    def __call__(self, tokens: PackedTokens, keep: Iterable[str]) -> HiddenStates:
        return HiddenStates(tokens.lengths, tokens=torch.from_numpy(self.drawn[tokens.input_ids.numpy()]))


# ---------------------------------------------------------------------- measuring


class Times(NamedTuple):
    cold: float
    """Seconds per epoch."""
    warm: float
    others: float
    """Cores used by other processes in the meantime."""


def check_alike(readers: list[Reader], windows: Windows) -> None:
    """Check that ours and the memmap return the same stored bytes for every batch."""
    for dtype in DTYPES:
        memmap, ours = (
            r.open(windows, "stored")() for r in readers if r.dtype == dtype and r.name in ("memmap", "ours")
        )
        for one, other in zip(memmap, ours, strict=True):
            assert one.tobytes() == other["tokens"].view(torch.uint8).numpy().tobytes()


def measure(readers: list[Reader], windows: Windows, rounds: int) -> dict[tuple[Reader, str], Times]:
    """Return the median times of each reader, for "stored" and for "float32"."""
    found: dict[tuple[Reader, str], list[Times]] = {}
    # One process per reader: memory freed by an earlier reader would change the timing.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bertvision.sources.store", "bertvision.encoder.loading", "h5py", "zarr"])
    for _ in range(rounds):
        for reader in readers:
            for form in ("stored", "float32"):
                drop_pages(reader.files)
                with ProcessPoolExecutor(1, context) as pool:
                    times = pool.submit(time_epochs, reader, windows, form).result()
                found.setdefault((reader, form), []).append(times)
            drop_pages(reader.files)  # make room for the next reader
    return {key: Times(*map(statistics.median, zip(*times, strict=True))) for key, times in found.items()}


def time_epochs(reader: Reader, windows: Windows, form: str) -> Times:
    """Time the first epoch, including opening, and up to three more (only one if they take long)."""
    started, own, all_ = time.perf_counter(), time.process_time(), busy_seconds()
    epoch, seconds = reader.open(windows, form), []
    while len(seconds) < 4 and (len(seconds) < 2 or sum(seconds) < 10):
        before = time.perf_counter() if seconds else started
        for _ in epoch():
            pass
        seconds.append(time.perf_counter() - before)
    others = (busy_seconds() - all_) - (time.process_time() - own)
    return Times(seconds[0], statistics.median(seconds[1:]), others / (time.perf_counter() - started))


def busy_seconds() -> float:
    """CPU seconds of all processes since boot."""
    times = psutil.cpu_times()
    return times.user + times.system


def drop_pages(files: list[Path]) -> None:
    """Drop the files from the page cache. Pages that are mapped, or not on disk yet, would stay."""
    left = 0
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            left += count_resident(file)
    assert left * mmap.PAGESIZE < 1 << 20, f"{left:,} pages of {files[0]} are still in memory: can't measure cold reads"


def count_resident(file: Any) -> int:
    """Number of pages of a file that are in memory."""
    size = os.fstat(file.fileno()).st_size
    if not size:
        return 0
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    mapped = np.memmap(file, np.uint8, "r")
    assert not ctypes.CDLL(None).mincore(ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(size), pages)
    return int((np.frombuffer(pages, np.uint8) & 1).sum())


# ---------------------------------------------------------------------- tables


def tabulate_sizes(readers: list[Reader], windows: Windows, train: Train) -> Table:
    padded = len(windows.lengths) * MAX_LENGTH * token_bytes("float32")
    scale = TRAIN_QUESTIONS / train.questions
    tokens_there, windows_there = scale * int(train.features.lengths.sum()), scale * len(train.features)
    note = (
        f"{len(windows.lengths):,} windows, {windows.tokens:,} tokens. The sizes for the whole train set and for "
        f"BERT-large (25 layers of size 1,024) are calculated: bytes per token times {tokens_there:,.0f} tokens "
        f"({TRAIN_QUESTIONS:,} questions, extrapolated from those read)."
    )
    columns = ("form", "dtype", "MB", "of padded float32", "target", "train set GB", "BERT-large GB")
    table = build_table("Size", note, columns, left=2)
    for reader in readers:
        if reader.name == HDF5_AGAIN:  # the same file
            continue
        here = padded if reader.padded else windows.tokens * token_bytes(reader.dtype)
        entries = (windows_there * MAX_LENGTH if reader.padded else tokens_there) * reader.bytes / here
        whole = [entries * contents_of(s, reader.dtype).record_bytes("tokens") for s in (MINILM, BERT_LARGE)]
        target = TARGETS.get(reader.dtype) if reader.name == "ours" else None
        table.add_row(
            reader.name, reader.dtype, f"{reader.bytes / 1e6:,.0f}", f"{reader.bytes / padded:.3f}",
            f"≤ {target}" if target else "", *(f"{size / 1e9:,.0f}" for size in whole),
        )  # fmt: skip
    return table


def tabulate_rates(
    readers: list[Reader],
    windows: Windows,
    times: dict[tuple[Reader, str], Times],
    temperature: str,
) -> Table:
    others = statistics.median(found.others for found in times.values())
    note = (
        f"{len(windows.plan)} batches of {ROWS} windows; {os.cpu_count()} cores, {others:.1f} of them used by other "
        f"processes; load average {os.getloadavg()[2]:.1f} (15 minutes); torch threads: {torch.get_num_threads()}. "
        "MB are counted in the batch, including padding. ×: windows per second relative to the memmap of the same "
        "dtype; the target for ours is 0.8. Ours reads with several threads, the others with one."
    )
    columns = ["form", "dtype"]
    for form in ("stored", "float32"):
        columns += [f"{form} MB/s", "windows/s", "tokens/s", "×"]
    table = build_table(f"Shuffled batches, {temperature}", note, columns, left=2)
    limits = {reader.dtype: reader for reader in readers if reader.name == "memmap"}
    for reader in readers:
        size = (len(windows.lengths) * MAX_LENGTH if reader.padded else windows.tokens) * token_bytes(reader.dtype)
        row = [reader.name, reader.dtype]
        for form in ("stored", "float32"):
            took, limit = (getattr(times[r, form], temperature) for r in (reader, limits[reader.dtype]))
            rates = size / 1e6 / took, len(windows.lengths) / took, windows.tokens / took
            row += [*(f"{rate:,.0f}" for rate in rates), f"{limit / took:.2f}"]
        table.add_row(*row)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=2000)
    parser.add_argument("--folder", help="folder on the disk to measure (default: the system's temporary folder)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the files are removed in this case as well
    console = Console(width=150)
    train = read_train()
    console.print(train.origin)
    lengths = train.features.lengths.astype(np.int64)  # (window)
    count = min(len(lengths), round(1e6 * options.megabytes / token_bytes("float32") / lengths.mean()))
    windows = Windows(lengths[np.linspace(0, len(lengths) - 1, count).astype(int)])
    with tempfile.TemporaryDirectory(prefix="store-", dir=options.folder) as folder:
        readers = Numbers(Path(folder), windows).write_all()
        check_alike(readers, windows)
        console.print(tabulate_sizes(readers, windows, train))
        times = measure(readers, windows, options.rounds)
        for temperature in ("cold", "warm"):
            console.print(tabulate_rates(readers, windows, times, temperature))
    console.print(tabulate_order(train))


if __name__ == "__main__":
    main()
