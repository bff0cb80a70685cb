"""The convolutional heads, the two adapters and the flat adapter: published sizes, and the states they read."""

from typing import Any

import pytest
import torch
from tiny_training import compute_loss, member_of, random_states, random_targets
from torch.nn import functional

from bertvision.encoder.states import StateShape
from bertvision.heads import HEADS, Head, Target, build_head, count_parameters
from bertvision.heads.convolutions import BatchNorm
from bertvision.kinds import KINDS, LABEL, SCORE, SPAN, Kind

LARGE, BASE, TINY = StateShape(25, 1024, True), StateShape(13, 768, True), StateShape(4, 32, True)
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
LENGTHS = [5, 1, 9, 3]
ALONG_TOKENS = ["pooled_adapter_cnn_nxn", "pooled_adapter_inception", "pooled_adapter_xception"]
OF_SEQUENCES = ["flat_adapter", "xception", "xception_short"]
OF_POSITIONS = ["cnn", "pooled_adapter_cnn", "pooled_cnn", "two_adapters"]
ZOO = [*ALONG_TOKENS, *OF_SEQUENCES, *OF_POSITIONS]
CASES = [(name, kind) for name in ZOO for kind in KINDS.values() if HEADS[name].takes(kind)]


def build(name: str, shape: StateShape, kind: Kind, labels: int = 2, **settings: Any) -> Head:
    return build_head(member_of(name, kind, **settings), shape, Target(kind, labels))


def size_up(*given: Any, **settings: Any) -> Head:
    """A head on the meta device, for counting: at BERT-large's size, weights would take time and memory."""
    with torch.device("meta"):
        return build(*given, **settings)


def trainable(head: Head) -> int:
    return sum(parameter.numel() for parameter in head.parameters() if parameter.requires_grad)


def test_each_head_supports_the_right_targets() -> None:
    assert all(HEADS[name].positions == {"token"} and HEADS[name].mixes_tokens for name in ALONG_TOKENS)
    assert all(HEADS[name].positions == {"sequence"} and not HEADS[name].mixes_tokens for name in OF_SEQUENCES)
    assert all(HEADS[name].positions == {"token", "sequence"} and not HEADS[name].mixes_tokens for name in OF_POSITIONS)


@pytest.mark.parametrize(
    ("name", "settings", "shape", "published", "trained"),
    [
        ("xception_short", {}, LARGE, 267_010, 264_066),
        # The skip: 1024 more weights for each of two labels.
        ("xception_short", {"skip": True}, LARGE, 269_058, 264_066 + 2 * 1024),
        ("xception", {}, LARGE, 20_716_634, 20_662_106),
        ("flat_adapter", {"tokens": 128, "size": 128}, BASE, 524_418, 524_418),
    ],
)
def test_classification_heads_have_the_published_parameters(
    name: str, settings: dict[str, Any], shape: StateShape, published: int, trained: int
) -> None:
    head = size_up(name, shape, LABEL, **settings)
    assert (count_parameters(head), trainable(head)) == (published, trained)


@pytest.mark.parametrize("name", ZOO)
def test_the_docstring_gives_the_parameters(name: str) -> None:
    kind = LABEL if name in OF_SEQUENCES else SPAN
    text = __import__(HEADS[name].__module__, fromlist=[""]).__doc__
    assert text.startswith(f"{name}: ")
    for settings in HEADS[name].presets.values() or [{}]:
        head = size_up(name, LARGE, kind, **settings)
        assert f"{count_parameters(head):,}" in text
        if trainable(head) != count_parameters(head) and not settings:
            assert f"{trainable(head):,}" in text


def test_presets_are_valid_settings_and_not_names_of_heads() -> None:
    presets = [(preset, name, settings) for name in ZOO for preset, settings in HEADS[name].presets.items()]
    assert {preset for preset, _, _ in presets} == {
        "two_adapters_386", "cnn_1xn", "cnn_1xn_dilated", "cnn_1xn_no_dropout", "pooled_cnn_1xn",
        "pooled_cnn_1xn_average", "pooled_adapter_cnn_1xn", "xception_abbreviated", "xception_abbreviated_cls",
        "xception_full", "flat_adapter_128",
    }  # fmt: skip
    for preset, name, settings in presets:
        assert preset not in HEADS and HEADS[name].Config(**settings).mistakes() == []


@torch.no_grad()
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_batch_equals_its_sequences_one_by_one(name: str, kind: Kind) -> None:
    head, states = build(name, TINY, kind, 3), random_states(TINY, LENGTHS)
    head.train()
    head(states)  # the norms' means and variances have moved from their initial values
    head.eval()
    alone = torch.cat([head(one) for one in states.split([1] * len(LENGTHS))])
    torch.testing.assert_close(head(states), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_batch_of_one_position_trains(name: str, kind: Kind) -> None:
    head, states = build(name, TINY, kind, 3).train(), random_states(TINY, [1])
    weights = torch.tensor([[1.0, -2.0, 3.0]])[:, : head.target.outputs]
    (head(states) * weights).sum().backward()
    gradients = [parameter.grad for parameter in head.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert head.output.weight.grad.abs().max() > 0
    assert all(value.isfinite().all() for value in head.state_dict().values())


@pytest.mark.parametrize(("kind", "labels", "outputs"), [(LABEL, 2, 2), (LABEL, 3, 3), (SCORE, 0, 1)])
@pytest.mark.parametrize("name", [*OF_SEQUENCES, *OF_POSITIONS])
def test_one_output_per_label_or_one_score(name: str, kind: Kind, labels: int, outputs: int) -> None:
    shape = StateShape(7, 48, True)
    head = build(name, shape, kind, labels).eval()
    assert head(random_states(shape, LENGTHS)).shape == (len(LENGTHS), outputs)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_trains_in_bfloat16_with_half_precision_states(name: str, kind: Kind) -> None:
    head, states = build(name, TINY, kind, 3).train(), random_states(TINY, LENGTHS).to(dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = head(states)
    compute_loss(kind, outputs, states, random_targets(LENGTHS, 3), len(LENGTHS)).backward()
    gradients = [parameter.grad for parameter in head.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case[0] != "xception"])
def test_the_paper_s_learning_rate_fits_a_few_examples_even_in_eval_mode(name: str, kind: Kind) -> None:
    head, states, targets = build(name, TINY, kind, 3), random_states(TINY, LENGTHS), random_targets(LENGTHS, 3)
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
    for module in head.modules():
        if isinstance(module, BatchNorm):
            module.momentum = 0.5  # fast enough to fall from 1 to the tiny variance of a new adapter in so few steps
    head.train()
    for _ in range(50):
        optimizer.zero_grad()
        compute_loss(kind, head(states), states, targets, len(LENGTHS)).backward()
        optimizer.step()
    with torch.no_grad():
        loss = compute_loss(kind, head.eval()(states), states, targets, len(LENGTHS))
    assert loss < 0.1


def test_two_adapters_are_one_on_each_layer_and_one_on_the_pooled_layers() -> None:
    states, head = random_states(TINY, LENGTHS), build("two_adapters", TINY, SPAN, size=3, skip=True)
    tokens = states.read("tokens")
    shares = head.pooling.weights.softmax(0)
    pooled = sum(shares[layer] * tokens[:, layer] for layer in range(4))
    own, second = head.adapter, head.pooled_adapter
    parts = [functional.gelu(tokens[:, layer] @ own.weight.T + own.bias) for layer in range(4)]
    parts += [functional.gelu(pooled @ second.weight.T + second.bias), tokens[:, -1]]
    torch.testing.assert_close(head(states), head.output(torch.cat(parts, dim=1)))


@torch.no_grad()
def test_the_cnn_reads_layers_as_channels_and_the_hidden_axis_as_width() -> None:
    states, head = random_states(TINY, LENGTHS), build("cnn", TINY, SPAN).eval()
    values = states.read("tokens")[7:8]  # (1, layer, hidden)
    for kernels in (head.cnn.first, head.cnn.second):
        whole = [functional.conv1d(values, weight, padding="same") for weight in kernels.weights]
        values = functional.gelu(torch.cat(whole, dim=1)[:, :, ::7])  # every seventh value of the plain convolution
    torch.testing.assert_close(head(states)[7:8], head.output(values.flatten(1)), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_nxn_cnn_is_torch_s_convolution_of_each_sequence_alone() -> None:
    states, head = random_states(TINY, LENGTHS), build("pooled_adapter_cnn_nxn", TINY, SPAN, size=5).eval()
    adapted = head.adapter(head.pooling(states.read("tokens")))
    expected = []
    for one in adapted.split(LENGTHS):
        values = one.T.unsqueeze(0)  # (1, channel, token)
        for kernels in (head.first, head.second):
            whole = [functional.conv1d(values, weight, padding="same") for weight in kernels.weights]
            values = functional.gelu(torch.cat(whole, dim=1))
        expected.append(head.output(values[0].T))
    torch.testing.assert_close(head(states), torch.cat(expected), rtol=1e-4, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("tokens", [2, 5, 12])
def test_the_flat_adapter_reads_the_first_tokens_and_zeros_for_missing_ones(tokens: int) -> None:
    states, head = random_states(TINY, LENGTHS), build("flat_adapter", TINY, LABEL, 3, tokens=tokens, size=3)
    adapted = functional.gelu(states.read("tokens") @ head.adapter.weight.T + head.adapter.bias)
    flat = torch.zeros(len(LENGTHS), tokens, 4, 3)
    for row, one in enumerate(adapted.split(LENGTHS)):
        flat[row, : len(one[:tokens])] = one[:tokens]
    torch.testing.assert_close(head(states), head.output(flat.flatten(1)))


@torch.no_grad()
def test_the_skip_of_the_short_xception_is_the_last_layer_and_never_the_pooled_output() -> None:
    states, head = random_states(TINY, LENGTHS), build("xception_short", TINY, LABEL, skip=True).eval()
    head.output.weight[:, :512] = 0  # only the last layer's values pass
    head.output.bias.zero_()
    torch.testing.assert_close(head(states), states.read("cls")[:, 3] @ head.output.weight[:, 512:].T)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("two_adapters", {"size": 0}, "`size` must be at least 1, not 0"),
        ("cnn", {"dropout": 1.0}, "`dropout` must be from 0 to less than 1, not 1.0"),
        ("cnn", {"read": "median"}, "`read` is 'median'"),
        ("pooled_cnn", {"pooling": "best"}, "choose from average, learned"),
        ("pooled_adapter_cnn", {"size": -1}, "`size` must be at least 1, not -1"),
        ("pooled_adapter_xception", {"size": 0}, "`size` must be at least 1, not 0"),
        ("flat_adapter", {"tokens": 0}, "`tokens` must be at least 1, not 0"),
        ("flat_adapter", {"size": 0}, "`size` must be at least 1, not 0"),
    ],
)
def test_a_wrong_setting_is_one_clear_mistake(name: str, settings: dict[str, Any], words: str) -> None:
    (mistake,) = HEADS[name].Config(**settings).mistakes()
    assert words in mistake
