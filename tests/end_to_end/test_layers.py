"""Runs on a subset of layers (`encoder.layers`): training, scoring, prediction; the encoder's row does not change."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sealed import edit_json

from bertvision.config import load_config
from bertvision.disk import fingerprint
from bertvision.pipeline.job import TRAIN_VERSION, Job
from bertvision.pipeline.predict import Predictor
from bertvision.progress import Reporter
from bertvision.search import run as flow

Command = Callable[..., Any]
LAYERS = "encoder.layers=[0,3]"  # of the tiny encoder's four layers
HEADS = ("last_linear", "learned_pooling", "adapter_4")
TEXTS = [("a king", "a man"), ("the river", "no king")]


@pytest.fixture
def rte(tmp_path: Path, write_config: Callable[..., Path], glue_folder: Path) -> Path:
    return write_config(tmp_path, name="rte", data=glue_folder)


def moments(run: Path) -> dict[str, int]:
    """Every finished part of a run, and when it was written."""
    return {str(path.parent.relative_to(run)): path.stat().st_mtime_ns for path in run.rglob("stamp.json")}


def outputs(run: Path, split: str, name: str) -> bytes:
    return (run / "snapshots/epoch_1/predictions" / split / name / "outputs.safetensors").read_bytes()


def weights(run: Path, name: str) -> dict[str, Any]:
    return load_file(run / "snapshots/epoch_1/heads" / name / "head.safetensors")


@pytest.mark.parametrize("name", ["squad2", "rte", "stsb"])
def test_heads_read_the_chosen_layers_and_the_encoders_row_stays(
    name: str, finished: Callable[..., Path], glue_folder: Path, squad_folder: Path
) -> None:
    task = {"name": name, "data": squad_folder if name == "squad2" else glue_folder}
    whole, some = finished(**task), finished(LAYERS, **task)

    for split in ("dev", "held_out"):
        for same in ("encoder", "last_linear"):  # the control reads only the last layer
            assert outputs(whole, split, same) == outputs(some, split, same)
        for other in ("learned_pooling", "adapter_4"):
            assert outputs(whole, split, other) != outputs(some, split, other)
    pooled = int(name != "squad2")
    assert weights(whole, "learned_pooling")["pooling.weights"].numel() == 4 + pooled
    assert weights(some, "learned_pooling")["pooling.weights"].numel() == 2 + pooled
    assert [json.loads((run / "config.json").read_text())["encoder"]["layers"] for run in (whole, some)] == [
        None,
        [0, 3],
    ]
    models = json.loads((some / "scores.json").read_text())["snapshots"]["1"]
    assert set(models) == {"baseline", "encoder", *HEADS} and all(model["scores"] for model in models.values())
    for head in ("encoder", *HEADS):
        assert len(Predictor(some, head).predict_texts(TEXTS)) == 2


@pytest.mark.parametrize("name", ["squad2", "rte"])
def test_stored_states_are_of_the_chosen_layers(
    name: str, finished: Callable[..., Path], glue_folder: Path, squad_folder: Path
) -> None:
    task = {"name": name, "data": squad_folder if name == "squad2" else glue_folder}
    plain, stored = finished(LAYERS, **task), finished(LAYERS, "train.source=stored", "store.dtype=float32", **task)
    for head in HEADS:
        facts = json.loads((stored / "snapshots/epoch_1/heads" / head / "stamp.json").read_text())
        assert facts["states"] == ("stored" if name == "squad2" else "memory") and facts["layers"] == [0, 3]
        for key, found in weights(stored, head).items():
            if (name, key) != ("squad2", "output.bias"):  # its gradient is only rounding error
                torch.testing.assert_close(found, weights(plain, head)[key], rtol=1e-4, atol=1e-4)


def test_other_layers_retrain_the_heads_and_not_the_encoder(rte: Path, command: Command) -> None:
    run = rte.parent / "run"
    assert command("run", rte).code == 0

    def redone(*overrides: str) -> set[str]:
        before = moments(run)
        said = command("run", rte, *overrides)
        assert said.code == 0, said.err
        return {part.removeprefix("snapshots/epoch_1/") for part, at in moments(run).items() if before.get(part) != at}

    heads = {f"{place}/{name}" for place in ("heads", "predictions/dev", "predictions/held_out") for name in HEADS}
    assert redone(LAYERS) == heads
    assert redone("encoder.layers=[0,-1]") == set(), "the same layers, counted from the end"
    assert redone("encoder.layers=[1,3]") == heads
    assert redone() == heads, "back to all of them"


def test_fingerprints_depend_on_the_layers_only_if_they_are_set(rte: Path) -> None:
    plain, some, others = (Job(load_config(rte, words)) for words in ([], [LAYERS], ["encoder.layers=[1,3]"]))
    member, train = plain.members[0], plain.config.train
    made_of = plain.stamps.finetune, 1.0, (train.batch_rows, train.batch_tokens, 0), member.identity()
    assert plain.stamps.member(1.0, member) == fingerprint("train", TRAIN_VERSION, *made_of), "as of runs made before"
    assert plain.stamps.finetune == some.stamps.finetune == others.stamps.finetune
    assert len({job.stamps.member(1.0, member) for job in (plain, some, others)}) == 3


def test_a_head_predicts_with_the_layers_it_was_trained_on(
    finished: Callable[..., Path], glue_folder: Path, tmp_path: Path
) -> None:
    """The config of a run changes when a stage begins, its heads when the stage ends."""
    for words in ([], [LAYERS]):
        made = finished(*words, name="rte", data=glue_folder)
        run = shutil.copytree(made, tmp_path / f"run_{len(words)}")
        for layers in ([1, 3], [2, 3], [3], None):
            edit_json(run / "config.json", lambda config, own=layers: config["encoder"].update(layers=own))
            for head in HEADS:
                assert Predictor(run, head).predict_texts(TEXTS) == Predictor(made, head).predict_texts(TEXTS)


def test_a_run_folder_without_the_setting_is_complete(
    finished: Callable[..., Path], glue_folder: Path, tmp_path: Path, command: Command
) -> None:
    made = finished(name="rte", data=glue_folder)
    run = shutil.copytree(made, tmp_path / "run")
    for path in (run / "config.json", *run.rglob("heads/*/stamp.json")):
        facts = json.loads(path.read_text())  # as earlier versions wrote it: without checksums
        del facts["sha256"]
        assert facts.get("encoder", facts).pop("layers", "absent") is None if path.name == "config.json" else True
        if path.name == "config.json":
            facts["run"] = str(run)
        else:
            assert facts.pop("layers") is None
            del facts["files"]
        path.write_text(json.dumps(facts))
    before = moments(run)
    assert Predictor(run, "adapter_4").predict_texts(TEXTS) == Predictor(made, "adapter_4").predict_texts(TEXTS)
    assert command("run", run).code == 0
    assert moments(run) == before


@pytest.mark.parametrize("stage", ["check", "run", "finetune", "train", "search"])
@pytest.mark.parametrize(
    ("layers", "words"),
    [("[0,2]", "add -1, the last layer"), ("[0,9]", "there is no layer 9"), ("[3,0]", "ascending order")],
)
def test_layers_that_do_not_fit_are_reported_before_any_work(
    stage: str, layers: str, words: str, rte: Path, command: Command
) -> None:
    said = command(stage, rte, f"encoder.layers={layers}")
    message = " ".join(said.err.split())
    assert said.code == 2 and "Traceback" not in said.err and message.count("encoder.layers = [") == 1
    assert words in message and "layers 0 (embeddings) to 3" in message
    assert not (rte.parent / "run").exists()


@pytest.mark.parametrize("stage", ["check", "run", "train", "search"])
def test_a_head_that_needs_more_layers_is_refused_before_any_work(stage: str, rte: Path, command: Command) -> None:
    ladder = ['heads=["ladder_128_last4"]', 'search.space={head=["ladder_128_last4"]}']
    said = command(stage, rte, LAYERS, *ladder)
    assert said.code == 2 and "head 'ladder': there is no layer -4, -3." in said.err
    assert not (rte.parent / "run").exists()


def test_check_reports_states_and_heads_for_the_chosen_layers(rte: Path, command: Command) -> None:
    whole, some = (command("check", rte, *words, "--json").json for words in ([], [LAYERS]))
    assert whole["encoder"].pop("states") == "4 layers of size 32"
    assert some["encoder"].pop("states") == "2 layers of size 32"
    assert whole["encoder"] == some["encoder"]
    # One weight per layer and for the pooled output, a scale, and a linear layer from 32 to 2.
    for found, layers in ((whole, 5), (some, 3)):
        assert found["heads"]["learned_pooling"].startswith(f"{layers + 1 + 2 * 33} parameters")


class Lines(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def test_a_search_on_other_layers_starts_over_and_says_why(rte: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "write_picture", lambda *_: None)
    words = ["search.members=2", "search.population=2", 'search.space={head=["adapter"], size=[2, 4]}']

    def search(*layers: str) -> tuple[flow.SearchResult, str]:
        reporter = Lines()
        found = flow.search(Job(load_config(rte, [*words, *layers]), reporter))
        return found, next(line for line in reporter.said if line.startswith("search: "))

    some, _ = search(LAYERS)
    size = some.winner.entry["size"]
    output = weights(some.run.folder, "winner")["output.weight"]
    assert output.shape == (2, 3 * size), "two layers and the pooled output, `size` values each"
    again, resumed = search("encoder.layers=[0,-1]")
    assert again.history.study == some.history.study and "resuming after" in resumed
    for other in ([], ["encoder.layers=[1,3]"]):
        found, why = search(*other)
        assert found.history.study != some.history.study
        assert "starting over" in why and "differs in encoder.layers; it stays in study.jsonl" in why, (
            "it differs in nothing else"
        )
