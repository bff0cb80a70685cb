"""The finding of a run in one sentence, in every case that a run can end in."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_blocks import SEEDS
from tiny_reports import TinyRun, build_tiny_run, label_results, score_results, span_results

from bertvision.kinds import KINDS, SCORE, SPAN, Kind
from bertvision.report.certainty import Certainty
from bertvision.report.finding import build_finding

TARGETS = [0, 1] * 100
PARAMETERS = {"parameters": 154_784}


def right(count: int) -> Any:
    """Results that are right on the first so many of 200 examples."""
    said = [0.6 if (number < count) == bool(target) else 0.4 for number, target in enumerate(TARGETS)]
    return label_results(TARGETS, said)


def held(accuracy: float | None) -> dict[str, dict[str, float]]:
    return {} if accuracy is None else {"held_out": {"accuracy": accuracy, "total": 20}}


def finding(run: TinyRun, epochs: float = 1.0) -> str:
    config: dict[str, Any] = {"finetune": {"lr": 1e-4}, "encoder": {"name": "tiny"}}
    return build_finding(Certainty(run.write(**config), epochs, "dev"))


def labels_run(folder: Path, encoder: int, control: int | None, head: int | None, at: float = 1.0) -> TinyRun:
    """Numbers of right answers among 200; nobody's held-out score differs."""
    run = TinyRun(folder, baseline={"accuracy": 50.0})
    for name, count in (("encoder", encoder), ("last_linear", control), ("adapter_64", head)):
        if count is not None:
            run.add(name, at, results=right(count), scores=held(50.0), **(PARAMETERS if name == "adapter_64" else {}))
    return run


def test_a_head_that_reads_a_single_layer_is_not_said_to_read_all(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, baseline={"accuracy": 50.0})
    for name, count in (("encoder", 130), ("last_linear", 140), ("best_layer_lr", 180)):
        own = {**PARAMETERS, "layer": 2} if name == "best_layer_lr" else {}
        run.add(name, 1.0, results=right(count), scores=held(50.0), **own)
    assert finding(run).startswith("Reading layer 2 with a head of 154,784 parameters raises accuracy from 65.0 %")


READING = "Reading all layers with a head of 154,784 parameters raises accuracy from"


ALONE, LAST = "the fine-tuned encoder alone", "a linear layer on the last layer"
NOTHING = f"Reading more than the last layer adds nothing here: {LAST} reaches an accuracy of"
NO_HEAD = f"The best head does not beat {ALONE}: the encoder reaches an accuracy of 90.0 %, the best head on all layers"
CHANCE = "with 200 dev examples this could be chance."
FIRST_TWO = "with 200 dev examples, the difference between the first two could be chance."


@pytest.mark.parametrize(
    ("encoder", "control", "head", "expected"),
    [
        (130, 140, 180, f"{READING} 65.0 % (fine-tuned encoder alone) and 70.0 % (last layer only) to 90.0 %; "
                        "this is more than chance."),
        (130, 176, 180, f"{READING} 65.0 % (fine-tuned encoder alone) and 88.0 % (last layer only) to 90.0 %; "
                        f"the gain over {ALONE} is more than chance, but the gain over {LAST} may not be."),
        (176, 174, 180, f"{READING} 88.0 % (fine-tuned encoder alone) and 87.0 % (last layer only) to 90.0 %; "
                        f"{CHANCE}"),
        (130, None, 180, f"{READING} 65.0 % (fine-tuned encoder alone) to 90.0 %; this is more than chance."),
        (130, 182, 180, f"{NOTHING} 91.0 %, the best head on all layers 90.0 % and {ALONE} 65.0 %; {FIRST_TWO}"),
        (130, 180, 180, f"{NOTHING} 90.0 %, the best head on all layers 90.0 % and {ALONE} 65.0 %."),
        (180, 176, 140, f"{NO_HEAD} 70.0 % and {LAST} 88.0 %; the difference between the "
                        "first two is more than chance."),
        (180, None, 180, f"The best head does not beat {ALONE}: the encoder reaches an accuracy of 90.0 % and the "
                         "best head on all layers 90.0 %."),
        (180, None, 140, f"The best head does not beat {ALONE}: the encoder reaches an accuracy of 90.0 % and the "
                         "best head on all layers 70.0 %; the difference is more than chance."),
        (180, None, None, f"{ALONE.capitalize()} reaches an accuracy of 90.0 % on 200 dev examples; no head was "
                          "trained to compare it with."),
        (180, 176, None, f"No head was trained on all layers: {ALONE} reaches an accuracy of 90.0 % and {LAST} "
                         "88.0 %."),
    ],
)  # fmt: skip
def test_head_control_and_encoder_are_ranked_in_one_sentence(
    encoder: int, control: int | None, head: int | None, expected: str, tmp_path: Path
) -> None:
    assert finding(labels_run(tmp_path, encoder, control, head)) == expected


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((90, 80, 100), "No model here has learned the task: on 200 dev examples, the best one reaches an accuracy of "
                        "50.0 %, and always predicting the majority label reaches 50.0 %."),
        ((90, 80, 104), "No model here is clearly better than always predicting the majority label: the best one "
                        "reaches an accuracy of 52.0 % against 50.0 %; with 200 dev examples this could be chance."),
    ],
)  # fmt: skip
def test_models_that_learned_nothing_are_called_that(
    counts: tuple[int, int, int], expected: str, tmp_path: Path
) -> None:
    assert finding(labels_run(tmp_path, *counts)) == expected


def test_the_baseline_s_label_is_named_where_it_can_be_told(tmp_path: Path) -> None:
    targets = [1] * 60 + [0] * 40
    run = TinyRun(tmp_path, baseline={"accuracy": 60.0})
    run.add("encoder", results=label_results(targets, [0.4] * 100), scores=held(50.0))
    run.add("adapter_64", results=label_results(targets, [0.6] * 55 + [0.4] * 5 + [0.6] * 40), scores=held(50.0))
    assert finding(run) == (
        "No model here has learned the task: on 100 dev examples, the best one reaches an accuracy of 55.0 %, and "
        "always predicting “yes” reaches 60.0 %."
    )


def test_a_model_that_always_predicts_the_majority_of_dev_learned_nothing(tmp_path: Path) -> None:
    targets = [1] * 60 + [0] * 40  # the majority of train is “no”, which the baseline and the encoder always predict
    run = TinyRun(tmp_path, baseline={"accuracy": 40.0})
    run.add("encoder", results=label_results(targets, [0.4] * 100), scores=held(50.0))
    run.add("adapter_64", results=label_results(targets, [0.6] * 100), scores=held(50.0))
    assert finding(run) == (
        "No model here has learned the task: on 100 dev examples, the best one reaches an accuracy of 60.0 %, and "
        "always predicting “yes” reaches 60.0 %."
    )


def test_a_head_that_gains_but_stays_below_the_baseline_is_not_praised(tmp_path: Path) -> None:
    run = labels_run(tmp_path, 80, None, 90)
    run.add("other", results=right(180), scores=held(40.0))  # above the baseline, but not chosen on held-out data
    assert finding(run).endswith("; always predicting the majority label reaches 50.0 %.")


@pytest.mark.parametrize(
    ("encoder", "control", "expected"),
    [
        (184, 170, "the fine-tuned encoder alone: the encoder reaches an accuracy of 92.0 %, that head 90.0 % and a "
                   "linear layer on the last layer 85.0 %"),
        (170, 184, "a linear layer on the last layer: the linear layer reaches an accuracy of 92.0 %, that head 90.0 % "
                   "and the fine-tuned encoder alone 85.0 %"),
    ],
)  # fmt: skip
def test_the_chosen_head_is_not_called_the_best_where_another_scores_higher(
    encoder: int, control: int, expected: str, tmp_path: Path
) -> None:
    run = labels_run(tmp_path, encoder, control, 180)
    run.add("other", results=right(190), scores=held(40.0))
    start = f"The head chosen on held-out data does not beat {expected}"
    assert finding(run) == f"{start}; with 200 dev examples, the difference between the first two could be chance."


def test_a_gain_over_the_control_only_is_told_apart(tmp_path: Path) -> None:
    assert finding(labels_run(tmp_path, 176, 130, 180)).endswith(
        f"the gain over {LAST} is more than chance, but the gain over {ALONE} may not be."
    )


def test_spans_that_are_no_better_than_silence_learned_nothing(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, SPAN, baseline={"exact": 50.0, "f1": 50.0})
    answers = span_results([0.0] * 20, [True, False] * 10, [1.0] * 20)  # never answers
    run.add("encoder", results=answers)
    run.add("adapter_64", results=answers)
    assert finding(run) == (
        "No model here has learned the task: on 20 dev questions, the best one reaches an F1 of 50.0 %, and never "
        "answering reaches 50.0 %."
    )


def test_scores_that_are_no_better_than_the_mean_learned_nothing_and_the_minus_is_a_true_one(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, SCORE, baseline={"pearson": 0.0, "spearman": 0.0})
    gold = [float(number) for number in range(20)]
    run.add("encoder", results=score_results(gold, gold[::-1]))
    assert finding(run) == (
        "No model here has learned the task: on 20 dev examples, the best one reaches a Pearson correlation (× 100) of "
        "−100.0, and always predicting the mean score reaches 0.0."
    )


def test_scores_are_compared_by_their_correlation(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, SCORE, baseline={"pearson": 0.0, "spearman": 0.0})
    rng, gold = np.random.default_rng(0), np.arange(60.0)
    for name, noise in (("encoder", 40.0), ("adapter_64", 2.0)):
        run.add(name, results=score_results(gold.tolist(), (gold + rng.normal(0, noise, 60)).tolist()))
    found = finding(run)
    assert found.startswith(
        "Reading all layers with a head of 1,000 parameters raises the Pearson correlation (× 100) from "
    )
    assert "%" not in found, "a correlation is not a percentage"
    assert "; this is more than chance; the winner was chosen on these same dev examples, which flatters it." in found


def test_questions_are_called_questions_and_chosen_on_dev_is_said(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, SPAN, baseline={"exact": 0.0, "f1": 0.0})
    run.add("encoder", results=span_results([1.0] * 30 + [0.0] * 10, [True] * 40, [-1.0] * 40))
    run.add("adapter_64", results=span_results([1.0] * 33 + [0.0] * 7, [True] * 40, [-1.0] * 40))
    assert finding(run) == (
        "Reading all layers with a head of 1,000 parameters raises F1 from 75.0 % (fine-tuned encoder alone) to "
        "82.5 %; with 40 dev questions this could be chance; the winner was chosen on these same dev questions, which "
        "flatters it."
    )


def test_seeds_are_averaged_and_counted(tmp_path: Path) -> None:
    run = labels_run(tmp_path, 130, None, None)
    for seed, count in enumerate((170, 180, 190)):
        seeded = {"group": "adapter_64", "head": "adapter", "seed": seed}
        run.add(f"adapter_64_seed{seed}", results=right(count), scores=held(90.0), **seeded, **PARAMETERS)
    assert finding(run) == (
        f"{READING} 65.0 % (fine-tuned encoder alone) to 90.0 % (mean of 3 seeds); this is more than chance."
    )


ENSEMBLE: dict[str, Any] = {"ensemble": ["encoder", "adapter_64"], "method": "max", "head": None}


def test_an_ensemble_that_is_best_is_the_finding(tmp_path: Path) -> None:
    run = labels_run(tmp_path, 130, 120, 140)
    run.add("both", results=right(190), scores=held(95.0), **ENSEMBLE)
    assert finding(run) == (
        "Combining the encoder and adapter_64 raises accuracy from 65.0 % (fine-tuned encoder alone) and 70.0 % (best "
        "head alone) to 95.0 %; this is more than chance."
    )


def test_an_ensemble_that_is_best_on_held_out_data_only_is_not(tmp_path: Path) -> None:
    run = labels_run(tmp_path, 130, 120, 180)
    run.add("both", results=right(170), scores=held(95.0), **ENSEMBLE)
    assert finding(run).startswith("Reading all layers with a head of 154,784 parameters raises accuracy from 65.0 %")


@pytest.mark.parametrize(
    ("encoder", "control", "expected"),
    [
        (90, 140, "70.0 % (last layer only) to 90.0 %; this is more than chance."),  # its output layer is random
        (
            150,
            140,
            "75.0 % (untouched encoder alone) and 70.0 % (last layer only) to 90.0 %; this is more than chance.",
        ),
        (90, None, "45.0 % (untouched encoder alone) to 90.0 %; this is more than chance."),
    ],
)
def test_an_encoder_without_fine_tuning_is_no_rival_unless_it_is_good(
    encoder: int, control: int | None, expected: str, tmp_path: Path
) -> None:
    start = "Reading all layers of the untouched encoder with a head of 154,784 parameters raises accuracy from "
    assert finding(labels_run(tmp_path, encoder, control, 180, at=0.0), 0.0) == start + expected


def test_heads_on_some_layers_are_not_said_to_read_all(tmp_path: Path) -> None:
    config = {"finetune": {"lr": 1e-4}, "encoder": {"name": "tiny", "layers": [0, 2]}}
    run = labels_run(tmp_path, 130, 140, 180).write(**config)
    assert build_finding(Certainty(run, 1.0, "dev")).startswith("Reading 2 layers with a head of 154,784 parameters")


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_kind_of_run_has_a_finding_of_one_sentence(kind: Kind, tmp_path: Path) -> None:
    run = build_tiny_run(tmp_path, kind, seeds=2, ensemble="both", heads=SEEDS)
    found = build_finding(Certainty(run, 1.0, "dev"))
    assert found.endswith(".") and ". " not in found and len(found) < 400
