"""What heads lose without a layer, on tiny runs, against plain torch and arithmetic."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sealed import edit_json
from tiny_blocks import SEEDS
from tiny_encoders import plain_call
from tiny_training import Listening, member_of, random_pairs, random_states
from transformers import AutoModel, AutoTokenizer

from bertvision.encoder.states import StateShape
from bertvision.heads import Target, build_head
from bertvision.kinds import LABEL
from bertvision.pipeline.finished import FinishedRun
from bertvision.progress import Reporter
from bertvision.report import saved_heads
from bertvision.report.analyses import layer_importance as module
from bertvision.report.analyses.layer_importance import Loss, Without, layer_importance, measure_layers
from bertvision.report.analyses.layer_weights import layer_weights

QUIET = Reporter()


@pytest.mark.parametrize("settings", [{"read": "cls"}, {"read": "mean"}])
def test_a_zeroed_layer_is_left_out_of_the_sum_and_put_back(settings: Any) -> None:
    shape = StateShape(3, 8, True)
    head = build_head(member_of("learned_pooling", LABEL, **settings), shape, Target(LABEL, 3))
    states = random_states(shape, [4, 2, 5])
    read = states.read(*head.reads)
    before = read.clone()
    weights = dict(head.named_parameters())
    shares = weights["pooling.weights"].softmax(dim=0) * weights["pooling.scale"]
    for layer in range(head.layers):
        others = [other for other in range(head.layers) if other != layer]
        pooled = sum(shares[other] * before[:, other] for other in others)  # (sequence, hidden)
        expected = pooled @ weights["output.weight"].T + weights["output.bias"]
        with torch.no_grad():
            torch.testing.assert_close(Without(head, layer)(states), expected)
        assert torch.equal(read, before)


def test_a_layer_of_two_towers_and_of_several_readings_is_zeroed_on_both_sides() -> None:
    shape, settings = StateShape(3, 8, False), {"read": "mean+deviation", "pairs": "towers"}
    head = build_head(member_of("linear", LABEL, **settings), shape, Target(LABEL, 3))
    pairs = random_pairs(shape, [4, 2, 5])
    assert pairs.second is not None
    expected = random_pairs(shape, [4, 2, 5])
    for side in (expected, expected.second):
        assert side is not None and side.deviation is not None
        side.deviation[:, 1] = 0
    with torch.no_grad():
        torch.testing.assert_close(Without(head, 4)(pairs), head(expected))  # layers 3 to 5 are those of the deviation
    assert all(bool((side.read("deviation")[:, 1] != 0).all()) for side in (pairs, pairs.second))


def test_the_states_are_put_back_when_a_head_fails() -> None:
    shape = StateShape(2, 8, False)
    head = build_head(member_of("learned_pooling", LABEL), shape, Target(LABEL, 2))
    states = random_states(shape, [3])
    before = states.read("cls").clone()
    head.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Without(head, 0)(states)
    assert torch.equal(states.read("cls"), before)


def test_measured_scores_are_those_of_plain_transformers_calls(rte: Path) -> None:
    run = FinishedRun(rte)
    examples = run.examples("dev")
    assert examples is not None
    found = measure_layers(run, "dev", QUIET)
    assert (found["examples"], found["of"], found["figure"]) == (len(examples), len(examples), "accuracy")
    folder = rte / "snapshots" / "epoch_1"
    model = AutoModel.from_pretrained(folder / "encoder").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "encoder")
    weights = load_file(folder / "heads" / "learned_pooling_seed0" / "head.safetensors")
    shares = weights["pooling.weights"].softmax(dim=0) * weights["pooling.scale"]  # (layer)
    right: dict[int | None, int] = dict.fromkeys([None, *range(5)], 0)
    for example in examples:
        coded = tokenizer(example.text, example.text_pair, truncation=True, max_length=48)
        with torch.no_grad():
            output = plain_call(model, coded["input_ids"], coded["token_type_ids"])
        read = torch.stack(
            [*(state[0, 0] for state in output.hidden_states), output.pooler_output[0]]
        )  # (layer, hidden)
        for layer in right:
            some = shares.clone()
            if layer is not None:
                some[layer] = 0
            logits = weights["output.weight"] @ (some @ read) + weights["output.bias"]
            right[layer] += int(logits.argmax() == example.target)
    (one,) = [head for head in found["heads"] if head["name"] == "learned_pooling_seed0"]
    assert one["score"] == pytest.approx(100 * right[None] / len(examples))
    assert one["without"] == pytest.approx([100 * right[layer] / len(examples) for layer in range(5)])


@pytest.mark.parametrize("task", ["rte", "squad"])
def test_the_control_loses_by_its_last_layer_alone(task: str, request: pytest.FixtureRequest) -> None:
    run = FinishedRun(request.getfixturevalue(task))
    found = measure_layers(run, "dev", QUIET)
    (control,) = [one for one in found["heads"] if one["role"] == "control"]
    last = control["layers"].index("layer 3")
    others = [score for layer, score in enumerate(control["without"]) if layer != last]
    assert others == [control["score"]] * len(others)
    block = layer_importance(run, "dev", QUIET)
    assert block is not None
    told = [sentence for sentence in block.sentences if sentence.startswith("The control ")]
    assert len(told) == 1 and "without layer 3. Without any other layer its score stays the same" in told[0]


def test_a_span_is_scored_as_in_the_run_where_nothing_is_zeroed(squad: Path) -> None:
    run = FinishedRun(squad)
    found = measure_layers(run, "dev", QUIET)
    scores = run.scores["snapshots"]["1"]
    assert found["figure"] == "at_threshold.f1" and len(found["heads"]) == 3
    for one in found["heads"]:
        assert one["score"] == pytest.approx(scores[one["name"]]["scores"]["dev"]["at_threshold"]["f1"])
        assert one["layers"] == ["embeddings", "layer 1", "layer 2", "layer 3"]


def test_parts_of_a_sample_are_scored_together(squad: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy = shutil.copytree(squad, tmp_path / "copy", ignore=shutil.ignore_patterns("analyses"))
    whole = measure_layers(FinishedRun(squad), "dev", QUIET)
    monkeypatch.setattr(module, "PART", 2)
    assert measure_layers(FinishedRun(copy), "dev", QUIET)["heads"] == whole["heads"]


def test_what_was_measured_once_is_read_without_encoder_or_data(
    rte_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = measure_layers(FinishedRun(rte_copy), "dev", QUIET)
    monkeypatch.setattr(saved_heads, "load_snapshot", lambda *_: pytest.fail("the encoder is not needed"))
    monkeypatch.setattr(FinishedRun, "examples", lambda *_: pytest.fail("the data are not needed"))
    assert measure_layers(FinishedRun(rte_copy), "dev", QUIET) == first
    assert layer_importance(FinishedRun(rte_copy), "dev", QUIET) is not None


def test_other_examples_or_predictions_are_measured_anew(rte_copy: Path) -> None:
    first = measure_layers(FinishedRun(rte_copy), "dev", QUIET)
    some = measure_layers(FinishedRun(rte_copy), "dev", QUIET, examples=2)
    assert some["examples"] == 2 and some["of"] == first["of"] and some["stamp"] != first["stamp"]
    path = rte_copy / "snapshots/epoch_1/predictions/dev/adapter_4/stamp.json"
    edit_json(path, lambda stamp: stamp.update(stamp="other"))
    again = measure_layers(FinishedRun(rte_copy), "dev", QUIET)
    assert again["stamp"] != first["stamp"] and again["heads"] == first["heads"]


def test_without_the_data_the_block_is_left_out_with_a_message(rte_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FinishedRun, "examples", lambda *_: None)
    reporter = Listening()
    assert layer_importance(FinishedRun(rte_copy), "dev", reporter) is None
    assert len(reporter.lines) == 1 and "no longer available" in reporter.lines[0]


def test_chosen_layers_keep_their_numbers(make_run: Callable[..., Path], glue_folder: Path) -> None:
    run = FinishedRun(make_run("rte", glue_folder, SEEDS, layers=[0, 2, -1]))
    names = ["embeddings", "layer 2", "layer 3", "pooled output"]
    assert [one["layers"] for one in measure_layers(run, "dev", QUIET)["heads"]] == [names] * 3
    block = layer_weights(run, "dev")
    assert block is not None and block.table is not None
    assert [row[1] for row in block.table.rows] == names


def test_the_table_holds_every_loss_and_the_sentences_name_the_worst(
    rte: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["embeddings", "layer 1", "layer 2"]
    heads = [
        {"title": "last_linear (control)", "role": "control", "layers": names, "score": 80.0, "without": [80, 80, 50]},
        {"title": "deep", "role": "head", "layers": names, "score": 82.0, "without": [70.0, 81.0, 60.5]},
        {"title": "flat", "role": "head", "layers": names, "score": 70.0, "without": [71.0, 70.0, 70.0]},
    ]
    found = {"split": "dev", "examples": 9, "of": 9, "heads": heads}
    monkeypatch.setattr(module, "measure_layers", lambda *_: found)
    block = layer_importance(FinishedRun(rte), "dev", QUIET)
    assert block is not None and block.table is not None and block.picture is not None
    assert [row[4] for row in block.table.rows] == [0, 0, 30, 12, 1, 21.5, -1, 0, 0]
    assert block.sentences == [
        "deep loses most without layer 2: accuracy falls from 82.0 to 60.5, by 21.5 points.",
        "flat loses nothing if any one of the 3 states it reads is set to zero.",
        "1 of the 2 heads has more than one layer that costs at least 1 point when only that one is set to zero.",
        "The control loses 30.0 points without layer 2. Without any other layer its score stays the same, as expected: "
        "it reads only that one.",
    ]
    assert "seed 0" not in block.note, "all examples were measured"


def test_the_last_layer_is_not_the_pooled_output() -> None:
    names = ["embeddings", "layer 1", "pooled output"]
    assert Loss("a", "head", names, 1.0, torch.zeros(3).numpy()).last == 1
    assert Loss("a", "head", names[:2], 1.0, torch.zeros(2).numpy()).last == 1
