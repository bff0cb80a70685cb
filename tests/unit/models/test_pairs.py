"""Pairs of texts in `fit`: two towers beside both texts as one sequence, saved, loaded, reported and put into a kit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bertvision.errors import UserError
from bertvision.kits.kit import Kit
from bertvision.kits.make import make_kit
from bertvision.models.fit import Fit, Options, fit_table
from bertvision.models.leaderboard import Leaderboard, Line
from bertvision.models.model import Model
from bertvision.models.save import save_fit
from bertvision.models.tuned import wants_tuning
from bertvision.report.build import make_report
from bertvision.tasks.own_table import OwnTable, from_columns

WORDS = ["the", "of", "in", "at", "to", "on", "was", "by"]
TOWERS = ("last_lr_towers", "cosine_lr", "linear_cosines", "linear_towers", "mlp_towers", "best_layer_lr")


def table(rows: int, seed: int, kind: str = "label") -> OwnTable:
    """Pairs whose texts have the same words in another order, or other words."""
    random = np.random.default_rng(seed)
    firsts = [" ".join(random.choice(WORDS, 5, replace=False)) for _ in range(rows)]
    same = [bool(value) for value in random.integers(0, 2, rows)]
    seconds = [
        " ".join(random.permutation(first.split() if alike else random.choice(WORDS, 5, replace=False)))
        for first, alike in zip(firsts, same, strict=True)
    ]
    targets = ["same" if alike else "other" for alike in same] if kind == "label" else [float(a) for a in same]
    return from_columns(firsts, targets, pairs=seconds, kind=kind)


@pytest.fixture(scope="module", params=["label", "score"])
def fitted(
    request: pytest.FixtureRequest, tiny_encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Fit, Path]:
    options = Options(str(tiny_encoder_folder), [*TOWERS, "linear"])
    fit = fit_table(table(80, 0, request.param), options, table(20, 1, request.param))
    return fit, save_fit(fit, tmp_path_factory.mktemp("pairs") / "model")


@pytest.mark.parametrize("name", [*TOWERS, "last_lr", "linear"])
def test_every_model_predicts_from_its_folder_what_it_predicted_in_the_fit(name: str, fitted: tuple[Fit, Path]) -> None:
    fit, folder = fitted
    assert fit.dev is not None
    rows = Model(folder, head=name).predict([(one.text, str(one.text_pair)) for one in fit.dev[0]])
    outputs = fit.dev_outputs[name]
    if fit.task.labels:
        probabilities = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)  # (row, label)
        found = [[row.probabilities[label] for label in fit.task.labels] for row in rows]
        np.testing.assert_allclose(found, probabilities, atol=2e-4)
    else:
        np.testing.assert_allclose([row.score for row in rows], outputs[:, 0], rtol=1e-3, atol=1e-3)


def test_two_towers_see_whether_the_texts_have_the_same_words(fitted: tuple[Fit, Path]) -> None:
    # The embeddings of such texts have the same mean. A linear layer on the joined sequence can't see that.
    scores = {line.name: line.cv or 0.0 for line in fitted[0].board.lines}
    assert scores["linear_towers"] > 90 and scores["linear"] < 70


def test_the_card_says_how_the_chosen_model_reads_pairs(fitted: tuple[Fit, Path]) -> None:
    fit, folder = fitted
    assert fit.chosen.settings["pairs"] == "towers"
    assert "It reads each text alone and compares the two." in (folder / "README.md").read_text(encoding="utf-8")


def test_the_order_of_the_texts_makes_no_difference_to_two_towers(fitted: tuple[Fit, Path]) -> None:
    model = Model(fitted[1], head="linear_towers")
    (there,), (back,) = model.predict([("the of in", "at to on")]), model.predict([("at to on", "the of in")])
    if fitted[0].task.labels:
        assert there.probabilities == pytest.approx(back.probabilities, abs=1e-4)
    else:
        assert there.score == pytest.approx(back.score, abs=1e-4)


def test_reports_and_kits_take_such_a_folder(fitted: tuple[Fit, Path], tmp_path: Path) -> None:
    _, folder = fitted
    make_report([folder], tmp_path / "report")
    kit = Kit(make_kit([folder], tmp_path / "kit", {"model": "mlp_towers"}), device="cpu")
    pair = ("the of in", "at to on")
    (row,), (expected,) = kit.predict([pair]), Model(folder, head="mlp_towers").predict([pair])
    ours, theirs = row["model"].to_dict(), expected.to_dict()
    for key in ours.keys() & {"label", "score"}:
        assert ours[key] == pytest.approx(theirs[key], abs=1e-3)


def test_tuning_is_not_proposed_for_pairs(fitted: tuple[Fit, Path]) -> None:
    fit, _ = fitted  # few rows, but both texts would be tuned as one sequence
    assert fit.tuning_hint() == "" and not wants_tuning("auto", fit.task, len(fit.examples))
    assert wants_tuning("auto", replace(fit.task, takes_pairs=False), len(fit.examples)) == bool(fit.task.labels)


def test_single_texts_have_no_towers(tiny_encoder_folder: Path) -> None:
    single = from_columns(["the of", "in at", "to on", "was by"], ["a", "b", "a", "b"], kind="label")
    with pytest.raises(UserError, match="'linear_towers', which compares the two texts of a pair"):
        fit_table(single, Options(str(tiny_encoder_folder), ["linear_towers"]))


def test_all_layers_are_held_against_the_best_reading_of_the_last_one() -> None:
    def line(name: str, score: float) -> Line:
        return Line(name, score, None, None, None, 0.0, 0)

    lines = [line("last_lr", 50), line("last_lr_towers", 60), line("cosine_lr", 65), line("linear_towers", 66)]
    board = Leaderboard(lines, "linear_towers", "accuracy", "accuracy", "cv", 5, 100)
    assert board.gain() == "All layers (linear_towers) add 1.0 points over the last layer (cosine_lr)."
