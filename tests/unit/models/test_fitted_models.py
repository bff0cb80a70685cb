"""What `fit` saves can predict, whatever the data."""

from pathlib import Path

import pytest

from bertvision.models.fit import Options, fit_table
from bertvision.models.model import Model
from bertvision.models.save import save_fit
from bertvision.tasks.own_table import from_columns

WORDS = ["the", "of", "in", "at", "to", "on"]


def fit_and_load(texts: list[str], labels: list[str], encoder: Path, folder: Path) -> tuple[Model, str]:
    fit = fit_table(from_columns(texts, labels, kind="label"), Options(str(encoder), ["linear"]))
    return Model(save_fit(fit, folder / "model")), fit.board.why()


def test_labels_that_no_model_can_predict_still_give_a_model(tiny_encoder_folder: Path, tmp_path: Path) -> None:
    texts = [f"{WORDS[row % 6]} {WORDS[row // 6]} {row}" for row in range(30)]
    labels = ["rare" if row % 10 == 3 else "common" for row in range(30)]
    model, why = fit_and_load(texts, labels, tiny_encoder_folder, tmp_path)
    scores = {line["name"]: line["cv"] for line in model.leaderboard}
    assert scores["majority"] == pytest.approx(90) and scores["majority"] >= max(scores.values())
    assert model.chosen != "majority" and "does not beat the majority baseline" in why
    assert model.predict(texts[:1])[0].label in ("rare", "common")


def test_texts_longer_than_the_encoder_allows_are_cut_in_fit_and_predict(
    tiny_encoder_folder: Path, tmp_path: Path
) -> None:
    texts = [f"{WORDS[row % 2]} {row}" + " the" * 100 for row in range(20)]  # the encoder takes 64 tokens
    model, _ = fit_and_load(texts, ["a", "b"] * 10, tiny_encoder_folder, tmp_path)
    assert model.facts["max_length"] == 64
    cut = [" ".join(text.split()[:70]) for text in texts]  # at least 64 tokens: they read the same
    assert model.predict(texts) == model.predict(cut)


def test_na_among_numbers_is_a_label_if_the_kind_is_label() -> None:
    found = from_columns(["a", "b", "c", "d"], ["NA", "1", "2", "1"], kind="label")
    assert found.labels == ["NA", "1", "2", "1"]
