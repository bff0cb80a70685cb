"""Settings written as TOML are read back as they were."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from bertvision.config import build_config
from bertvision.report.toml import to_toml

CONFIGS = sorted((Path(__file__).parents[3] / "configs").rglob("*.toml"))


def without_absent(value: Any) -> Any:
    """TOML has no word for what is absent."""
    if isinstance(value, dict):
        return {key: without_absent(item) for key, item in value.items() if item is not None}
    return [without_absent(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_the_same_after_a_round_trip(path: Path) -> None:
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    assert tomllib.loads(to_toml(tables)) == tables


def test_a_config_with_all_its_defaults_is_the_same_after_a_round_trip() -> None:
    config = build_config({"task": {"name": "demo"}, "heads": [{"head": "adapter", "size": [4, 8]}]})
    assert build_config(tomllib.loads(to_toml(config.to_dict()))) == config


@pytest.mark.parametrize(
    "value",
    [
        '"quoted" \\ back',
        "línea\nnew\ttab",
        "\x7f\x01",
        True,
        1e-05,
        3,
        2.0,
        [],
        ["a", 1],
        {"two words": 1},
        [{"a": [1]}],
    ],
)
def test_values_of_all_kinds_survive(value: Any) -> None:
    assert tomllib.loads(to_toml({"first": value, "section": {"key": value}, "gone": None})) == without_absent(
        {"first": value, "section": {"key": value}}
    )
