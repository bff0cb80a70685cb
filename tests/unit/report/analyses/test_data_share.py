from pathlib import Path

import pytest
from tiny_blocks import accuracy, curve_run, drawn, layers_of, rows_drawn
from tiny_reports import TinyRun, build_tiny_run, span_results

from bertvision.kinds import KINDS, SPAN, Kind
from bertvision.report.analyses.data_share import data_share


def test_without_data_fractions_there_is_no_curve(tmp_path: Path) -> None:
    assert data_share(curve_run(tmp_path, {1: 60.0}, {1: {"adapter_64": 61.0}}).write(), "dev") is None


def test_heads_that_differ_only_in_the_data_fraction_are_one_line(tmp_path: Path) -> None:
    run = curve_run(tmp_path, {1: 70.0}, {1: {"last_linear": 65.0, "adapter_64": 72.0}})
    for share, value in ((0.1, 60.0), (0.5, 69.0)):
        run.add(f"adapter_64_data_fraction{share}", scores=accuracy(value), head="adapter", data_fraction=share)
    block = data_share(run.write(), "dev")
    assert block is not None and block.table is not None and block.picture is not None
    rows = [(row["model"], row["training data (%)"], row["accuracy"]) for row in block.table.records()]
    assert rows == [("adapter_64", 10.0, 60.0), ("adapter_64", 50.0, 69.0), ("adapter_64", 100.0, 72.0)]
    assert block.sentences == [
        "adapter_64 scores 60.00 with 10 % of the training data, 12.00 below its 72.00 with 100 %."
    ]
    assert {"score": 70.0, "model": "encoder alone"} in drawn(block)


def test_a_head_with_one_data_fraction_is_not_compared(tmp_path: Path) -> None:
    run = curve_run(tmp_path, {1: 70.0}, {})
    run.add("mine", scores=accuracy(60.0), data_fraction=0.25)
    block = data_share(run.write(), "dev")
    assert block is not None and block.sentences == ["mine scores 60.00 with 25 % of the training data."]


def test_data_fractions_are_read_from_the_names_of_members(tmp_path: Path) -> None:
    heads = [
        "learned_pooling",
        {"head": ["adapter_64", "last_linear"], "data_fraction": [0.1, 1e-05, 1], "name": "less"},
    ]
    block = data_share(build_tiny_run(tmp_path, heads=heads), "dev")
    assert block is not None and block.table is not None
    assert {row["model"] for row in block.table.records()} == {"less_last_linear (control)", "less_adapter_64"}
    assert len(block.table.rows) == 6


def test_spans_have_scores_at_threshold_0_beside_those_at_the_chosen_one(tmp_path: Path) -> None:
    """On part of the data the head misses both answers at threshold 0, and none at 2."""
    right, silent = (span_results([1, 1], [True, True], [lead] * 2) for lead in (-1, 1))
    run = TinyRun(tmp_path, SPAN)
    for name, results, share in (("encoder", right, None), ("adapter_64", right, 1.0), ("less", silent, 0.5)):
        facts = {} if share is None else {"head": "adapter", "data_fraction": share}
        run.add(
            name.replace("less", "adapter_64_data_fraction0.5"),
            results={"dev": results, "held_out": results},
            threshold=2.0,
            **facts,
        )
    block = data_share(run.write(), "dev")
    assert block is not None and block.table is not None and block.picture is not None
    rows = {row["training data (%)"]: row for row in block.table.records()}
    assert (rows[50.0]["F1 at the chosen threshold"], rows[50.0]["F1 at threshold 0"]) == (100.0, 0.0)
    assert (rows[100.0]["EM at the chosen threshold"], rows[100.0]["EM at threshold 0"]) == (100.0, 100.0)
    chosen, at_zero = block.picture["hconcat"]
    found = [{row.get("share"): row["score"] for row in rows_drawn(panel)} for panel in (chosen, at_zero)]
    assert found == [{50.0: 100.0, 100.0: 100.0, None: 100.0}, {50.0: 0.0, 100.0: 100.0, None: 100.0}]  # None: encoder


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_mark_has_a_tooltip_for_every_kind(tmp_path: Path, kind: Kind) -> None:
    heads = ["learned_pooling", {"head": "adapter_64", "data_fraction": [0.1, 1.0]}]
    run = build_tiny_run(tmp_path, kind, (0.0, 1.0), seeds=2, heads=heads)
    block = data_share(run, "dev")
    assert block is not None and block.picture is not None and block.in_words() and block.sentences
    assert all("tooltip" in layer["encoding"] for layer in layers_of(block.picture))
