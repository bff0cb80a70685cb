import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from tiny_encoders import say_how_to_read

from bertvision.encoder.loading import identify
from bertvision.encoder.reading import read_as_made, ways_to_read
from bertvision.errors import UserError

SWITCHES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


@pytest.fixture
def encoder(tiny_encoder_folder: Path, tmp_path: Path) -> Path:
    """An encoder that does not say how it is read."""
    return shutil.copytree(tiny_encoder_folder, tmp_path / "encoder", ignore=shutil.ignore_patterns("1_Pooling"))


def switches(*on: str) -> dict[str, Any]:
    """As older versions of sentence-transformers write them."""
    return {"word_embedding_dimension": 32, **{f"pooling_mode_{name}": name in on for name in SWITCHES}}


def write_pooling(encoder: Path, settings: Any, folder: str = "1_Pooling") -> None:
    (encoder / folder).mkdir(exist_ok=True)
    text = settings if isinstance(settings, str) else json.dumps(settings)
    (encoder / folder / "config.json").write_text(text)


@pytest.mark.parametrize(
    ("settings", "made"),
    [
        (switches("mean_tokens"), "mean"),
        (switches("cls_token"), "cls"),
        (switches("max_tokens"), "max"),
        (switches("lasttoken"), None),
        (switches("cls_token", "mean_tokens"), None),
        (switches(), None),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode": "weightedmean"}, None),
        ({"pooling_mode": ["cls", "mean"]}, None),
        ({}, None),
    ],
)
def test_both_formats_say_how_the_encoder_was_made(settings: Any, made: str | None, encoder: Path) -> None:
    write_pooling(encoder, settings)
    assert read_as_made(str(encoder)) == made
    assert ways_to_read(str(encoder)) == (("cls", "mean") if made is None else (made,))


def test_an_encoder_without_the_file_does_not_say(encoder: Path) -> None:
    assert read_as_made(str(encoder)) is None and read_as_made("bert-base-uncased") is None


def test_the_embedded_encoder_was_made_for_the_mean() -> None:
    assert read_as_made("embedded") == "mean"


def test_modules_name_the_folder(encoder: Path) -> None:
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    write_pooling(encoder, {"pooling_mode": "cls"})
    write_pooling(encoder, {"pooling_mode": "max"}, "2_Pooling")
    for path, made in (("2_Pooling", "max"), ("../encoder/2_Pooling", "cls"), (str(encoder / "2_Pooling"), "cls")):
        pooling = {"path": path, "type": "sentence_transformers.models.Pooling"}
        (encoder / "modules.json").write_text(json.dumps([*modules, pooling]))
        assert read_as_made(str(encoder)) == made, "a path outside the folder is not followed"


@pytest.mark.parametrize("text", ["{", "[]", '"mean"', "\udcff"])
def test_a_damaged_file_is_one_sentence(text: str, encoder: Path) -> None:
    write_pooling(encoder, {})
    (encoder / "1_Pooling" / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=r"1_Pooling/config.json, which says how the encoder is read, is damaged"):
        read_as_made(str(encoder))


def test_a_hub_name_is_read_from_the_cache(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert read_as_made("someone/absent") is None, "not in the cache, and there is no network"
    cached = tmp_path / "hub" / "models--someone--tiny"
    shutil.copytree(encoder, cached / "snapshots" / "abc")
    say_how_to_read(cached / "snapshots" / "abc", "mean")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    assert read_as_made("someone/tiny") == "mean"


def test_how_an_encoder_is_read_is_no_part_of_its_identity(encoder: Path) -> None:
    """It changes no state: what was read counts in the fingerprints of heads and of fine-tuning."""
    before = identify(str(encoder))
    say_how_to_read(encoder, "mean")
    assert identify(str(encoder)) == before
