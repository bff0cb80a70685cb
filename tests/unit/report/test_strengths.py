"""Strengths of hidden states on tiny runs, against arithmetic and plain torch, and the choice of examples."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_blocks import set_threshold
from tiny_encoders import ARCHITECTURES, plain_call, tiny_model
from tiny_training import build_tiny_features, member_of
from transformers import AutoModel, AutoTokenizer

from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import pack_tokens
from bertvision.errors import UserError
from bertvision.evaluation.spans.answers import SpanAnswer
from bertvision.heads import Target, build_head
from bertvision.kinds import SPAN
from bertvision.kinds.base import Aim
from bertvision.kinds.label import LabelResults
from bertvision.kinds.score import ScoreResults
from bertvision.kinds.span import SpanPredictions, SpanResults
from bertvision.pipeline.finished import FinishedRun
from bertvision.report import strengths as module
from bertvision.report.strengths import compute_layer_map, compute_layer_maps
from bertvision.tasks.base import Task


def weights_of(run: Path, head: str) -> dict[str, torch.Tensor]:
    return load_file(run / "snapshots" / "epoch_1" / "heads" / head / "head.safetensors")


def states_by_hand(run: Path, text: str, second: str | None, **cut: Any) -> Any:
    """What a plain transformers call gives for one example, in a graph."""
    folder = run / "snapshots" / "epoch_1" / "encoder"
    coded = AutoTokenizer.from_pretrained(folder)(text, second, **cut)
    return plain_call(AutoModel.from_pretrained(folder).eval(), coded["input_ids"], coded["token_type_ids"])


def example_of(run: Path, id: str) -> Any:
    return next(example for example in FinishedRun(run).examples("dev") or [] if example.id == id)


def logits_by_hand(run: Path, id: str) -> torch.Tensor:
    """What each layer's states add to the logits of the learned_pooling head, which has a bias besides."""
    example, weights = example_of(run, id), weights_of(run, "learned_pooling")
    states = torch.stack(states_by_hand(run, example.text, example.text_pair).hidden_states)[:, 0].detach()
    shares = weights["pooling.weights"].softmax(dim=0) * weights["pooling.scale"]  # (layer)
    return torch.einsum("l,lth,oh->lto", shares, states, weights["output.weight"])  # (layer, token, 2)


@pytest.mark.parametrize("id", ["dev0a", "dev1b", "dev1c"])
def test_direct_strengths_of_a_linear_head_add_up_to_its_logits_above_the_average(mapped_squad: Path, id: str) -> None:
    found = compute_layer_map(FinishedRun(mapped_squad), "dev", id, "learned_pooling", through=False)
    parts = logits_by_hand(mapped_squad, id)
    logits = parts.sum(dim=0)  # (token, 2)
    assert found.answer is not None and len(found.tokens) == len(logits)
    start, end = found.answer
    above = logits[start, 0] - logits[:, 0].mean() + logits[end, 1] - logits[:, 1].mean()
    bias = weights_of(mapped_squad, "learned_pooling")["output.bias"].sum()
    assert found.strength.sum() == pytest.approx(above.item(), abs=1e-4)
    assert found.score == pytest.approx((logits[start, 0] + logits[end, 1] + bias).item(), abs=1e-4)
    assert set(np.flatnonzero(found.strength.any(axis=0))) == {start, end}, "the head reads no other token for it"


def test_direct_strength_is_the_layers_part_of_the_logit_above_the_average(mapped_squad: Path) -> None:
    found = compute_layer_map(FinishedRun(mapped_squad), "dev", "dev0a", "learned_pooling", through=False)
    parts = logits_by_hand(mapped_squad, "dev0a")
    above = parts - parts.mean(dim=1, keepdim=True)  # (layer, token, 2)
    expected = torch.zeros(above.shape[:2])  # (layer, token)
    for output, place in enumerate(found.answer or ()):
        expected[:, place] += above[:, place, output]
    np.testing.assert_allclose(found.strength, expected.numpy(), atol=1e-4)


def test_the_answer_is_the_best_span_and_its_tokens_spell_it(mapped_squad: Path) -> None:
    for id in ("dev0a", "dev0b", "dev1a"):
        found = compute_layer_map(FinishedRun(mapped_squad), "dev", id, "learned_pooling")
        said = FinishedRun(mapped_squad).models(1.0)[3].said("dev", {0, 1, 2, 3, 4, 5})
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
    found = SpanPredictions(["q"], [answer])

    def aim(threshold: float) -> tuple[Any, ...]:
        taken = SPAN.aim(Task("q", SPAN, (), {}, windowed=True), found, features, logits, threshold)
        return taken.window, taken.said, taken.start, taken.end, taken.place

    logits = torch.tensor([[0, 0], [0, 0], [5, 5], [0, 0], [0, 0], [4, 4], [0, 0]], dtype=torch.float32)
    # log(e⁵ / (e⁵ + 3)) is -0.0200, log(e⁴ / (e⁴ + 2)) is -0.0360: the first window is surer.
    assert aim(0.0) == (0, "word", 2, 2, (3, 7))
    logits[0] = 3  # log(e⁵ / (e⁵ + e³ + 2)) is -0.14: now the second one is
    assert aim(0.0) == (1, "word", 1, 1, (3, 7))
    assert aim(-1.5) == (1, "no answer", 0, 0, None)  # "no answer" trails by 1


def test_a_head_that_says_nothing_is_asked_about_its_cls_token(mapped_squad: Path, tmp_path: Path) -> None:
    run = shutil.copytree(mapped_squad, tmp_path / "silent")
    set_threshold(run, -1e9)
    found = compute_layer_map(FinishedRun(run), "dev", "dev0a", "learned_pooling", through=False)
    assert (found.said, found.answer, found.place) == ("no answer", None, None)
    assert np.flatnonzero(found.strength.any(axis=0)).tolist() == [0]


def own(state: torch.Tensor) -> torch.Tensor:
    """What each token's state has besides the mean."""
    return state[0] - state[0].mean(dim=0)  # (token, hidden)


def test_through_the_encoder_gradients_are_those_of_a_plain_call(mapped_rte: Path) -> None:
    run = FinishedRun(mapped_rte)
    example, weights = (run.examples("dev") or [])[0], weights_of(mapped_rte, "learned_pooling")
    found = compute_layer_map(run, "dev", example.id, "learned_pooling")
    output = states_by_hand(mapped_rte, example.text, example.text_pair, truncation=True, max_length=64)
    read = torch.stack([*(state[0, 0] for state in output.hidden_states), output.pooler_output[0]])  # (layer, hidden)
    shares = weights["pooling.weights"].softmax(dim=0) * weights["pooling.scale"]  # (layer)
    logits = weights["output.weight"] @ (shares @ read) + weights["output.bias"]  # (label)
    label = int(logits.argmax())
    score = logits[label] - logits[1 - label]
    gradients = torch.autograd.grad(score, output.hidden_states)
    expected = torch.stack([(g[0] * own(s)).sum(dim=1) for g, s in zip(gradients, output.hidden_states, strict=True)])
    assert (
        found.through and found.said == run.task.labels[label] and found.score == pytest.approx(score.item(), abs=1e-4)
    )
    np.testing.assert_allclose(found.strength, expected.detach().numpy(), atol=1e-4)
    assert found.layers == ["embeddings", "layer 1", "layer 2", "layer 3"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_can_be_looked_through(architecture: str) -> None:
    """The last row has only the head above it, where the strength is the layer's share of a linear map."""
    features = build_tiny_features("squad2")
    encoder = Encoder(tiny_model(architecture), name=architecture, attention="padded").requires_grad_(False)
    head = build_head(member_of("learned_pooling", SPAN), encoder.shape, Target(SPAN))
    strength, _ = module._look_through(
        encoder, head, features, Aim(1, "", "", lambda outputs: outputs[2, 0] + outputs[5, 1], 2, 5)
    )
    with torch.no_grad():
        last = encoder(pack_tokens(features, np.array([1])), keep=("last",)).last_tokens  # (token, hidden)
    weights = head.state_dict()
    share = (weights["pooling.weights"].softmax(dim=0) * weights["pooling.scale"])[-1]
    parts = share * (last - last.mean(dim=0)) @ weights["output.weight"].T  # (token, 2)
    expected = torch.zeros(len(last))
    expected[2], expected[5] = parts[2, 0], parts[5, 1]
    np.testing.assert_allclose(strength[-1], expected.numpy(), atol=1e-4)
    assert strength.shape == (4, len(last)) and (np.abs(strength[0]) > 1e-6).mean() > 0.8


def test_a_score_is_asked_about_itself(mapped_stsb: Path) -> None:
    run = FinishedRun(mapped_stsb)
    example, weights = (run.examples("dev") or [])[1], weights_of(mapped_stsb, "learned_pooling")
    found = compute_layer_map(run, "dev", example.id, "learned_pooling")
    output = states_by_hand(mapped_stsb, example.text, example.text_pair, truncation=True, max_length=64)
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
        ("mapped_squad", "learned_pooling", True),
        ("mapped_squad", "ladder_16", False),
        ("mapped_rte", "mean_adapter", True),
        ("mapped_rte", "flat_adapter", False),
        ("mapped_rte", "last_linear", True),
        ("mapped_stsb", "last_linear", True),
    ],
)
def test_every_head_gets_a_full_map_in_the_way_that_suits_it(
    task: str, head: str, through: bool, request: pytest.FixtureRequest
) -> None:
    run = FinishedRun(request.getfixturevalue(task))
    found = compute_layer_map(run, "dev", head=head)
    assert found.through == through
    assert found.strength.shape == (4, len(found.tokens)) and np.isfinite(found.strength).all()
    # Words below the last layer speak too: by the head itself, or by what the encoder makes of them.
    assert (np.abs(found.strength[:3]) > 1e-4).mean() > 0.8


def test_tokens_are_shown_as_people_read_them(mapped_squad: Path) -> None:
    found = compute_layer_map(FinishedRun(mapped_squad), "dev", "dev0a")
    assert found.tokens[0] == "[CLS]" and found.tokens[-1] == "[SEP]" and found.tokens[found.front - 1] == "[SEP]"
    assert not any(token.startswith("##") for token in found.tokens)
    spelled = "".join(token.removeprefix("·") for token in found.tokens[1 : found.front - 1])
    assert spelled == "whendidthecafeopen?"


def test_unknown_heads_and_examples_are_refused_by_name(mapped_squad: Path) -> None:
    run = FinishedRun(mapped_squad)
    with pytest.raises(UserError, match="no head 'ladder_17'.*ladder_16"):
        compute_layer_map(run, "dev", head="ladder_17")
    with pytest.raises(UserError, match="no example 'dev9'.*dev0a"):
        compute_layer_map(run, "dev", "dev9")


# ---------------------------------------------------------------------- which example


class Marked:
    """Stands in for a model whose results are known."""

    threshold = 0.0

    def __init__(self, results: Any) -> None:
        self.results = lambda split: results


def labels(*predicted: int) -> Marked:
    """All gold labels are 1."""
    return Marked(LabelResults(np.ones(len(predicted), dtype=np.int64), np.eye(2)[list(predicted)]))


def spans(exact: list[float], silent: list[float], null: float) -> Marked:
    """`null` is the lead of "no answer"; where silence is right there is no answer."""
    right, quiet, zeros = np.array(exact), np.array(silent), np.zeros(len(exact))
    return Marked(SpanResults(right, right, quiet, zeros, zeros + null, zeros, zeros, zeros, quiet == 0))


def outcomes(ours: Any, theirs: Any) -> dict[str, list[list[int]]]:
    found = module.find_outcomes(ours, theirs, "dev")
    return {name: [part.tolist() for part in parts] for name, parts in found if any(map(len, parts))}


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (labels(1, 1, 0, 1, 0), labels(1, 0, 0, 0, 1),
         {"Only the head is right": [[1, 3]], "Both are right": [[0]], "Both are wrong": [[2]],
          "Only the encoder is right": [[4]]}),
        (spans([1, 1, 0], [0, 0, 1], -1), spans([0, 1, 0], [0, 0, 1], -1),  # both answer everything
         {"Only the head is right": [[0], []], "Both are right": [[1], []], "Both are wrong": [[], [2]]}),
        (spans([1, 0, 0], [0, 0, 1], 1), spans([1, 0, 0], [0, 0, 1], -1),  # the head answers nothing
         {"Only the head is right": [[], [2]], "Both are wrong": [[1], []], "Only the encoder is right": [[0], []]}),
    ],
)  # fmt: skip
def test_examples_are_told_apart_by_who_is_right_and_by_having_an_answer(
    ours: Any, theirs: Any, expected: dict[str, list[list[int]]]
) -> None:
    assert outcomes(ours, theirs) == expected


def test_labels_take_turns_in_coming_first() -> None:
    target = np.array([0, 1, 2, 0, 1, 2])
    ours = Marked(LabelResults(target, np.eye(3)[target]))
    wrong = Marked(LabelResults(target, np.eye(3)[(target + 1) % 3]))
    assert outcomes(ours, wrong) == {"Only the head is right": [[0, 3], [1, 4], [2, 5]]}
    assert outcomes(ours, ours) == {"Both are right": [[1, 4], [2, 5], [0, 3]]}


def test_scores_are_told_apart_by_who_is_closer() -> None:
    target = np.array([1.0, 2.0, 3.0, 4.0])
    ours = Marked(ScoreResults(target, np.array([1.5, 2.0, 3.5, 0.0])))  # off by 0.5, 0, 0.5, 4
    theirs = Marked(ScoreResults(target, np.array([1.0, 3.0, 1.0, 0.0])))  # off by 0, 1, 2, 4
    found = outcomes(ours, theirs)  # of each outcome the two that show it best, high scores first
    assert found == {
        "The head is closer": [[2], [1]],
        "Both are close": [[], [0, 1]],
        "Both are far off": [[3, 2], []],
        "The encoder is closer": [[], [0]],
    }


class Windows:
    """Features of examples with these numbers of tokens."""

    def __init__(self, lengths: list[int]) -> None:
        self.example, self.lengths = np.arange(len(lengths)), np.array(lengths)


def choose(run: Path, lengths: list[int], found: Any, most: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    finished = FinishedRun(run)
    monkeypatch.setattr(module, "find_outcomes", lambda *_: found)
    monkeypatch.setattr(finished.job, "build_features", lambda some: Windows([lengths[number] for number in some]))
    numbers: list[Any] = list(range(len(lengths)))
    return module.choose_examples(finished, "dev", finished.models(1.0)[1], numbers, most)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([10, 38, 41, 59], 2), ([61, 15, 90], 1), ([100, 70, 70, 90], 1), ([35, 45], 0)],
)
def test_an_example_of_moderate_length_is_taken_or_the_shortest(
    mapped_squad: Path, lengths: list[int], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [("right", [np.arange(len(lengths))])]
    assert choose(mapped_squad, lengths, found, 1, monkeypatch) == [(expected, "right")]


def test_outcomes_and_their_parts_take_turns_and_fill_up_what_others_lack(
    mapped_squad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [
        ("first", [np.array([0, 1, 2]), np.array([3])]),
        ("second", [np.array([4]), np.array([], dtype=int)]),
        ("third", [np.array([0, 5, 6, 7, 8])]),
    ]
    lengths = [40, 39, 41, 90, 40, 40, 44, 47, 50]
    taken = choose(mapped_squad, lengths, parts, 7, monkeypatch)
    # In turns: 0, 4 and 0 again, which is taken; 3 (the other part of first) and 5; 1 and 6; 2.
    assert taken == [(0, "first"), (3, "first"), (1, "first"), (2, "first"), (4, "second"), (5, "third"), (6, "third")]
    assert choose(mapped_squad, lengths, parts, 7, monkeypatch) == taken


def test_maps_of_a_run_are_of_different_examples_and_the_first_is_the_default(mapped_squad: Path) -> None:
    run = FinishedRun(mapped_squad)
    maps = list(compute_layer_maps(run, "dev"))
    assert 1 < len(maps) <= module.MAPS and len({one.example for one in maps}) == len(maps)
    assert compute_layer_map(run, "dev").example == maps[0].example
    order = [module.OUTCOMES.index(one.outcome) for one in maps]
    assert order == sorted(order)
    answered = [one for one in maps if one.gold_place]
    assert answered and all(one.texts[1][slice(*one.gold_place)] in one.gold for one in answered if one.gold_place)
