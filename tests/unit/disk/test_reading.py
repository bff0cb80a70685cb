"""Files of ours that are damaged, hostile or not readable: one sentence each."""

import os
from pathlib import Path
from typing import TypedDict

import numpy as np
import pytest
from safetensors.numpy import save_file

from bertvision.disk import (
    as_form,
    load_arrays,
    load_tensors,
    parse_json,
    parse_toml,
    read_bytes,
    read_json,
    write_json,
)
from bertvision.disk.reading import repair_of
from bertvision.errors import UserError


class Inner(TypedDict):
    name: str
    sizes: list[int]


class Outer(TypedDict, total=False):
    inner: dict[str, Inner]
    count: int


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is damaged"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("1" * 5000, "digits"),
        ("\udcff", "is damaged"),
        ("", "is damaged"),
    ],
    ids=["cut", "deep", "digits", "no UTF-8", "empty"],
)
def test_json_that_is_no_json_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=says) as caught:
        read_json(path)
    assert str(path) in str(caught.value) and len(str(caught.value)) < 400


def test_deep_toml_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_toml("a = " + "[" * 10_000 + "]" * 10_000)
    assert parse_json(b'{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "expected"),
        ({"count": "three"}, "count: expected `int`"),
        ({"inner": {"a": {"name": "x"}}}, "sizes"),
        ({"inner": {"a": {"name": "x", "sizes": [1, None]}}}, "sizes"),
        ({"inner": {"a": {"name": 3, "sizes": []}}}, "name"),
    ],
)
def test_a_value_of_another_form_names_the_place(tmp_path: Path, value: object, says: str) -> None:
    write_json(tmp_path / "a.json", value)
    with pytest.raises(UserError, match=says):
        read_json(tmp_path / "a.json", Outer)


def test_a_value_of_the_form_is_returned() -> None:
    assert as_form({"inner": {"a": {"name": "x", "sizes": [1]}}}, Outer)["inner"]["a"]["sizes"] == [1]


def test_no_file_is_none_whatever_its_name(tmp_path: Path) -> None:
    for name in ("none", "n" * 5000, "a\0b", "x/" * 3000):
        assert read_json(tmp_path / name) is None


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b" " * 3_000_000)
    with pytest.raises(UserError, match="3 MB, but at most 1"):
        read_bytes(tmp_path / "a.json", 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file_is_named_as_such(tmp_path: Path) -> None:
    save_file({"a": np.zeros(3)}, tmp_path / "a.safetensors")
    (tmp_path / "a.safetensors").chmod(0)
    with pytest.raises(UserError, match="can't be read .Permission denied."):
        load_tensors(tmp_path / "a.safetensors")


def test_damaged_tensors_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": np.arange(12.0).reshape(3, 4)}, path)
    whole = path.read_bytes()
    for data in (b"", whole[:20], b"\xff" * 50, whole[:8] + b"[" + whole[9:], whole[:-1]):
        path.write_bytes(data)
        for load in (load_arrays, load_tensors):
            with pytest.raises(UserError, match="is damaged"):
                load(path)


def test_the_repair_is_that_of_the_folder_around(tmp_path: Path) -> None:
    head = tmp_path / "run" / "snapshots" / "epoch_1" / "heads" / "adapter" / "head.safetensors"
    head.parent.mkdir(parents=True)
    assert "the command that made it" in repair_of(head)
    write_json(tmp_path / "run" / "task.json", {})
    assert f"run `bertvision run {tmp_path / 'run'}`" in repair_of(head)
    write_json(tmp_path / "run" / "model.json", {})
    assert "fit the model again" in repair_of(head)
    kit = tmp_path / "kit" / "rte" / "head.safetensors"
    kit.parent.mkdir(parents=True)
    write_json(tmp_path / "kit" / "kit.json", {})
    write_json(kit.parent / "config.json", {})
    assert "build the kit again" in repair_of(kit)
