"""Finished tiny runs of real heads on a real (tiny) encoder, for analyses that look inside them; made once."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_blocks import SEEDS, set_threshold

import bertvision as bv

SETTINGS: dict[str, Any] = {
    "finetune": {"epochs": 1, "lr": 1e-3, "batch_rows": 2},
    "train": {"epochs": 2, "batch_rows": 4, "lr": 0.02},
}
LADDER = {"head": "ladder", "name": "ladder_16", "width": 16, "attention_heads": 2}
ADAPTER = {"head": "adapter", "name": "mean_adapter", "size": 4, "read": "mean"}
FLAT = {"head": "flat_adapter", "name": "flat_adapter", "tokens": 64, "size": 4}
Make = Callable[..., Path]


@pytest.fixture(scope="session")
def make_run(tmp_path_factory: pytest.TempPathFactory, tiny_encoder_folder: Path) -> Make:
    """make_run(task, data, heads) → the folder of a finished tiny run."""

    def run(task: str, data: Path, heads: list[Any], max_length: int = 48, **encoder: Any) -> Path:
        place = tmp_path_factory.mktemp("run") / task
        bv.run(
            task={"name": task, "data": str(data)},
            encoder={"name": str(tiny_encoder_folder), "device": "cpu", **encoder},
            data={"max_length": max_length, "overlap": 16, "hold_out": 0.25},
            heads=heads,
            run=str(place),
            **SETTINGS,
        )
        return place

    return run


@pytest.fixture(scope="session")
def rte(make_run: Make, glue_folder: Path) -> Path:
    return make_run("rte", glue_folder, SEEDS)


@pytest.fixture(scope="session")
def squad(make_run: Make, squad_folder: Path) -> Path:
    return make_run("squad2", squad_folder, SEEDS)


@pytest.fixture
def rte_copy(rte: Path, tmp_path: Path) -> Path:
    return shutil.copytree(rte, tmp_path / "rte", ignore=shutil.ignore_patterns("analyses"))


@pytest.fixture(scope="session")
def mapped_squad(make_run: Make, squad_folder: Path) -> Path:
    run = make_run("squad2", squad_folder, ["learned_pooling", LADDER], max_length=64)
    set_threshold(run, 1e9)  # whatever it has learned, it answers
    return run


@pytest.fixture(scope="session")
def mapped_rte(make_run: Make, glue_folder: Path) -> Path:
    return make_run("rte", glue_folder, ["learned_pooling", ADAPTER, FLAT], max_length=64)


@pytest.fixture(scope="session")
def mapped_stsb(make_run: Make, glue_folder: Path) -> Path:
    return make_run("stsb", glue_folder, ["learned_pooling"], max_length=64)
