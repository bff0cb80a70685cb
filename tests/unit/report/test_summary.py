"""The summary and the first tables: the best head by held-out scores, its lead, and whether that could be chance."""

from pathlib import Path

import pytest
from tiny_reports import TinyRun, build_tiny_run, label_results

from bertvision.kinds import KINDS, LABEL, SCORE, SPAN, Kind
from bertvision.report.analyses.choices import choices
from bertvision.report.analyses.comparisons import comparisons, every_pair
from bertvision.report.analyses.scores_table import scores_table
from bertvision.report.analyses.spending import costs_table
from bertvision.report.cards import build_card
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
    assert "The head is 1.25 below the encoder" in first and "the two differ on too few examples to say more" in first
    assert choice.startswith("On dev (nothing was held out) the encoder alone is best: no head beats it there.")
    assert layers.startswith("adapter_4 is 1.25 below the control")
    assert baseline.endswith("The best head is not above that.")
    assert choices(certainty.run, "dev").sentences[0].endswith("so its scores are optimistic.")


def untouched(folder: Path) -> Certainty:
    """A head on an encoder that was not fine-tuned."""
    run = TinyRun(folder, baseline={"accuracy": 50.0})
    for name, count in (("encoder", 40), ("last_linear", 60), ("adapter_4", 70)):
        run.add(name, 0.0, results=label_results(TARGETS, right(count)))
    return Certainty(run.write(finetune={"lr": 1e-4}, encoder={"name": "tiny"}), 0.0, "dev")


def test_an_untouched_encoder_is_not_fine_tuned_for_0_epochs(tmp_path: Path) -> None:
    certainty = untouched(tmp_path)
    cost = costs_table(certainty.run, "dev")
    assert cost is not None
    sentences = [*build_summary(certainty), *cost.sentences, *build_facts(certainty.run)]
    assert "the encoder alone, not fine-tuned, reaches 50.00." in sentences[0]
    assert not [text for text in sentences if " 0 epochs" in text or "s of fine-tuning" in text]
    assert scores_table(certainty).title == "Scores on dev, encoder not fine-tuned"
    card = build_card(certainty.run, certainty.run.best_head(0.0).first)  # type: ignore[union-attr]
    assert (
        "which was not fine-tuned. It works only with that encoder.\n" in card and "- encoder: not fine-tuned\n" in card
    )


def test_a_label_that_scores_more_than_the_baseline_is_named(tmp_path: Path) -> None:
    targets = [1] * 60 + [0] * 20  # the majority of train is the other label
    run = TinyRun(tmp_path, baseline={"accuracy": 25.0})
    run.add("encoder", results=label_results(targets, [0.4] * 80))
    run.add("adapter_4", results=label_results(targets, [0.6] * 80))
    certainty = Certainty(run.write(finetune={"lr": 1e-4}, encoder={"name": "tiny"}), 1.0, "dev")
    assert build_summary(certainty)[-1] == (
        "The trivial baseline, always predicting the majority label, scores 25.00. Always predicting “yes” scores "
        "75.00. The best head is not above that."
    )


def test_an_ensemble_is_compared_with_the_better_of_its_members(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, baseline={"accuracy": 50.0})
    run.add("encoder", results=label_results(TARGETS, right(60)))
    run.add("adapter_4", results=label_results(TARGETS, right(56)))
    names = ["encoder", "adapter_4"]
    voices = [{"run": None, "epochs": 1.0, "name": name} for name in names]
    combined = {"ensemble": names, "voices": voices, "method": "max", "head": None}
    run.add("both", results=label_results(TARGETS, right(76)), **combined)
    certainty = Certainty(run.write(finetune={"lr": 1e-4}, encoder={"name": "tiny"}), 1.0, "dev")
    (found,) = [text for text in build_summary(certainty) if text.startswith("Together")]
    assert found.startswith(
        "Together, the encoder and adapter_4 (max) reach 95.00. The ensemble is 20.00 above the encoder alone, its "
        "better member on dev (95 % interval "
    )


def test_the_highest_difference_is_not_called_the_largest(certainty: Certainty) -> None:
    block = comparisons(certainty)
    assert (
        block is not None and ". The highest on dev is adapter_4, with a difference of +50.00 (" in block.sentences[0]
    )


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((60, 70, 70, 60), "On dev, adapter_4 and adapter_8 share the highest accuracy: 87.50. The encoder alone and "
                           "adapter_16 share the lowest of the trained models: 75.00."),
        ((60, 60, 60, 60), "On dev, all 4 models have the same accuracy: 75.00."),
    ],
)  # fmt: skip
def test_ties_are_named(counts: tuple[int, ...], expected: str, tmp_path: Path) -> None:
    run = TinyRun(tmp_path, baseline={"accuracy": 50.0})
    for name, count in zip(("encoder", "adapter_4", "adapter_8", "adapter_16"), counts, strict=True):
        run.add(name, results=label_results(TARGETS, right(count)))
    block = scores_table(Certainty(run.write(finetune={"lr": 1e-4}, encoder={"name": "tiny"}), 1.0, "dev"))
    assert block.sentences == [expected]


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
