"""Learned layer weights on tiny runs, against arithmetic."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sealed import edit_json, reseal

from bertvision.pipeline.finished import FinishedRun
from bertvision.report.analyses.layer_weights import layer_weights


def set_weights(run: Path, head: str, parts: list[float]) -> None:
    """Gives a head's layers these parts of the weight."""
    path = run / "snapshots" / "epoch_1" / "heads" / head / "head.safetensors"
    weights = load_file(path)
    assert weights["pooling.weights"].shape == (len(parts),)
    save_file({**weights, "pooling.weights": torch.tensor(parts).log()}, path)
    reseal(path.parent)


def drop(run: Path, head: str) -> None:
    """Remove a head from scores.json."""
    edit_json(run / "scores.json", lambda scores: scores["snapshots"]["1"].__delitem__(head))


def test_learned_weights_are_shares_averaged_over_seeds(rte_copy: Path) -> None:
    set_weights(rte_copy, "learned_pooling_seed0", [1, 2, 3, 4, 10])  # of 20
    set_weights(rte_copy, "learned_pooling_seed1", [3, 2, 3, 2, 10])  # of 20
    block = layer_weights(FinishedRun(rte_copy), "dev")
    assert block is not None and block.table is not None and block.picture is not None
    names = ["embeddings", "layer 1", "layer 2", "layer 3", "pooled output"]
    assert [row[:2] for row in block.table.rows] == [["learned_pooling, 2 seeds", name] for name in names]
    assert [row[2] for row in block.table.rows] == pytest.approx([10, 10, 15, 15, 50])
    # Two values that differ by d have a standard deviation of d / √2.
    assert [row[3] for row in block.table.rows] == pytest.approx([10 / 2**0.5, 0, 0, 10 / 2**0.5, 0], abs=1e-5)
    assert {row[4] for row in block.table.rows} == {20.0}
    (sentence,) = block.sentences
    assert sentence == (
        "learned_pooling puts the largest weight on the pooled output: 50.0 %, compared with 20.0 % for equal weights. "
        "The upper half of the 5 states it reads has 65.0 % of the weight (40.0 % for equal weights)."
    )


def test_one_seed_has_no_spread_and_heads_without_weights_are_left_out(rte_copy: Path) -> None:
    drop(rte_copy, "learned_pooling_seed1")
    block = layer_weights(FinishedRun(rte_copy), "dev")
    assert block is not None and block.table is not None
    assert {(row[0], row[3]) for row in block.table.rows} == {("learned_pooling", None)}
    drop(rte_copy, "learned_pooling_seed0")
    assert layer_weights(FinishedRun(rte_copy), "dev") is None
