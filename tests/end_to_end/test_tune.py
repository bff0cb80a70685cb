"""`fit` with a tuned encoder: how it is judged, and what its folder holds."""

import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from tiny_encoders import say_how_to_read
from transformers import AutoModel

import bertvision as bv
from bertvision.heads import load_head
from bertvision.models import fit as fitting
from bertvision.models.fit import Options, fit_table
from bertvision.models.tuned import Tuning, limit_tuned
from bertvision.tasks.own_table import read_own_table
from bertvision.training import finetune

Command = Callable[..., Any]
WORDS = {"animals": ["cat", "dog", "horse", "bird", "fish"], "places": ["london", "paris", "rome", "berlin", "river"]}
NEW = ["the horse and the bird", "the river and paris"]


def write_table(path: Path, rows: int, seed: int = 0, scores: bool = False) -> Path:
    """Texts whose words decide the label, or have a score."""
    draw = random.Random(seed)
    lines = ["message,score" if scores else "message,topic"]
    for row in range(rows):
        topic = list(WORDS)[row % 2]
        words = " and ".join(draw.choices(WORDS[topic], k=3))
        lines.append(f"the {words} number {row},{row % 7 + 0.5 if scores else topic}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def tuned_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose `tuned_linear`: with a random tiny encoder, the leaderboard may have any order."""
    choose_always("tuned_linear", monkeypatch)


def choose_always(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(trials: Any, *_: Any) -> tuple[Any, int]:
        return next(trial for trial in trials if trial.name == name), 1

    monkeypatch.setattr(fitting, "_choose", choose)


def fit_in(folder: Path, command: Command, encoder: Path, *more: object) -> Any:
    train = write_table(folder / "train.csv", 24)
    own = ("--to", folder / "m", "--encoder", encoder, "--heads", "linear", "--json", "--tune")
    said = command("fit", train, *own, *more)
    assert said.code == 0, said.err
    return said.json


def test_the_folder_of_a_tuned_model_has_its_encoder(
    tuned_wins: None, command: Command, mean_encoder_folder: Path, tmp_path: Path
) -> None:
    found = fit_in(tmp_path, command, mean_encoder_folder)
    assert found["chosen"] == "tuned_linear" and found["choice"] == {"how": "cv", "folds": 3, "rows": 24}
    weights = AutoModel.from_pretrained(mean_encoder_folder, dtype="float32").num_parameters()
    assert found["tuned"]["trained_parameters"] == weights + 2 * 32 + 2 and found["tuned"]["seconds"] > 0
    notes = {line["name"]: line["note"] for line in found["leaderboard"]}
    assert "each of the 3 folds tuned its own encoder" in notes["tuned_last_lr"] and not notes["linear"]
    model, alone = bv.load(tmp_path / "m"), bv.load(tmp_path / "m", head="tuned_last_lr")
    assert [row.label in ("animals", "places") for row in model.predict(NEW)] == [True, True]
    assert alone.predict(NEW)[0].label and bv.load(tmp_path / "m", head="last_lr").predict(NEW)
    assert not torch.equal(weights_of(model), weights_of(bv.load(tmp_path / "m", head="last_lr")))
    card = (tmp_path / "m" / "README.md").read_text(encoding="utf-8")
    assert "which was tuned on the same rows" in card
    assert command("report", tmp_path / "m").code == 0


def weights_of(model: bv.Model) -> torch.Tensor:
    """A weight of an upper layer."""
    return model.predictor.encoder.model.encoder.layer[2].attention.self.query.weight.clone()


def test_dev_scores_are_those_of_the_saved_models_of_both_encoders(
    tuned_wins: None, command: Command, mean_encoder_folder: Path, tmp_path: Path
) -> None:
    dev = write_table(tmp_path / "dev.csv", 20, seed=1)
    found = fit_in(tmp_path, command, mean_encoder_folder, "--dev", dev)
    table = read_own_table(dev, text="message", label="topic")
    assert table.labels is not None
    for line in found["leaderboard"][1:]:
        rows = bv.load(tmp_path / "m", head=line["name"]).predict(table.texts)
        right = np.mean([row.label == label for row, label in zip(rows, table.labels, strict=True)])
        assert 100 * right == pytest.approx(line["dev"]), line["name"]


def test_the_average_on_a_tuned_encoder_is_the_mean_of_its_heads(
    command: Command, mean_encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_always("tuned_average", monkeypatch)
    found = fit_in(tmp_path, command, mean_encoder_folder)
    assert found["chosen"] == "tuned_average"
    assert found["leaderboard"][-1]["note"] == "mean of tuned_last_lr, tuned_linear"
    names = ("tuned_last_lr", "tuned_linear", None)
    parts = [[row.probabilities for row in bv.load(tmp_path / "m", head=name).predict(NEW)] for name in names]
    for last, all_layers, average in zip(*parts, strict=True):
        for label, share in average.items():
            assert share == pytest.approx((last[label] + all_layers[label]) / 2, abs=1e-6)
    assert command("report", tmp_path / "m").code == 0
    assert "tuned_average" in (tmp_path / "m" / "report.html").read_text(encoding="utf-8")
    refused = command("kit", tmp_path / "m", "--to", tmp_path / "kit")
    assert refused.code == 2 and "tuned encoder" in " ".join(refused.err.split())


def test_a_kit_refuses_a_tuned_encoder_and_says_why(
    tuned_wins: None, command: Command, mean_encoder_folder: Path, tmp_path: Path
) -> None:
    fit_in(tmp_path, command, mean_encoder_folder)
    refused = command("kit", tmp_path / "m", "--to", tmp_path / "kit")
    assert refused.code == 2 and "tuned encoder; a kit needs the untouched one" in " ".join(refused.err.split())
    assert "--head" not in refused.err  # without --dev, no other head is saved
    refused = command("kit", tmp_path / "m", "--to", tmp_path / "kit", "--head", "m=linear")
    assert refused.code == 2 and "has only the scores of linear" in " ".join(refused.err.split())
    assert not (tmp_path / "kit").exists()


def test_a_kit_takes_a_head_on_the_untouched_encoder_of_a_tuned_model(
    tuned_wins: None, command: Command, mean_encoder_folder: Path, tmp_path: Path
) -> None:
    fit_in(tmp_path, command, mean_encoder_folder, "--dev", write_table(tmp_path / "dev.csv", 20, seed=1))
    refused = command("kit", tmp_path / "m", "--to", tmp_path / "kit")
    assert refused.code == 2 and "--head m=NAME (linear)" in " ".join(refused.err.split())
    assert command("kit", tmp_path / "m", "--to", tmp_path / "kit", "--head", "m=linear").code == 0


@pytest.mark.parametrize(("says", "read"), [("cls", "cls"), ("max", "max"), (None, "mean")])
def test_a_tuned_encoder_is_read_as_it_was_made(
    says: str | None, read: str, tuned_wins: None, command: Command, mean_encoder_folder: Path, tmp_path: Path
) -> None:
    encoder = tmp_path / "encoder"
    shutil.copytree(mean_encoder_folder, encoder, ignore=shutil.ignore_patterns("1_Pooling"))
    if says is not None:
        say_how_to_read(encoder, says)
    assert fit_in(tmp_path, command, encoder)["chosen"] == "tuned_linear"
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["finetune"]["read"] == read
    (head,) = (tmp_path / "m" / "snapshots").glob("epoch_[1-9]*/heads/tuned_linear")
    assert load_head(head)[0].reads == (read,)
    assert command("report", tmp_path / "m").code == 0
    assert command("predict", tmp_path / "m", "--text", "the cat").code == 0


def test_a_damaged_pooling_file_is_named(command: Command, mean_encoder_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(mean_encoder_folder, tmp_path / "encoder")
    (tmp_path / "encoder" / "1_Pooling" / "config.json").write_text("{damaged")
    train = write_table(tmp_path / "train.csv", 24)
    refused = command("fit", train, "--to", tmp_path / "m", "--encoder", tmp_path / "encoder")
    assert refused.code == 2 and "1_Pooling/config.json" in refused.err and "damaged" in refused.err


def test_an_encoder_is_tuned_on_a_limited_number_of_rows(
    command: Command, mean_encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertvision.models.tuned.MOST_TUNED", 12)
    read: list[int] = []
    run = finetune.Finetuning.run_through

    def count(work: Any, *given: Any) -> None:
        rows = np.concatenate([batch for batches in work.plan.epochs for batch in batches])
        read.append(len(np.unique(rows)))
        run(work, *given)

    monkeypatch.setattr(finetune.Finetuning, "run_through", count)
    table = read_own_table(write_table(tmp_path / "train.csv", 24), text="message", label="topic")
    fit = fit_table(table, Options(str(mean_encoder_folder), "linear", tune=True))
    assert set(read) == {12}
    assert any("Tuning reads 12 of 24 rows" in note for note in fit.notes)


def test_rows_to_tune_on_have_as_many_of_each_label_as_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = torch.tensor([0] * 20 + [1] * 3 + [2] * 9)  # (row)
    monkeypatch.setattr("bertvision.models.tuned.MOST_TUNED", 15)
    kept = limit_tuned(torch.arange(32), targets, 0)
    assert targets[kept].bincount().tolist() == [6, 3, 6] and kept.tolist() == sorted(set(kept.tolist()))
    assert limit_tuned(torch.arange(15), targets, 0).tolist() == list(range(15))
    some = torch.arange(1, 32)
    assert set(limit_tuned(some, targets, 0).tolist()) <= set(some.tolist())


def test_the_rows_of_a_fold_do_not_reach_the_encoder_that_judges_them(
    mean_encoder_folder: Path, tmp_path: Path
) -> None:
    """Other labels for the held-out rows of a fold change nothing that its encoder returns."""
    table = read_own_table(write_table(tmp_path / "train.csv", 24), text="message", label="topic")
    fit = fit_table(table, Options(str(mean_encoder_folder), "linear", tune=True))
    assert fit.tuning is not None
    before = fit.tuning.states_of(1)["mean"]  # (row, layer, hidden)
    fit.tuning._folds.clear()
    held = fit.split.held[1]
    swap_labels(fit.tuning, held)
    assert torch.equal(before, fit.tuning.states_of(1)["mean"])
    fit.tuning._folds.clear()
    swap_labels(fit.tuning, fit.split.used(1)[:6])
    assert not torch.equal(before, fit.tuning.states_of(1)["mean"])


def swap_labels(tuning: Tuning, rows: torch.Tensor) -> None:
    """Give some rows the other of the two labels, wherever labels are kept."""
    tuning.rows.targets[rows] = 1 - tuning.rows.targets[rows]
    tuning.features.target[rows.numpy()] = 1 - tuning.features.target[rows.numpy()]


def test_an_untouched_model_that_wins_leaves_the_encoder_untouched(
    monkeypatch: pytest.MonkeyPatch, command: Command, mean_encoder_folder: Path, tmp_path: Path
) -> None:
    def choose(trials: Any, *_: Any) -> tuple[Any, int]:
        return next(trial for trial in trials if trial.name == "linear"), 1

    monkeypatch.setattr(fitting, "_choose", choose)
    found = fit_in(tmp_path, command, mean_encoder_folder)
    assert found["chosen"] == "linear" and found["tuned"] is None
    assert [path.name for path in (tmp_path / "m" / "snapshots").iterdir()] == ["epoch_0"]
    assert command("kit", tmp_path / "m", "--to", tmp_path / "kit").code == 0
    # `last_lr` on the untouched encoder must not answer in its place.
    for name in ("tuned_last_lr", "tuned_linear"):
        with pytest.raises(bv.UserError, match="has no tuned encoder"):
            bv.load(tmp_path / "m", head=name).predict(NEW)


def test_tuning_that_diverges_leaves_the_models_on_the_untouched_encoder(
    monkeypatch: pytest.MonkeyPatch, mean_encoder_folder: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(finetune, "contrastive_loss", lambda means, *_: means.sum() * float("nan"))
    table = read_own_table(write_table(tmp_path / "train.csv", 24), text="message", label="topic")
    fit = fit_table(table, Options(str(mean_encoder_folder), "linear", tune=True))
    assert fit.chosen.role != "tuned" and set(fit.skipped) == {"tuned_last_lr", "tuned_linear"}
    assert all("NaN" in why for why in fit.skipped.values())
    assert fit.tuning is not None
    with pytest.raises(bv.UserError, match="without --tune"):
        _ = fit.tuning.final


def test_estimators_tune_save_and_are_cloned(tuned_wins: None, mean_encoder_folder: Path, tmp_path: Path) -> None:
    table = read_own_table(write_table(tmp_path / "train.csv", 24), text="message", label="topic")
    model = bv.Classifier(str(mean_encoder_folder), "linear", tune="auto").fit(table.texts, table.labels)
    assert model.chosen_ == "tuned_linear" and clone(model).tune == "auto"
    expected = model.predict_proba(NEW)
    saved = bv.Classifier.load(model.save(tmp_path / "m"))
    assert saved.tune == "auto" and np.array_equal(saved.predict_proba(NEW), expected)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict_proba(NEW), expected)
    assert len(cross_val_score(clone(model), table.texts, table.labels, cv=2)) == 2


def test_few_rows_get_a_hint_and_scores_an_error(command: Command, mean_encoder_folder: Path, tmp_path: Path) -> None:
    train, scores = write_table(tmp_path / "t.csv", 24), write_table(tmp_path / "s.csv", 24, scores=True)
    own = ("--encoder", mean_encoder_folder, "--heads", "linear")
    assert "--tune may help" in command("fit", train, "--to", tmp_path / "a", *own).out
    assert "--tune may help" not in command("fit", train, "--to", tmp_path / "b", *own, "--tune").out
    refused = command("fit", scores, "--kind", "score", "--to", tmp_path / "c", *own, "--tune")
    assert refused.code == 2 and "labels" in refused.err
    for wrong in ("always", 1):
        with pytest.raises(bv.UserError, match="tune must be"):
            bv.fit(train, to=tmp_path / "d", encoder=str(mean_encoder_folder), tune=wrong)


def test_a_run_tunes_by_comparing_labels(command: Command, mean_encoder_folder: Path, tmp_path: Path) -> None:
    train, dev = write_table(tmp_path / "train.csv", 40), write_table(tmp_path / "dev.csv", 20, seed=1)
    config = tmp_path / "config.toml"
    config.write_text(
        f'heads = ["linear"]\nrun = "{tmp_path / "run"}"\n[task]\nname = "files"\ntrain = "{train}"\ndev = "{dev}"\n'
        f'text = "message"\nlabel = "topic"\n[encoder]\nname = "{mean_encoder_folder}"\n'
        '[data]\nhold_out = 0.25\nmax_length = 48\n[finetune]\nmethod = "contrastive"\nepochs = 4\nsnapshots = [2]\n',
        encoding="utf-8",
    )
    said = command("run", config, "--json")
    assert said.code == 0, said.err
    assert list(said.json["snapshots"]) == ["2", "4"]
    assert said.json["snapshots"]["4"]["encoder"]["trained_parameters"] > 0
    refused = command("run", config, 'task.kind="score"', "task.label=message")
    assert refused.code == 2
