"""docs/store_format.md is correct, and sufficient to read a store without this package."""

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from tiny_stores import TinyStore, begin_tiny_store, write_tiny_store

from bertvision.sources.store.format import MANIFEST, WRITING
from bertvision.sources.store.upkeep import verify_store

PAGE = Path(__file__).parents[4] / "docs" / "store_format.md"
PARTS = ("tokens", "cls", "mean")
ARRAYS = [
    "offsets", "example", "start", "end", "target", *(f"{part}_crc32" for part in PARTS), "head_crc32", *PARTS,
]  # fmt: skip
# Largest error of a stored value, relative to the largest value of its state: from the bits of each dtype.
ROUNDING = {"float32": 0.0, "bfloat16": 2**-8, "float16": 2**-11, "int8": 1 / 254}
OF_THE_ENCODER = 2e-6  # rounding of a window alone and in a batch

Reader = Callable[..., Iterator[tuple[Any, ...]]]


@cache
def code_on_the_page() -> str:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0])


@pytest.fixture(scope="module")
def read_store() -> Reader:
    names: dict[str, Any] = {}
    exec(compile(code_on_the_page(), str(PAGE), "exec"), names)
    return names["read_store"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module", params=ROUNDING)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyStore:
    """A store of each dtype, with several shards and windows that share an example."""
    made = write_tiny_store(tmp_path_factory.mktemp(request.param), request.param, PARTS)
    assert len(made.writer.shards) > 5 and len(made.features) > len(made.ids)
    return made


def folder_of(store: TinyStore) -> Path:
    return Path(str(store.location))


def test_the_reader_on_the_page_is_twenty_lines_of_numpy() -> None:
    tree = ast.parse(code_on_the_page())
    imports = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imports == {"json", "numpy"}
    assert len([line for line in code_on_the_page().splitlines() if line.strip()]) <= 20


@pytest.mark.parametrize("part", PARTS)
def test_the_reader_on_the_page_returns_the_encoders_states(store: TinyStore, read_store: Reader, part: Any) -> None:
    dtype = store.contents.dtype
    count = 0
    for window, (*_, states) in enumerate(read_store(folder_of(store), part)):
        expected = store.states_of(window, part)  # (position, layer, hidden)
        assert states.shape == expected.shape and states.dtype == np.float32
        largest = np.abs(expected).max(axis=-1, keepdims=True)
        assert (np.abs(states - expected) <= (ROUNDING[dtype] + OF_THE_ENCODER) * largest).all()
        count += 1
    assert count == len(store.features)


def test_the_reader_on_the_page_returns_ids_and_targets(store: TinyStore, read_store: Reader) -> None:
    features = store.features
    rows = list(read_store(folder_of(store)))
    assert [row[0] for row in rows] == [store.ids[example] for example in features.example]
    assert [row[1] for row in rows] == features.start.tolist()
    assert [row[2] for row in rows] == features.end.tolist()
    np.testing.assert_array_equal([row[3] for row in rows], features.target)


def test_the_reader_on_the_page_returns_labels_and_scores(tmp_path: Path, read_store: Reader) -> None:
    for task in ("rte", "stsb"):
        made = write_tiny_store(tmp_path / task, parts=("mean",), task=task)
        found = [row[3] for row in read_store(tmp_path / task, "mean")]
        assert found == made.features.target.tolist()
        assert len(set(found)) > 1


def test_safetensors_own_reader_opens_every_shard(store: TinyStore) -> None:
    # numpy has no bfloat16, so torch tensors are used.
    manifest = json.loads((folder_of(store) / MANIFEST).read_bytes())
    tokens = windows = 0
    for shard in manifest["shards"]:
        with safe_open(folder_of(store) / shard["file"], framework="pt") as file:
            assert set(file.keys()) == {*ARRAYS}
            metadata = file.metadata()
            assert metadata["store"] == manifest["fingerprint"]
            assert int(metadata["first"]) == shard["first"]
            assert json.loads(metadata["ids"]) == store.ids[shard["first"] : shard["stop"]]
            width = 36 if store.contents.dtype == "int8" else 32
            assert list(file.get_slice("tokens").get_shape()) == [shard["tokens"], 4, width]
            assert list(file.get_slice("cls").get_shape()) == [shard["windows"], 5, width]
            assert list(file.get_slice("mean").get_shape()) == [shard["windows"], 4, width]
            assert str(file.get_tensor("tokens").dtype) == f"torch.{store.contents.dtype}"
            lengths = store.features.lengths[windows : windows + shard["windows"]]
            assert file.get_tensor("offsets").tolist() == [0, *np.cumsum(lengths).tolist()]
            example = store.features.example[windows : windows + shard["windows"]]
            assert file.get_tensor("example").tolist() == example.tolist()
        tokens, windows = tokens + shard["tokens"], windows + shard["windows"]
    assert (windows, tokens) == (len(store.features), int(store.features.lengths.sum()))


def test_shards_are_laid_out_as_the_page_says(store: TinyStore) -> None:
    manifest = json.loads((folder_of(store) / MANIFEST).read_bytes())
    before = 0
    for shard in manifest["shards"]:
        data = (folder_of(store) / shard["file"]).read_bytes()
        digits = hashlib.sha256(data).hexdigest()[:16]
        assert shard["file"] == f"states-{shard['first']:09d}-{shard['stop']:09d}-{digits}.safetensors"
        assert (shard["sha256"], shard["bytes"], shard["first"]) == (digits, len(data), before)
        begin = 8 + int.from_bytes(data[:8], "little")
        assert begin % 64 == 0
        header = json.loads(data[8:begin])
        arrays = [(name, entry["data_offsets"]) for name, entry in header.items() if name != "__metadata__"]
        assert [name for name, _ in arrays] == ARRAYS
        ends = [0, *(offsets[1] for _, offsets in arrays)]
        assert [offsets[0] for _, offsets in arrays] == ends[:-1] and begin + ends[-1] == len(data)
        assert shard["at"] == {name: begin + offsets[0] for name, offsets in arrays if name in PARTS}
        before = shard["stop"]
    assert before == len(store.ids)


def test_the_manifest_has_the_keys_of_the_page(store: TinyStore) -> None:
    page, manifest = PAGE.read_text(encoding="utf-8"), json.loads((folder_of(store) / MANIFEST).read_bytes())
    assert list(manifest) == ["format", "fingerprint", "identity", "contents", "about", "shards", "sha256"]
    entries = [manifest, manifest["contents"], manifest["about"], manifest["shards"][0], manifest["identity"]]
    for key in (key for entry in entries for key in entry):
        assert f"`{key}`" in page, f"the page does not document '{key}'"
    text = json.dumps([manifest["identity"]], sort_keys=True)
    assert manifest["fingerprint"] == hashlib.sha256(text.encode("ascii")).hexdigest()[:16]


def assert_sealed(data: bytes) -> None:
    """The rule on the page, applied to the bytes."""
    found = re.search(rb',\n "sha256": "([0-9a-f]{16})"(?=\n}\n$)', data)
    assert found and len(found[0]) == 31
    rest = data[: found.start()] + data[found.end() :]
    assert hashlib.sha256(rest).hexdigest()[:16] == found[1].decode()


def test_files_are_sealed_as_the_page_says(tmp_path: Path) -> None:
    begin_tiny_store(tmp_path).writer.write((0, 2))
    assert_sealed((tmp_path / WRITING).read_bytes())
    assert list(json.loads((tmp_path / WRITING).read_bytes())) == ["identity", "about", "shards", "sha256"]
    write_tiny_store(tmp_path)
    assert_sealed((tmp_path / MANIFEST).read_bytes())
    shard = next(tmp_path.glob("states-*"))
    data = bytearray(shard.read_bytes())
    data[300] ^= 1
    shard.write_bytes(data)
    verify_store(tmp_path)
    assert (tmp_path / f"damaged-{shard.name}").read_bytes() == data and not shard.exists()
