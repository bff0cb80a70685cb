"""`predict`, the report and a kit choose the same model of a run, whatever its scores are."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from best_cases import CASES, ENSEMBLE, FITTED, USUAL, BestCase
from tiny_encoders import say_how_to_read, tiny_model, tiny_tokenizer

import bertvision as bv
from bertvision.config import build_config
from bertvision.disk import read_json, write_json

Command = Callable[..., Any]
# One for each kind of model that can be best on an untouched encoder, and for each file a folder can lack. The other
# cases are in tests/unit/pipeline/test_finished.py.
HERE = (
    "a head is best",
    "the control is best",
    "an ensemble is best",
    "a seed was stopped",
    "nothing was held out",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, glue_folder: Path) -> Path:
    """A run on an untouched encoder with the models of the cases."""
    folder = tmp_path_factory.mktemp("best")
    tiny_model("bert", max_position_embeddings=128).save_pretrained(folder / "encoder")
    tiny_tokenizer().save_pretrained(folder / "encoder")
    say_how_to_read(folder / "encoder", "cls")
    small = {"head": "adapter", "size": 4}
    tables: dict[str, Any] = {
        "run": str(folder / "run"),
        "task": {"name": "sst2", "data": str(glue_folder)},
        "data": {"max_length": 64, "hold_out": 0.4},
        "encoder": {"name": str(folder / "encoder"), "device": "cpu"},
        "finetune": {"epochs": 0},
        "train": {"snapshots": [0], "epochs": 1, "seeds": 2},
        "heads": [
            {"head": "learned_pooling", "name": "pooled"},
            {**small, "name": "wide"},
            {**small, "name": "half", "data_fraction": 0.5},
        ],
        "ensembles": [
            {"members": ["encoder", "pooled"], "name": ENSEMBLE},
            {"members": ["encoder", "pooled"], "name": FITTED, "method": "fitted"},
        ],
    }
    bv.run(build_config(tables))
    return folder / "run"


def give_figures(run: Path, case: BestCase) -> None:
    """Replace the scores of the run's models with those of a case."""
    scores = read_json(run / "scores.json")
    models = scores["snapshots"]["0"]
    assert set(models) == {"baseline", *USUAL}
    for name, figure in case.figures.items():
        found = models[name]["scores"]
        if not case.held_out:
            del found["held_out"]
        found["held_out" if case.held_out else "dev"]["accuracy"] = figure
        if name in case.stopped:
            models[name] |= {"failed": True, "scores": {}}
    write_json(run / "scores.json", scores)


@pytest.mark.parametrize("case", [CASES[name] for name in HERE], ids=HERE)
def test_all_commands_name_the_same_best_model(case: BestCase, trained: Path, command: Command, tmp_path: Path) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    give_figures(run, case)
    named = "the encoder alone" if case.best == "encoder" else case.best
    said = command("predict", run, "--text", "a king")
    assert said.code == 0 and f"predicting with {named}" in said.err
    assert ("best on held-out training data" in said.err) == case.held_out
    assert ("best on dev (nothing was held out, so its score there is optimistic)" in said.err) != case.held_out
    bv.Run(run).report(with_encoder=False)
    report = read_json(run / "report.json")
    (sentence,) = [one for one in report["summary"] if "predict uses" in one]
    assert case.summary in sentence and re.search(rf"predict uses {named}\b", sentence)
    made = command("kit", run, "--to", tmp_path / "kit")
    if not case.held_out:
        assert made.code == 2 and "has no held-out examples" in made.err
        return
    assert made.code == 0 and f"sst2: {case.head}," in made.out
    card = (tmp_path / "kit" / "sst2" / "README.md").read_text(encoding="utf-8")
    assert ("This head is the control" in card) == case.head.startswith("last_linear")
    assert ("the other layers add nothing here" in card) == case.head.startswith("last_linear")
