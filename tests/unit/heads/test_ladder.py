"""The ladder compared with a reference in plain torch; attention stays within each sequence."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_training import random_states
from torch import Tensor
from torch.nn import functional

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.errors import UserError
from bertvision.heads import HEADS, Target, count_parameters
from bertvision.heads import token_attention as attention
from bertvision.kinds import LABEL, SPAN
from bertvision.machine import drawing_from

SHAPE = StateShape(5, 24, True)
LENGTHS = [5, 1, 9, 3]
SPAN, LABEL = Target(SPAN), Target(LABEL, 3)
ROUTES = {
    "chosen": attention.attend,
    "padded": attention._attend_padded,
    "looped": attention._attend_looped,
}


def ladder(target: Target = SPAN, shape: StateShape = SHAPE, **settings: Any) -> Any:
    """A ladder with all weights far from their initial values, so that each of them has an effect."""
    config = HEADS["ladder"].Config(**{"width": 16, "attention_heads": 2, **settings})
    assert config.mistakes() == []
    with drawing_from(torch.device("cpu"), 3), torch.no_grad():
        head = HEADS["ladder"](config, shape, target)
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return head.eval()


def random_parts(lengths: list[int], heads: int = 2, size: int = 8) -> tuple[list[Tensor], HiddenStates]:
    generator = torch.Generator().manual_seed(1)
    parts = [torch.randn(sum(lengths), heads, size, generator=generator) for _ in range(3)]
    return parts, HiddenStates(torch.tensor(lengths), tokens=torch.zeros(sum(lengths), 1, 1))


def attend_alone(parts: list[Tensor], lengths: list[int]) -> Tensor:
    """torch's attention, sequence by sequence."""
    found, start = [], 0
    for length in lengths:
        query, key, value = (part[start : start + length].transpose(0, 1) for part in parts)
        found.append(functional.scaled_dot_product_attention(query, key, value).transpose(0, 1))
        start += length
    return torch.cat(found)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("lengths", [LENGTHS, [1], [7, 7, 7], [150, 2, 2, 2]], ids=str)
def test_attention_in_a_batch_is_torch_s_on_each_sequence_alone(route: str, lengths: list[int]) -> None:
    parts, states = random_parts(lengths)
    torch.testing.assert_close(ROUTES[route](*parts, states), attend_alone(parts, lengths))


@pytest.mark.parametrize("route", ROUTES)
def test_gradients_of_attention_are_those_of_each_sequence_alone(route: str) -> None:
    parts, states = random_parts(LENGTHS)
    weights = torch.randn(parts[0].shape, generator=torch.Generator().manual_seed(2))
    ours, theirs = ([part.clone().requires_grad_() for part in parts] for _ in range(2))
    (ROUTES[route](*ours, states) * weights).sum().backward()
    (attend_alone(theirs, LENGTHS) * weights).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


@pytest.mark.parametrize(("lengths", "expected"), [([150, 2, 2, 2], "looped"), ([90, 90, 88], "padded")], ids=str)
def test_on_a_cpu_sequences_are_looped_only_if_padding_is_expensive(
    lengths: list[int], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    for route in ("padded", "looped"):
        monkeypatch.setattr(attention, f"_attend_{route}", lambda *parts, route=route: taken.append(route))
    parts, states = random_parts(lengths)
    attention.attend(*parts, states)
    assert taken == [expected]


def reference(
    head: Any,
    tokens: Tensor,
    rungs: list[list[int]],
    heads: int = 2,
    read_off: Callable[[Tensor], Tensor] = lambda x: x,
) -> Tensor:
    """Run one sequence through the reference ladder, with weights by name; return the values after the last norm."""
    weights = head.state_dict()
    width = weights["norm.weight"].shape[0]

    def norm(name: str, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (width,), weights[f"{name}.weight"], weights[f"{name}.bias"])

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.zeros(1))

    x = torch.zeros(len(tokens), width)
    for rung, layers in enumerate(rungs):
        for layer in layers:
            state = tokens[:, layer]
            if head.config.normalised:
                spread = (state.var(dim=1, unbiased=False, keepdim=True) + 1e-5).sqrt()
                state = (state - state.mean(dim=1, keepdim=True)) / spread
            x = x + linear("projections.shared" if head.config.shared else f"projections.{layer}", state)
        block = f"blocks.{0 if head.config.shared_blocks else rung}"
        if head.config.kernel > 1:
            kernel = weights[f"{block}.mixing.depthwise"].T.unsqueeze(1)  # (width, 1, neighbour)
            line = norm(f"{block}.mixing.norm", x).T.unsqueeze(0)  # (1, width, token)
            mixed = functional.conv1d(line, kernel, padding="same", groups=width)[0].T
            x = x + linear(f"{block}.mixing.pointwise", functional.gelu(mixed))
        projected = linear(f"{block}.query_key_value", norm(f"{block}.attention_norm", x))
        query, key, value = (part.unflatten(1, (heads, -1)).transpose(0, 1) for part in projected.chunk(3, dim=1))
        scores = query @ key.transpose(1, 2) / (width // heads) ** 0.5
        x = x + linear(f"{block}.gather", (scores.softmax(dim=2) @ value).transpose(0, 1).flatten(1))
        inner = functional.gelu(linear(f"{block}.widen", norm(f"{block}.mlp_norm", x)))
        x = x + linear(f"{block}.narrow", inner)
    return norm("norm", read_off(x))


@pytest.mark.parametrize(
    ("settings", "rungs"),
    [
        ({}, [[0], [1], [2], [3], [4]]),
        ({"normalised": False, "kernel": 3}, [[0], [1], [2], [3], [4]]),
        ({"kernel": 1}, [[0], [1], [2], [3], [4]]),
        ({"shared": True, "shared_blocks": True}, [[0], [1], [2], [3], [4]]),
        ({"blocks": 2}, [[0, 1, 2], [3, 4]]),
        ({"blocks": 3, "layers": (-1,)}, [[4], [], []]),
        ({"layers": (0, -2, 2), "expand": 3}, [[0], [3], [2]]),
        ({"layers": (4, 3, 1), "blocks": 2, "shared": True}, [[4, 3], [1]]),
    ],
    ids=str,
)
@torch.no_grad()
def test_a_single_sequence_equals_the_reference_ladder(settings: dict[str, Any], rungs: list[list[int]]) -> None:
    states = random_states(SHAPE, [7])
    tokens = states.read("tokens")
    span, label, mean = ladder(**settings), ladder(LABEL, **settings), ladder(LABEL, read="mean", **settings)
    expected = reference(span, tokens, rungs) @ span.output.weight.T + span.output.bias
    torch.testing.assert_close(span(states), expected, rtol=1e-4, atol=1e-5)
    expected = reference(label, tokens, rungs)[:1] @ label.output.weight.T + label.output.bias
    torch.testing.assert_close(label(states), expected, rtol=1e-4, atol=1e-5)
    expected = reference(mean, tokens, rungs, read_off=lambda x: x.mean(dim=0, keepdim=True)) @ mean.output.weight.T
    torch.testing.assert_close(mean(states), expected + mean.output.bias, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_token_affects_its_own_sequence_only() -> None:
    states, head = random_states(SHAPE, LENGTHS), ladder()
    before = head(states)
    states.read("tokens")[8] *= -1.0  # inside the third sequence, tokens 6 to 14
    changed = (head(states) != before).any(dim=1)
    assert changed[6:15].all() and not changed[:6].any() and not changed[15:].any()


@torch.no_grad()
def test_labels_are_predicted_at_the_first_token_and_depend_on_the_others() -> None:
    states, head = random_states(SHAPE, LENGTHS), ladder(LABEL)
    before = head(states)
    states.read("tokens")[14] *= -1.0  # the last token of the third sequence
    changed = (head(states) != before).any(dim=1)
    assert changed.tolist() == [False, False, True, False]


def count(shape: StateShape = SHAPE, target: Target = SPAN, **settings: Any) -> int:
    return count_parameters(HEADS["ladder"](HEADS["ladder"].Config(**settings), shape, target))


def expected_count(
    hidden: int, width: int, projections: int, blocks: int, expand: int = 2, outputs: int = 2, kernel: int = 7
) -> int:
    mixing = (kernel * width + (width + 1) * width + 2 * width) if kernel > 1 else 0
    attention = 3 * width * width + (width + 1) * width
    mlp = (width + 1) * expand * width + (expand * width + 1) * width
    norms = 2 * 2 * width
    each = mixing + attention + mlp + norms
    return (hidden + 1) * width * projections + each * blocks + 2 * width + (width + 1) * outputs


@pytest.mark.parametrize(
    ("settings", "projections", "blocks"),
    [
        ({}, 5, 5),
        ({"shared": True}, 1, 5),
        ({"shared_blocks": True}, 5, 1),
        ({"blocks": 2}, 5, 2),
        ({"blocks": 7}, 5, 7),
        ({"layers": (0, 2, -1)}, 3, 3),
        ({"layers": (-1,), "blocks": 4, "shared": True}, 1, 4),
        ({"layers": (0, 2, -1), "blocks": 2, "shared": True, "shared_blocks": True}, 1, 1),
    ],
    ids=str,
)
def test_the_parameter_count_is_that_of_projections_and_blocks(
    settings: dict[str, Any], projections: int, blocks: int
) -> None:
    assert count(width=32, **settings) == expected_count(24, 32, projections, blocks)
    assert count(target=LABEL, width=32, **settings) == expected_count(24, 32, projections, blocks, outputs=3)
    assert count(width=32, expand=4, **settings) == expected_count(24, 32, projections, blocks, expand=4)
    assert count(width=32, kernel=1, **settings) == expected_count(24, 32, projections, blocks, kernel=1)
    assert count(width=32, attention_heads=1, **settings) == count(width=32, attention_heads=2, **settings)


def test_the_counts_in_the_docstring_are_correct() -> None:
    from bertvision.heads import ladder as module

    assert module.__doc__ is not None
    rungs = {"ladder_64": (25, 25), "ladder_128_last4": (4, 4), "ladder_128_deep": (3, 6)}  # projections, blocks
    assert rungs.keys() == HEADS["ladder"].presets.keys()
    for name, settings in HEADS["ladder"].presets.items():
        parameters = count(StateShape(25, 1024, True), **settings)
        assert parameters == expected_count(1024, settings["width"], *rungs[name])
        assert f"{name} {parameters:,}" in " ".join(module.__doc__.split())


def test_negative_layers_count_from_the_end() -> None:
    first, second = ladder(layers=(0, 3, 4)), ladder(layers=(0, -2, -1))
    states = random_states(SHAPE, LENGTHS)
    assert torch.equal(first(states), second(states))


def test_at_initialisation_a_ladder_is_near_the_sum_of_unit_projections() -> None:
    with drawing_from(torch.device("cpu"), 0):
        head: Any = HEADS["ladder"](HEADS["ladder"].Config(), StateShape(7, 384, True), SPAN)
    states = random_states(head.shape, [40, 30])
    kept: list[Tensor] = []
    head.norm.register_forward_pre_hook(lambda module, inputs: kept.append(inputs[0]))
    with torch.no_grad():
        head(states)
        normalised = functional.layer_norm(states.read("tokens"), (384,))
        read = sum(head.projections[str(layer)](normalised[:, layer]) for layer in range(7))
    assert 0.9 < kept[0].std().item() / 7**0.5 < 1.1
    assert (kept[0] - read).norm() / read.norm() < 0.1


@pytest.mark.parametrize("setting", ["dropout", "drop_states"])
def test_dropout_draws_in_training_and_only_then(setting: str) -> None:
    states, head = random_states(SHAPE, LENGTHS), ladder(**{setting: 0.5})
    assert head.draws and not ladder().draws
    assert torch.equal(head(states), head(states)) and torch.equal(head(states), ladder()(states))
    head.train()
    with drawing_from(torch.device("cpu"), 0):
        assert not torch.equal(head(states), head(states))


def test_dropout_on_states_drops_single_values_and_rescales_the_rest() -> None:
    states, head = random_states(SHAPE, LENGTHS), ladder(drop_states=0.25).train()
    given = []
    for projection in head.projections.values():
        projection.register_forward_hook(lambda _, inputs, __: given.append(inputs[0]))
    with drawing_from(torch.device("cpu"), 0):
        head(states)
    for place, layer in enumerate(int(name) for name in head.projections):
        state = states.read("tokens")[:, layer]
        whole = functional.layer_norm(state, state.shape[1:])  # (token, hidden)
        kept = given[place] != 0
        torch.testing.assert_close(given[place][kept], whole[kept] / 0.75)
        assert 0 < (~kept).float().mean() < 0.6


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"width": 0}, ["`width` must be at least 1, not 0"]),
        (
            {"attention_heads": 0, "expand": 0, "blocks": 0},
            ["`attention_heads` must", "`expand` must", "`blocks` must"],
        ),
        ({"width": 100}, ["`width` = 100 can't be divided among 4 `attention_heads`"]),
        ({"width": 48}, ["each needs a multiple of 8 values, at most 256"]),
        ({"width": 1024, "attention_heads": 2}, ["each needs a multiple of 8 values, at most 256"]),
        ({"layers": ()}, ["`layers` is empty"]),
        ({"kernel": 4}, ["`kernel` must be odd, not 4"]),
        ({"dropout": 1.0}, ["`dropout` must be from 0 to less than 1, not 1.0"]),
        ({"drop_states": -0.1}, ["`drop_states` must be from 0 to less than 1, not -0.1"]),
    ],
    ids=str,
)
def test_invalid_settings_are_reported(settings: dict[str, Any], words: list[str]) -> None:
    mistakes = HEADS["ladder"].Config(**settings).mistakes()
    assert len(mistakes) == len(words)
    assert all(word in mistake for word, mistake in zip(words, mistakes, strict=True))


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ((0, 5, 9), "no layer 5, 9. This encoder has layers 0 (embeddings) to 4, or -5 to -1"),
        ((-6,), "no layer -6"),
        ((4, 0, -1), "lists a layer twice"),
    ],
    ids=str,
)
def test_layers_the_encoder_does_not_have_are_reported_when_the_head_is_built(
    layers: tuple[int, ...], words: str
) -> None:
    with pytest.raises(UserError) as error:
        ladder(layers=layers)
    assert words in str(error.value)
