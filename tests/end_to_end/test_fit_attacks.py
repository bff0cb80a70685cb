"""`fit` with hostile data, options and interruptions; fitted models with damaged files. Never a traceback."""

import csv
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import bertvision as bv
from bertvision.models.candidates import LinearCandidate, StrengthPath, TfidfCandidate
from bertvision.models.fit import Options, fit_table
from bertvision.tasks.own_table import from_columns

Command = Callable[..., Any]
SNAPSHOT = Path("snapshots", "epoch_0")


def write_rows(path: Path, targets: Sequence[object], texts: Sequence[str] | None = None) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for row, target in enumerate(targets):
            writer.writerow([texts[row] if texts else f"the {'cat' if row % 2 else 'dog'} of {row}", target])
    return path


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "labels.csv", ["pos" if row % 2 else "neg" for row in range(30)])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, command: Command, mean_encoder_folder: Path) -> dict[str, Path]:
    """A model whose head is chosen, and one of TF-IDF."""
    folder = tmp_path_factory.mktemp("models")
    wordless = [("!" if row % 2 else "?") * (1 + row // 2) for row in range(30)]
    targets = ["pos" if row % 2 else "neg" for row in range(30)]
    write_rows(folder / "head.csv", targets, wordless), write_rows(folder / "tfidf_lr.csv", targets)
    for name in ("head", "tfidf_lr"):
        said = command(
            "fit", folder / f"{name}.csv", "--to", folder / name, "--encoder", mean_encoder_folder, "--heads",
            "linear,tfidf_lr" if name == "head" else name, "--json",
        )  # fmt: skip
        assert said.code == 0, said.err
        assert (said.json["chosen"] == "tfidf_lr") == (name == "tfidf_lr")
    return {name: folder / name for name in ("head", "tfidf_lr")}


# ---------------------------------------------------------------------- data


@pytest.mark.parametrize(
    ("power", "expected"),
    [("e300", "between"), ("e30", "between"), ("e400", "between"), ("e-30", "too close")],
)
def test_scores_beyond_single_precision_are_refused(
    power: str, expected: str, command: Command, mean_encoder_folder: Path, tmp_path: Path
) -> None:
    train = write_rows(tmp_path / "train.csv", [f"{row + 1}{power}" for row in range(30)])
    said = command("fit", train, "--encoder", mean_encoder_folder, "--to", tmp_path / "m", "--heads", "linear")
    assert said.code == 2 and expected in said.err and "'label'" in said.err, said.err


def test_scores_that_hardly_differ_are_refused() -> None:
    with pytest.raises(bv.UserError, match="subtract"):
        from_columns(["a", "b", "c", "d"], [1e9 + 0.1 * row for row in range(4)], kind="score")


def test_texts_without_words_leave_tfidf_out_and_say_why(models: dict[str, Path]) -> None:
    rows = {line["name"]: line for line in bv.load(models["head"]).leaderboard}
    assert rows["tfidf_lr"]["cv"] is None and rows["tfidf_lr"]["note"] == "not tried: the texts have no words"


def test_words_that_occur_only_once_are_kept_if_there_are_no_others() -> None:
    from bertvision.models.tfidf import Words

    found = Words.of([f"word{row}" for row in range(1000)])
    assert found is not None and len(found.vocabulary) == 1000


# ---------------------------------------------------------------------- options


def test_the_last_layer_is_tried_even_without_time(
    labels: Path, command: Command, mean_encoder_folder: Path, tmp_path: Path
) -> None:
    own = ("--encoder", mean_encoder_folder, "--to", tmp_path / "m", "--json")
    said = command("fit", labels, *own, "--seconds", "0.000001")
    assert said.code == 0, said.err
    assert said.json["chosen"] == "last_lr" and bv.load(tmp_path / "m").predict(["the cat"])[0].label in "pos neg"


def test_the_most_seconds_are_no_limit(
    labels: Path, command: Command, mean_encoder_folder: Path, tmp_path: Path
) -> None:
    own = ("--encoder", mean_encoder_folder, "--to", tmp_path / "m", "--heads", "linear")
    said = command("fit", labels, *own, "--seconds", "1e9")
    assert said.code == 0, said.err
    assert (
        "--seconds must be above 0 and at most 1e+09, not inf" in command("fit", labels, *own, "--seconds", "inf").err
    )


def test_auto_stands_alone(labels: Path, command: Command, tmp_path: Path) -> None:
    said = command("fit", labels, "--to", tmp_path / "m", "--heads", "linear,auto")
    assert said.code == 2 and "'auto' stands alone" in said.err


def test_a_folder_that_can_not_be_made_is_refused_before_the_fit(labels: Path, command: Command) -> None:
    said = command("fit", labels, "--to", labels / "model")
    assert said.code == 2 and "is a file" in said.err and "--to" in said.err and "Using column" not in said.err


def test_a_folder_as_a_table_is_called_a_folder(command: Command, tmp_path: Path) -> None:
    said = command("fit", tmp_path)
    assert said.code == 2 and "is a folder" in said.err


def test_the_home_folder_is_expanded_and_blanks_are_quoted(
    labels: Path, command: Command, mean_encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    said = command("fit", labels, "--to", "~/my model", "--encoder", mean_encoder_folder, "--heads", "linear")
    assert said.code == 0 and (tmp_path / "my model" / "model.json").is_file(), said.err
    assert f"bertvision predict '{tmp_path / 'my model'}'" in " ".join(said.out.split())
    assert bv.load("~/my model").labels == ["neg", "pos"]


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"seed": 0.5}, {"seconds": 0}, {"seconds": "5"}])
def test_a_wrong_seed_or_time_is_one_sentence(wrong: dict[str, Any], mean_encoder_folder: Path) -> None:
    classifier = bv.Classifier(encoder=str(mean_encoder_folder), heads=["linear"], **wrong)
    with pytest.raises(bv.UserError, match=f"{next(iter(wrong))} must be"):
        classifier.fit(["a", "b", "c", "d"], [0, 1, 0, 1])


# ---------------------------------------------------------------------- interruptions and failures


def test_ctrl_c_before_the_first_model_stops(
    labels: Path, command: Command, mean_encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LinearCandidate, "attempt", interrupt)
    said = command("fit", labels, "--encoder", mean_encoder_folder, "--to", tmp_path / "m")
    assert said.code == 130 and "Interrupted" in said.err and not (tmp_path / "m").exists()


@pytest.mark.parametrize(("place", "name"), [(TfidfCandidate, "attempt"), (StrengthPath, "refit")])
def test_sigterm_ends_a_fit_without_a_model(
    place: Any,
    name: str,
    labels: Path,
    command: Command,
    mean_encoder_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody is there to use the best model so far."""
    monkeypatch.setattr(place, name, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    said = command(
        "fit", labels, "--encoder", mean_encoder_folder, "--to", tmp_path / "m", "--heads", "linear,tfidf_lr"
    )
    assert said.code == 143 and said.err.endswith("\nTerminated.\n") and not (tmp_path / "m").exists()


def test_after_ctrl_c_no_model_is_called_late(
    labels: Path, command: Command, mean_encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TfidfCandidate, "attempt", interrupt)
    said = command("fit", labels, "--encoder", mean_encoder_folder, "--to", tmp_path / "m", "--json")
    notes = {line["name"]: line["note"] for line in said.json["leaderboard"]}
    assert notes["tfidf_lr"] == "interrupted" and notes["linear"] == "not tried: interrupted"


@pytest.mark.parametrize("dev", [False, True])
def test_ctrl_c_while_fitting_again_keeps_the_chosen_model(
    dev: bool,
    labels: Path,
    command: Command,
    mean_encoder_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interrupted fit is made again. Models that nobody needs are left out."""
    fits: list[float] = []
    refit = StrengthPath.refit

    def interrupt(path: StrengthPath, step: int) -> Any:
        fits.append(step)
        if len(fits) == 1:
            raise KeyboardInterrupt
        return refit(path, step)

    own = ("--encoder", mean_encoder_folder, "--heads", "linear,linear_deviation", *(("--dev", labels) if dev else ()))
    whole = command("fit", labels, *own, "--to", tmp_path / "whole", "--json")
    monkeypatch.setattr(StrengthPath, "refit", interrupt)
    said = command("fit", labels, *own, "--to", tmp_path / "m", "--json")
    assert said.code == 0 and "finishing the chosen model" in said.err, said.err
    assert said.json["chosen"] == whole.json["chosen"]
    texts = ["the cat", "a bad one"]
    found, wanted = (bv.load(tmp_path / name).predict(texts) for name in ("m", "whole"))
    assert [{**one.to_dict(), "task": "whole"} for one in found] == [one.to_dict() for one in wanted]
    assert command("report", tmp_path / "m").code == 0


def test_a_second_ctrl_c_while_fitting_again_stops(
    labels: Path, command: Command, mean_encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(StrengthPath, "refit", interrupt)
    said = command("fit", labels, "--encoder", mean_encoder_folder, "--to", tmp_path / "m", "--heads", "linear")
    assert said.code == 130 and not (tmp_path / "m").exists()


def test_an_estimator_that_can_not_be_saved_leaves_no_folder(
    mean_encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("bertvision.models.estimator_files.save_fit", full)
    with pytest.raises(OSError, match="no space"):
        texts = [f"the cat {row}" for row in range(40)]
        bv.Classifier(str(mean_encoder_folder), heads=["linear"]).fit(texts, [0, 1] * 20)
    assert not list(tmp_path.glob("bertvision-*"))


def test_a_head_that_diverges_is_not_called_late(mean_encoder_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertvision.models.stepped.LEARNING_RATE", 1e30)
    table = from_columns([f"the {row}" for row in range(30)], ["a", "b"] * 15, kind="label")
    fit = fit_table(table, Options(str(mean_encoder_folder), ["adapter_64"]))
    assert fit.skipped == {"adapter_64": "failed: its loss became NaN or infinite"}


def test_attentive_pooling_without_memory_is_not_called_late(
    mean_encoder_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertvision.models.table_rows.TOKENS_SHARE", 0.0)
    table = from_columns([f"the {row}" for row in range(30)], ["a", "b"] * 15, kind="label")
    fit = fit_table(table, Options(str(mean_encoder_folder), ["attentive"]))
    assert "memory" in fit.skipped["attentive"]


def test_a_report_on_words_alone_says_that_they_read_no_encoder(models: dict[str, Path], command: Command) -> None:
    said = command("report", models["tfidf_lr"])
    assert said.code == 0, said.err
    written = (models["tfidf_lr"] / "report.md").read_text(encoding="utf-8")
    assert "tfidf_lr, which reads words and no encoder, is best" in written
    assert "No choice was made on the examples reported here" not in written  # without dev, they are the same rows
    assert "set in the config" not in written


# ---------------------------------------------------------------------- damaged folders


@pytest.mark.parametrize(
    ("model", "file", "content"),
    [
        ("head", "model.json", '{"format": 1}'),
        ("head", "model.json", "[]"),
        ("head", "model.json", '{"format"'),
        ("head", str(SNAPSHOT / "heads" / "{chosen}" / "head.safetensors"), "xx"),
        ("head", str(SNAPSHOT / "heads" / "{chosen}" / "config.json"), "{}"),
        ("tfidf_lr", str(SNAPSHOT / "tfidf" / "vocabulary.json"), '["a", "b"]'),
        ("tfidf_lr", str(SNAPSHOT / "tfidf" / "vocabulary.json"), '{"a": 1}'),
        ("tfidf_lr", str(SNAPSHOT / "tfidf" / "vocabulary.json"), "[1"),
        ("tfidf_lr", str(SNAPSHOT / "tfidf" / "head.safetensors"), "xx"),
    ],
)
def test_a_damaged_file_is_one_sentence(
    model: str, file: str, content: str, models: dict[str, Path], command: Command, tmp_path: Path
) -> None:
    shutil.copytree(models[model], tmp_path / "m")
    chosen = bv.load(models[model]).chosen
    chosen = "linear" if chosen == "last_lr" else chosen
    (tmp_path / "m" / file.format(chosen=chosen)).write_text(content, encoding="utf-8")
    said = command("predict", tmp_path / "m", "--text", "the cat", "--head", chosen)
    assert said.code == 2 and "damaged" in said.err and "Traceback" not in said.err, said.err
    with pytest.raises(bv.UserError, match="damaged"):
        bv.load(tmp_path / "m", head=chosen).predict(["the cat"])
