"""The heads' held-out scores are logged after each epoch, and nothing else changes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bertvision as bv
from bertvision.pipeline import held_out
from bertvision.pipeline.held_out import _epoch_ends


class Course:
    """The fields of a member that `_epoch_ends` uses."""

    def __init__(self, steps: list[int], epochs: int) -> None:
        self.steps, self.config = steps, type("Config", (), {"epochs": epochs})()


@pytest.mark.parametrize(
    ("sizes", "steps", "epochs", "expected"),
    [
        ([4, 4, 2, 4, 4, 2, 4, 4, 2], range(9), 3, [3, 6]),  # 10 windows per epoch, three steps each
        ([4, 4, 2, 5, 5], range(5), 2, [3]),  # steps filled by tokens: their number differs between epochs
        ([4, 4, 2, 4, 4, 2], [0, 3], 2, [1]),  # a fraction of the data: the member takes only some of the steps
        ([4, 4], range(2), 1, []),
    ],
)
def test_epochs_end_when_all_windows_were_seen(
    sizes: list[int], steps: list[int], epochs: int, expected: list[int]
) -> None:
    windows = [np.arange(size) for size in sizes]
    assert _epoch_ends(Course(list(steps), epochs), windows) == expected  # type: ignore[arg-type]


def run(folder: Path, encoder: Path, data: Path, epochs: int, **train: Any) -> Path:
    made = bv.run(
        task={"name": "rte", "data": str(data)},
        encoder={"name": str(encoder), "device": "cpu"},
        heads=["learned_pooling", {"head": "adapter", "size": 4}],
        data={"hold_out": 0.25, "max_length": 48},
        finetune={"epochs": 0},
        train={"epochs": epochs, "batch_rows": 4, **train},
        run=str(folder),
    )
    return made.folder


def heads_of(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted((folder / "snapshots/epoch_0/heads").glob("*/head.safetensors"))
    return {f"{file.parent.name}/{key}": value for file in files for key, value in load_file(file).items()}


def test_each_epoch_but_the_last_is_logged_and_the_heads_are_unchanged(
    tmp_path: Path, tiny_encoder_folder: Path, glue_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = run(tmp_path / "watched", tiny_encoder_folder, glue_folder, 3)
    events = [json.loads(line) for line in (watched / "metrics.jsonl").read_text().splitlines()]
    found = [(event["head"], event["epoch"]) for event in events if event["event"] == "epoch"]
    names = ("last_linear", "learned_pooling", "adapter_4")
    assert sorted(found) == sorted((name, epoch) for name in names for epoch in (1, 2))
    assert all(0 <= event["held_out"] <= 100 for event in events if event["event"] == "epoch")
    monkeypatch.setattr(held_out.EachEpoch, "is_due", lambda *_: False)
    unwatched = run(tmp_path / "unwatched", tiny_encoder_folder, glue_folder, 3)
    for name, tensor in heads_of(watched).items():
        assert torch.equal(tensor, heads_of(unwatched)[name])


def test_one_epoch_needs_no_intermediate_scores(tmp_path: Path, tiny_encoder_folder: Path, glue_folder: Path) -> None:
    folder = run(tmp_path / "run", tiny_encoder_folder, glue_folder, 1)
    assert '"event": "epoch"' not in (folder / "metrics.jsonl").read_text()


def test_dev_is_scored_after_each_epoch_on_request_and_nothing_else_changes(
    tmp_path: Path, tiny_encoder_folder: Path, glue_folder: Path
) -> None:
    asked = run(tmp_path / "asked", tiny_encoder_folder, glue_folder, 3, dev_each_epoch=True, schedule="constant")
    plain = run(tmp_path / "plain", tiny_encoder_folder, glue_folder, 3, schedule="constant")
    for name, tensor in heads_of(asked).items():
        assert torch.equal(tensor, heads_of(plain)[name])
    events = [json.loads(line) for line in (asked / "metrics.jsonl").read_text().splitlines()]
    found = {(one["head"], one["epoch"]): one for one in events if one["event"] == "epoch"}
    # At a constant rate, a run of fewer epochs takes the same steps: its last score is the score after that epoch.
    short = run(tmp_path / "short", tiny_encoder_folder, glue_folder, 2, schedule="constant")
    scores = json.loads((short / "scores.json").read_text())["snapshots"]["0"]
    for name in ("last_linear", "learned_pooling", "adapter_4"):
        dev = found[name, 2]["dev"]["dev"]["accuracy"]
        assert dev == pytest.approx(scores[name]["scores"]["dev"]["accuracy"], abs=1e-3)
        assert found[name, 1]["seconds"] > 0
    (last,) = [one for one in events if one["event"] == "last_epoch"]
    assert last["epochs"] == dict.fromkeys(("last_linear", "learned_pooling", "adapter_4"), 3) and last["seconds"] > 0
    losses = {one["step"]: one["loss"] for one in events if one["event"] == "train"}
    assert len(losses) == 3 and all(set(loss) == set(scores) - {"baseline", "encoder"} for loss in losses.values())
    assert not any("dev" in json.loads(line) for line in (plain / "metrics.jsonl").read_text().splitlines())


def test_without_held_out_data_losses_are_still_logged_by_epoch(
    tmp_path: Path, tiny_encoder_folder: Path, glue_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bv.run(
        task={"name": "rte", "data": str(glue_folder)},
        encoder={"name": str(tiny_encoder_folder), "device": "cpu"},
        heads=["learned_pooling"],
        data={"hold_out": 0, "max_length": 48},
        finetune={"epochs": 0},
        train={"epochs": 3, "batch_rows": 4},
        run=str(tmp_path / "run"),
    )
    events = [json.loads(line) for line in (made.folder / "metrics.jsonl").read_text().splitlines()]
    assert sum(one["event"] == "train" for one in events) == 3
    assert all(one["held_out"] is None for one in events if one["event"] == "epoch")
