"""Configs that name a task and its files and nothing else: what is trained and chosen, and what uses the result."""

import csv
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_encoders import say_how_to_read

from bertvision.config import build_config
from bertvision.heads import load_head
from bertvision.pipeline.finished import FinishedRun
from bertvision.pipeline.job import Job

Command = Callable[..., Any]
WORDS = {"animals": ["cat", "dog", "horse", "bird", "fish"], "places": ["london", "paris", "rome", "berlin", "river"]}
TEXT_HEADS = {"linear", "linear_deviation", "mlp", "attentive"}
PAIR_HEADS = {"linear_cosines", "linear_towers", "mlp_towers", "linear"}


def write_rows(path: Path, kind: str, rows: int, seed: int) -> Path:
    """Labelled texts, or pairs with a score: how many words they share."""
    draw = random.Random(seed)
    every = [word for words in WORDS.values() for word in words]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"] if kind == "label" else ["text", "other", "score"])
        for row in range(rows):
            topic = list(WORDS)[row % 2]
            if kind == "label":
                writer.writerow([" and ".join(draw.choices(WORDS[topic], k=3)) + f" {row}", topic])
                continue
            one, two = draw.sample(every, 4), draw.sample(every, 4)
            writer.writerow([" ".join(one), " ".join(two), len({*one} & {*two}) + 0.5])
    return path


@pytest.fixture(scope="module", params=["label", "score"])
def made(
    request: pytest.FixtureRequest,
    command: Command,
    mean_encoder_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, Path, Any]:
    folder, kind = tmp_path_factory.mktemp("recipes"), request.param
    files = {
        split: write_rows(folder / f"{split}.csv", kind, rows, rows) for split, rows in (("train", 80), ("dev", 20))
    }
    columns = 'label = "label"' if kind == "label" else 'text_pair = "other"\nlabel = "score"'
    (folder / "config.toml").write_text(
        f'run = "{folder / "run"}"\n[task]\nname = "files"\nkind = "{kind}"\ntext = "text"\n{columns}\n'
        f'train = "{files["train"]}"\ndev = "{files["dev"]}"\n[data]\nmax_length = 32\n'
        f'[encoder]\nname = "{mean_encoder_folder}"\ndevice = "cpu"\n'
    )
    return kind, folder, command("run", folder / "config.toml", "--json")


def test_the_recipe_is_trained_on_the_untouched_encoder(made: Any) -> None:
    kind, folder, said = made
    assert said.code == 0, said.err
    assert list(said.json["snapshots"]) == ["0"]
    heads = TEXT_HEADS | {"last_linear", "last_lr"} if kind == "label" else PAIR_HEADS | {
        "last_linear", "last_lr", "last_lr_towers",
    }  # fmt: skip
    assert set(said.json["snapshots"]["0"]) == {"baseline", "encoder", "average", *heads}
    assert json.loads((folder / "run" / "task.json").read_text())["kind"] == kind
    # 80 rows: a fifth is held out.
    assert said.json["snapshots"]["0"]["average"]["scores"]["held_out"]["total"] == 16


def test_the_average_has_the_three_heads_with_the_lowest_held_out_loss(made: Any) -> None:
    kind, folder, said = made
    run = FinishedRun(folder / "run")
    job = run.job
    targets = np.array([example.target for example in job.examples("held_out")])
    losses, outputs = {}, {}
    for group in run.groups(0.0, "head"):
        place = folder / "run/snapshots/epoch_0/predictions/held_out" / group.name / "outputs.safetensors"
        found = load_file(place)["outputs"]  # (row, output)
        outputs[group.name] = found
        if kind == "score":
            losses[group.name] = float(((found[:, 0] - targets) ** 2).mean())
        else:
            shifted = found - found.max(1, keepdims=True)
            log = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))  # (row, label)
            losses[group.name] = -float(log[np.arange(len(log)), targets.astype(int)].mean())
    best = sorted(losses, key=lambda name: losses[name])[:3]
    assert said.json["snapshots"]["0"]["average"]["ensemble"] == best
    said_by = run.find("average", 0.0).said("held_out", set(range(len(targets))))
    if kind == "score":
        scores = [said_by[row]["score"] for row in range(len(targets))]
        np.testing.assert_allclose(scores, np.mean([outputs[name] for name in best], axis=0)[:, 0], atol=1e-4)
    else:
        each = [np.exp(outputs[name]) / np.exp(outputs[name]).sum(1, keepdims=True) for name in best]
        labels = run.task.labels
        found = [[said_by[row]["probabilities"][label] for label in labels] for row in range(len(targets))]
        np.testing.assert_allclose(found, np.mean(each, axis=0), atol=1e-4)


def test_it_is_resumed_reported_and_used(made: Any, command: Command) -> None:
    kind, folder, said = made
    again = command("run", folder / "config.toml", "--json")
    assert again.json == said.json and "already done" in again.err
    texts = ["--text", "the cat"] + (["--text-pair", "the dog"] if kind == "score" else [])
    for head in ([], ["--head", "average"], ["--head", "linear"]):
        assert command("predict", folder / "run", *texts, *head).code == 0
    assert command("report", folder / "run").code == 0
    checked = command("check", folder / "config.toml", "--json")
    assert checked.code == 0 and checked.json["cost"]["seconds fine-tuning"] == 0, checked.err
    assert command("kit", folder / "run", "--to", folder / "kit").code == 0


@pytest.mark.parametrize(("mode", "read"), [("cls", "cls"), ("mean", "mean")])
def test_two_towers_of_a_recipe_are_read_as_the_encoder_was_made(
    mode: str, read: str, tmp_path: Path, mean_encoder_folder: Path, command: Command
) -> None:
    encoder = Path(shutil.copytree(mean_encoder_folder, tmp_path / "encoder"))
    say_how_to_read(encoder, mode)
    train = write_rows(tmp_path / "train.csv", "score", 60, 0)
    said = command(
        "run",
        train,
        "task.label=score",
        "task.text_pair=other",
        "data.max_length=32",
        f"encoder.name={encoder}",
        "encoder.device=cpu",
        f"run={tmp_path / 'run'}",
    )
    assert said.code == 0, said.err
    for name in ("linear_cosines", "linear_towers", "mlp_towers", "linear", "last_lr_towers"):
        assert load_head(tmp_path / "run/snapshots/epoch_0/heads" / name)[0].reads == (read,)


def test_a_search_has_no_average_of_the_recipe(mean_encoder_folder: Path, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.csv", "label", 20, 0)
    task = {"name": "files", "kind": "label", "train": str(train), "dev": str(train)}
    config = build_config({"task": task, "encoder": {"name": str(mean_encoder_folder)}, "run": str(tmp_path / "run")})
    assert config.ensembles
    assert Job(config).with_heads(["linear"], [0.0]).config.ensembles == []
