from typing import Any

from bertvision.pipeline.finished import FinishedRun
from bertvision.pipeline.score import score_tables
from bertvision.tables import Table, counted, to_markdown


def tables_of(scores: dict[str, Any]) -> list[Table]:
    return score_tables(FinishedRun("nowhere", scores))


def model(parameters: int, seconds: float, score: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"parameters": parameters, "seconds": seconds, "scores": score, **more}


def scores_of(metrics: list[str], **models: Any) -> dict[str, Any]:
    kind = "span" if "exact" in metrics else "label"
    return {"task": "rte", "kind": kind, "metrics": metrics, "snapshots": {"1": models}}


LABELS = scores_of(
    ["accuracy", "f1"],
    baseline=model(0, 0.0, {"dev": {"accuracy": 50.0, "f1": 66.666}}),
    encoder=model(1000, 12.34, {"dev": {"accuracy": 60.0, "f1": 61.0}}, share=1.0),
    last_linear=model(10, 0.5, {"dev": {"accuracy": 61.5, "f1": 62.0}}, share=0.01, head="last_linear"),
    broken=model(20, 0.1, {}, share=0.02, failed=True),
)


def test_every_model_has_a_row_with_its_cost() -> None:
    (table,) = tables_of(LABELS)
    assert table.headings == ["model", "parameters", "% of encoder", "accuracy", "F1", "seconds"]
    assert table.rows[0] == ["baseline", "0", "", "50.00", "66.67", ""]
    assert table.rows[1] == ["encoder alone", "1,000", "100.000", "60.00", "61.00", "12.3"]
    assert table.rows[2] == ["last_linear (control)", "10", "1.000", "61.50", "62.00", "0.5"]


def test_a_stopped_head_is_marked_and_its_cells_stay_aligned() -> None:
    (table,) = tables_of(LABELS)
    assert table.rows[3] == ["broken", "20", "2.000", "stopped", "", "0.1"]


def test_the_seeds_of_a_head_share_one_row_with_mean_and_spread() -> None:
    made = {
        f"adapter_seed{seed}": model(5, 1.0, {"dev": {"accuracy": value, "f1": 50.0}}, share=0.1, group="adapter")
        for seed, value in enumerate([60.0, 64.0, 62.0])
    }
    broken = {"adapter_seed3": model(5, 1.0, {}, share=0.1, group="adapter", failed=True)}
    scores = scores_of(["accuracy", "f1"], baseline=LABELS["snapshots"]["1"]["baseline"], **made)
    (table,) = tables_of(scores)
    assert table.rows[1] == ["adapter, 3 seeds", "5", "10.000", "62.00 ± 2.00", "50.00 ± 0.00", "1.0"]
    assert "standard deviation over the seeds" in table.note and len(table.rows) == 2
    (table,) = tables_of({**scores, "snapshots": {"1": {**scores["snapshots"]["1"], **broken}}})
    assert table.rows[1][0] == "adapter, 4 seeds, 1 stopped" and table.rows[1][3] == "62.00 ± 2.00"


def test_two_dev_splits_give_two_tables() -> None:
    both = {"dev_matched": {"accuracy": 1.0}, "dev_mismatched": {"accuracy": 2.0}}
    scores = scores_of(["accuracy"], baseline=model(0, 0.0, both), encoder=model(9, 1.0, both))
    assert ["dev_matched" in table.title for table in tables_of(scores)] == [True, False]


def test_several_snapshots_give_a_fine_tuning_curve() -> None:
    early = {"baseline": LABELS["snapshots"]["1"]["baseline"], "encoder": LABELS["snapshots"]["1"]["encoder"]}
    tables = tables_of({**LABELS, "snapshots": {"0.5": early, **LABELS["snapshots"]}})
    assert len(tables) == 2 and "fine-tuning curve" in tables[1].title
    assert [row[0] for row in tables[1].rows] == ["0.5", "1"] and tables[1].rows[0][1:3] == ["60.00", "61.00"]


def test_spans_show_only_columns_that_have_scores() -> None:
    bare = {"dev": {"exact": 50.07, "f1": 50.07, "HasAns_f1": 0.0, "NoAns_f1": 100.0}}
    full = {"dev": {**bare["dev"], "at_threshold": {"exact": 60.0, "f1": 61.0}, "no_answer_auc": 0.75}}
    scores = scores_of(["exact", "f1"], baseline=model(0, 0.0, bare), encoder=model(9, 1.0, full))
    (table,) = tables_of(scores)
    assert table.headings[3:] == ["EM", "F1", "HasAns F1", "NoAns F1", "EM*", "F1*", "AUC", "seconds"]
    assert table.rows[0][3:] == ["50.07", "50.07", "0.00", "100.00", "", "", "", ""]
    assert table.note == "The baseline never answers."
    shown = table.explain(table.headings)
    assert "official definition" in shown and "held-out" in shown and "nswerable-only" not in shown


def test_every_markdown_line_has_the_same_number_of_cells() -> None:
    text = to_markdown(tables_of(LABELS)[0])
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 6 and {line.count("|") for line in lines} == {7}
    assert text.startswith("## rte dev, encoder fine-tuned for 1 epoch\n")


def test_counted_uses_the_singular_for_one() -> None:
    assert [counted(number, "epoch") for number in (1, 1.0, 0.5, 2, 1000)] == [
        "1 epoch", "1 epoch", "0.5 epochs", "2 epochs", "1,000 epochs",
    ]  # fmt: skip
