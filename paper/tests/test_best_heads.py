"""The best head of each snapshot, from small experiments with known scores."""

from typing import Any

import pytest

from paper.best_heads import best_heads_block, best_rows
from paper.kept import Experiment


def model(dev: float, held_out: float, **facts: Any) -> dict[str, Any]:
    found = {
        split: {"forced_f1": score, "no_answer_auc": 2 * score}
        for split, score in (("dev", dev), ("held_out", held_out))
    }
    return {"parameters": 1, **facts, "scores": found}


def spans() -> dict[str, Experiment]:
    """Two seeds: at 0.3 epochs the head is 3 and 7 above the encoder, 0 and 4 above the control; at 2 epochs below
    both."""
    runs = {}
    for seed, score in enumerate((23.0, 27.0)):
        early = {
            "encoder": model(20, 20),
            "last_linear": model(23, 23, head="last_linear"),
            "ladder_64": model(score, 30, head="ladder"),
            "adapter_64": model(40, 25, head="adapter"),  # better on dev, which must not count
        }
        late = {**early, "encoder": model(33, 33), "last_linear": model(34, 34, head="last_linear")}
        shots = {"0": early, "0.3": early, "2": late}
        runs[seed] = {"snapshots": shots, "analyses": {}, "metrics": ["f1"]}
    return {"squad2_gte": Experiment("squad2_gte", runs)}


def test_the_best_head_on_held_out_data_is_compared_with_encoder_and_control() -> None:
    block = best_heads_block(best_rows(spans()))
    assert block.table is not None
    first, second, *later = block.table.rows
    assert first[:5] == ["spans, gte-small", 0.3, "ladder_64", 2, "answerable-only F1"]
    assert first[5:] == ["25.00 ± 2.83", "+5.00 ± 2.83", "+2.00 ± 2.83"]
    assert second[4:] == ["AUC", "50.00 ± 5.66", "+10.00 ± 5.66", "+4.00 ± 5.66"]
    assert [row[1] for row in later] == [2.0, 2.0]  # 0 epochs are left out
    assert block.picture is not None
    panels = [
        [value for layer in panel["layer"] for value in layer["data"]["values"] if "place" in value]
        for panel in block.picture["hconcat"]
    ]
    for name, values, gap in zip(("encoder", "control"), panels, (5.0, 2.0), strict=True):
        first = values[0]
        assert (first["place"], first["other"], first["gap"]) == ("spans, gte-small, 0.3 epochs", name, gap)
        assert (first["low"], first["high"]) == pytest.approx((gap - 2.83, gap + 2.83), abs=0.005)
    axis = block.picture["hconcat"][0]["layer"][0]["encoding"]["x"]
    assert axis["scale"]["domain"] == pytest.approx([-14.2, 9.4], abs=0.01)  # a fifth beyond −11.83 and 7.83
    assert block.sentences == [
        "At the first snapshot of each task (0.3 to 0.3 epochs), the best head is above the encoder alone in 2 of 2 "
        "scores (2 with every seed), and above the control in 2 of 2 scores (0 with every seed).",
        "At the last snapshot of each task (2 to 2 epochs), the best head is above the encoder alone in 0 of 2 scores "
        "(0 with every seed), and above the control in 0 of 2 scores (0 with every seed).",
    ]


def test_the_best_head_may_be_of_the_run_with_kernels() -> None:
    found, runs = spans(), spans()["squad2_gte"].runs
    for run in runs.values():
        run["snapshots"]["2"]["pooled_adapter_xception"] = model(36, 50, head="xception")
        run["snapshots"]["2"]["encoder"] = model(32, 32)
    rows = best_rows({**found, "squad2_gte_kernels": Experiment("squad2_gte_kernels", runs)})
    cells = rows[2].cells
    assert cells[1:4] == [2.0, "pooled_adapter_xception", 2]
    assert cells[6:] == ["+4.00 ± 0.00", "+2.00 ± 0.00"]  # over encoder and control of its own run


def test_without_runs_there_are_no_rows() -> None:
    assert best_rows({}) == []
