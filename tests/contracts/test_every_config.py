"""Every config that ships loads, and takes two fine-tuning steps and two head steps."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from two_steps import save_wide_encoder, take_two_steps

ROOT = Path(__file__).parents[2]
CONFIGS = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "configs").rglob("*.toml"))}
CONFIGS["demo.toml"] = ROOT / "src" / "bertvision" / "demo.toml"


def read_tables(path: Path) -> dict[str, Any]:
    """The file as written, without defaults."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def test_every_config_is_tested() -> None:
    places = [str(Path(name).parent) for name in CONFIGS]
    assert {place: places.count(place) for place in places} == {"configs": 9, "configs/kit": 3, ".": 1}
    assert all(path.is_file() for path in CONFIGS.values())


@pytest.fixture(scope="session")
def wide_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_wide_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.mark.parametrize("name", CONFIGS)
def test_two_steps_of_every_config_produce_scores_for_every_model(
    name: str, wide_encoder: Path, tmp_path: Path
) -> None:
    take_two_steps(read_tables(CONFIGS[name]), wide_encoder, tmp_path)


def test_runs_of_different_configs_do_not_share_a_folder() -> None:
    folders = [read_tables(path)["run"] for path in CONFIGS.values()]
    assert len(set(folders)) == len(CONFIGS)
