"""The map in CONTRIBUTING.md is correct: every path exists, and every part of the package is listed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "bertvision"
NOT_LISTED = ("__pycache__", "py.typed")


def read_map() -> dict[str, str]:
    """path → purpose, from the lines `path   purpose` of the fenced block under "## Map"."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(r"^## Map$.*?^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found, 'CONTRIBUTING.md has no fenced block under a heading "## Map"'
    paths: dict[str, str] = {}
    folder = ""
    for line in filter(str.strip, found[1].splitlines()):
        path, _, purpose = line.strip().partition(" ")
        if line == line.lstrip():
            folder = path
        else:  # an indented line is in the folder above it
            path = folder + path
        assert path not in paths, f"{path} is listed twice"
        paths[path] = purpose.strip()
    return paths


@pytest.fixture(scope="module")
def file_map() -> dict[str, str]:
    return read_map()


def test_everything_on_the_map_exists_and_is_described(file_map: dict[str, str]) -> None:
    assert len(file_map) >= 10
    assert not [path for path in file_map if not (ROOT / path).exists()]
    inner = {str(Path(path).parent) + "/" for path in file_map}
    assert not [path for path, purpose in file_map.items() if not purpose and path not in inner]


def test_every_part_of_the_package_is_on_the_map(file_map: dict[str, str]) -> None:
    parts = {path.relative_to(ROOT).as_posix() for path in PACKAGE.iterdir() if path.name not in NOT_LISTED}
    assert len(parts) > 10
    assert not parts - {path.rstrip("/") for path in file_map}
