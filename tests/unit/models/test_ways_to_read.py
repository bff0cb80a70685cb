"""`fit` reads an encoder as it was made. One that does not say is read by the mean and, in more rows, by [CLS]."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoders import say_how_to_read
from transformers import AutoModel, AutoTokenizer

from bertvision.heads import load_head
from bertvision.models.fit import Fit, Options, fit_table
from bertvision.models.model import Model
from bertvision.models.save import save_fit
from bertvision.tasks.own_table import OwnTable, from_columns

WORDS = ["cat", "dog", "river", "london", "paris", "horse", "bird", "fish"]


def encoder_that_says(mode: str | None, like: Path, folder: Path) -> Path:
    shutil.copytree(like, folder, ignore=shutil.ignore_patterns("1_Pooling"))
    if mode is not None:
        say_how_to_read(folder, mode)
    return folder


def table(rows: int, seed: int, pairs: bool = False) -> OwnTable:
    random = np.random.default_rng(seed)
    texts = [" ".join(random.choice(WORDS, 4)) for _ in range(rows)]
    seconds = [" ".join(random.choice(WORDS, 4)) for _ in range(rows)] if pairs else None
    return from_columns(texts, ["ab"["cat" in text or "dog" in text] for text in texts], pairs=seconds, kind="label")


def fit(encoder: Path, heads: Any, pairs: bool = False) -> Fit:
    return fit_table(table(60, 0, pairs), Options(str(encoder), heads), table(12, 1, pairs))


def parts_read(found: Fit) -> dict[str, tuple[str, ...]]:
    return {name: one.model.reads for name, one in found.fitted.items() if hasattr(one.model, "reads")}


def plain_states(encoder: Path, texts: list[str], mode: str) -> np.ndarray:
    """(text, hidden) of the last layer, with plain transformers calls."""
    model, tokenizer = AutoModel.from_pretrained(encoder, dtype=torch.float32), AutoTokenizer.from_pretrained(encoder)
    found = []
    for text in texts:
        with torch.no_grad():
            last = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]  # (token, hidden)
        found.append({"cls": last[0], "mean": last.mean(0), "max": last.amax(0)}[mode].numpy())
    return np.array(found)


@pytest.mark.parametrize("mode", ["cls", "mean", "max"])
def test_an_encoder_is_read_as_it_was_made(mode: str, tiny_encoder_folder: Path, tmp_path: Path) -> None:
    encoder = encoder_that_says(mode, tiny_encoder_folder, tmp_path / "encoder")
    found = fit(encoder, ["linear", "best_layer_lr", "mlp", "adapter_64", "linear_deviation"])
    mlp = ("mean", "deviation") if mode == "mean" else (mode,)
    assert parts_read(found) == {
        "last_lr": (mode,), "linear": (mode,), "best_layer_lr": (mode,), "mlp": mlp, "adapter_64": (mode,),
        "linear_deviation": ("mean", "deviation"),
    }  # fmt: skip
    # The saved regression on the last layer, applied to states that transformers computed.
    folder = save_fit(found, tmp_path / "model")
    texts = [one.text for one in found.examples[:5]]
    head, _ = load_head(folder / "snapshots" / "epoch_0" / "heads" / "linear")
    assert head.reads == (mode,)
    weights = found.fitted["last_lr"].model.output  # type: ignore[union-attr]
    states = torch.from_numpy(plain_states(encoder, texts, mode))  # (text, hidden)
    wanted = weights(states).softmax(1).detach().numpy()  # type: ignore[operator]
    rows = Model(folder, head="last_lr").predict(texts)
    probabilities = np.array([[row.probabilities[label] for label in found.task.labels] for row in rows])
    np.testing.assert_allclose(probabilities, wanted, atol=1e-4)


def test_an_encoder_that_does_not_say_is_read_in_both_ways(tiny_encoder_folder: Path, tmp_path: Path) -> None:
    found = fit(encoder_that_says(None, tiny_encoder_folder, tmp_path / "encoder"), "auto")
    reads = parts_read(found)
    both = {"last_lr": "mean", "last_lr_cls": "cls", "linear": "mean", "linear_cls": "cls"}
    assert {name: reads[name] for name in both} == {name: (part,) for name, part in both.items()}
    assert {"last_lr_cls", "linear_cls"} <= {line.name for line in found.board.lines}


def test_an_encoder_that_says_has_no_second_reading(tiny_encoder_folder: Path, tmp_path: Path) -> None:
    found = fit(encoder_that_says("mean", tiny_encoder_folder, tmp_path / "encoder"), "auto")
    assert not [line.name for line in found.board.lines if line.name.endswith("_cls")]


@pytest.mark.parametrize("mode", ["cls", "max"])
def test_two_towers_are_read_as_the_encoder_was_made(mode: str, tiny_encoder_folder: Path, tmp_path: Path) -> None:
    encoder = encoder_that_says(mode, tiny_encoder_folder, tmp_path / "encoder")
    towers = ["last_lr_towers", "cosine_lr", "linear_cosines", "linear_towers", "mlp_towers", "best_layer_lr"]
    found = fit(encoder, towers, pairs=True)
    assert parts_read(found) == dict.fromkeys(["last_lr", *towers], (mode,))
    folder = save_fit(found, tmp_path / "model")
    assert found.dev is not None
    for name in towers:
        rows = Model(folder, head=name).predict([(one.text, str(one.text_pair)) for one in found.dev[0]])
        outputs = torch.from_numpy(found.dev_outputs[name]).softmax(1).numpy()  # (row, label)
        probabilities = [[row.probabilities[label] for label in found.task.labels] for row in rows]
        np.testing.assert_allclose(probabilities, outputs, atol=2e-4)


def test_the_last_layer_of_an_encoder_with_a_pooler_is_not_the_pooled_output(
    tiny_encoder_folder: Path, tmp_path: Path
) -> None:
    encoder = encoder_that_says("cls", tiny_encoder_folder, tmp_path / "encoder")
    found = fit(encoder, ["cosine_lr"], pairs=True)
    assert found.encoder.shape.pooled, "the test needs a pooler"
    pairs = [(one.text, str(one.text_pair)) for one in found.examples[:6]]
    sides = [plain_states(encoder, list(side), "cls") for side in zip(*pairs, strict=True)]
    cosines = [one @ two / np.linalg.norm(one) / np.linalg.norm(two) for one, two in zip(*sides, strict=True)]
    output: Any = found.fitted["cosine_lr"].model.output  # type: ignore[union-attr]
    wanted = output(torch.tensor(np.array(cosines), dtype=torch.float32).unsqueeze(1)).softmax(1).detach().numpy()
    rows = Model(save_fit(found, tmp_path / "model"), head="cosine_lr").predict(pairs)
    probabilities = [[row.probabilities[label] for label in found.task.labels] for row in rows]
    np.testing.assert_allclose(probabilities, wanted, atol=1e-4)
