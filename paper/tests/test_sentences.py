"""Tables of sentence tasks, from small experiments with known scores."""

from typing import Any

import pytest

from paper.kept import Experiment
from paper.sentences import glue_block


def scored(accuracy: float, **facts: Any) -> dict[str, Any]:
    scores = {"accuracy": accuracy}
    return {"parameters": 5, "seconds": 2.0, **facts, "scores": {"dev": scores, "held_out": scores}}


@pytest.fixture
def runs() -> dict[int, dict[str, Any]]:
    """Two seeds; the head is at 60 and 62 after 1 epoch, 70 and 72 after 3."""
    found = {}
    for seed, more in enumerate((0.0, 2.0)):
        shots = {}
        for epochs, head in (("1", 60.0), ("3", 70.0)):
            levels = {"baseline": {"parameters": 0, "scores": {"dev": {"accuracy": 50.0}}}, "encoder": scored(55.0)}
            heads = {"last_linear": scored(54.0, head="last_linear"), "adapter_64": scored(head + more, head="adapter")}
            shots[epochs] = levels | heads
        found[seed] = {"snapshots": shots, "analyses": {}, "metrics": ["accuracy"], "kind": "label"}
    return found


def test_a_row_has_each_snapshots_mean_over_seeds_and_the_last_ones_seconds(runs: dict[int, dict[str, Any]]) -> None:
    block = glue_block(Experiment("rte", runs))
    assert block.table is not None
    rows = {row["model"]: row for row in block.table.records()}
    head = rows["adapter_64"]
    assert (head["accuracy at 1 epoch"], head["accuracy at 3 epochs"]) == ("61.00 ± 1.41", "71.00 ± 1.41")
    assert (head["seeds"], head["parameters"], head["seconds"]) == (2, 5, "≤ 4")  # the encoder's 2 and its own
    assert rows["baseline: the most frequent label"]["seconds"] is None
    assert block.sentences == [
        "After 3 epochs, the best of these heads on held-out data, adapter_64, has accuracy 71.00 ± 1.41; the encoder "
        "alone has 55.00 ± 0.00, the control 54.00 ± 0.00."
    ]


def test_heads_of_a_zoo_have_their_own_folded_table(runs: dict[int, dict[str, Any]]) -> None:
    main, zoo = glue_block(Experiment("rte", runs)), glue_block(Experiment("rte_zoo", runs))
    assert (main.title, main.folded) == ("RTE with all-MiniLM-L6-v2", False)
    assert (zoo.title, zoo.folded) == ("RTE with all-MiniLM-L6-v2, heads of rte_zoo", True)
    assert main.key != zoo.key
