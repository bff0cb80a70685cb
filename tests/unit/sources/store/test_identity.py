"""Stale states are never read: every difference in identity is named, and the store is not changed."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from tiny_stores import TinyStore, begin_tiny_store, write_tiny_store

from bertvision.disk import fingerprint
from bertvision.errors import UserError
from bertvision.sources.store import Store, StoreWriter, build_identity, find_differences
from bertvision.sources.store.location import Folder
from bertvision.sources.store.scan import scan

# Every field, another value, and what the error must contain.
OTHERS: dict[str, tuple[Any, list[str]]] = {
    "encoder weights": ("other", ["encoder weights"]),
    "tokenizer": ("other", ["tokenizer"]),
    "data": ("other", ["data"]),
    "window settings": ({"max_length": 64}, ["window settings", "48", "64"]),
    "token ids": ("other", ["token ids"]),
    "layers": ([0, 1, 3], ["layers", "[0, 1, 2, 3]", "[0, 1, 3]"]),
    "parts": (["tokens", "cls"], ["parts", "[tokens]", "[tokens, cls]"]),
    "dtype": ("int8", ["dtype", "float16", "int8"]),
    "precision": ("bfloat16", ["precision", "float32", "bfloat16"]),
    "format": (2, ["format", "1 found", "2 wanted"]),
}


def listing(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyStore:
    return write_tiny_store(tmp_path_factory.mktemp("store"), "float16", ("tokens",))


def test_all_fields_are_tested(tiny: TinyStore) -> None:
    assert set(OTHERS) == set(tiny.identity)


def test_equal_identities_differ_in_nothing(tiny: TinyStore) -> None:
    assert find_differences(tiny.identity, dict(tiny.identity)) == []
    scan(tiny.location).refuse_other(dict(tiny.identity))
    assert Store.open(tiny.location, tiny.identity).manifest.identity == tiny.identity


@pytest.mark.parametrize("field", list(OTHERS))
def test_only_the_differing_field_is_named(field: str, tiny: TinyStore) -> None:
    other, words = OTHERS[field]
    (named,) = find_differences(tiny.identity, {**tiny.identity, field: other})
    assert named.startswith(field) and all(word in named for word in words)
    assert fingerprint({**tiny.identity, field: other}) != fingerprint(tiny.identity)


@pytest.mark.parametrize("field", list(OTHERS))
def test_a_store_of_different_states_is_refused_unread(
    field: str, tiny: TinyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, words = OTHERS[field]
    assert isinstance(tiny.location, Folder)
    before, reads = listing(tiny.location.folder), []
    read = Folder.read

    def note(self: Folder, name: str, *rest: Any) -> bytes:
        reads.append(name)
        return read(self, name, *rest)

    monkeypatch.setattr(Folder, "read", note)
    monkeypatch.setattr(Folder, "read_into", lambda self, name, _: reads.append(name))
    wanted = {**tiny.identity, field: other}
    parts = (tiny.location, tiny.encoder, tiny.features, tiny.ids, tiny.contents, wanted)
    for act in (lambda: Store.open(tiny.location, wanted), lambda: StoreWriter(*parts)):
        with pytest.raises(UserError, match="holds different states") as caught:
            act()
        text = str(caught.value)
        assert all(word in text for word in words) and str(tiny.location) in text and "bertvision store rm" in text
    assert reads == ["manifest.json"] * 2 and listing(tiny.location.folder) == before


@pytest.mark.parametrize("field", list(OTHERS))
def test_an_unfinished_store_of_different_states_is_refused(field: str, tmp_path: Path) -> None:
    tiny = begin_tiny_store(tmp_path / "store")
    tiny.writer.write((0, 2))
    before = listing(tmp_path / "store")
    assert "writing.json" in before and "manifest.json" not in before
    wanted = {**tiny.identity, field: OTHERS[field][0]}
    with pytest.raises(UserError, match="holds different states") as caught:
        StoreWriter(tiny.location, tiny.encoder, tiny.features, tiny.ids, tiny.contents, wanted)
    assert all(word in str(caught.value) for word in OTHERS[field][1])
    assert listing(tmp_path / "store") == before


def test_all_differences_are_named_except_derived_ones(tiny: TinyStore) -> None:
    wanted = {**tiny.identity, "data": "x", "token ids": "y", "dtype": "int8"}
    assert [text.split(" (")[0] for text in find_differences(tiny.identity, wanted)] == ["data", "dtype"]


def test_a_field_that_only_one_side_has_is_a_difference(tiny: TinyStore) -> None:
    fewer = {key: value for key, value in tiny.identity.items() if key != "precision"}
    for found, wanted in ((fewer, tiny.identity), (tiny.identity, fewer)):
        (named,) = find_differences(found, wanted)
        assert named.startswith("precision")


def test_one_differing_window_setting_is_a_difference(tiny: TinyStore) -> None:
    windows = {"max_length": 384, "overlap": 128}
    one, other = (
        build_identity(tiny.contents, "w", "t", "d", given, "i", "float32")
        for given in (windows, {**windows, "overlap": 64})
    )
    (named,) = find_differences(one, other)
    assert "overlap 128" in named and "overlap 64" in named
