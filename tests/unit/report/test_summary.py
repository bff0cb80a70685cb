"""The summary and the first tables: the best head by held-out scores, its lead, and whether that could be chance."""

from pathlib import Path

import pytest
from tiny_reports import TinyRun, build_tiny_run, label_results

from bertvision.kinds import KINDS, LABEL, SCORE, SPAN, Kind
from bertvision.report.analyses.choices import choices
from bertvision.report.analyses.comparisons import comparisons, every_pair
from bertvision.report.analyses.scores_table import scores_table
from bertvision.report.certainty import Certainty
from bertvision.report.summary import build_facts, build_summary

TARGETS = [0, 1] * 40


def held_out(accuracy: float) -> dict[str, dict[str, float]]:
    return {"held_out": {"accuracy": accuracy, "total": 20}}


def right(count: int) -> list[float]:
    """Probabilities of label 1 that are right for the first so many of the examples."""
    return [0.6 if (number < count) == bool(target) else 0.4 for number, target in enumerate(TARGETS)]


@pytest.fixture
def certainty(tmp_path: Path) -> Certainty:
    run = TinyRun(tmp_path, baseline={"accuracy": 50.0})
    run.add("encoder", results=label_results(TARGETS, right(40)), scores=held_out(50.0))
    run.add("last_linear", results=label_results(TARGETS, right(44)), scores=held_out(55.0))
    run.add(
        "adapter_64", results=label_results(TARGETS, right(72)), scores=held_out(90.0), parameters=1234, share=0.001234
    )
    run.add("adapter_4", results=label_results(TARGETS, right(80)), scores=held_out(80.0))
    return Certainty(run.write(finetune={"lr": 1e-4}, encoder={"name": "here/tiny"}), 1.0, "dev")


def test_the_best_head_is_best_on_held_out_data_whatever_dev_says(certainty: Certainty) -> None:
    first, layers, choice, cost, baseline = build_summary(certainty)
    assert "The best head, adapter_64 (chosen on held-out training data), reaches 90.00 accuracy on dev" in first
    assert "; the encoder alone, fine-tuned for 1 epoch, reaches 50.00. The head is 40.00 above the encoder (" in first
    assert "more than chance" in first
    assert choice == "By default, predict uses adapter_64: best on held-out training data."
    assert layers.startswith(
        "adapter_64 is 35.00 above the control, a linear layer with 1,000 parameters on the last layer ("
    )
    assert "adapter_64 has 1,234 parameters, 0.123 % of the encoder's 1,000,000" in cost
    assert "with 2 others in the same pass, after 100 s of fine-tuning" in cost
    assert baseline == "The trivial baseline, always predicting the majority label, scores 50.00."


def test_a_head_below_the_encoder_is_said_to_be_below(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, baseline={"accuracy": 95.0})
    run.add("encoder", results=label_results(TARGETS, right(70)))
    run.add("last_linear", results=label_results(TARGETS, right(70)))
    run.add("adapter_4", results=label_results(TARGETS, right(69)))
    certainty = Certainty(run.write(finetune={"lr": 1e-4}, encoder={"name": "tiny"}), 1.0, "dev")
    first, layers, choice, _, baseline = build_summary(certainty)
    assert "dev itself, which flatters it" in first, "nothing was held out"
    assert "The head is 1.25 below the encoder" in first and "too few examples tell them apart" in first
    assert choice.startswith("On dev (nothing was held out) the encoder alone is best: no head beats it there.")
    assert layers.startswith("adapter_4 is 1.25 below the control")
    assert baseline.endswith("The best head is not above that.")
    assert choices(certainty.run, "dev").sentences[0].endswith("so its scores are optimistic.")


def test_without_a_head_the_encoder_stands_alone(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    run.add("encoder", results=label_results(TARGETS, right(70)))
    certainty = Certainty(run.write(finetune={"lr": 1e-4}, encoder={"name": "tiny"}), 1.0, "dev")
    assert build_summary(certainty)[0] == "The encoder alone reaches 87.50 accuracy on dev."
    assert comparisons(certainty) is None and every_pair(certainty) is None
    assert scores_table(certainty).table is not None


def test_tables_hold_figures_spread_and_intervals(certainty: Certainty) -> None:
    frame = scores_table(certainty).table
    assert frame is not None
    rows = {row["model"]: row for row in frame.records()}
    assert rows["baseline"]["accuracy"] == 50.0 and rows["baseline"]["accuracy from"] is None
    adapter = rows["adapter_64"]
    assert adapter["accuracy"] == pytest.approx(90) and adapter["% of encoder"] == pytest.approx(0.1234)
    low, high = adapter["accuracy from"], adapter["accuracy to"]
    assert isinstance(low, float) and isinstance(high, float) and low < 90 < high
    block = comparisons(certainty)
    assert block is not None and block.table is not None
    assert [row["compared with"] for row in block.table.records()] == ["encoder alone"] * 2 + [
        "last_linear (control)"
    ] * 2
    assert "Of 2 models compared with the encoder alone, 2 are significantly better" in block.sentences[0]


def test_the_page_shows_intervals_of_the_main_metric_only_and_the_files_all(tmp_path: Path) -> None:
    block = scores_table(Certainty(build_tiny_run(tmp_path, SPAN), 1.0, "dev"))
    visible = block.visible_table()
    assert block.table is not None and visible is not None
    ends = [heading for heading in visible.headings if heading.endswith((" from", " to"))]
    assert ends == ["F1* from", "F1* to"] and {"EM from", "EM* to"} <= set(block.table.headings)
    assert [len(row) for row in visible.rows] == [len(visible.columns)] * len(visible.rows)


def test_of_scores_nothing_is_said_about_right_and_wrong(tmp_path: Path) -> None:
    certainty = Certainty(build_tiny_run(tmp_path, SCORE), 1.0, "dev")
    for block in (comparisons(certainty), every_pair(certainty)):
        assert block is not None and block.table is not None
        assert block.table.headings == [
            "model", "compared with", "difference", "from", "to", "p", "test", "corrected p",
        ]  # fmt: skip
        assert "McNemar" not in block.note and "got right" not in block.note
    labels = comparisons(Certainty(build_tiny_run(tmp_path / "labels", LABEL), 1.0, "dev"))
    assert labels is not None and labels.table is not None and "McNemar p" in labels.table.headings
    assert "McNemar: exact test" in labels.note


@pytest.mark.parametrize("ensemble", [None, "both"])
def test_legends_have_only_what_is_drawn(ensemble: str | None, tmp_path: Path) -> None:
    certainty = Certainty(build_tiny_run(tmp_path, ensemble=ensemble), 1.0, "dev")
    scores, chance = scores_table(certainty), comparisons(certainty)
    assert scores.picture is not None and chance is not None and chance.picture is not None
    roles = ["encoder", "control", "head", *(["ensemble"] if ensemble else [])]
    assert [layer["encoding"]["color"]["legend"]["values"] for layer in scores.picture["layer"]] == [roles] * 2
    (_, rules, _) = chance.picture["layer"]
    sure = {row["sure"] for row in rules["data"]["values"]}
    assert set(rules["encoding"]["opacity"]["legend"]["values"]) == sure


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_kind_of_task_gets_words_and_tables(kind: Kind, tmp_path: Path) -> None:
    run = build_tiny_run(tmp_path, kind, seeds=2, ensemble="both", snapshots=(0.5, 1.0))
    certainty = Certainty(run, 1.0, "dev")
    assert any(sentence.startswith("Together, ") for sentence in build_summary(certainty))
    assert "24 dev examples, 6 held out of train" in build_facts(run)
    assert not any(str(tmp_path) in fact for fact in build_facts(run)), "where the data are is nobody's business"
    frame = scores_table(certainty).table
    assert frame is not None and all(len(row) == len(frame.columns) for row in frame.rows)
    assert any(column.heading.startswith("± ") for column in frame.columns)
