"""Shards that a worker writes from a row: the bytes of one process, without Ray."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tiny_stores import begin_tiny_store, tiny_encoder, write_tiny_store

from bertvision.cluster.shards import _check_encoder, _to_row, _waves, open_shards
from bertvision.encoder import loading
from bertvision.errors import UserError
from bertvision.sources.store import Store

pytest.importorskip("pyarrow")


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name.startswith("states-")}


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_a_worker_writes_the_bytes_of_one_process(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: Any = ("tokens", "cls", "mean")
    write_tiny_store(tmp_path / "plain", dtype, parts)
    tiny = begin_tiny_store(tmp_path / "store", dtype, parts)
    writer = tiny.writer
    monkeypatch.setattr("bertvision.cluster.shards.load_encoder", lambda *_, **__: tiny_encoder())
    monkeypatch.setattr("bertvision.cluster.shards.weights_stamp", lambda _: "weights")
    encoder = {
        "name": "x",
        "weights": "weights",
        "device": "cpu",
        "dtype": "float32",
        "attention": "auto",
        "layers": None,
    }
    store = {
        "location": str(writer.location),
        "contents": dataclasses.asdict(writer.contents),
        "fingerprint": writer.fingerprint,
        "encode_tokens": writer.encode_tokens,
    }
    work, beats = open_shards(encoder, store), list[float]()

    def make(own: Any, shards: Any) -> None:
        for wave in _waves(own, shards, 1):
            for row in wave[0].to_pylist():
                found = work(row, beats.append)
                assert (tmp_path / "store" / found["file"]).stat().st_size == found["bytes"]

    writer.write(make=make)
    assert writer.finish() and len(files_of(tmp_path / "store")) > 5
    assert files_of(tmp_path / "store") == files_of(tmp_path / "plain")
    assert Store.open(tmp_path / "store", tiny.identity).ids() == tiny.ids
    assert sum(beats) >= writer.features.lengths.sum()


def test_waves_are_bounded_and_complete(tmp_path: Path) -> None:
    writer = begin_tiny_store(tmp_path / "store", "float16", ("tokens",)).writer
    shards = writer.missing()
    one = _to_row(0, shards[0], writer.features, writer.ids).nbytes
    for most in (1, 3 * one, 10**9):
        waves = list(_waves(writer, shards, most))
        rows = [row for wave in waves for table in wave for row in table.to_pylist()]
        assert [(row["first"], row["stop"]) for row in rows] == [(shard.first, shard.stop) for shard in shards]
        assert all(sum(table.nbytes for table in wave[:-1]) < most for wave in waves)


def test_an_encoder_that_is_not_on_the_node_or_differs_is_refused(tiny_encoder_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no folder .*on a disk that all machines share"):
        _check_encoder(str(tmp_path / "run/snapshots/epoch_1/encoder"), "x")
    with pytest.raises(UserError, match="has other weights than here"):
        _check_encoder(str(tiny_encoder_folder), "x")
    _check_encoder(str(tiny_encoder_folder), loading.weights_stamp(str(tiny_encoder_folder)))
