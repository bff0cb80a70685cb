"""Write a store on a cluster. Each worker holds the encoder and writes shards to the store's location itself; the token
ids of a shard's windows go there, and the name of the file comes back. States never pass through Ray."""

import dataclasses
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from bertvision.cluster.engine import Cluster, Engine, Work, open_cluster
from bertvision.data.windows import Features
from bertvision.encoder.loading import find_folder, load_encoder, weights_stamp
from bertvision.errors import UserError
from bertvision.machine import Machine
from bertvision.pipeline.job import Job, read_reference
from bertvision.pipeline.states import encode as encode_states
from bertvision.progress import Bar, Reporter
from bertvision.sources.store import Contents, Shard, Store, open_location
from bertvision.sources.store.format import windows_of
from bertvision.sources.store.writer import Make, ShardWriter, StoreWriter

WAVE, LOCAL_WAVE = 1 << 30, 128 << 20
"""Bytes of token ids that are given to Ray at once; the workers are started again for the next ones."""
ARRAYS = {
    "input_ids": "int32", "type_ids": "int8", "lengths": "int32", "example": "int32", "start": "int32", "end": "int32",
    "target": "float32",
}  # fmt: skip
"""What a worker needs of a shard's windows. Character offsets stay here."""


def encode(job: Job, split: str, cluster: Cluster) -> list[Store]:
    """Like `pipeline.states.encode`, on the workers of a cluster."""
    if job.machine.processes > 1:
        raise UserError("--cluster starts its own processes: run the command without `accelerate launch`.")
    with open_cluster(cluster, job.reporter) as engine:
        job.reporter.say(engine.describe())
        return encode_states(job, split, make=lambda epochs: _make(job, epochs, engine))


def _make(job: Job, epochs: float, engine: Engine) -> Make:
    settings = job.config.encoder
    folder = job.folder.encoder(epochs)
    reference = read_reference(folder)
    encoder = {
        "name": reference["name"] if reference else str(folder.absolute()),
        "weights": job.stamps.weights(epochs),
        "device": settings.device,
        "dtype": str(job.machine.dtype).removeprefix("torch."),  # part of the store's identity
        "attention": settings.attention,
        "layers": settings.layers,
    }

    def write(writer: StoreWriter, shards: list[Shard]) -> None:
        # A worker of another machine does not know this one's working directory.
        location = str(writer.location) if "://" in str(writer.location) else os.path.abspath(str(writer.location))
        store = {
            "location": location,
            "contents": dataclasses.asdict(writer.contents),
            "fingerprint": writer.fingerprint,
            "encode_tokens": writer.encode_tokens,
        }
        tokens = sum(shard.tokens for shard in shards)
        with job.reporter.bar(f"encoding into {writer.location}", tokens, "tokens") as bar:
            for wave in _waves(writer, shards, LOCAL_WAVE if engine.is_local else WAVE):
                for _ in engine.run(wave, open_shards, {"encoder": encoder, "store": store}, bar.advance):
                    pass
        writer.location.sweep([shard.stem for shard in shards], engine.hosts())

    return write


def _waves(writer: StoreWriter, shards: list[Shard], most: int) -> Iterator[list[Any]]:
    """The rows of all shards, each a table, in lists of limited size."""
    wave: list[Any] = []
    for number, shard in enumerate(shards):
        wave.append(_to_row(number, shard, writer.features, writer.ids))
        if sum(row.nbytes for row in wave) >= most:
            yield wave
            wave = []
    if wave:
        yield wave


def _to_row(number: int, shard: Shard, features: Features, ids: Sequence[str]) -> Any:
    import pyarrow

    windows = windows_of(features, shard.first, shard.stop)
    some = slice(windows.start, windows.stop)
    first = int(features.starts[windows.start])
    tokens = slice(first, first + shard.tokens)
    row: dict[str, list[Any]] = {"number": [number], "first": [shard.first], "stop": [shard.stop]}
    for name, dtype in ARRAYS.items():
        part = tokens if name in ("input_ids", "type_ids") else some
        row[name] = [np.ascontiguousarray(getattr(features, name)[part], dtype).tobytes()]
    return pyarrow.table({**row, "ids": [list(ids[shard.first : shard.stop])]})


# ---------------------------------------------------------------------- on a worker


def open_shards(encoder: dict[str, Any], store: dict[str, Any]) -> Work:
    """Load the encoder; return what encodes and writes the shard of a row."""
    machine = Machine(encoder["device"], encoder["dtype"], record=False)
    _check_encoder(encoder["name"], encoder["weights"])
    loaded = load_encoder(
        encoder["name"], machine.device, machine.dtype, encoder["attention"], False, layers=encoder["layers"]
    )
    loaded.eval().requires_grad_(False)
    contents = Contents(**store["contents"])
    location = open_location(store["location"])

    def work(row: dict[str, Any], beat: Callable[[float], None]) -> dict[str, Any]:
        features = _to_features(row)
        ids = _Ids(row["ids"], row["first"])
        settings = contents, store["fingerprint"], store["encode_tokens"], _Beating(beat)
        writer = ShardWriter(location, loaded, features, ids, *settings)
        shard, _ = writer.outline(row["first"], row["stop"])
        writer.write_shards([shard])
        (name,) = writer.own
        return {"amount": shard.tokens, "first": shard.first, "bytes": shard.bytes, "file": name}

    return work


def _check_encoder(name: str, weights: str) -> None:
    here = socket.gethostname()
    if name.startswith("/") and not os.path.isdir(name):
        raise UserError(
            f"the machine {here} of the cluster has no folder '{name}', where the encoder is: put the run or the "
            "encoder on a disk that all machines share, or name an encoder of the hub."
        )
    if weights_stamp(name) != weights:
        where = find_folder(name) or "its cache of the hub"
        raise UserError(
            f"the encoder '{name}' on the machine {here} of the cluster ({where}) has other weights than here: copy "
            "the same version to all machines."
        )


def _to_features(row: dict[str, Any]) -> Features:
    arrays: dict[str, Any] = {name: np.frombuffer(row[name], dtype) for name, dtype in ARRAYS.items()}
    lengths = arrays["lengths"].astype(np.int64)  # (window)
    starts = np.cumsum(lengths) - lengths  # (window)
    return Features(starts=starts, offsets=np.zeros((0, 2), dtype=np.int32), **arrays)


class _Ids(Sequence[str]):
    """The ids of some of a store's examples, by their numbers in the store."""

    def __init__(self, ids: list[str], first: int) -> None:
        self.ids, self.first = ids, first

    def __len__(self) -> int:
        return self.first + len(self.ids)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return self.ids[place.start - self.first : place.stop - self.first]
        return self.ids[place - self.first]


class _Beating(Reporter):
    """Tells the driver how many tokens of a shard are encoded."""

    def __init__(self, beat: Callable[[float], None]) -> None:
        self.beat = beat

    def bar(self, title: str, total: float, unit: str) -> Any:
        return _BeatingBar(self.beat)


class _BeatingBar(Bar):
    def __init__(self, beat: Callable[[float], None]) -> None:
        self.beat, self.done = beat, 0.0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def advance(self, amount: float, note: str = "") -> None:
        self.done += amount
        self.beat(self.done)
