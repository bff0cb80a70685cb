"""The identity of an encoder, on which a run's results depend, for folders and for the hub's cache."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bertvision.encoder.loading import identify

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tiny_encoder_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_encoder_folder, tmp_path / "encoder"))


def test_a_copy_is_the_same_encoder(folder: Path, tiny_encoder_folder: Path) -> None:
    assert identify(str(folder)) == identify(str(tiny_encoder_folder))


def test_a_readme_does_not_matter(folder: Path) -> None:
    before = identify(str(folder))
    (folder / "README.md").write_text("about it")
    assert identify(str(folder)) == before


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "vocab.txt", "merges.txt", "special_tokens_map.json"]
)
def test_any_changed_file_of_model_or_tokenizer_is_another_encoder(name: str, folder: Path) -> None:
    before = identify(str(folder))
    with (folder / name).open("a") as file:
        file.write(" ")
    assert identify(str(folder)) != before


def test_changed_weights_are_another_encoder(folder: Path) -> None:
    before, path = identify(str(folder)), folder / "model.safetensors"
    weights = bytearray(path.read_bytes())
    weights[-1] ^= 1
    path.write_bytes(weights)
    assert identify(str(folder)) != before


def cache_of(folder: Path, cache: Path, commit: str) -> None:
    """The folder as the hub's own cache holds it: refs/main names the commit, snapshots/<commit> has the files."""
    home = cache / "models--someone--tiny"
    shutil.copytree(folder, home / "snapshots" / commit)
    (home / "refs").mkdir(exist_ok=True)
    (home / "refs" / "main").write_text(commit)


def test_a_hub_name_loads_from_the_cache_without_network_and_is_identified_by_its_commit(
    tiny_encoder_folder: Path, tmp_path: Path
) -> None:
    # A separate process: the location of the cache is read when huggingface_hub is imported.
    program = f"""
from pathlib import Path
from bertvision.encoder.loading import identify, load_encoder, shape_of
encoder = load_encoder("someone/tiny")
assert encoder.tokenizer is not None and encoder.shape == shape_of("someone/tiny").shape
before = identify("someone/tiny")
assert before == identify("someone/tiny")
Path("refs/main").write_text("{COMMIT[::-1]}")
assert identify("someone/tiny") != before
"""
    cache = tmp_path / "cache"
    for commit in (COMMIT[::-1], COMMIT):
        cache_of(tiny_encoder_folder, cache, commit)
    environment = {**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    home = cache / "models--someone--tiny"
    done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
