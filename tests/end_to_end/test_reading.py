"""Runs on encoders that say how they are read, or do not, and on data files without a config."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_encoders import say_how_to_read, tiny_model, tiny_tokenizer

import bertvision as bv
from bertvision.config import load_config
from bertvision.data.packing import fill_batches
from bertvision.disk import read_json
from bertvision.encoder.loading import load_encoder
from bertvision.encoder.output_layer import OutputLayers, build_output_layer
from bertvision.encoder.states import pack_tokens
from bertvision.heads import load_head
from bertvision.pipeline.finetune import choose_output_layer
from bertvision.pipeline.finished import FinishedRun
from bertvision.pipeline.job import Job
from bertvision.progress import Reporter

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_encoder_folder: Path) -> Path:
    """A table, and two encoders: one does not say how it is read, the other was made for the mean."""
    folder = tmp_path_factory.mktemp("reading")
    with (folder / "topics.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["message", "topic"])
        writer.writerows([f"the {['cat', 'river'][row % 2]} number {row}", "ab"[row % 2]] for row in range(48))
    for name in ("silent", "mean"):
        shutil.copytree(tiny_encoder_folder, folder / name, ignore=shutil.ignore_patterns("1_Pooling"))
    say_how_to_read(folder / "mean", "mean")
    return folder


def words(folder: Path, encoder: str, run: str) -> list[str]:
    return [
        f"encoder.name={folder / encoder}", "encoder.device=cpu", "data.hold_out=0.25", "data.max_length=16",
        "finetune.batch_rows=4", "finetune.lr=1e-3", "train.epochs=2", f"run={folder / run}",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def made(folder: Path, command: Command) -> Any:
    return command("run", folder / "topics.csv", *words(folder, "mean", "made"), "--json")


@pytest.fixture(scope="module")
def tried(folder: Path, command: Command) -> Any:
    return command("run", folder / "topics.csv", *words(folder, "silent", "tried"), "--json")


def test_everything_reads_as_the_encoder_was_made(folder: Path, made: Any) -> None:
    assert made.code == 0, made.err
    models = made.json["snapshots"]["1"]
    both = {"mean", "deviation"}
    heads = {"last_linear": {"mean"}, "last_lr": {"mean"}, "linear": {"mean"}, "linear_deviation": both, "mlp": both}
    heads["attentive"] = {"tokens"}
    assert set(models) == {"baseline", "encoder", *heads, "average"}
    snapshot = folder / "made" / "snapshots" / "epoch_1"
    for name, reads in heads.items():
        assert set(load_head(snapshot / "heads" / name)[0].reads) == reads
    layer = read_json(snapshot / "encoder" / "output_layer.json")
    assert layer is not None and layer["reads"] == "mean"
    assert "was made to be read as 'mean'" in made.err and "bertvision fit" in made.err


def test_an_encoder_that_does_not_say_is_read_in_both_ways(folder: Path, tried: Any, command: Command) -> None:
    assert tried.code == 0, tried.err
    heads = [f"{head}_{read}" for head in ("last_linear", "last_lr", "linear") for read in ("cls", "mean")]
    others = ["baseline", "encoder", "linear_deviation", "mlp_cls", "mlp_mean+deviation", "attentive", "average"]
    assert set(tried.json["snapshots"]["1"]) == {*heads, *others}
    layer = read_json(folder / "tried" / "snapshots" / "epoch_1" / "encoder" / "output_layer.json")
    assert layer is not None and f"output layer reads '{'mean' if layer['reads'] == 'mean' else 'cls'}'" in tried.err
    run = FinishedRun(folder / "tried")
    trained = [group for group in run.groups(1.0, "control") if group.first.head == "last_linear"]
    controls = {group.name: group.mean("held_out", run.main) for group in trained}
    control = run.control(1.0)
    assert set(controls) == {"last_linear_cls", "last_linear_mean"}
    assert control is not None and controls[control.name] == max(value or 0 for value in controls.values())
    said = command("predict", folder / "tried", "--text", "the cat")
    assert said.code == 0, said.err


@pytest.mark.parametrize("run", ["made", "tried"])
def test_a_run_on_a_table_is_not_repeated(run: str, folder: Path, command: Command, made: Any, tried: Any) -> None:
    again = command("run", folder / "topics.csv", *words(folder, {"tried": "silent"}.get(run, "mean"), run), "--json")
    first = {"made": made, "tried": tried}[run]
    assert again.json == first.json and "fine-tuning: already done" in again.err
    by_folder = command("run", folder / run, "--json")
    assert by_folder.json == first.json and "heads on the snapshot at 1 epoch: already done" in by_folder.err


def test_the_output_layer_with_the_better_held_out_score_is_kept(folder: Path, tried: Any) -> None:
    job = Job(load_config(folder / "tried"), Reporter())
    assert job.output_reads == ("cls", "mean") and job.output_rate == pytest.approx(1e-2)
    encoder = load_encoder(str(folder / "silent"))
    layers = {
        read: build_output_layer(job.task.kind, encoder.shape, 2, part, torch.Generator().manual_seed(3)).eval()
        for read, part in {"cls": "pooled", "mean": "mean"}.items()
    }
    features, judged = job.features("held_out"), {}
    (batch,) = fill_batches(features.lengths, torch.arange(len(features)).numpy(), tokens=10_000)
    targets = torch.from_numpy(features.target[batch]).long()
    with torch.no_grad():
        for read, layer in layers.items():
            states = encoder(pack_tokens(features, batch), keep=layer.keep)
            logits = layer(states)
            right = float((logits.argmax(1) == targets).float().mean())
            judged[read] = (right, -float(torch.nn.functional.cross_entropy(logits, targets)))
    better, worse = sorted(judged, key=lambda read: judged[read], reverse=True)
    for order in (layers, dict(reversed(layers.items()))):
        assert choose_output_layer(job, encoder, OutputLayers(order)) is layers[better]
    assert choose_output_layer(job, encoder, layers[worse]) is layers[worse], "a single layer is kept"


def test_without_held_out_data_only_cls_is_read(folder: Path) -> None:
    job = Job(load_config(folder / "topics.csv", [*words(folder, "silent", "unused"), "data.hold_out=0"]))
    assert job.output_reads == ("cls",)
    assert Job(load_config(folder / "topics.csv", words(folder, "mean", "unused"))).output_reads == ("mean",)


def test_python_and_check_take_a_table_too(
    folder: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = command("check", folder / "topics.csv", *words(folder, "silent", "checked"), "--json")
    assert found.code == 0 and "linear_mean" in found.json["heads"], found.err
    monkeypatch.chdir(tmp_path)
    tiny_model("bert", max_position_embeddings=128).save_pretrained(tmp_path / "encoder")
    tiny_tokenizer().save_pretrained(tmp_path / "encoder")
    monkeypatch.setattr("bertvision.encoder.loading._embedded_folder", lambda: tmp_path / "encoder")
    shutil.copy(folder / "topics.csv", tmp_path / "mine.csv")
    run = bv.run("mine.csv")
    assert run.folder == Path("runs") / "mine_embedded" and "baseline" in run.summary()


def test_questions_make_a_run_for_spans(folder: Path, command: Command, squad_folder: Path) -> None:
    path = shutil.copy(squad_folder / "train-v2.0.json", folder / "questions.json")
    options = [word for word in words(folder, "silent", "spans") if "max_length" not in word]
    said = command("run", path, *options, "data.max_length=48", "data.overlap=16", "--json")
    assert said.code == 0, said.err
    assert said.json["kind"] == "span" and list(said.json["snapshots"]["1"])[2] == "last_linear"
    assert json.loads((folder / "spans" / "config.json").read_text())["task"]["dev_share"] == 0.2
