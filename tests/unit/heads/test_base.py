"""Saved heads that were changed by hand: one sentence, before any memory is taken for what they claim."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_training import member_of

from bertvision.disk import read_json, write_json
from bertvision.encoder.states import StateShape
from bertvision.errors import UserError
from bertvision.heads import Target, build_head, load_head, read_head_file, save_head
from bertvision.kinds import LABEL


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    member = member_of("adapter", LABEL, size=4)
    save_head(tmp_path, build_head(member, StateShape(4, 32, True), Target(LABEL, 2)), member)
    return tmp_path


def change(folder: Path, *path: str, value: Any) -> None:
    facts = read_json(folder / "config.json")
    inner = facts
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    write_json(folder / "config.json", facts)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("shape", "hidden"), 10**9, "shape.hidden: expected `int` <= 1000000"),
        (("shape", "hidden"), 10**6, "its weights are not those of the head"),
        (("shape", "layers"), 10**9, "shape.layers"),
        (("shape", "layers"), 0, "shape.layers"),
        (("target", "labels"), 10**9, "target.labels"),
        (("target", "labels"), 3, "its weights are not those of the head"),
        (("target", "labels"), "two", "target.labels: expected `int`, got `str`"),
        (("target", "kind"), "grade", "there is no kind of target 'grade'"),
        (("target",), None, "target: expected `object`, got `null`"),
        (("member", "head"), "../adapter", "there is no head"),
        (("member", "settings", "size"), 10**5, "its weights are not those of the head"),
        (("member", "settings", "size"), "4", "`size` must be a whole number"),
        (("member", "settings", "sise"), 4, "no setting 'sise'"),
        (("member", "settings", "size"), -4, "`size` must be at least 1"),
    ],
)
def test_a_changed_config_is_refused_without_memory(folder: Path, path: tuple[str, ...], value: Any, says: str) -> None:
    change(folder, *path, value=value)
    tracemalloc.start()
    with pytest.raises(UserError, match=says) as caught:
        load_head(folder)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < 20e6 and len(str(caught.value)) < 400 and str(folder) in str(caught.value)


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    save_file({"adapter.weight": torch.zeros(2)}, folder / "head.safetensors")
    with pytest.raises(UserError, match="its weights are not those of the head"):
        load_head(folder)


def test_what_later_versions_add_is_ignored(folder: Path) -> None:
    expected = load_head(folder)[0].state_dict()
    change(folder, "mood", value="good")
    found = load_head(folder)[0].state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    file = read_head_file(folder)
    assert file is not None and "mood" not in file and file["shape"] == {"layers": 4, "hidden": 32, "pooled": True}
