"""Spans, from small experiments with known scores."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from bertvision.report.block import Block
from paper.kept import Experiment
from paper.spans import losses_by_head, lost_points, span_blocks

LAYERS = ["embeddings", "layer 1", "layer 2"]


def scored(score: float, **facts: Any) -> dict[str, Any]:
    names = ("f1", "exact", "forced_f1", "forced_exact", "no_answer_auc")
    dev = {**dict.fromkeys(names, score), "at_threshold": {"f1": score, "exact": score}}
    return {"parameters": 10, "seconds": 1.0, **facts, "scores": {"dev": dev}}


def measured(name: str, score: float, without: list[float], layers: list[str] = LAYERS) -> dict[str, Any]:
    return {"name": name, "score": score, "layers": layers, "without": without}


def weighed(*weights: float) -> list[dict[str, Any]]:
    return [
        {"head": "learned_pooling", "layer": name, "weight, %": weight}
        for name, weight in zip(LAYERS, weights, strict=True)
    ]


def experiment(*analyses: dict[str, Any]) -> Experiment:
    """One seed for each argument; the encoder at 0, 0.5 and 1 epochs, heads at 0 and 1."""
    heads = {"last_linear": scored(50, head="last_linear"), "adapter_64": scored(60, head="adapter")}
    models = {"baseline": {"parameters": 0, "scores": {"dev": {"f1": 50.0}}}, "encoder": scored(55)}
    shots = {"0": {**models, **heads}, "0.5": models, "1": {**models, **heads}}
    return Experiment("x", {seed: {"snapshots": shots, "analyses": found} for seed, found in enumerate(analyses)})


def block(one: Experiment, end: str) -> Block:
    return next(block for block in span_blocks(one, "tiny") if block.key == f"x_{end}")


@pytest.fixture
def two_seeds() -> Experiment:
    first = [measured("last_linear", 60.0, [60.0, 60.0, 40.0]), measured("adapter_64", 62.0, [61.0, 63.0, 50.0])]
    second = [measured("last_linear", 64.0, [64.0, 64.0, 48.0]), measured("adapter_64", 66.0, [63.0, 67.0, 60.0])]
    first.append(measured("only_once", 70.0, [70.0, 70.0, 70.0]))
    for heads, score in ((first, 70.0), (second, 71.0)):
        heads.append(measured("adapter_64_data_fraction0.1", score, [score] * 3))
        heads.append(measured("other_layers", score, [score] * 2, layers=LAYERS[1:]))
    comparisons = [
        {"model": "adapter_64", "compared with": "last_linear (control)", "difference": 2.0, "from": 1.0, "to": 3.0,
         "corrected p": 0.01}
    ]  # fmt: skip
    analyses = [
        {"layers": {"examples": 200, "heads": heads}, "layer_weights": weights, "comparisons_1": comparisons}
        for heads, weights in ((first, weighed(40.0, 20.0, 41.0)), (second, weighed(20.0, 10.0, 70.0)))
    ]
    return experiment(*analyses)


def test_losses_are_means_over_seeds_of_the_heads_that_all_of_them_have(two_seeds: Experiment) -> None:
    found = block(two_seeds, "layers")
    assert found.table is not None
    assert found.table.rows == [
        ["last_linear (control)", 62.0, 0.0, 0.0, 18.0],  # (20 + 16) / 2
        ["adapter_64", 64.0, 2.0, -1.0, 9.0],  # (1 + 3) / 2, (-1 - 1) / 2, (12 + 6) / 2
    ]
    assert "mean of 2 seeds" in found.note and "threshold stays the same" in found.note
    assert "One question is 0.5 points" in found.note  # of 200


def test_the_spread_of_losses_is_that_of_heads_that_read_the_layer(two_seeds: Experiment) -> None:
    deviations = [np.std(pair, ddof=1) for pair in ([20, 16], [1, 3], [12, 6])]  # the rest is the same in both seeds
    assert (
        f"over seeds {np.median(deviations):.1f}: differences of a point are noise" in block(two_seeds, "layers").note
    )
    (control, _) = losses_by_head(two_seeds).values()
    assert [mean.deviation for mean in lost_points(control)] == pytest.approx([0, 0, deviations[0]])


def test_one_seed_has_losses_without_a_spread(two_seeds: Experiment) -> None:
    one = experiment(two_seeds.runs[0]["analyses"])
    assert list(losses_by_head(one)) == ["last_linear", "adapter_64", "only_once"]
    note = block(one, "layers").note
    assert "mean of 1 seed." in note and "deviation" not in note
    assert losses_by_head(experiment({})) == {}


def test_weights_are_related_to_depth(two_seeds: Experiment) -> None:
    ranks = [spearmanr(range(3), weights).statistic for weights in ([40.0, 20.0, 41.0], [20.0, 10.0, 70.0])]
    (sentence,) = block(two_seeds, "layers").sentences
    assert sentence.startswith("The largest weight, 55.5 %, is that of layer 2") and "33.3 % (dashed)" in sentence
    assert f"do not rise from every layer to the next: rank correlation with depth {np.mean(ranks):+.2f}" in sentence
    (sentence,) = block(experiment({"layer_weights": weighed(10.0, 20.0, 70.0)}), "layers").sentences
    assert "Weights rise from every layer to the next: rank correlation with depth +1.00, mean of 1 seed." in sentence
    (sentence,) = block(experiment({"layer_weights": weighed(50.0, 30.0, 20.0)}), "layers").sentences
    assert "rank correlation with depth −1.00" in sentence


def test_paired_tests_state_that_they_cover_one_seed(two_seeds: Experiment) -> None:
    found = block(two_seeds, "chances")
    assert found.title == "tiny: paired tests over the dev questions, one seed"
    assert found.table is not None and len(found.table.rows) == 1  # the second seed's are not there
    notes = {column.heading: column.note for column in found.table.columns}
    assert notes["from"] == notes["to"] != ""
    assert "F1* of seed 0 only" in found.note and "not of seeds" in found.note


def test_lines_of_heads_are_dashed_and_the_encoders_is_not(two_seeds: Experiment) -> None:
    found = block(two_seeds, "curve")
    assert "Heads were trained at 0 and 1 epochs only; dashed lines join these points" in found.note
    assert found.picture is not None
    for panel in found.picture["hconcat"]:
        lines = [layer for layer in panel["layer"] if layer["mark"]["type"] == "line"]
        dashes = {layer["transform"][0]["filter"]: layer["mark"].get("strokeDash") for layer in lines}
        own = "datum.model == 'encoder alone'"
        assert dashes[own] is None and dashes[f"!({own})"]
