import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_encoders import ARCHITECTURES, plain_call, random_sequences, tiny_model
from transformers import AutoModelForMaskedLM, AutoModelForQuestionAnswering, AutoModelForSequenceClassification

from bertvision.disk import read_json, write_json
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import load_encoder
from bertvision.encoder.output_layer import (
    CheckpointOutputLayer,
    build_output_layer,
    load_output_layer,
    restore_output_layer,
)
from bertvision.encoder.states import HiddenStates, PackedTokens, StateShape
from bertvision.errors import UserError
from bertvision.kinds import LABEL, SCORE, SPAN

CLASSIFIERS = [(name, {}) for name in ARCHITECTURES] + [("modernbert", {"classifier_pooling": "mean"})]
SHAPE = StateShape(layers=4, hidden=32, pooled=True)


def states() -> HiddenStates:
    return Encoder(tiny_model("bert"))(PackedTokens.from_lists(*random_sequences()), keep=("tokens", "cls", "mean"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_a_checkpoints_own_span_layer_equals_the_full_model(architecture: str, tmp_path: Path) -> None:
    full = tiny_model(architecture, AutoModelForQuestionAnswering)
    full.save_pretrained(tmp_path)
    layer = load_output_layer(str(tmp_path), SPAN, labels=2)
    encoder = load_encoder(str(tmp_path), with_tokenizer=False)
    ids, types = random_sequences()
    logits = layer(encoder(PackedTokens.from_lists(ids, types), keep=layer.keep))
    outputs = [plain_call(full, *one) for one in zip(ids, types, strict=True)]
    expected = torch.cat([torch.stack([one.start_logits[0], one.end_logits[0]], dim=1) for one in outputs])
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("architecture", "changes"), CLASSIFIERS)
@torch.no_grad()
def test_a_checkpoints_own_classifier_equals_the_full_model_and_survives_saving(
    architecture: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    names = {0: "no", 1: "maybe", 2: "yes"}
    full = tiny_model(architecture, AutoModelForSequenceClassification, num_labels=3, id2label=names, **changes)
    full.save_pretrained(tmp_path / "full")
    layer = load_output_layer(str(tmp_path / "full"), LABEL, labels=3)
    encoder = load_encoder(str(tmp_path / "full"), with_tokenizer=False)
    ids, types = random_sequences()
    given = encoder(PackedTokens.from_lists(ids, types), keep=layer.keep)
    expected = torch.cat([plain_call(full, *one).logits for one in zip(ids, types, strict=True)])
    torch.testing.assert_close(layer(given), expected, rtol=1e-5, atol=1e-5)
    assert layer.labels == ("no", "maybe", "yes")
    layer.save(tmp_path / "layer")
    again = restore_output_layer(tmp_path / "layer")
    assert torch.equal(again(given), layer(given)) and again.labels == layer.labels and again.reads == layer.reads
    assert not any("embeddings" in name for name in layer.state_dict())


def test_a_checkpoint_of_another_kind_or_label_count_has_no_output_layer_for_the_task(tmp_path: Path) -> None:
    tiny_model("bert", AutoModelForMaskedLM).save_pretrained(tmp_path / "mlm")
    tiny_model("bert", AutoModelForSequenceClassification, num_labels=3).save_pretrained(tmp_path / "three")
    tiny_model("bert", AutoModelForSequenceClassification, num_labels=1).save_pretrained(tmp_path / "score")
    assert load_output_layer(str(tmp_path / "mlm"), SPAN, 2) is None
    assert load_output_layer(str(tmp_path / "three"), SPAN, 2) is None
    assert load_output_layer(str(tmp_path / "three"), LABEL, 2) is None
    assert load_output_layer(str(tmp_path / "three"), SCORE, 1) is None
    score = load_output_layer(str(tmp_path / "score"), SCORE, 1)
    assert score is not None and score.labels is None and score(states()).shape == (7, 1)


def test_a_checkpoints_output_layer_can_be_trained_on() -> None:
    full = tiny_model("roberta", AutoModelForSequenceClassification, num_labels=2)
    encoder = Encoder(copy.deepcopy(full.roberta))
    layer = CheckpointOutputLayer(LABEL, full)
    layer(encoder(PackedTokens.from_lists(*random_sequences()), keep=layer.keep)).square().sum().backward()
    assert all(weight.grad is not None for weight in layer.parameters())
    assert encoder.model.embeddings.word_embeddings.weight.grad is not None


@pytest.mark.parametrize("reads", ["pooled", "cls", "mean"])
def test_labels_read_one_vector_of_each_sequence(reads: Any) -> None:
    layer = build_output_layer(LABEL, SHAPE, outputs=3, reads=reads).eval()
    given = states()
    vector = {"pooled": given.cls[:, 4], "cls": given.cls[:, 3], "mean": given.mean[:, 3]}[reads]
    expected = vector @ layer.linear.weight.T + layer.linear.bias
    torch.testing.assert_close(layer(given), expected)


def test_spans_read_every_token_of_the_last_layer() -> None:
    layer = build_output_layer(SPAN, SHAPE, outputs=2)
    given = states()
    torch.testing.assert_close(layer(given), given.tokens[:, 3] @ layer.linear.weight.T + layer.linear.bias)
    assert layer.keep == ("last",) and sum(weight.numel() for weight in layer.parameters()) == 2 * 33


def test_without_a_pooler_labels_read_cls() -> None:
    assert build_output_layer(LABEL, SHAPE, 2).reads == "pooled"
    assert build_output_layer(SCORE, StateShape(4, 32, pooled=False), 1).reads == "cls"


def test_a_fresh_layer_survives_saving_and_follows_its_generator(tmp_path: Path) -> None:
    one, two = (build_output_layer(LABEL, SHAPE, 3, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one.linear.weight, two.linear.weight)
    one.save(tmp_path)
    again = restore_output_layer(tmp_path)
    assert torch.equal(again(states()), one.eval()(states())) and again.kind == one.kind


def test_a_folder_without_an_output_layer_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no output layer in .*: output_layer.json is missing"):
        restore_output_layer(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden": 10**9}, "hidden: expected `int` <= 1000000"),
        ({"hidden": 10**6, "outputs": 10**6}, "its weights are not those of the layer"),
        ({"outputs": 3}, "its weights are not those of the layer"),
        ({"kind": "grade"}, "there is no kind of target 'grade'"),
        ({"reads": "everything"}, "reads: invalid enum value 'everything'"),
        ({"form": "pickle"}, "form: invalid enum value 'pickle'"),
        ({"form": "checkpoint"}, "missing required field `model`"),
        ({"form": "checkpoint", "model": {"model_type": "bert", "hidden_size": 10**9}}, "hidden_size is 1e\\+09"),
        ({"form": "checkpoint", "model": {"model_type": "bert", "num_hidden_layers": 10**6}}, "at most 1,000"),
        ({"form": "checkpoint", "model": {"model_type": "none"}}, "is damaged"),
    ],
)
def test_a_changed_description_is_one_sentence(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    build_output_layer(LABEL, SHAPE, 2).save(tmp_path)
    write_json(tmp_path / "output_layer.json", {**read_json(tmp_path / "output_layer.json"), **change})
    with pytest.raises(UserError, match=says) as caught:
        restore_output_layer(tmp_path)
    assert "is damaged" in str(caught.value) and len(str(caught.value)) < 600
