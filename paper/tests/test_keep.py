"""Only runs with the settings of their experiment are kept."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_reports import TinyRun, build_tiny_run, label_results

from bertvision.config import build_config
from bertvision.errors import UserError
from bertvision.heads import CONTROL
from bertvision.kinds import LABEL, SPAN
from bertvision.pipeline.finished import FinishedRun
from paper import keep as keeping
from paper.experiments import find_experiment
from paper.keep import check_settings, keep
from paper.kept import Experiment, load_kept, load_rates

FIXTURES = Path(__file__).parents[2] / "tests" / "fixtures"


@pytest.fixture
def settings() -> dict[str, Any]:
    """The saved config of a run of squad2_gte, with its own paths of data and encoder."""
    files = {split: str(FIXTURES / "squad_tiny" / f"{split}-v2.0.json") for split in ("train", "dev")}
    elsewhere = {"task": {"name": "squad2", **files}, "encoder": {"name": "somewhere/else"}, "run": "elsewhere"}
    return dataclasses.asdict(build_config(find_experiment("squad2_gte").settings(seed=1) | elsewhere))


def check(settings: dict[str, Any], folder: Path, experiment: str = "squad2_gte", seed: int = 1) -> None:
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    check_settings(FinishedRun(folder, {}), experiment, seed)


def test_a_run_is_accepted_whatever_the_path_of_its_data(settings: dict[str, Any], tmp_path: Path) -> None:
    check(settings, tmp_path)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("finetune", "lr", 1e-4),  # given in the experiment
        ("data", "limit_train", 500),  # and not given there
        ("data", "hold_out", 0.3),
        ("data", "max_length", 128),
        ("encoder", "layers", [0, 1]),
        ("finetune", "method", "lora"),
        ("train", "seeds", 3),
    ],
)
def test_other_settings_are_refused(
    section: str, key: str, value: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    settings[section][key] = value
    with pytest.raises(UserError, match=rf"{section}\.{key} is"):
        check(settings, tmp_path)


def test_other_seeds_heads_and_experiments_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="seed is 1, but 2"):
        check(settings, tmp_path, seed=2)
    with pytest.raises(UserError, match="its heads differ from those of"):
        check({**settings, "heads": settings["heads"][:-1]}, tmp_path)
    with pytest.raises(UserError, match="no experiment 'squad3'"):
        check(settings, tmp_path, experiment="squad3")
    with pytest.raises(UserError, match="name the folder after experiment and seed"):
        keep(tmp_path / "squad2_gte")


def test_a_run_made_before_its_experiment_set_everything_is_accepted(tmp_path: Path) -> None:
    """Heads given by name only, and task defaults left out: members, length and snapshots are the same."""
    tables = find_experiment("answerable_gte").settings(seed=1, hub=True)
    tables["finetune"] |= {"lr": 5e-5}
    config = dataclasses.asdict(build_config(tables))
    config["heads"] = [entry["head"] for entry in config["heads"] if entry["head"] != CONTROL]
    config["data"]["max_length"] = None
    del config["finetune"]["method"], config["finetune"]["read"], config["finetune"]["output_lr"], config["search"]
    check(config, tmp_path, "answerable_gte")
    others = [{"head": name, "read": "mean", "name": name} for name in config["heads"]]
    with pytest.raises(UserError, match="differ from those of .*: .*learned_pooling"):
        check({**config, "heads": others}, tmp_path, "answerable_gte")


def test_the_learning_rate_must_match_the_folder_name(settings: dict[str, Any], tmp_path: Path) -> None:
    settings["finetune"]["lr"] = 1e-4
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    evidence = FinishedRun(tmp_path, {})
    check_settings(evidence, "squad2_gte", 1, lr=1e-4)
    with pytest.raises(UserError, match=r"finetune\.lr is 0\.0001, but 0\.0002 in the folder's name"):
        check_settings(evidence, "squad2_gte", 1, lr=2e-4)


def write_about(run: Path, models: dict[str, Any]) -> None:
    run.mkdir()
    scores = {"task": "squad2", "kind": "span", "metrics": ["f1"], "snapshots": {"1": models}}
    (run / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    about = {"device": "a GPU", "packages": {"torch": "2", "transformers": "5"}}
    (run / "environment.json").write_text(json.dumps(about), encoding="utf-8")


def test_a_run_with_another_rate_is_kept_in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "squad2_gte_full1_lr0.0001_seed0"
    write_about(run, {})
    checked: list[Any] = []
    monkeypatch.setattr(keeping, "check_settings", lambda evidence, *words: checked.extend(words))
    monkeypatch.setattr(keeping, "analyse", lambda evidence: {"second_answer": []})
    monkeypatch.setattr(keeping, "KEPT", tmp_path / "kept")
    assert keep(run) == tmp_path / "kept" / "rates" / f"{run.name}.json"
    assert checked == ["squad2_gte_full1", 0, 1e-4]
    assert keep(run, again=True) == tmp_path / "kept" / "again" / f"{run.name}.json"
    with pytest.raises(UserError, match="name the folder after experiment and seed"):
        keep(tmp_path / "squad2_gte_full1_lr5.5.5_seed0")
    assert load_kept(tmp_path / "kept") == {}
    (found,) = load_rates(tmp_path / "kept")
    assert (found.name, found.lr, found.seeds, found.runs[0]["analyses"]) == (
        "squad2_gte_full1",
        1e-4,
        [0],
        {"second_answer": []},
    )
    assert found.title == "squad2_gte_full1 finetune.lr=1e-4"
    assert [one["lr"] for one in found.again] == [one["lr"] for one in found.timed] == [1e-4]


def test_a_repeated_run_is_kept_in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run itself is replaced by stubs."""
    run = tmp_path / "squad2_gte_seed1"
    models = {"encoder": {"parameters": 1, "seconds": 2.5, "scores": {"dev": {"f1": 61.23456}}, "stamp": "left out"}}
    write_about(run, models)
    monkeypatch.setattr(keeping, "check_settings", lambda *words: None)
    monkeypatch.setattr(keeping, "analyse", lambda evidence: {})
    monkeypatch.setattr(keeping, "KEPT", tmp_path / "kept")
    assert keep(run) == tmp_path / "kept" / "squad2_gte_seed1.json"
    assert keep(run, again=True) == tmp_path / "kept" / "again" / "squad2_gte_seed1.json"
    found = load_kept(tmp_path / "kept")["squad2_gte"]
    assert found.runs[1] == found.again[0]
    assert found.runs[1]["snapshots"]["1"]["encoder"] == {
        "parameters": 1,
        "seconds": 2.5,
        "scores": {"dev": {"f1": 61.2346}},
    }


def test_analyses_of_answers_are_kept_at_every_snapshot_with_heads(tmp_path: Path) -> None:
    found = keeping.analyse(build_tiny_run(tmp_path, SPAN, (0.5, 1.0), (0.5, 1.0)))
    for key in ("second_answer", "wrong_predictions", "passage_lengths"):
        assert {row["epochs"] for row in found[key]} == {0.5, 1.0}
    runs = {0: {"snapshots": {"0.5": {}, "1": {}}, "analyses": found}}
    one = Experiment("squad2_gte", runs)
    assert [row["model"] for row in one.rows_at("second_answer", 0.5)[0]][:2] == [
        "encoder alone",
        "last_linear (control)",
    ]
    assert one.rows_at("second_answer", 2.0) == {}
    assert "epochs_on_dev" not in found  # dev was scored after the last epoch only


def test_dev_scores_of_each_epoch_are_kept_where_a_run_has_them(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, LABEL)
    run.add("encoder", results=label_results([0, 1], [0.2, 0.2]))
    run.add("adapter_64", results=label_results([0, 1], [0.2, 0.8]), epochs=2)
    run.log("train", step=1, loss={"adapter_64": 1.0})
    run.log("epoch", snapshot=1.0, head="adapter_64", epoch=1, held_out=None, dev={"dev": {"accuracy": 71.0}})
    run.log("train", step=2, loss={"adapter_64": 0.5})
    rows = keeping.analyse(run.write())["epochs_on_dev"]
    assert [(row["fine-tuning"], row["head"], row["epoch"], row["accuracy"]) for row in rows] == [
        (1.0, "adapter_64", 1, 71.0),
        (1.0, "adapter_64", 2, 100.0),
    ]


def test_a_run_that_scored_dev_after_each_epoch_is_accepted(settings: dict[str, Any], tmp_path: Path) -> None:
    settings["train"]["dev_each_epoch"] = True
    check(settings, tmp_path)
