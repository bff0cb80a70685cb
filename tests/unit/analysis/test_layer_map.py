"""The layer map on tiny runs: strengths against arithmetic and plain torch, the choice of the example, the picture."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_encoders import ARCHITECTURES, plain_call, tiny_model
from tiny_training import Listening, build_tiny_features, member_of
from transformers import AutoModel, AutoTokenizer

import bertvision as bv
from bertvision.analysis import layer_map as module
from bertvision.analysis.evidence import Evidence
from bertvision.analysis.layer_map import LayerMap, choose_tokens, compute_layer_map, layer_map
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.errors import UserError
from bertvision.evaluation.marks import LabelMarks, ScoreMarks, SpanMarks
from bertvision.evaluation.predictions import Predictions
from bertvision.evaluation.spans import SpanAnswer
from bertvision.heads import Target, build_head
from bertvision.progress import Reporter
from bertvision.sources import pack_tokens
from bertvision.tasks.base import TargetKind

SETTINGS: dict[str, Any] = {
    "finetune": {"epochs": 1, "lr": 1e-3, "batch_rows": 2},
    "train": {"epochs": 2, "batch_rows": 4, "lr": 0.02},
    "data": {"max_length": 64, "overlap": 16, "hold_out": 0.25},
}
LADDER = {"head": "ladder", "name": "ladder_16", "width": 16, "attention_heads": 2}
ADAPTER = {"head": "adapter", "name": "mean_adapter", "size": 4, "read": "mean"}
FLAT = {"head": "flat_adapter", "name": "flat_adapter", "tokens": 64, "size": 4}
QUIET = Reporter()


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, tiny_encoder_folder: Path) -> Callable[..., Path]:
    def run(task: str, data: Path, *heads: Any) -> Path:
        place = tmp_path_factory.mktemp("run") / task
        encoder = {"name": str(tiny_encoder_folder), "device": "cpu"}
        settings = {"task": {"name": task, "data": str(data)}, "encoder": encoder, "run": str(place), **SETTINGS}
        bv.run(heads=list(heads), **settings)
        return place

    return run


@pytest.fixture(scope="module")
def squad(make: Callable[..., Path], squad_folder: Path) -> Path:
    run = make("squad2", squad_folder, "learned_pooling", LADDER)
    set_threshold(run, 1e9)  # whatever it has learned, it answers
    return run


@pytest.fixture(scope="module")
def rte(make: Callable[..., Path], glue_folder: Path) -> Path:
    return make("rte", glue_folder, "learned_pooling", ADAPTER, FLAT)


@pytest.fixture(scope="module")
def stsb(make: Callable[..., Path], glue_folder: Path) -> Path:
    return make("stsb", glue_folder, "learned_pooling")


def weights_of(run: Path, head: str) -> dict[str, torch.Tensor]:
    return load_file(run / "snapshots" / "epoch_1" / "heads" / head / "head.safetensors")


def set_threshold(run: Path, threshold: float) -> None:
    scores = json.loads((run / "scores.json").read_text())
    for name in ("encoder", "last_linear", "learned_pooling", "ladder_16"):
        scores["snapshots"]["1"][name]["scores"]["held_out"]["threshold"] = threshold
    (run / "scores.json").write_text(json.dumps(scores))


def states_by_hand(run: Path, text: str, second: str | None, **cut: Any) -> Any:
    """What a plain transformers call gives for one example, in a graph."""
    folder = run / "snapshots" / "epoch_1" / "encoder"
    coded = AutoTokenizer.from_pretrained(folder)(text, second, **cut)
    return plain_call(AutoModel.from_pretrained(folder).eval(), coded["input_ids"], coded["token_type_ids"])


def example_of(run: Path, id: str) -> Any:
    return next(example for example in Evidence(run).examples("dev") or [] if example.id == id)


def logits_by_hand(run: Path, id: str) -> torch.Tensor:
    """What each layer's states add to the logits of the learned_pooling head, which has a bias besides."""
    example, weights = example_of(run, id), weights_of(run, "learned_pooling")
    states = torch.stack(states_by_hand(run, example.text, example.text_pair).hidden_states)[:, 0].detach()
    shares = weights["pooling.weights"].softmax(dim=0) * weights["pooling.scale"]  # (layer)
    return torch.einsum("l,lth,oh->lto", shares, states, weights["output.weight"])  # (layer, token, 2)


@pytest.mark.parametrize("id", ["dev0a", "dev1b", "dev1c"])
def test_direct_strengths_of_a_linear_head_add_up_to_its_logits_above_the_average(squad: Path, id: str) -> None:
    found = compute_layer_map(Evidence(squad), "dev", id, "learned_pooling", through=False)
    parts = logits_by_hand(squad, id)
    logits = parts.sum(dim=0)  # (token, 2)
    assert found.answer is not None and len(found.tokens) == len(logits)
    start, end = found.answer
    above = logits[start, 0] - logits[:, 0].mean() + logits[end, 1] - logits[:, 1].mean()
    bias = weights_of(squad, "learned_pooling")["output.bias"].sum()
    assert found.strength.sum() == pytest.approx(above.item(), abs=1e-4)
    assert found.score == pytest.approx((logits[start, 0] + logits[end, 1] + bias).item(), abs=1e-4)
    assert set(np.flatnonzero(found.strength.any(axis=0))) == {start, end}, "the head reads no other token for it"


def test_direct_strength_is_the_layers_part_of_the_logit_above_the_average(squad: Path) -> None:
    found = compute_layer_map(Evidence(squad), "dev", "dev0a", "learned_pooling", through=False)
    parts = logits_by_hand(squad, "dev0a")
    above = parts - parts.mean(dim=1, keepdim=True)  # (layer, token, 2)
    expected = torch.zeros(above.shape[:2])  # (layer, token)
    for output, place in enumerate(found.answer or ()):
        expected[:, place] += above[:, place, output]
    np.testing.assert_allclose(found.strength, expected.numpy(), atol=1e-4)


def test_the_answer_is_the_best_span_and_its_tokens_spell_it(squad: Path) -> None:
    for id in ("dev0a", "dev0b", "dev1a"):
        found = compute_layer_map(Evidence(squad), "dev", id, "learned_pooling")
        said = Evidence(squad).models(1.0)[3].said("dev", {0, 1, 2, 3, 4, 5})
        (row,) = [one for one in said.values() if one["id"] == id]
        best = row["n_best"][0]
        assert found.said == best["text"] and found.place == (best["start"], best["end"])
        assert found.answer is not None and found.front <= found.answer[0] <= found.answer[1]


def test_of_several_windows_the_one_where_the_span_scores_best_is_taken() -> None:
    """Two windows of 4 and 3 tokens share the passage's second word, which is the answer."""
    zeros, offsets = np.zeros(2, dtype=np.int32), [(-1, -1), (0, 2), (3, 7), (-1, -1), (-1, -1), (3, 7), (-1, -1)]
    lengths = np.array([4, 3], dtype=np.int32)
    features = Features(
        input_ids=np.zeros(7, dtype=np.int32), type_ids=np.zeros(7, dtype=np.int8), lengths=lengths,
        starts=np.array([0, 4]), example=zeros, offsets=np.array(offsets, dtype=np.int32), start=zeros, end=zeros,
        target=np.zeros(2, dtype=np.float32),
    )  # fmt: skip
    answer = SpanAnswer("q", "word", 3, 7, -1.0, -2.0, 0.0, [])
    found = Predictions(TargetKind.SPAN, ["q"], [answer])
    logits = torch.tensor([[0, 0], [0, 0], [5, 5], [0, 0], [0, 0], [4, 4], [0, 0]], dtype=torch.float32)
    # log(e⁵ / (e⁵ + 3)) is -0.0200, log(e⁴ / (e⁴ + 2)) is -0.0360: the first window is surer.
    assert module._aim_at_span(found, features, logits, 0.0) == module._Aim(0, "word", 2, 2, place=(3, 7))
    logits[0] = 3  # log(e⁵ / (e⁵ + e³ + 2)) is -0.14: now the second one is
    assert module._aim_at_span(found, features, logits, 0.0) == module._Aim(1, "word", 1, 1, place=(3, 7))
    silent = module._aim_at_span(found, features, logits, -1.5)  # "no answer" trails by 1
    assert silent == module._Aim(1, "no answer")


def test_a_head_that_says_nothing_is_asked_about_its_cls_token(squad: Path, tmp_path: Path) -> None:
    run = shutil.copytree(squad, tmp_path / "silent")
    set_threshold(run, -1e9)
    found = compute_layer_map(Evidence(run), "dev", "dev0a", "learned_pooling", through=False)
    assert (found.said, found.answer, found.place) == ("no answer", None, None)
    assert np.flatnonzero(found.strength.any(axis=0)).tolist() == [0]


def own(state: torch.Tensor) -> torch.Tensor:
    """What each token's state has besides the mean."""
    return state[0] - state[0].mean(dim=0)  # (token, hidden)


def test_through_the_encoder_gradients_are_those_of_a_plain_call(rte: Path) -> None:
    evidence = Evidence(rte)
    example, weights = (evidence.examples("dev") or [])[0], weights_of(rte, "learned_pooling")
    found = compute_layer_map(evidence, "dev", example.id, "learned_pooling")
    output = states_by_hand(rte, example.text, example.text_pair, truncation=True, max_length=64)
    read = torch.stack([*(state[0, 0] for state in output.hidden_states), output.pooler_output[0]])  # (layer, hidden)
    shares = weights["pooling.weights"].softmax(dim=0) * weights["pooling.scale"]  # (layer)
    logits = weights["output.weight"] @ (shares @ read) + weights["output.bias"]  # (label)
    label = int(logits.argmax())
    score = logits[label] - logits[1 - label]
    gradients = torch.autograd.grad(score, output.hidden_states)
    expected = torch.stack([(g[0] * own(s)).sum(dim=1) for g, s in zip(gradients, output.hidden_states, strict=True)])
    assert (
        found.through
        and found.said == evidence.task.labels[label]
        and found.score == pytest.approx(score.item(), abs=1e-4)
    )
    np.testing.assert_allclose(found.strength, expected.detach().numpy(), atol=1e-4)
    assert found.layers == ["embeddings", "layer 1", "layer 2", "layer 3"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_can_be_looked_through(architecture: str) -> None:
    """The last row has only the head above it, where the strength is the layer's share of a linear map."""
    features = build_tiny_features("squad2")
    encoder = Encoder(tiny_model(architecture), name=architecture, attention="padded").requires_grad_(False)
    head = build_head(member_of("learned_pooling", TargetKind.SPAN), encoder.shape, Target(TargetKind.SPAN))
    strength, _ = module._look_through(encoder, head, features, module._Aim(1, "", 2, 5))
    with torch.no_grad():
        last = encoder(pack_tokens(features, np.array([1])), keep=("last",)).last_tokens  # (token, hidden)
    weights = head.state_dict()
    share = (weights["pooling.weights"].softmax(dim=0) * weights["pooling.scale"])[-1]
    parts = share * (last - last.mean(dim=0)) @ weights["output.weight"].T  # (token, 2)
    expected = torch.zeros(len(last))
    expected[2], expected[5] = parts[2, 0], parts[5, 1]
    np.testing.assert_allclose(strength[-1], expected.numpy(), atol=1e-4)
    assert strength.shape == (4, len(last)) and (np.abs(strength[0]) > 1e-6).mean() > 0.8


def test_a_score_is_asked_about_itself(stsb: Path) -> None:
    evidence = Evidence(stsb)
    example, weights = (evidence.examples("dev") or [])[1], weights_of(stsb, "learned_pooling")
    found = compute_layer_map(evidence, "dev", example.id, "learned_pooling")
    output = states_by_hand(stsb, example.text, example.text_pair, truncation=True, max_length=64)
    read = torch.stack([*(state[0, 0] for state in output.hidden_states), output.pooler_output[0]])  # (layer, hidden)
    shares = weights["pooling.weights"].softmax(dim=0) * weights["pooling.scale"]  # (layer)
    score = weights["output.weight"][0] @ (shares @ read) + weights["output.bias"][0]
    (gradient,) = torch.autograd.grad(score, [output.hidden_states[1]])
    assert found.score == pytest.approx(score.item(), abs=1e-4) and found.said == f"{score.item():.2f}"
    expected = (gradient[0] * own(output.hidden_states[1])).sum(dim=1).detach()  # (token)
    np.testing.assert_allclose(found.strength[1], expected.numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("task", "head", "through"),
    [
        ("squad", "learned_pooling", True),
        ("squad", "ladder_16", False),
        ("rte", "mean_adapter", True),
        ("rte", "flat_adapter", False),
        ("rte", "last_linear", True),
        ("stsb", "last_linear", True),
    ],
)
def test_every_head_gets_a_full_map_in_the_way_that_suits_it(
    task: str, head: str, through: bool, request: pytest.FixtureRequest
) -> None:
    evidence = Evidence(request.getfixturevalue(task))
    found = compute_layer_map(evidence, "dev", head=head)
    assert found.through == through
    assert found.strength.shape == (4, len(found.tokens)) and np.isfinite(found.strength).all()
    # Words below the last layer speak too: by the head itself, or by what the encoder makes of them.
    assert (np.abs(found.strength[:3]) > 1e-4).mean() > 0.8


def test_tokens_are_shown_as_people_read_them(squad: Path) -> None:
    found = compute_layer_map(Evidence(squad), "dev", "dev0a")
    assert found.tokens[0] == "[CLS]" and found.tokens[-1] == "[SEP]" and found.tokens[found.front - 1] == "[SEP]"
    assert not any(token.startswith("##") for token in found.tokens)
    spelled = "".join(token.removeprefix("·") for token in found.tokens[1 : found.front - 1])
    assert spelled == "whendidthecafeopen?"


def test_unknown_heads_and_examples_are_refused_by_name(squad: Path) -> None:
    evidence = Evidence(squad)
    with pytest.raises(UserError, match="no head 'ladder_17'.*ladder_16"):
        compute_layer_map(evidence, "dev", head="ladder_17")
    with pytest.raises(UserError, match="no example 'dev9'.*dev0a"):
        compute_layer_map(evidence, "dev", "dev9")


# ---------------------------------------------------------------------- which example


class Marked:
    """Stands in for a model whose marks are known."""

    threshold = 0.0

    def __init__(self, marks: Any) -> None:
        self.marks = lambda split: marks


def labels(*predicted: int) -> Marked:
    """All gold labels are 1."""
    return Marked(LabelMarks(np.ones(len(predicted), dtype=np.int64), np.eye(2)[list(predicted)]))


def spans(exact: list[float], silent: list[float], null: float) -> Marked:
    """`null` is the lead of "no answer"; where silence is right there is no answer."""
    right, quiet, zeros = np.array(exact), np.array(silent), np.zeros(len(exact))
    return Marked(SpanMarks(right, right, quiet, zeros, zeros + null, zeros, zeros, zeros, quiet == 0))


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (labels(1, 1, 0, 1), labels(1, 0, 0, 0), [1, 3]),  # right against wrong
        (labels(1, 0, 1), labels(1, 0, 1), [0, 2]),  # right
        (labels(0, 0), labels(1, 0), [0, 1]),  # nothing right: all
        (spans([1, 1, 0], [0, 0, 1], -1), spans([0, 0, 0], [0, 0, 1], -1), [0, 1]),
        (spans([1, 0, 0], [0, 0, 1], 1), spans([1, 1, 1], [0, 0, 1], 1), [2]),  # right only in saying nothing
    ],
)  # fmt: skip
def test_examples_that_tell_head_from_encoder_come_first(ours: Any, theirs: Any, expected: list[int]) -> None:
    assert module._telling(ours, theirs, "dev").tolist() == expected


def test_of_scores_the_example_with_the_largest_gain_is_telling() -> None:
    target = np.array([1.0, 2.0, 3.0, 4.0])
    ours = Marked(ScoreMarks(target, np.array([1.5, 2.0, 3.5, 0.0])))  # off by 0.5, 0, 0.5, 4
    theirs = Marked(ScoreMarks(target, np.array([1.0, 3.0, 1.0, 0.0])))  # off by 0, 1, 2, 4
    assert module._telling(ours, theirs, "dev").tolist() == [2]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([10, 38, 41, 59], 2), ([61, 15, 90], 1), ([100, 70, 70, 90], 1), ([35, 45], 0)],
)
def test_an_example_of_moderate_length_is_taken_or_the_shortest(
    squad: Path, lengths: list[int], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Windows:
        example = np.arange(len(lengths))

    Windows.lengths = np.array(lengths)  # type: ignore[attr-defined]
    evidence = Evidence(squad)
    monkeypatch.setattr(module, "_telling", lambda *_: np.arange(len(lengths)))
    monkeypatch.setattr(evidence.job, "build_features", lambda examples: Windows)
    assert module._choose_example(evidence, "dev", evidence.models(1.0)[1], [None] * len(lengths)) == expected  # type: ignore[list-item]


# ---------------------------------------------------------------------- the block


def map_of(strength: list[list[float]], **changes: Any) -> LayerMap:
    layers = ["embeddings", "layer 1", "layer 2", "layer 3"][: len(strength)]
    tokens = ["[CLS]", "who", "?", "[SEP]", "anna", "said"]
    values = {
        "example": "e", "head": "ladder_16", "layers": layers, "tokens": tokens[: len(strength[0])],
        "strength": np.array(strength), "score": 6.0, "what": "the score", "through": False, "said": "anna",
        "gold": "anna / anna said", "other": "no answer", "answer": (4, 4), "target": (4, 5), "front": 4,
        "texts": ("who?", "anna said"), "place": (0, 4),
    }  # fmt: skip
    return LayerMap(**{**values, **changes})


def test_the_block_tells_where_the_strength_is(squad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # All that is positive: 20, of which layer 2 has 12, the upper half 12 + 5, the answer's token 10 + 4.
    found = map_of([[0, 1, 0, 0, 0, 0], [0, 2, 0, 0, 0, 0], [0, 0, -3, 0, 10, 2], [0, 0, 0, 1, 4, 0]])
    monkeypatch.setattr(module, "_cached_map", lambda *_: found)
    block = layer_map(Evidence(squad), "dev", QUIET)
    assert block is not None and block.frame is not None and block.picture is not None
    assert block.sentences == [
        "“who?”: ladder_16 says “anna” (gold: “anna / anna said”; the encoder itself: “no answer”).",
        "Passage: “⟦anna⟧ said”",
        "Of all strength that speaks for what was said, most is at layer 2: 60.0 % (an even share: 25.0 %). The upper "
        "half of the layers has 85.0 % (even: 50.0 %).",
        "The strongest single state is that of “anna” at layer 2; over all layers “anna”, “who” and “said” speak most.",
        "70.0 % of that strength is on the answer's own 1 of 6 tokens.",
    ]
    assert block.frame.rows[4] == [4, "anna", 0.0, 0.0, 10.0, 4.0]
    assert "at layer 2, by 10.00" in block.alt and "tokens are shown" not in block.note


def test_the_picture_has_every_state_and_marks_both_answers(squad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = map_of([[0, 1, 0, 0, 0, 0], [0, 2, 0, 0, 0, -5]])
    monkeypatch.setattr(module, "_cached_map", lambda *_: found)
    block = layer_map(Evidence(squad), "dev", QUIET)
    assert block is not None and block.picture is not None
    cells, marks = (layer["data"]["values"] for layer in block.picture["layer"])
    assert len(cells) == 12 and {(mark["token"], mark["row"]) for mark in marks} == {
        ("anna", "answer given"), ("anna", "gold answer"), ("said", "gold answer"),
    }  # fmt: skip
    colour, rows = (block.picture["layer"][0]["encoding"][name]["scale"]["domain"] for name in ("color", "y"))
    assert colour == [-5, 5] and rows == ["gold answer", "answer given", "layer 1", "embeddings"]


def test_where_nothing_speaks_for_it_that_is_said(squad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_cached_map", lambda *_: map_of([[0, 0], [-1, 0]], answer=None, target=None))
    block = layer_map(Evidence(squad), "dev", QUIET)
    assert block is not None and "No state speaks for what was said." in block.sentences


@pytest.mark.parametrize("answer", [(100, 104), (21, 22), (198, 198), None])
def test_of_a_long_window_the_question_and_what_is_around_the_answer_are_shown(answer: Any) -> None:
    strength = np.zeros((2, 200))
    strength[1, 150] = 9
    found = map_of(strength.tolist(), tokens=["t"] * 200, front=20, answer=answer)
    shown = choose_tokens(found)
    centre = 150 if answer is None else answer[0]
    assert len(shown) == 60 == len(set(shown)) and shown[:20] == list(range(20)) and centre in shown
    assert shown[20:] == list(range(shown[20], shown[20] + 40)) and shown[-1] < 200
    columns = module._columns({place: str(place) for place in shown})
    gap = [*map(str, range(20)), *(["gap …"] if shown[20] > 20 else []), *map(str, shown[20:])]
    assert columns == gap, "what is left out shows"


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("anna said so", (0, 4), "⟦anna⟧ said so"),
        ("it was anna", None, "it was anna"),
        ("word " * 100, (250, 254), f"… {'word ' * 31}⟦word⟧{' word' * 31} …"),
        ("字" * 400, (200, 202), f"… {'字' * 160}⟦字字⟧{'字' * 160} …"),
    ],
)
def test_a_passage_is_shown_around_its_answer_in_whole_words(text: str, place: Any, expected: str) -> None:
    assert module._excerpt(text, place) == expected


def test_a_short_window_is_shown_whole() -> None:
    assert choose_tokens(map_of([[0.0] * 6])) == [0, 1, 2, 3, 4, 5]


def test_a_map_that_was_made_once_is_read_without_encoder_or_data(
    squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(squad, tmp_path / "copy", ignore=shutil.ignore_patterns("analyses"))
    first = layer_map(Evidence(run), "dev", QUIET)
    monkeypatch.setattr(module, "open_encoder", lambda *_: pytest.fail("the encoder is not needed"))
    monkeypatch.setattr(Evidence, "examples", lambda *_: pytest.fail("the data are not needed"))
    assert first is not None and layer_map(Evidence(run), "dev", QUIET) == first


def test_a_map_of_other_predictions_is_made_anew(squad: Path, tmp_path: Path) -> None:
    run = shutil.copytree(squad, tmp_path / "copy", ignore=shutil.ignore_patterns("analyses"))
    layer_map(Evidence(run), "dev", QUIET)
    path = run / "analyses" / "layer_map_dev.json"
    before = json.loads(path.read_text())
    for stamp in run.glob("snapshots/epoch_1/predictions/dev/*/stamp.json"):
        stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "stamp": "other"}))
    layer_map(Evidence(run), "dev", QUIET)
    after = json.loads(path.read_text())
    assert after["stamp"] != before["stamp"] and after["map"] == before["map"]


def test_without_the_data_the_map_is_left_out_and_that_is_said(
    squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(squad, tmp_path / "copy", ignore=shutil.ignore_patterns("analyses"))
    monkeypatch.setattr(Evidence, "examples", lambda *_: None)
    reporter = Listening()
    assert layer_map(Evidence(run), "dev", reporter) is None
    assert len(reporter.lines) == 1 and "no longer there" in reporter.lines[0]
