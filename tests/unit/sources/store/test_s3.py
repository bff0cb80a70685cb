"""A store at a URL: a real S3 server on loopback, and memory, behave like a folder."""

import gc
import hashlib
import socket
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from s3_server import forget_server
from tiny_stores import TinyStore, begin_tiny_store, write_tiny_store

from bertvision.data.packing import plan_batches
from bertvision.errors import UserError
from bertvision.sources.store import Store, StoredSource, open_location
from bertvision.sources.store.format import MANIFEST, WRITING
from bertvision.sources.store.location import Location
from bertvision.sources.store.upkeep import list_stores, remove_store, verify_store

s3fs = pytest.importorskip("s3fs")
pytestmark = pytest.mark.usefixtures("credentials")


@pytest.fixture(params=["s3", "memory"])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/runs/store"
    return f"memory://{uuid.uuid4()}/runs/store"


def files_of(path: str | Path) -> dict[str, str]:
    place = open_location(path)
    return {name: hashlib.sha256(place.read(name)).hexdigest() for name in place.sizes()}


def shards_of(path: str | Path) -> dict[str, str]:
    return {name: digest for name, digest in files_of(path).items() if name.startswith("states-")}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> TinyStore:
    return write_tiny_store(tmp_path_factory.mktemp("local"), "float16", ("tokens", "mean"))


def begin(address: str, **changes: Any) -> TinyStore:
    return begin_tiny_store(address, "float16", ("tokens", "mean"), **changes)


def write(address: str) -> TinyStore:
    return write_tiny_store(address, "float16", ("tokens", "mean"))


def flip(address: str, name: str, place: int) -> None:
    files = open_location(address)
    data = bytearray(files.read(name))
    data[place] ^= 8
    files.write(name, [memoryview(bytes(data))])


# ---------------------------------------------------------------------- whole stores


def test_a_store_at_a_url_has_the_files_of_a_local_one(address: str, local: TinyStore) -> None:
    write(address)
    assert shards_of(address) == shards_of(str(local.location))
    assert files_of(address).keys() == files_of(str(local.location)).keys()


def test_batches_read_from_a_url_equal_those_of_a_local_store(address: str, local: TinyStore) -> None:
    tiny = write(address)
    plan = sum(plan_batches(tiny.features.lengths, 2, 0, rows=4).epochs, [])
    sources = (
        StoredSource(store, tiny.features, plan, ("tokens", "mean"), memory=100_000)
        for store in (Store.open(address, tiny.identity), Store.open(local.location, local.identity))
    )
    count = 0
    for found, expected in zip(*(source.batches() for source in sources), strict=True):
        assert found.windows.tolist() == expected.windows.tolist()
        for part in ("tokens", "mean"):
            assert torch.equal(found.states.read(part), expected.states.read(part))
        count += 1
    assert count == len(plan)


def test_facts_and_ids_are_read_from_a_url(address: str, local: TinyStore) -> None:
    write(address)
    found, expected = Store.open(address), Store.open(local.location)
    assert found.ids() == expected.ids() == local.ids
    facts = found.facts()
    for name, values in expected.facts().items():
        np.testing.assert_array_equal(facts[name], values)


# ---------------------------------------------------------------------- cut off and damaged


class CutOffError(Exception):
    pass


@pytest.mark.parametrize("done", [0, 5, 10])
def test_an_interrupted_write_resumes(
    address: str, local: TinyStore, done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write_file = Location.write

    def cut(self: Location, name: str, pieces: Any) -> None:
        if len(written) == done:
            raise CutOffError
        write_file(self, name, pieces)
        written.append(name)

    with monkeypatch.context() as patch:
        patch.setattr(Location, "write", cut)
        with pytest.raises(CutOffError):
            write(address)
    assert sorted(open_location(address).sizes()) == sorted(written)
    with pytest.raises(UserError, match="is incomplete" if written else "no store at"):
        Store.open(address)
    again: list[str] = []

    def note(self: Location, name: str, pieces: Any) -> None:
        again.append(name)
        write_file(self, name, pieces)

    monkeypatch.setattr(Location, "write", note)
    tiny = begin(address)
    tiny.writer.write()
    assert tiny.writer.finish()
    assert not {name for name in written if name.startswith("states-")} & set(again)
    assert shards_of(address) == shards_of(str(local.location)) and verify_store(address) == []


@pytest.mark.parametrize("megabytes", [1, 120])
def test_a_file_written_bit_by_bit_is_there_whole_or_not_at_all(bucket: str, megabytes: int) -> None:
    """Large files are uploaded in parts, and the parts of one that failed are removed."""
    place, data = open_location(f"{bucket}/out"), b"0123456789abcdef" * (1 << 16)
    with pytest.raises(CutOffError), place.writing("a") as file:
        for _ in range(megabytes):
            file.write(data)
        raise CutOffError
    del file
    gc.collect()
    assert place.sizes() == {} and not place.files.list_multipart_uploads(bucket.removeprefix("s3://"))
    with place.writing("a") as file:
        for _ in range(megabytes):
            file.write(data)
    assert place.sizes() == {"a": megabytes << 20}


def test_several_writers_share_a_url(address: str, local: TinyStore) -> None:
    one, other = begin(address), begin(address)
    one.writer.write((0, 2))
    assert not one.writer.finish()
    other.writer.write((1, 2))
    assert other.writer.finish()
    assert shards_of(address) == shards_of(str(local.location))
    assert files_of(address).keys() == files_of(str(local.location)).keys()


def test_changes_by_other_processes_at_a_url_are_seen_immediately(bucket: str) -> None:
    place = open_location(f"{bucket}/store")
    place.write("a", [memoryview(b"x")])
    assert set(place.sizes()) == {"a"} and place.subfolders() == []
    others = s3fs.S3FileSystem(skip_instance_cache=True)  # as in another process
    root = f"{bucket.removeprefix('s3://')}/store"
    others.pipe_file(f"{root}/b", b"yy")
    others.pipe_file(f"{root}/deep/c", b"")
    others.rm_file(f"{root}/a")
    assert place.sizes() == {"b": 2} and place.subfolders() == [f"{bucket}/store/deep"]
    place.remove("a")


def test_damage_at_a_url_is_found_and_repaired(address: str, local: TinyStore) -> None:
    write(address)
    names = sorted(shards_of(address))
    place = open_location(address)
    flip(address, names[1], 3000)
    place.write(names[4], [memoryview(place.read(names[4])[:-10])])
    place.write(names[5], [])
    place.remove(names[7])
    found = verify_store(address)
    assert [(entry.file, entry.first, entry.stop) for entry in found] == [(names[n], n, n + 1) for n in (1, 4, 5, 7)]
    with pytest.raises(UserError, match="examples 1 to 1"):
        Store.open(address)
    tiny = begin(address)
    assert [shard.first for shard in tiny.writer.missing()] == [1, 4, 5, 7]
    tiny.writer.write()
    assert tiny.writer.finish()
    assert shards_of(address) == shards_of(str(local.location)) and verify_store(address) == []
    assert not [name for name in place.sizes() if name.startswith("damaged")]


def test_a_damaged_manifest_at_a_url_is_rewritten(address: str, local: TinyStore) -> None:
    write(address)
    flip(address, MANIFEST, 50)
    assert [entry.file for entry in verify_store(address)] == [MANIFEST]
    tiny = begin(address)
    assert tiny.writer.missing() == [] and tiny.writer.write() == 0 and tiny.writer.finish()
    Store.open(address, tiny.identity)


def test_a_truncated_shard_is_reported_when_it_is_read(address: str) -> None:
    tiny = write(address)
    store = Store.open(address)
    shard = store.manifest.shards[3]
    store.location.write(shard.file, [memoryview(store.location.read(shard.file)[:5000])])
    windows = np.flatnonzero(tiny.features.example == 3)
    with pytest.raises(UserError) as caught:
        store.read("tokens", windows)
    assert shard.file in str(caught.value) and "examples 3 to 3" in str(caught.value)
    store.location.remove(shard.file)
    with pytest.raises(UserError) as caught:
        store.read("tokens", windows)
    assert shard.file in str(caught.value) and "examples 3 to 3" in str(caught.value)


# ---------------------------------------------------------------------- upkeep


def test_stores_at_a_url_are_listed_and_removed(bucket: str) -> None:
    for name in ("a", "deep/b"):
        write(f"{bucket}/runs/{name}")
    open_location(f"{bucket}/runs").write("notes.txt", [memoryview(b"mine")])
    found = list_stores(f"{bucket}/runs")
    assert [entry.path for entry in found] == [f"{bucket}/runs/a", f"{bucket}/runs/deep/b"]
    assert all(entry.state == "whole" and entry.examples == 9 for entry in found)
    remove_store(f"{bucket}/runs/a")
    assert [entry.path for entry in list_stores(bucket)] == [f"{bucket}/runs/deep/b"]
    assert open_location(f"{bucket}/runs/a").sizes() == {}
    assert open_location(f"{bucket}/runs").read("notes.txt") == b"mine"
    with pytest.raises(UserError, match="no store at"):
        remove_store(f"{bucket}/runs/a")


def test_an_unfinished_store_at_a_url_is_listed_as_unfinished(address: str) -> None:
    begin(address).writer.write((0, 2))
    (found,) = list_stores(address)
    assert found.state == "unfinished" and "5 of 9 shards written" in found.detail
    assert WRITING in open_location(address).sizes()


# ---------------------------------------------------------------------- servers that do not do what they should


def test_a_url_without_a_store_is_reported(bucket: str) -> None:
    with pytest.raises(UserError, match="no store at .*expected"):
        Store.open(f"{bucket}/nothing")


def test_a_missing_bucket_is_reported() -> None:
    address = f"s3://no-such-bucket-{uuid.uuid4()}/store"
    with pytest.raises(UserError) as caught:
        Store.open(address)
    assert address in str(caught.value)
    with pytest.raises(UserError) as caught:
        write(address)
    assert address in str(caught.value) and "check the URL" in str(caught.value)


@pytest.mark.usefixtures("new_client")
def test_an_unreachable_server_is_reported_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        forget_server()
        started = time.monotonic()
        for act in (Store.open, write):
            with pytest.raises(UserError, match="check the URL, the network and the credentials"):
                act("s3://bucket/store")
        assert time.monotonic() - started < 30


@pytest.mark.usefixtures("new_client")
def test_missing_credentials_are_reported(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    forget_server()
    with pytest.raises(UserError, match="credentials"):
        write(f"{bucket}/store")


@pytest.mark.usefixtures("new_client")
def test_a_server_failure_loses_no_finished_shards(
    bucket: str, local: TinyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, calls = f"{bucket}/store", 0
    pipe = s3fs.S3FileSystem._pipe_file

    async def fail(self: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 4:
            raise OSError(5, "We encountered an internal error. Please try again.")
        return await pipe(self, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(s3fs.S3FileSystem, "_pipe_file", fail)
        forget_server()
        with pytest.raises(UserError, match="internal error.*Files that were finished there are safe"):
            write(address)
    forget_server()
    assert len(shards_of(address)) == 3
    tiny = begin(address)
    assert len(tiny.writer.missing()) == 6
    tiny.writer.write()
    assert tiny.writer.finish() and shards_of(address) == shards_of(str(local.location))
