"""Convex heads of a run whose states do not all fit into memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from bertvision.config import build_config
from bertvision.data.packing import plan_pass
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import load_encoder
from bertvision.errors import UserError
from bertvision.heads import load_head
from bertvision.pipeline import convex, states
from bertvision.pipeline.job import Job
from bertvision.pipeline.run import run_job
from bertvision.progress import Reporter
from bertvision.sources import MemoryStates

TRAIN = 90


class Notes(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, message: str) -> None:
        self.said.append(message)


def write_scores(path: Path, rows: int) -> Path:
    random = np.random.default_rng(rows)
    words = ["cat", "dog", "river", "london", "paris", "horse"]
    lines = [f"{' '.join(random.choice(words, 5))},{' '.join(random.choice(words, 4))},{random.normal():.3f}"
             for _ in range(rows)]  # fmt: skip
    path.write_text("\n".join(["text,text_pair,score", *lines]) + "\n")
    return path


def job_of(folder: Path, encoder: Path, heads: list[Any], notes: Reporter) -> Job:
    train, dev = write_scores(folder / "train.csv", 120), write_scores(folder / "dev.csv", 20)
    task = {"name": "files", "kind": "score", "label": "score", "text_pair": "text_pair"}
    config = build_config({
        "task": {**task, "train": str(train), "dev": str(dev)}, "heads": heads, "run": str(folder / "run"),
        "data": {"hold_out": 0.25, "max_length": 32}, "encoder": {"name": str(encoder), "device": "cpu"},
    })  # fmt: skip
    return Job(config, notes)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for the states of 50 windows or texts."""

    def fits(job: Job, encoder: Encoder, keep: Any, windows: int) -> bool:
        return "tokens" not in keep and windows <= 50

    monkeypatch.setattr(convex, "fits_in_memory", fits)
    monkeypatch.setattr(states, "fits_in_memory", fits)
    monkeypatch.setattr(convex, "LEAST_ROWS", 8)


@pytest.mark.parametrize(("pairs", "rows"), [("joined", TRAIN // 2), ("towers", TRAIN // 4)])
def test_they_learn_from_the_first_windows_of_the_pass(
    pairs: str, rows: int, mean_encoder_folder: Path, tmp_path: Path, little_memory: None
) -> None:
    notes = Notes()
    job = job_of(tmp_path, mean_encoder_folder, [{"head": "linear", "pairs": pairs, "strength": 0.5}], notes)
    run_job(job)
    assert f"convex heads learn from {rows} of {TRAIN} windows: memory can't hold the states of more." in notes.said
    head, _ = load_head(next((tmp_path / "run/snapshots/epoch_0/heads").glob("linear*")))
    # The same windows, solved by scikit-learn.
    features = job.features("train")
    order = np.concatenate(plan_pass(features.lengths, {(1, 1.0)}, 0, job.config.train.batch_rows).steps)[:rows]
    encoder = load_encoder(str(mean_encoder_folder))
    memory = MemoryStates.encode(encoder, features, ("mean",), towers=features.towers if pairs == "towers" else None)
    inputs = memory.map(head.inputs, torch.from_numpy(np.sort(order)))  # type: ignore[operator]
    scaler = StandardScaler().fit(inputs)
    ridge = Ridge(alpha=0.5).fit(scaler.transform(inputs), features.target[np.sort(order)])
    wanted = ridge.predict(scaler.transform(inputs))
    found = (inputs @ head.output.weight.T + head.output.bias).detach().numpy()[:, 0]  # type: ignore[operator, union-attr]
    np.testing.assert_allclose(found, wanted, atol=2e-3)


def test_a_head_learns_from_the_same_windows_whatever_other_heads_read(
    mean_encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory holds 90 windows of one part of the states, or 45 of two."""

    def fits(job: Job, encoder: Encoder, keep: Any, windows: int) -> bool:
        return "tokens" not in keep and windows * len(keep) <= TRAIN

    for module in (convex, states):
        monkeypatch.setattr(module, "fits_in_memory", fits)
    monkeypatch.setattr(convex, "LEAST_ROWS", 8)
    one, two = Notes(), Notes()
    linear = {"head": "linear", "strength": 0.5, "name": "linear"}
    for name, heads, notes in (("one", [linear], one), ("two", [linear, "linear_deviation"], two)):
        (tmp_path / name).mkdir()
        run_job(job_of(tmp_path / name, mean_encoder_folder, heads, notes))
    paths = [tmp_path / name / "run/snapshots/epoch_0/heads/linear" for name in ("one", "two")]
    alone, together = (load_head(path)[0].state_dict() for path in paths)
    for name, weight in alone.items():
        torch.testing.assert_close(together[name], weight, atol=1e-5, rtol=1e-4)
    assert not [line for line in one.said if "learn from" in line]
    assert [line for line in two.said if "learn from 45 of 90" in line], "linear_deviation has less room"


def test_without_memory_for_a_few_windows_the_head_is_named(
    mean_encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (convex, states):
        monkeypatch.setattr(module, "fits_in_memory", lambda *given: given[-1] == 0)
    job = job_of(tmp_path, mean_encoder_folder, ["linear"], Notes())
    with pytest.raises(UserError, match="not even those of 64 windows fit"):
        run_job(job)
