"""lengths.json: what it may hold."""

from pathlib import Path
from typing import Any

import pytest

from bertvision.disk import write_json
from bertvision.errors import UserError
from bertvision.pipeline.lengths import LENGTHS, read_lengths


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"lengths": [3, 5], "windows": [1]}, "expected a number for each length"),
        ({"lengths": [3], "windows": [10**12]}, "windows"),
        ({"lengths": [0], "windows": [1]}, "lengths"),
        ({"lengths": [3]}, "windows"),
        ({"lengths": [3], "windows": [1], "uncut": {"lengths": [3], "texts": []}}, "expected a number for each length"),
        ([], "expected `object`"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, value: Any, says: str) -> None:
    write_json(tmp_path / LENGTHS, {"dev": value})
    with pytest.raises(UserError, match=says):
        read_lengths(tmp_path)


def test_the_lengths_of_each_split_are_read(tmp_path: Path) -> None:
    assert read_lengths(tmp_path) == {}
    write_json(tmp_path / LENGTHS, {"dev": {"stamp": "abc", "lengths": [3, 5], "windows": [1, 2]}})
    assert read_lengths(tmp_path)["dev"]["windows"] == [1, 2]
