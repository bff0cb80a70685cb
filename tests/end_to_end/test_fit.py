"""`bertvision fit` from a table to a model that predicts, is reported and becomes part of a kit."""

import csv
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertvision as bv

Command = Callable[..., Any]
WORDS = {"animals": ["cat", "dog", "horse", "bird", "fish"], "places": ["london", "paris", "rome", "berlin", "river"]}
KEYS = {"model", "kind", "metric", "rows", "encoder", "choice", "chosen", "leaderboard", "seconds"}
LINE = {"name", "cv", "cv_sd", "dev", "seconds", "parameters"}


def write_table(path: Path, rows: int, seed: int = 0, scores: bool = False) -> Path:
    """Texts whose words decide the label, or whose number of animals is the score."""
    draw = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["message", "score" if scores else "topic"])
        for row in range(rows):
            topic = list(WORDS)[row % 2]
            words = draw.choices(WORDS[topic], k=3) + draw.choices(WORDS["animals" if scores else topic], k=row % 4)
            draw.shuffle(words)
            animals = sum(word in WORDS["animals"] for word in words)
            writer.writerow([f"the {' and '.join(words)}, number {row}", f"{animals + 0.5}" if scores else topic])
    return path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, command: Command, mean_encoder_folder: Path) -> tuple[Path, Any]:
    """A model with a dev set, and what `fit --json` printed."""
    folder = tmp_path_factory.mktemp("fit")
    train, dev = write_table(folder / "train.csv", 60), write_table(folder / "dev.csv", 20, seed=1)
    said = command("fit", train, "--dev", dev, "--to", folder / "model", "--encoder", mean_encoder_folder, "--json")
    assert said.code == 0, said.err
    return folder / "model", said


def test_the_leaderboard_has_every_row_and_the_json_every_key(fitted: tuple[Path, Any]) -> None:
    folder, said = fitted
    found = said.json
    assert found.keys() >= KEYS and found["model"] == str(folder) and found["rows"] == 60
    assert found["kind"] == "label" and found["metric"] == "accuracy"
    assert found["choice"] == {"how": "cv", "folds": 5, "rows": 60}
    names = [line["name"] for line in found["leaderboard"]]
    assert names[:4] == ["majority", "tfidf_lr", "last_lr", "best_layer_lr"]
    assert {"linear", "mlp", "attentive", "average"} <= set(names)
    assert all(line.keys() >= LINE and line["dev"] is not None for line in found["leaderboard"])
    scores = {line["name"]: line["cv"] for line in found["leaderboard"]}
    # Within one standard error of the best: of the difference of two fractions of 60 rows.
    assert max(scores.values()) - scores[found["chosen"]] <= 100 / 60**0.5 and found["chosen"] != "majority"
    assert "'message' as text and 'topic' as label" in said.err and "Change this with" in said.err


def test_scores_on_dev_are_those_of_the_saved_model(fitted: tuple[Path, Any], tmp_path: Path) -> None:
    folder, said = fitted
    with (folder.parent / "dev.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for line in said.json["leaderboard"]:
        if line["name"] == "majority":
            continue
        model = bv.load(folder, head=line["name"])
        predicted = [row.label for row in model.predict([row["message"] for row in rows])]
        right = np.mean([label == row["topic"] for label, row in zip(predicted, rows, strict=True)])
        assert 100 * right == pytest.approx(line["dev"]), line["name"]


def test_python_and_the_command_line_predict_the_same(fitted: tuple[Path, Any], command: Command) -> None:
    folder, _ = fitted
    (row,) = bv.load(folder).predict(["the horse and the bird"])
    typed = command("predict", folder, "--text", "the horse and the bird", "--json").json
    assert typed == row.to_dict()
    assert row.label in row.probabilities and sum(row.probabilities.values()) == pytest.approx(1, abs=1e-4)
    said = command("predict", folder, "--text", "the horse and the bird")
    assert said.out.startswith(row.label) and "held-out answer" in said.out


def test_an_existing_model_is_replaced_only_when_asked(
    fitted: tuple[Path, Any], command: Command, mean_encoder_folder: Path, tmp_path: Path
) -> None:
    folder, _ = fitted
    train = folder.parent / "train.csv"
    before = (folder / "model.json").read_bytes()
    refused = command("fit", train, "--to", folder, "--encoder", mean_encoder_folder)
    assert refused.code == 2 and "--overwrite" in refused.err and (folder / "model.json").read_bytes() == before
    own = ("--encoder", mean_encoder_folder, "--heads", "linear", "--to", tmp_path / "m")
    assert command("fit", train, *own).code == 0 and command("fit", train, *own, "--overwrite").code == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    other = command("fit", train, "--to", tmp_path / "mine", "--overwrite")
    assert other.code == 2 and "not a fitted model" in other.err and (tmp_path / "mine" / "file").exists()


def test_a_report_and_a_kit_are_made_of_it(fitted: tuple[Path, Any], command: Command, tmp_path: Path) -> None:
    folder, _ = fitted
    assert command("report", folder).code == 0 and "linear" in (folder / "report.md").read_text(encoding="utf-8")
    made = command("kit", folder, "--to", tmp_path / "kit")
    assert made.code == 0, made.err
    kit = bv.load(tmp_path / "kit")
    (row,) = kit.predict(["the horse and the bird"])
    assert row["model"].label in WORDS
    assert (folder / "README.md").read_text(encoding="utf-8").startswith("# model")


def test_scores_are_fitted_without_a_dev_set(command: Command, mean_encoder_folder: Path, tmp_path: Path) -> None:
    train = write_table(tmp_path / "train.csv", 60, scores=True)
    said = command(
        "fit", train, "--kind", "score", "--to", tmp_path / "m", "--encoder", mean_encoder_folder, "--json",
        "--heads", "linear,mlp,tfidf_lr",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert said.json["kind"] == "score" and said.json["metric"] == "pearson"
    assert all(line["dev"] is None for line in said.json["leaderboard"])
    (row,) = bv.load(tmp_path / "m").predict(["the cat and dog and horse, number 7"])
    assert isinstance(row.score, float) and row.trust["examples"] == 60
    assert command("report", tmp_path / "m").code == 0


def test_words_can_win_and_a_kit_refuses_them(command: Command, mean_encoder_folder: Path, tmp_path: Path) -> None:
    """The label is a word that the tiny encoder does not know, so that only TF-IDF can read it."""
    draw = random.Random(0)
    with (tmp_path / "train.csv").open("w", encoding="utf-8") as file:
        file.write("text,label\n")
        for row in range(60):
            fillers = " ".join(f"w{draw.randrange(200)}x" for _ in range(6))
            file.write(f"{fillers} {'zqxj' if row % 2 else 'vkqw'} {fillers},{'a' if row % 2 else 'b'}\n")
    said = command(
        "fit", tmp_path / "train.csv", "--to", tmp_path / "m", "--encoder", mean_encoder_folder, "--json",
        "--heads", "tfidf_lr",
    )  # fmt: skip
    assert said.json["chosen"] == "tfidf_lr"
    kept = sorted(path.name for path in (tmp_path / "m" / "snapshots" / "epoch_0" / "tfidf").iterdir())
    assert kept == ["head.safetensors", "stamp.json", "vocabulary.json"]
    rows = bv.load(tmp_path / "m").predict(["one zqxj two", "one vkqw two"])
    assert [row.label for row in rows] == ["a", "b"]
    refused = command("kit", tmp_path / "m", "--to", tmp_path / "kit")
    assert refused.code == 2 and "reads no encoder" in refused.err and not (tmp_path / "kit").exists()
    assert command("report", tmp_path / "m").code == 0


def test_rows_that_may_be_mislabelled_are_listed(command: Command, mean_encoder_folder: Path, tmp_path: Path) -> None:
    train = write_table(tmp_path / "train.csv", 120)
    lines = train.read_text(encoding="utf-8").splitlines()
    wrong = [10, 41, 76]
    for number in wrong:
        text, _, topic = lines[number].rpartition(",")
        lines[number] = f"{text},{'places' if topic == 'animals' else 'animals'}"
    train.write_text("\n".join(lines) + "\n", encoding="utf-8")
    own = ("--to", tmp_path / "m", "--encoder", mean_encoder_folder, "--heads", "tfidf_lr")
    assert command("fit", train, *own).code == 0
    with (tmp_path / "m" / "suspects.csv").open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    listed = {row["place"] for row in found}
    assert len({f"train.csv, line {number + 1}" for number in wrong} & listed) >= 2
    assert len(found) <= 6 and "text" not in found[0]


def test_time_limits_are_kept_and_said(command: Command, mean_encoder_folder: Path, tmp_path: Path) -> None:
    train = write_table(tmp_path / "train.csv", 60)
    own = ("--to", tmp_path / "m", "--encoder", mean_encoder_folder, "--json")
    said = command("fit", train, *own, "--seconds", "0.01")
    assert said.code == 0, said.err
    notes = [line["note"] for line in said.json["leaderboard"]]
    assert any("time" in note for note in notes) and said.json["chosen"] == "last_lr"
    assert bv.load(tmp_path / "m").predict(["the cat"])[0].label in WORDS


def test_a_narrow_terminal_shows_the_notes_below_the_table(
    command: Command, mean_encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    train = write_table(tmp_path / "train.csv", 60)
    own = ("--to", tmp_path / "m", "--encoder", mean_encoder_folder, "--heads", "best_layer_lr")
    said = command("fit", train, *own)
    assert said.code == 0 and re.search(r"^  best_layer_lr: layer \d$", said.out, re.MULTILINE)


def test_a_damaged_model_is_to_be_fitted_again(command: Command, mean_encoder_folder: Path, tmp_path: Path) -> None:
    train = write_table(tmp_path / "train.csv", 40)
    own = ("--to", tmp_path / "m", "--encoder", mean_encoder_folder, "--heads", "linear")
    assert command("fit", train, *own).code == 0
    (tmp_path / "m" / "scores.json").unlink()
    said = command("predict", tmp_path / "m", "--text", "the cat")
    assert said.code == 2 and "fit the model again" in said.err and "bertvision run" not in said.err


def test_a_kit_takes_saved_heads_only(
    command: Command, mean_encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertvision.models import fit

    # The average is chosen, of the two heads with the lowest loss.
    monkeypatch.setattr(fit, "AVERAGED", 2)
    monkeypatch.setattr(fit, "_choose", lambda trials, *_: (trials[-1], 1))
    train = write_table(tmp_path / "train.csv", 60)
    heads = "linear,linear_deviation,mlp"
    own = ("--to", tmp_path / "m", "--encoder", mean_encoder_folder, "--heads", heads, "--json")
    assert command("fit", train, *own).json["chosen"] == "average"
    saved = {folder.name for folder in (tmp_path / "m/snapshots/epoch_0/heads").iterdir()}
    assert len(saved) == 2 and saved < set(heads.split(","))
    assert command("kit", tmp_path / "m", "--to", tmp_path / "kit").code == 0
    (left,) = set(heads.split(",")) - saved
    refused = command("kit", tmp_path / "m", "--to", tmp_path / "other", "--head", f"m={left}")
    assert refused.code == 2 and f"only the scores of {left}" in refused.err


def test_ctrl_c_keeps_the_best_so_far(
    command: Command, mean_encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertvision.models.candidates import PerceptronCandidate

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PerceptronCandidate, "attempt", interrupt)
    train = write_table(tmp_path / "train.csv", 60)
    said = command("fit", train, "--to", tmp_path / "m", "--encoder", mean_encoder_folder, "--json")
    assert said.code == 0 and "best model so far" in said.err
    names = {line["name"]: line for line in said.json["leaderboard"]}
    assert names["mlp"]["note"] == "interrupted" and names["mlp"]["cv"] is None
    assert bv.load(tmp_path / "m").predict(["the cat"])[0].label in WORDS


def test_the_missing_embedded_encoder_is_one_sentence(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertvision.encoder.loading.EMBEDDED_PACKAGE", "no_such_package")
    said = command("fit", write_table(tmp_path / "train.csv", 30), "--to", tmp_path / "m")
    assert said.code == 2 and "pip install" in said.err and "Traceback" not in said.err
    assert not (tmp_path / "m").exists()


def test_the_twin_of_the_command_returns_the_model(mean_encoder_folder: Path, tmp_path: Path) -> None:
    train = write_table(tmp_path / "train.csv", 40)
    model = bv.fit(train, label="topic", to=tmp_path / "m", encoder=str(mean_encoder_folder), heads=["linear"])
    assert isinstance(model, bv.Model) and model.labels == ["animals", "places"] and "2 labels" in repr(model)
    facts = json.loads((tmp_path / "m" / "model.json").read_text(encoding="utf-8"))
    assert facts["format"] == 1 and facts["encoder_stamp"] and facts["chosen"] == model.chosen
    with pytest.raises(bv.UserError, match="--to|to="):
        bv.fit(train, label="topic", to=tmp_path / "m", encoder=str(mean_encoder_folder))


@pytest.mark.parametrize("head", ["linear", "last_lr", "mlp", "attentive"])
def test_the_new_heads_train_in_a_run(head: str, command: Command, mean_encoder_folder: Path, tmp_path: Path) -> None:
    train, dev = write_table(tmp_path / "train.csv", 60), write_table(tmp_path / "dev.csv", 20, seed=1)
    config = tmp_path / "config.toml"
    config.write_text(
        f'heads = ["{head}"]\nrun = "{tmp_path / "run"}"\n[task]\nname = "files"\ntrain = "{train}"\ndev = "{dev}"\n'
        f'text = "message"\nlabel = "topic"\n[encoder]\nname = "{mean_encoder_folder}"\n'
        "[data]\nhold_out = 0.25\nmax_length = 48\n[finetune]\nepochs = 0\n",
        encoding="utf-8",
    )
    said = command("run", config, "--json")
    assert said.code == 0, said.err
    models = said.json["snapshots"]["0"]
    assert head in models and models[head]["scores"]["dev"]["total"] == 20
    assert ("last_lr" in models) == (head in ("linear", "last_lr"))
    again = command("run", config, "--json").json
    assert again["snapshots"]["0"][head]["scores"] == models[head]["scores"]
