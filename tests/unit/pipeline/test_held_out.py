"""The heads' held-out scores are logged after each epoch, and nothing else changes."""

import json
from pathlib import Path

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


def run(folder: Path, encoder: Path, data: Path, epochs: int) -> Path:
    made = bv.run(
        task={"name": "rte", "data": str(data)},
        encoder={"name": str(encoder), "device": "cpu"},
        heads=["learned_pooling", {"head": "adapter", "size": 4}],
        data={"hold_out": 0.25, "max_length": 48},
        finetune={"epochs": 0},
        train={"epochs": epochs, "batch_rows": 4},
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
