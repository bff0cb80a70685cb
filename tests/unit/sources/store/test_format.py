"""The files of a store: other programs can read them, sizes are known in advance, any changed byte is found."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_stores import begin_tiny_store, write_tiny_store
from tiny_training import build_tiny_features

from bertvision.encoder.states import Part, StateShape
from bertvision.errors import UserError
from bertvision.sources.store import DTYPES, Contents, DamagedError, Manifest, Store, open_location
from bertvision.sources.store.format import (
    FORMAT,
    digest,
    outline_shard,
    plan_shards,
    read_header,
    seal,
    unseal,
    windows_of,
)

PARTS: tuple[Part, ...] = ("tokens", "cls", "mean")


def contents_of(dtype: str = "float32", parts: tuple[Part, ...] = PARTS, pooled: bool = True) -> Contents:
    return Contents.of(StateShape(4, 32, pooled), range(4), parts, dtype)


# ---------------------------------------------------------------------- sizes


@pytest.mark.parametrize(("dtype", "number", "beside"), [("float32", 4, 0), ("bfloat16", 2, 0), ("int8", 1, 4)])
def test_bytes_follow_from_windows_and_tokens(dtype: str, number: int, beside: int) -> None:
    state = 32 * number + beside
    kept = contents_of(dtype)
    assert kept.bytes_of(windows=10, tokens=333) == (333 * 4 + 10 * 5 + 10 * 4) * state
    assert contents_of(dtype, ("cls",), pooled=False).bytes_of(10, 333) == 10 * 4 * state
    assert contents_of(dtype, ("tokens",)).bytes_of(10, 333) == 333 * 4 * state


def test_parts_are_stored_in_a_fixed_order() -> None:
    assert contents_of(parts=("mean", "tokens", "cls")) == contents_of() and contents_of().parts == PARTS


# ---------------------------------------------------------------------- ranges


@pytest.mark.parametrize("most_bytes", [1, 20_000, 60_000, 10**9])
@pytest.mark.parametrize("most_tokens", [1, 100, 10**9])
def test_ranges_cover_every_example_once_and_stay_small(most_bytes: int, most_tokens: int) -> None:
    features, contents = build_tiny_features("squad2"), contents_of()
    ranges = plan_shards(features, contents, most_bytes, most_tokens)
    assert [example for first, stop in ranges for example in range(first, stop)] == list(range(9))

    def measure(first: int, stop: int) -> tuple[int, int]:
        windows = np.flatnonzero((features.example >= first) & (features.example < stop))
        tokens = int(features.lengths[windows].sum())
        return contents.bytes_of(len(windows), tokens), tokens

    for first, stop in ranges:
        bytes_, tokens = measure(first, stop)
        assert stop - first == 1 or (bytes_ <= most_bytes and tokens <= most_tokens)
        if stop < 9:  # and no smaller than necessary
            more_bytes, more_tokens = measure(first, stop + 1)
            assert more_bytes > most_bytes or more_tokens > most_tokens


def test_an_example_is_never_split() -> None:
    features = build_tiny_features("squad2")
    assert features.example.tolist() == sorted([*range(9)] * 2), "two windows each"
    for first, stop in plan_shards(features, contents_of(), 1):
        assert [int(features.example[window]) for window in windows_of(features, first, stop)] == [first, first]


# ---------------------------------------------------------------------- shards, read by another program


@pytest.mark.parametrize("dtype", DTYPES)
def test_shards_are_safetensors_with_everything_in_them(tmp_path: Path, dtype: str) -> None:
    tiny = write_tiny_store(tmp_path, dtype, PARTS)
    store, features = Store.open(tmp_path), tiny.features
    assert len(store.manifest.shards) > 3
    kind = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}[dtype]
    seen: list[str] = []
    for shard in store.manifest.shards:
        tensors = load_file(tmp_path / shard.file)
        windows = np.flatnonzero((features.example >= shard.first) & (features.example < shard.stop))
        assert list(tensors["offsets"].diff()) == features.lengths[windows].tolist() and tensors["offsets"][0] == 0
        for name in ("example", "start", "end"):
            assert tensors[name].dtype == torch.int64
            assert tensors[name].tolist() == getattr(features, name)[windows].tolist()
        np.testing.assert_array_equal(tensors["target"].numpy(), features.target[windows])
        width, tokens = 36 if dtype == "int8" else 32, int(features.lengths[windows].sum())
        shapes = {"tokens": (tokens, 4, width), "cls": (len(windows), 5, width), "mean": (len(windows), 4, width)}
        assert {part: tuple(tensors[part].shape) for part in PARTS} == shapes
        assert all(tensors[part].dtype == kind for part in PARTS)
        with safe_open(tmp_path / shard.file, "pt") as file:
            told = file.metadata()
        assert told["store"] == store.manifest.fingerprint and told["first"] == str(shard.first)
        seen += json.loads(told["ids"])
    assert seen == tiny.ids


def test_states_begin_where_the_manifest_says_and_numbers_are_aligned(tmp_path: Path) -> None:
    write_tiny_store(tmp_path, "float32", PARTS)
    place = open_location(tmp_path)
    for shard in Store.open(tmp_path).manifest.shards:
        header, begin = read_header(place, shard.file)
        assert begin % 64 == 0
        assert shard.at == {part: begin + header[part]["data_offsets"][0] for part in PARTS}
        assert all(start % 4 == 0 for start in shard.at.values())
        assert max(entry["data_offsets"][1] for name, entry in header.items() if name[0] != "_") + begin == shard.bytes


def test_a_shard_is_named_by_its_examples_and_its_checksum(tmp_path: Path) -> None:
    write_tiny_store(tmp_path)
    manifest = Store.open(tmp_path).manifest
    for shard in manifest.shards:
        data = (tmp_path / shard.file).read_bytes()
        assert len(data) == shard.bytes
        found = hashlib.sha256(data).hexdigest()[:16]
        assert shard.file == f"states-{shard.first:09d}-{shard.stop:09d}-{found}.safetensors" and shard.sha256 == found
    assert sorted(shard.file for shard in manifest.shards) == [shard.file for shard in manifest.shards]
    assert manifest.examples == 9 and manifest.windows == 18 and manifest.tokens == sum([48, 35, 48, 41, 48, 35] * 3)


def test_the_exact_size_of_a_shard_is_known_before_it_is_written(tmp_path: Path) -> None:
    tiny = write_tiny_store(tmp_path, "int8", PARTS)
    for shard in Store.open(tmp_path).manifest.shards:
        outlined, head = outline_shard(
            tiny.features, tiny.ids, tiny.contents, tiny.writer.fingerprint, shard.first, shard.stop
        )
        data = (tmp_path / shard.file).read_bytes()
        assert outlined.bytes == len(data) and data.startswith(bytes(head))
        assert (outlined.at, outlined.windows, outlined.tokens) == (shard.at, shard.windows, shard.tokens)


def test_a_digest_is_that_of_the_pieces_together() -> None:
    pieces = [b"abc", memoryview(b"def"), b""]
    assert digest(pieces) == hashlib.sha256(b"abcdef").hexdigest()[:16]


@pytest.mark.parametrize(
    "data", [b"", b"1234", b"\0" * 8, b"\xff" * 8, (5).to_bytes(8, "little") + b"{nope", b"x" * 99]
)
def test_other_files_have_no_safetensors_header(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(ValueError):
        read_header(open_location(tmp_path), "x")


# ---------------------------------------------------------------------- sealed files


def test_a_sealed_value_is_json_and_round_trips(tmp_path: Path) -> None:
    value: dict[str, Any] = {"a": [1, 2.5, None, True], "é": {"ü": 'x"\\\n'}, "empty": {}}
    assert unseal(seal(value), "there") == value
    assert {**value, "sha256": json.loads(seal(value))["sha256"]} == json.loads(seal(value))


def test_any_flipped_bit_and_any_cut_of_a_sealed_file_is_found() -> None:
    data = seal({"identity": {"dtype": "int8", "layers": [0, 1]}, "é": 'x"\\'})
    for place in range(len(data)):
        for bit in range(8):
            other = bytearray(data)
            other[place] ^= 1 << bit
            with pytest.raises(DamagedError, match="there is damaged"):
                unseal(bytes(other), "there")
        with pytest.raises(DamagedError):
            unseal(data[:place], "there")
    for other in (data + b"\n", b" " + data, data.replace(b"\n", b""), b"[]", b"null", b'"text"', b"{}"):
        with pytest.raises(DamagedError):
            unseal(other, "there")


def test_a_manifest_round_trips(tmp_path: Path) -> None:
    write_tiny_store(tmp_path, "int8", PARTS)
    manifest = Store.open(tmp_path).manifest
    again = Manifest.parse(manifest.dump(), "there")
    assert again == manifest and again.dump() == manifest.dump() == (tmp_path / "manifest.json").read_bytes()


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("contents", "hidden"), 10**9, "contents.hidden: expected `int` <= 1000000"),
        (("contents", "hidden"), 10**6, "are larger than their file"),
        (("contents", "dtype"), "complex", "contents.dtype"),
        (("contents", "parts"), [], "contents.parts"),
        (("shards",), [], "shards: expected one or more"),
        (("shards", 0, "windows"), 10**9, "can't be as described"),
        (("shards", 0, "tokens"), 10**12, "can't be as described"),
        (("shards", 0, "stop"), 0, "expected examples from 0 on"),
        (("shards", 0, "at"), {}, "can't be as described"),
        (("shards", 0, "sha256"), "../../x", "sha256"),
        (("identity",), None, "identity: expected `object`"),
    ],
)
def test_a_manifest_made_by_hand_is_refused_before_memory_is_taken(
    path: tuple[Any, ...], value: Any, says: str, tmp_path: Path
) -> None:
    write_tiny_store(tmp_path)
    found = json.loads((tmp_path / "manifest.json").read_bytes())
    del found["sha256"]
    inner: Any = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(DamagedError, match=says):
        Manifest.parse(seal(found), "there")


def test_a_manifest_of_another_format_is_refused(tmp_path: Path) -> None:
    write_tiny_store(tmp_path)
    value = json.loads((tmp_path / "manifest.json").read_bytes())
    del value["sha256"]
    (tmp_path / "manifest.json").write_bytes(seal({**value, "format": FORMAT + 1, "shards": "in another form"}))
    for act in (lambda: Store.open(tmp_path), lambda: begin_tiny_store(tmp_path)):
        with pytest.raises(UserError, match=f"format {FORMAT + 1}.*reads format {FORMAT}") as caught:
            act()
        assert not isinstance(caught.value, DamagedError)
    assert (tmp_path / "manifest.json").exists()
