from pathlib import Path
from typing import Any

import pytest
from tiny_reports import TinyRun, build_tiny_run

from bertvision.kinds import KINDS, Kind
from bertvision.report.analyses.spending import costs_table, score_against_compute


def accuracy(value: float) -> dict[str, Any]:
    return {"dev": {"accuracy": value}, "held_out": {"accuracy": value}}


def priced_run(folder: Path) -> TinyRun:
    """The encoder: a million tokens and 100 s an epoch; heads: half a million and 10 s."""
    run = TinyRun(folder)
    for epochs, value in ((0.0, 50.0), (0.5, 60.0), (1.0, 66.0)):
        run.add("encoder", epochs, scores=accuracy(value))
        if epochs:
            run.add("last_linear", epochs, scores=accuracy(value + 1))
            run.add("adapter_64", epochs, scores=accuracy(value + 5), parameters=2500, share=0.0025)
    return run


def test_a_head_costs_its_fine_tuning_and_its_pass(tmp_path: Path) -> None:
    run = priced_run(tmp_path)
    folder = run.folder.head(1.0, "adapter_64")
    folder.mkdir(parents=True)
    (folder / "head.safetensors").write_bytes(bytes(700))
    (folder / "config.json").write_bytes(bytes(300))
    block = costs_table(run.write(), "dev")
    assert block is not None and block.table is not None
    rows = {(row["model"], row["epochs"]): row for row in block.table.records()}
    encoder, head = rows["encoder alone", 1.0], rows["adapter_64", 1.0]
    assert (encoder["seconds"], encoder["seconds in pass"]) == (100.0, None)
    assert (head["seconds"], head["seconds in pass"]) == (110.0, 10.0)
    assert (encoder["forward (M tokens)"], encoder["backward (M tokens)"]) == (1.0, 1.0)
    assert (head["forward (M tokens)"], head["backward (M tokens)"]) == (1.5, 1.0)
    assert (head["parameters"], head["% of encoder"]) == (2500, pytest.approx(0.25))
    assert (encoder["memory (MB)"], head["memory (MB)"]) == (2000.0, 2000.0), "fine-tuning took more than the pass"
    assert (encoder["disk (MB)"], head["disk (MB)"]) == (pytest.approx(0.0041), pytest.approx(0.001))
    assert rows["last_linear (control)", 1.0]["disk (MB)"] is None  # its folder is not there


def test_an_untouched_encoder_costs_nothing(tmp_path: Path) -> None:
    block = costs_table(priced_run(tmp_path).write(), "dev")
    assert block is not None and block.table is not None
    first = block.table.records()[0]
    assert first["epochs"] == 0.0 and first["disk (MB)"] == 0.0 and first["seconds"] == 0.0
    assert first["forward (M tokens)"] == 0.0


def test_the_sentences_describe_the_best_head_and_its_shared_pass(tmp_path: Path) -> None:
    run = priced_run(tmp_path)
    run.add("alone", scores=accuracy(10.0), seconds=3.5)
    block = costs_table(run.write(), "dev")
    assert block is not None
    assert block.sentences == [
        "adapter_64 has 2,500 parameters (0.250 % of the encoder's) and scores 71.00; the encoder alone scores 66.00.",
        "Its training pass, shared by 2 models, took 10.0 s after 100.0 s of fine-tuning and sent 0.50 million tokens "
        "forward through the encoder.",
    ]


def test_runs_from_before_tokens_were_counted_have_a_table_and_no_curve(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    run.add("encoder", scores=accuracy(60.0), tokens=None, memory=None)
    run.add("adapter_64", scores=accuracy(61.0), tokens=None, memory=None)
    finished = run.write()
    block = costs_table(finished, "dev")
    assert block is not None and block.table is not None
    headings = [column.heading for column in block.table.columns]
    assert "memory (MB)" not in headings and "forward (M tokens)" not in headings
    assert [row["seconds"] for row in block.table.records()] == [100.0, 110.0]
    assert score_against_compute(finished, "dev") is None


def test_without_heads_the_encoder_alone_is_described(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    run.add("encoder", scores=accuracy(60.0))
    finished = run.write()
    block = costs_table(finished, "dev")
    assert block is not None and block.sentences == [
        "The encoder alone has 1,000,000 parameters. The run has no heads."
    ]
    assert score_against_compute(finished, "dev") is None


def test_backward_counts_twice_and_the_encoder_is_compared_at_similar_compute(tmp_path: Path) -> None:
    block = score_against_compute(priced_run(tmp_path).write(), "dev")
    assert block is not None and block.table is not None
    rows = {(row["model"], row["epochs"]): row for row in block.table.records()}
    assert rows["encoder alone", 1.0]["compute (M tokens)"] == 3.0
    early, late = rows["adapter_64", 0.5], rows["adapter_64", 1.0]
    # 1.5 for half an epoch, 0.5 for the pass; the encoder goes from 60 at 1.5 to 66 at 3.0.
    assert early["compute (M tokens)"] == 2.0
    assert (early["encoder, up to same compute"], early["encoder, at least same compute"]) == (60.0, 66.0)
    assert late["compute (M tokens)"] == 3.5
    assert (late["encoder, up to same compute"], late["encoder, at least same compute"]) == (66.0, None)
    assert block.sentences == [
        "After 0.5 epochs of fine-tuning, adapter_64 scores 65.00 with 2.00 million tokens of compute; the encoder "
        "alone scores 60.00 with less (1.50 million) and 66.00 with more (3.00 million).",
        "After 1 epoch of fine-tuning, adapter_64 scores 71.00 with 3.50 million tokens of compute; the encoder alone "
        "scores 66.00 with less (3.00 million). It has no snapshot with more compute.",
    ]


def test_a_head_on_the_untouched_encoder_is_compared_with_fine_tuning(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    run.add("encoder", 0.0, scores=accuracy(50.0))
    run.add("adapter_64", 0.0, scores=accuracy(55.0))
    run.add("encoder", 1.0, scores=accuracy(80.0))
    block = score_against_compute(run.write(), "dev")
    assert block is not None and block.table is not None
    (row,) = [row for row in block.table.records() if row["model"] == "adapter_64"]
    assert row["compute (M tokens)"] == 0.5
    assert (row["encoder, up to same compute"], row["encoder, at least same compute"]) == (50.0, 80.0)


def test_an_ensemble_with_members_of_another_run_has_no_compute(tmp_path: Path) -> None:
    run = priced_run(tmp_path)
    for name, other in (("both", None), ("foreign", "runs/other")):
        voices = [{"run": None, "epochs": 1.0, "name": "encoder"}, {"run": other, "epochs": 1.0, "name": "adapter_64"}]
        run.add(name, scores=accuracy(72.0), head=None, ensemble=["encoder", "adapter_64"], voices=voices)
    finished = run.write()
    block, table = score_against_compute(finished, "dev"), costs_table(finished, "dev")
    assert block is not None and block.table is not None and table is not None and table.table is not None
    priced = {row["model"]: row["compute (M tokens)"] for row in block.table.records() if row["epochs"] == 1.0}
    assert priced["both"] == 3.5 and "foreign" not in priced
    (foreign,) = [row for row in table.table.records() if row["model"] == "foreign"]
    assert foreign["seconds"] is None and foreign["accuracy"] == 72.0


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_kind_with_seeds_and_an_ensemble_has_a_picture_of_at_most_six_colours(tmp_path: Path, kind: Kind) -> None:
    heads = ["learned_pooling", "average_pooling", "pooled_adapter", {"head": "adapter", "size": [4, 8, 16]}]
    run = build_tiny_run(tmp_path, kind, (0.5, 1.0), seeds=2, heads=heads, ensemble="together")
    block, table = score_against_compute(run, "dev"), costs_table(run, "dev")
    assert block is not None and block.picture is not None and block.in_words() and table is not None
    shown = {row["model"] for row in block.picture["data"]["values"]}
    assert len(shown) == 6 and {"encoder alone", "last_linear (control)", "together"} <= shown
    assert table.table is not None and len(table.table.rows) == 1 + 9 and "±" in table.note
