"""Ensembles for every kind of task: scored, saved and used like any model, from configs, the command and Python."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.special import softmax

import bertvision as bv
from bertvision.pipeline.job import reopen
from bertvision.pipeline.predict import Predictor
from bertvision.tasks.squad import read_squad

Command = Callable[..., Any]
PAIR = ("encoder", "adapter_4")


@pytest.fixture
def folders(squad_folder: Path, glue_folder: Path) -> dict[str, Path]:
    return {"squad2": squad_folder, "squad2_answerable": squad_folder, "rte": glue_folder, "stsb": glue_folder}


@pytest.fixture
def copy(finished: Callable[..., Path], folders: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """copy("rte") → a copy of a finished run that a test may modify."""

    def make(task: str, *overrides: str, to: str = "run") -> Path:
        return Path(shutil.copytree(finished(*overrides, name=task, data=folders[task]), tmp_path / to))

    return make


def models_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "scores.json").read_text())["snapshots"]["1"]
    return found


def place(run: Path, name: str, split: str = "dev") -> Path:
    return run / "snapshots/epoch_1/predictions" / split / name


def outputs_of(run: Path, name: str, split: str = "dev") -> np.ndarray:
    return load_file(place(run, name, split) / "outputs.safetensors")["outputs"].astype(np.float64)


def rows_of(run: Path, name: str, split: str = "dev") -> list[dict[str, Any]]:
    lines = (place(run, name, split) / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("method", ["max", "mean", "sum", "fitted"])
@pytest.mark.parametrize("task", ["squad2", "squad2_answerable", "rte", "stsb"])
def test_every_task_supports_every_method(task: str, method: str, copy: Callable[..., Path], command: Command) -> None:
    run = copy(task)
    said = command("ensemble", run, *PAIR, "last_linear", "--method", method, "--name", "three", "--json")
    assert said.code == 0, said.err
    facts = said.json["three"]
    assert facts == models_of(run)["three"]
    own = models_of(run)
    assert facts["parameters"] == sum(own[name]["parameters"] for name in (*PAIR, "last_linear"))
    assert set(facts["scores"]) == {"held_out", "dev"}
    assert facts["scores"]["dev"]["total"] == own["encoder"]["scores"]["dev"]["total"]
    assert ("threshold" in facts["scores"]["dev"]) == (task == "squad2")
    assert len(rows_of(run, "three")) == facts["scores"]["dev"]["total"]
    if method == "fitted":
        assert len(facts["weights"]) == 3 and min(facts["weights"]) >= 0
        assert task == "stsb" or sum(facts["weights"]) == pytest.approx(1, abs=1e-4)


def test_max_takes_the_label_with_the_highest_probability_of_any_member(
    copy: Callable[..., Path], command: Command
) -> None:
    run = copy("rte")
    command("ensemble", run, *PAIR, "--name", "both")
    highest = np.maximum(*(softmax(outputs_of(run, name), axis=1) for name in PAIR))  # (example, label)
    expected = highest / highest.sum(axis=1, keepdims=True)
    labels = ("entailment", "not_entailment")
    for row, probabilities in zip(rows_of(run, "both"), expected, strict=True):
        assert [row["probabilities"][label] for label in labels] == pytest.approx(probabilities, abs=1e-5)
        assert row["label"] == labels[int(probabilities.argmax())]


def test_maxima_for_spans_are_not_scaled_to_sum_to_1_in_a_window(
    copy: Callable[..., Path], command: Command, squad_folder: Path
) -> None:
    run = copy("squad2")
    command("ensemble", run, *PAIR, "--name", "both")
    features = reopen(run).features("dev")
    expected: dict[int, float] = {}  # question → log of the least probability of "no answer"
    for start, length, question in zip(features.starts, features.lengths, features.example, strict=True):
        window = [outputs_of(run, name)[start : start + length] for name in PAIR]  # each (token, 2)
        first = np.maximum(*(softmax(one, axis=0)[0] for one in window))  # (2) start and end at [CLS]
        expected[int(question)] = min(float(np.log(first).sum()), expected.get(int(question), 0.0))
    kept = [row["null_score"] for row in rows_of(run, "both")]
    assert kept == pytest.approx([*expected.values()], abs=1e-4)
    again = Predictor(run, "both").predict(read_squad(squad_folder / "dev-v2.0.json")).rows()
    assert [row["null_score"] for row in again] == pytest.approx(kept, abs=1e-3)


def test_predicted_scores_are_means_over_the_members(copy: Callable[..., Path], command: Command) -> None:
    run = copy("stsb")
    command("ensemble", run, *PAIR, "--name", "both", "--method", "mean")
    expected = np.mean([outputs_of(run, name)[:, 0] for name in PAIR], axis=0)  # (example)
    assert [row["score"] for row in rows_of(run, "both")] == pytest.approx(expected, abs=1e-4)


def test_ensembles_of_a_config_are_scored_at_every_snapshot_and_for_every_seed(
    finished: Callable[..., Path], glue_folder: Path
) -> None:
    run = finished(
        "train.seeds=2", "finetune.snapshots=[0.5]", "train.snapshots=[0.5,1]",
        'ensembles=[["encoder","adapter_4"],{members=["encoder@0.5","encoder@1"],name="two_ages"}]',
        name="rte", data=glue_folder,
    )  # fmt: skip
    snapshots = json.loads((run / "scores.json").read_text())["snapshots"]
    for models in snapshots.values():
        found = [model for model in models.values() if model.get("group") == "max_encoder_adapter_4"]
        assert [model["seed"] for model in found] == [0, 1]
        assert [[voice["name"] for voice in model["voices"]] for model in found] == [
            ["encoder", "adapter_4_seed0"], ["encoder", "adapter_4_seed1"],
        ]  # fmt: skip
    assert "two_ages" in snapshots["1"] and "two_ages" not in snapshots["0.5"]
    assert [voice["epochs"] for voice in snapshots["1"]["two_ages"]["voices"]] == [0.5, 1.0]
    assert "max_encoder_adapter_4, 2 seeds" in (run / "summary.md").read_text()


def test_an_ensemble_added_by_the_command_survives_the_next_evaluation(
    copy: Callable[..., Path], command: Command
) -> None:
    run = copy("rte")
    command("ensemble", run, *PAIR)
    before = models_of(run)["max_encoder_adapter_4"]
    made = (place(run, "max_encoder_adapter_4") / "stamp.json").stat().st_mtime_ns
    assert command("evaluate", run).code == 0
    assert models_of(run)["max_encoder_adapter_4"] == before
    assert (place(run, "max_encoder_adapter_4") / "stamp.json").stat().st_mtime_ns == made, "it was not scored again"


def test_ensembles_work_from_python_and_predict_with_all_members(copy: Callable[..., Path]) -> None:
    folder = copy("rte")
    run = bv.Run(folder)
    found = run.ensemble(*PAIR, method="fitted", name="both")
    assert list(found) == ["both"] and found["both"] == models_of(folder)["both"]
    examples = bv.build_task(run.config.task).read("dev")
    said = run.predict([(example.text, example.text_pair) for example in examples], head="both")
    for row, kept in zip(said, rows_of(folder, "both"), strict=True):
        assert list(row.probabilities.values()) == pytest.approx(list(kept["probabilities"].values()), abs=1e-4)


# ---------------------------------------------------------------------- several runs


def test_an_ensemble_can_have_members_of_another_run(copy: Callable[..., Path], command: Command) -> None:
    one, other = copy("rte"), copy("rte", "finetune.lr=1e-4", to="other")
    said = command("ensemble", one, "encoder", f"{other}:encoder", "--name", "two", "--json")
    assert said.code == 0, said.err
    highest = np.maximum(*(softmax(outputs_of(run, "encoder"), axis=1) for run in (one, other)))
    expected = highest.argmax(axis=1)
    labels = ("entailment", "not_entailment")
    assert [labels.index(row["label"]) for row in rows_of(one, "two")] == expected.tolist()
    assert "one encoder" in command("predict", one, "--text", "a", "--text-pair", "b", "--head", "two").err


@pytest.mark.parametrize(("method", "works"), [("max", True), ("mean", True), ("sum", False), ("fitted", False)])
@pytest.mark.parametrize("task", ["squad2", "squad2_answerable"])
def test_members_with_different_windows_are_combined_per_question(
    task: str, method: str, works: bool, copy: Callable[..., Path], command: Command
) -> None:
    one, other = copy(task), copy(task, "data.max_length=40", to="other")
    said = command("ensemble", one, "encoder", f"{other}:encoder", "--name", "two", "--method", method, "--json")
    assert (said.code == 0) == works, said.err
    if works:
        assert [row["id"] for row in rows_of(one, "two")] == [row["id"] for row in rows_of(one, "encoder")]
    else:
        assert "max" in said.err and "mean" in said.err and "Traceback" not in said.err


def test_different_examples_are_refused_by_name(copy: Callable[..., Path], command: Command) -> None:
    one, other = copy("rte"), copy("rte", "data.limit_dev=2", to="other")
    said = command("ensemble", one, "encoder", f"{other}:encoder")
    ids = [row["id"] for row in rows_of(one, "encoder")]
    left_out = [id for id in ids if id not in [row["id"] for row in rows_of(other, "encoder")]]
    assert said.code == 2 and f"{len(left_out)} examples only in '{one}' ('{left_out[0]}'" in said.err
    assert "two" not in models_of(one)


def test_runs_with_different_held_out_examples_are_scored_on_dev_only(
    copy: Callable[..., Path], command: Command
) -> None:
    one, other = copy("squad2"), copy("squad2", "data.hold_out=0.6", to="other")
    said = command("ensemble", one, "encoder", f"{other}:encoder", "--name", "two", "--json")
    assert said.code == 0, said.err
    assert set(said.json["two"]["scores"]) == {"dev"} and said.json["two"]["scores"]["dev"]["threshold"] == 0.0
    refused = command("ensemble", one, "encoder", f"{other}:encoder", "--name", "fit", "--method", "fitted")
    assert refused.code == 2 and "held_out differ" in refused.err


def test_a_run_given_by_a_relative_path_is_found_from_any_directory(
    copy: Callable[..., Path], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = copy("rte"), copy("rte", "finetune.lr=1e-4", to="other")
    monkeypatch.chdir(tmp_path)
    assert command("ensemble", "run", "encoder", "other:encoder", "--name", "two").code == 0
    monkeypatch.chdir(one)
    assert command("evaluate", one).code == 0
    assert "two" in models_of(one)


def test_an_ensemble_name_is_unique(copy: Callable[..., Path], command: Command) -> None:
    run = copy("rte")
    assert command("ensemble", run, *PAIR, "--name", "both").code == 0
    assert command("ensemble", run, *PAIR, "--name", "both").code == 0, "the same ensemble again"
    said = command("ensemble", run, *PAIR, "--name", "both", "--method", "mean")
    assert said.code == 2 and "already has another model called 'both'" in said.err
    assert models_of(run)["both"]["method"] == "max"


def test_another_task_is_refused(copy: Callable[..., Path], command: Command) -> None:
    one, other = copy("rte"), copy("stsb", to="other")
    said = command("ensemble", one, "encoder", f"{other}:encoder")
    assert said.code == 2 and "a score" in said.err and "a label" in said.err


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["encoder"], "at least two members"),
        (["encoder", "adaptor_4"], "adapter_4"),
        (["encoder", "adapter_4@7"], "no snapshot at 7 epochs"),
        (["encoder", "nowhere:adapter_4"], "is not a finished run or model"),
        (["encoder", "baseline"], "no model 'baseline'"),
        (["encoder", "adapter_4", "--method", "median"], "max"),
        (
            ["encoder", "adapter_4", "--name", "last_linear"],
            "already has another model called 'last_linear': give this one a different `name`",
        ),
        (["encoder", "encoder"], "twice"),
        (["encoder", "adapter_4@."], "write NAME, NAME@EPOCHS or RUN:NAME@EPOCHS"),
        (["encoder", "adapter_4", "--name", "../up"], "can't be '../up'"),
    ],
)
def test_mistakes_are_explained(words: list[str], expected: str, copy: Callable[..., Path], command: Command) -> None:
    run = copy("rte")
    before = (run / "scores.json").read_bytes()
    said = command("ensemble", run, *words)
    assert said.code == 2 and expected in said.err and "Traceback" not in said.err
    assert (run / "scores.json").read_bytes() == before


def test_all_mistakes_of_a_config_are_reported_at_once(
    tmp_path: Path, write_config: Callable[..., Path], glue_folder: Path, command: Command
) -> None:
    config = write_config(tmp_path, name="rte", data=glue_folder)
    wrong = [
        '["encoder"]', '["encoder","adapter_5"]', '{members=["encoder","adapter_4"],methods="max"}', "7",
        '["encoder","adapter_4@0.3"]', '{members=["encoder","adapter_4"],method="fitted"}',
    ]  # fmt: skip
    said = command("run", config, f"ensembles=[{','.join(wrong)}]", "train.lr=-1", "data.hold_out=0")
    assert said.code == 2
    expected = (
        "['encoder']",
        "adapter_5",
        "'methods'",
        "has the entry 7",
        "only at 1.",
        "data.hold_out is 0",
        "train.lr",
    )
    for text in expected:
        assert text in said.err


def test_fitted_weights_need_held_out_data(copy: Callable[..., Path], command: Command) -> None:
    run = copy("rte", "data.hold_out=0")
    said = command("ensemble", run, *PAIR, "--method", "fitted")
    assert said.code == 2 and "data.hold_out is 0" in said.err
    assert command("ensemble", run, *PAIR, "--method", "mean").code == 0
