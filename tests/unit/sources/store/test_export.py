"""Export: the HDF5 file has the encoder's states, padded, in the original project's layout, and is never partial."""

import resource
import shutil
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tiny_stores import TinyStore, write_tiny_store

from bertvision.errors import UserError
from bertvision.progress import Bar
from bertvision.sources.store import Store, export
from bertvision.sources.store.export import count_bytes, export_hdf5

PARTS = ("tokens", "cls", "mean")
TOLERANCE = {"float32": 1e-6, "float16": 2**-11, "bfloat16": 2**-8, "int8": 1 / 254}


class Counting(Bar):
    def __init__(self) -> None:
        self.done = 0.0

    def advance(self, amount: float, note: str = "") -> None:
        self.done += amount


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TinyStore:
    return write_tiny_store(tmp_path_factory.mktemp("store"), "float32", PARTS)


@pytest.fixture(scope="module")
def store(made: TinyStore) -> Store:
    return Store.open(made.location)


def assert_close(found: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    """Within the rounding of the stored dtype, relative to each state's largest value, plus that of the encoder."""
    assert found.shape == expected.shape
    largest = np.abs(expected).max(axis=-1, keepdims=True)
    assert (np.abs(found - expected) <= (TOLERANCE[dtype] + 2e-6) * largest).all()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_file_holds_the_encoders_states_padded_with_zeros(dtype: str, tmp_path: Path) -> None:
    made = write_tiny_store(tmp_path / "store", dtype, PARTS)
    export_hdf5(Store.open(made.location), tmp_path / "states.h5")
    lengths, hidden = made.features.lengths, 32
    with h5py.File(tmp_path / "states.h5") as file:
        assert file["embeds"].shape == (len(lengths), 4, lengths.max(), hidden)
        assert file["cls"].shape == (len(lengths), 5, hidden) and file["cls"].attrs["pooled"]
        assert file["mean"].shape == (len(lengths), 4, hidden) and not file["mean"].attrs["pooled"]
        assert lengths.min() < lengths.max(), "some windows are padded"
        for window, length in enumerate(lengths):
            states = file["embeds"][window]  # (layer, position, hidden)
            assert not states[:, length:].any()
            assert_close(states[:, :length].transpose(1, 0, 2), made.states_of(window, "tokens"), dtype)
            assert_close(file["cls"][window][None], made.states_of(window, "cls"), dtype)
            assert_close(file["mean"][window][None], made.states_of(window, "mean"), dtype)


def test_chunks_are_of_one_window_and_numbers_are_float32(store: Store, tmp_path: Path) -> None:
    export_hdf5(store, tmp_path / "states.h5")
    with h5py.File(tmp_path / "states.h5") as file:
        for name in ("embeds", "cls", "mean"):
            assert file[name].dtype == np.float32
            assert file[name].chunks == (1, *file[name].shape[1:])


@pytest.mark.parametrize("task", ["squad2", "stsb"])
def test_targets_examples_and_ids_are_those_of_the_data(task: str, tmp_path: Path) -> None:
    made = write_tiny_store(tmp_path / "store", parts=("cls",), task=task)
    export_hdf5(Store.open(made.location), tmp_path / "states.h5")
    features = made.features
    with h5py.File(tmp_path / "states.h5") as file:
        assert "embeds" not in file and "mean" not in file
        assert list(file["ids"].asstr()) == made.ids
        for name, expected in (
            ("lengths", features.lengths),
            ("indices", features.example),
            ("start_ids", features.start),
            ("end_ids", features.end),
            ("labels", features.target),
            ("layers", np.arange(4)),
        ):
            np.testing.assert_array_equal(file[name], expected, err_msg=name)
    if task == "stsb":
        assert len(set(features.target.tolist())) > 2
    else:
        assert features.end.any()


def test_memory_stays_small(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, padded = tmp_path / "whole.h5", []
    export_hdf5(store, whole)
    monkeypatch.setattr(export, "MEMORY", 60_000)
    pad = export._pad

    def watch(*arguments: Any) -> np.ndarray:
        made = pad(*arguments)
        padded.append(made.nbytes)
        return made

    monkeypatch.setattr(export, "_pad", watch)
    bar = Counting()
    export_hdf5(store, tmp_path / "pieces.h5", bar)
    assert len(padded) > 5 and max(padded) <= 60_000
    assert bar.done == len(PARTS) * len(store)
    with h5py.File(whole) as one, h5py.File(tmp_path / "pieces.h5") as other:
        for name in ("embeds", "cls", "mean"):
            np.testing.assert_array_equal(one[name][:], other[name][:])


def test_the_estimate_holds(store: Store, tmp_path: Path) -> None:
    export_hdf5(store, tmp_path / "states.h5")
    size = (tmp_path / "states.h5").stat().st_size
    estimate = count_bytes(store)
    assert size <= estimate <= size * 1.02 + export.SMALL


def test_a_full_disk_is_reported_before_writing(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2_000, 1_000, 1_000))
    with pytest.raises(UserError, match=r"need \d MB, but only 0 MB are free.*--hdf5"):
        export_hdf5(store, tmp_path / "folder" / "states.h5")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("room", [1_000, 100_000, 400_000])
def test_a_disk_that_fills_up_leaves_no_file(
    store: Store, tmp_path: Path, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A limit on file size acts like a full disk. HDF5 itself crashes on one (mostly with 1,000 bytes), so it must
    # not have been opened.
    monkeypatch.setattr(h5py, "File", lambda *_: pytest.fail("HDF5 was opened on a full disk"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(UserError, match="File too large"):
            export_hdf5(store, tmp_path / "states.h5")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_not_overwritten(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "states.h5"
    file.write_bytes(b"mine")
    with pytest.raises(UserError, match="already exists and is not overwritten"):
        export_hdf5(store, file)
    assert file.read_bytes() == b"mine"
    with pytest.raises(UserError, match="already exists and is not overwritten"):
        export_hdf5(store, tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        export_hdf5(store, file / "states.h5")
    with pytest.raises(UserError, match="expected a local file"):
        export_hdf5(store, "s3://bucket/states.h5")
    assert list(tmp_path.iterdir()) == [file]


def test_an_interrupted_export_leaves_no_file(store: Store, tmp_path: Path) -> None:
    class Stopping(Bar):
        def advance(self, amount: float, note: str = "") -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_hdf5(store, tmp_path / "states.h5", Stopping())
    assert not list(tmp_path.iterdir())


def test_without_h5py_the_error_names_the_package(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"pip install 'bertvision\[hdf5\]'"):
        export_hdf5(store, tmp_path / "states.h5")
