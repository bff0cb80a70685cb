"""Export a store to one HDF5 file in the layout of the original project: padded float32, one window per chunk.

docs/store_format.md lists the datasets.
"""

import importlib
import io
import os
import shutil
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from bertvision.disk import clear_disk_errors, existing_folder, writing_file
from bertvision.encoder.states import Part
from bertvision.errors import UserError
from bertvision.progress import Bar
from bertvision.sources.store.dtypes import from_stored
from bertvision.sources.store.reader import StateReader, Store

MEMORY = 128 << 20  # bytes of padded states in memory at once, at least one window
SMALL = 1 << 20  # space for the file's own tables, in addition to 64 bytes per chunk
TEXT = 64  # HDF5's overhead per string
FACTS = {"lengths": "lengths", "start_ids": "start", "end_ids": "end", "labels": "target", "indices": "example"}


def export_hdf5(store: Store, file: str | Path, bar: Bar | None = None) -> None:
    """Write a store's states, padded and in float32, to a new HDF5 file.

    `bar` advances by windows, once for each part.
    """
    h5py = _import_h5py()
    path = _check_file(file)
    needed = count_bytes(store)
    _check_room(path, needed)
    with clear_disk_errors(path, "--hdf5"), writing_file(path) as output:
        _reserve(output, needed)
        # HDF5 opens an empty HDF5 file, grows into the reserved space, and truncates the rest on closing.
        output.write(_empty_file(h5py))
        output.flush()
        _write_file(h5py, output.name, store, bar or Bar())


def _write_file(h5py: Any, path: str, store: Store, bar: Bar) -> None:
    facts = store.facts()
    with h5py.File(path, "r+", locking=False) as made:
        made.attrs["store"] = store.manifest.fingerprint
        made.attrs["dtype"] = store.contents.dtype
        made.create_dataset("ids", data=store.ids(), dtype=h5py.string_dtype())
        made.create_dataset("layers", data=np.array(store.contents.layers, dtype=np.int64))
        for name, fact in FACTS.items():
            made.create_dataset(name, data=facts[fact])
        for part in store.contents.parts:
            _export_part(made, store, part, facts["lengths"], bar)


def _reserve(file: IO[bytes], size: int) -> None:
    """Reserve all disk space in advance: HDF5 crashes when a write fails."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:  # macOS
        for first in range(0, size, MEMORY):
            file.write(bytes(min(MEMORY, size - first)))
        file.seek(0)


def _empty_file(h5py: Any) -> bytes:
    data = io.BytesIO()
    h5py.File(data, "w").close()
    return data.getvalue()


def count_bytes(store: Store) -> int:
    """Upper bound of the file's size, padded and in float32."""
    contents, lengths = store.contents, store.facts()["lengths"]
    longest = int(lengths.max(initial=0))
    rows = {part: contents.rows(part) * (longest if part == "tokens" else 1) for part in contents.parts}
    states = sum(4 * len(lengths) * count * contents.hidden for count in rows.values())
    texts = sum(len(name.encode()) + TEXT for name in store.ids())
    return states + texts + SMALL + 64 * len(lengths) * (len(rows) + len(FACTS))


def _export_part(made: Any, store: Store, part: Part, lengths: np.ndarray, bar: Bar) -> None:
    contents = store.contents
    rows, longest = contents.rows(part), int(lengths.max(initial=0))
    shape = (rows, longest, contents.hidden) if part == "tokens" else (rows, contents.hidden)
    name = "embeds" if part == "tokens" else part
    dataset = made.create_dataset(name, (len(lengths), *shape), np.float32, chunks=(1, *shape))
    dataset.attrs["pooled"] = contents.pooled and part == "cls"
    reading, step = StateReader(store, (part,), lengths), max(1, MEMORY // (4 * int(np.prod(shape))))
    for first in range(0, len(lengths), step):
        windows = np.arange(first, min(first + step, len(lengths)))
        stored = reading.fetch([windows])[0][part]
        states = from_stored(stored, torch.float32).numpy()  # (token or window, layer, hidden)
        dataset[windows[0] : windows[-1] + 1] = _pad(states, lengths[windows], longest) if part == "tokens" else states
        bar.advance(len(windows))


def _pad(states: np.ndarray, lengths: np.ndarray, longest: int) -> np.ndarray:
    padded = np.zeros((len(lengths), states.shape[1], longest, states.shape[2]), dtype=np.float32)
    ends = np.cumsum(lengths)
    for window, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        padded[window, :, :length] = states[end - length : end].transpose(1, 0, 2)
    return padded  # (window, layer, position, hidden)


def _import_h5py() -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError:
        raise UserError("the export to HDF5 needs the package h5py: pip install 'bertvision[hdf5]'.") from None


def _check_file(file: str | Path) -> Path:
    if "://" in str(file):
        raise UserError(f"--hdf5 is '{file}': expected a local file. Export to one, then copy it.")
    path = Path(os.path.expanduser(file))
    if path.exists():
        raise UserError(f"--hdf5: '{path}' already exists and is not overwritten. Choose another file.")
    if path.parent.exists() and not path.parent.is_dir():
        raise UserError(f"--hdf5: '{path.parent}' is not a folder.")
    return path


def _check_room(path: Path, needed: int) -> None:
    folder = existing_folder(path.parent)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"padded and in float32, the states need {needed / 1e6:,.0f} MB, but only {free / 1e6:,.0f} MB are free in "
            f"'{folder}': free some space, or choose a file on another disk for --hdf5."
        )
