"""The head contract, for every registered head and preset, each kind of target it supports, and more settings."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import compute_loss, member_of, random_pairs, random_states, random_targets

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads import HEADS, Head, Target, build_head, count_parameters, list_presets, load_head, save_head
from bertvision.kinds import KINDS, LABEL, SCORE, SPAN, Kind

LARGE = StateShape(25, 1024, True)
SHAPES = {"pooler": StateShape(4, 32, True), "no pooler": StateShape(4, 32, False)}
LENGTHS = [5, 1, 9, 3, 9, 2, 7, 4]
TARGETS = {kind: Target(kind, 3 if kind.has_labels else 0) for kind in KINDS.values()}
# Settings that change the structure of a head, in addition to its defaults and presets.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "adapter": [{"size": 1}],
    "pooled_adapter": [{"skip": False}],
    "two_adapters": [{"skip": True}],
    "flat_adapter": [{"tokens": 3, "size": 4}],
    "ladder": [
        {"width": 16, "attention_heads": 2, "blocks": 2, "shared": True},
        {"width": 16, "attention_heads": 2, "kernel": 5},
        {"width": 16, "attention_heads": 2, "layers": [0, -1], "shared_blocks": True},
        {"width": 16, "attention_heads": 2, "pairs": "towers"},
    ],
}


def settings_of(name: str) -> list[dict[str, Any]]:
    """The defaults, the presets and the settings above, each once."""
    found: list[dict[str, Any]] = []
    default = HEADS[name].Config()
    for given in [{}, *HEADS[name].presets.values(), *SETTINGS.get(name, [])]:
        own = {key: value for key, value in given.items() if getattr(default, key) != value}
        found += [own] if own not in found else []
    return found


def every_case() -> list[Any]:
    cases = []
    for name in HEADS:
        for kind in filter(HEADS[name].takes, KINDS.values()):
            by_position = kind is not SPAN and hasattr(HEADS[name].Config(), "read")
            for settings in settings_of(name):
                if kind is SPAN and settings.get("pairs") == "towers":
                    continue  # spans need both texts in one sequence
                for read in ["cls", "mean"] if by_position else ["cls"]:
                    # Only [CLS] states include the pooled output.
                    for where in SHAPES if by_position and read == "cls" else ["pooler"]:
                        given = {**settings, **({"read": read} if read != "cls" else {})}
                        words = [name, str(kind), *(f"{key}={value}" for key, value in given.items()), where]
                        cases.append(pytest.param((name, kind, given, SHAPES[where]), id="-".join(words)))
    return cases


CASES = every_case()


def is_fitted(name: str, kind: Kind, settings: dict[str, Any], shape: StateShape) -> bool:
    """Fitting is slow, so each head is fitted once for each kind of target and setting.

    `read` and the pooled output change only the input of a head, not the head itself. A head that mixes tokens takes
    the mean after its own layers, so it is also fitted with each `read`, and defaults otherwise.
    """
    if settings.get("compare") == "cosine":
        return False  # one number for each example can't fit random targets
    if name == "mlp" and settings.get("pairs") == "towers" and settings["read"] == "mean":
        return shape.pooled  # its presets for towers set `read`
    return shape.pooled and ("read" not in settings or (HEADS[name].mixes_tokens and len(settings) == 1))


FITTED = [case for case in CASES if is_fitted(*case.values[0])]


def states_of(head: Head) -> HiddenStates:
    return random_pairs(head.shape, LENGTHS) if head.towers else random_states(head.shape, LENGTHS)


def build_case(case: tuple[str, Kind, dict[str, Any], StateShape]) -> Head:
    name, kind, settings, shape = case
    return build_head(member_of(name, kind, **settings), shape, TARGETS[kind]).eval()


@pytest.fixture(scope="module", params=CASES)
def head(request: pytest.FixtureRequest) -> Head:
    """Shared by the tests of a case, which only read it."""
    return build_case(request.param)


@pytest.fixture
def own_head(head: Head) -> Head:
    """A copy that a test may change."""
    return copy.deepcopy(head)


@pytest.fixture(scope="module")
def states(head: Head) -> HiddenStates:
    return states_of(head)


def positions(head: Head) -> int:
    return sum(LENGTHS) if head.target.kind is SPAN else len(LENGTHS)


def test_every_registered_head_is_in_the_table() -> None:
    assert len(HEADS) >= 16 and {case.values[0][0] for case in CASES} == set(HEADS)
    assert {case.values[0][:2] for case in CASES} == {
        (name, kind) for name in HEADS for kind in KINDS.values() if HEADS[name].takes(kind)
    }
    assert set(SETTINGS) <= set(HEADS)


def test_every_head_is_fitted_with_each_target_and_setting() -> None:
    def known_by(case: Any) -> str:
        name, kind, settings, _ = case.values[0]
        return f"{name} {kind} {[(key, value) for key, value in settings.items() if key != 'read']}"

    cosines = {known_by(case) for case in CASES if case.values[0][2].get("compare") == "cosine"}
    assert set(map(known_by, FITTED)) == set(map(known_by, CASES)) - cosines


def test_a_head_s_file_has_the_name_of_the_head() -> None:
    assert [HEADS[name].__module__ for name in HEADS] == [f"bertvision.heads.{name}" for name in HEADS]


@pytest.mark.parametrize("name", list(HEADS))
def test_builds_from_its_default_config_and_documents_every_setting(name: str) -> None:
    config = HEADS[name].Config()
    assert config.mistakes() == [] and all(item.metadata.get("help") for item in dataclasses.fields(config))
    for kind in filter(HEADS[name].takes, KINDS.values()):
        HEADS[name](config, SHAPES["pooler"], TARGETS[kind])


def test_output_shape(head: Head, states: HiddenStates) -> None:
    outputs = {SPAN: 2, LABEL: 3, SCORE: 1}
    assert head(states).shape == (positions(head), outputs.get(head.target.kind, head.target.outputs))


@torch.no_grad()
def test_packing_changes_nothing(head: Head, states: HiddenStates) -> None:
    one_by_one = [head(one) for one in states.split([1] * len(LENGTHS))]
    torch.testing.assert_close(head(states), torch.cat(one_by_one), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_reads_only_the_states_it_declares(head: Head, states: HiddenStates) -> None:
    def cut(some: HiddenStates) -> HiddenStates:
        parts = {name: part for name, part in some.parts().items() if name in head.reads}
        return HiddenStates(some.lengths, **parts, pooled=some.pooled)

    alone = cut(states)
    if states.second is not None:
        alone.second = cut(states.second)
    assert torch.equal(head(alone), head(states))


@torch.no_grad()
def test_two_towers_see_both_texts_and_no_order(head: Head, states: HiddenStates) -> None:
    assert head.towers == (head.target.kind is not SPAN and getattr(head.config, "pairs", "joined") == "towers")
    if states.second is None:
        return
    swapped = dataclasses.replace(states.second, second=dataclasses.replace(states, second=None))
    torch.testing.assert_close(head(swapped), head(states))
    same = dataclasses.replace(states, second=dataclasses.replace(states, second=None))
    assert not torch.allclose(head(same), head(states))


@torch.no_grad()
def test_eval_is_deterministic(head: Head, states: HiddenStates) -> None:
    assert torch.equal(head(states), head(states))


def test_every_trainable_parameter_gets_a_finite_gradient_that_is_not_zero(
    own_head: Head, states: HiddenStates
) -> None:
    own_head.train()
    outputs = own_head(states)
    # Not the span loss: adding a constant to all tokens does not change it, so the output's bias gets no gradient.
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1))
    (outputs * weights).sum().backward()
    for name, parameter in own_head.named_parameters():
        assert parameter.requires_grad and parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all() and parameter.grad.abs().max() > 0, name


@torch.no_grad()
def test_a_saved_and_loaded_head_returns_identical_output(own_head: Head, states: HiddenStates, tmp_path: Path) -> None:
    head = own_head
    for tensor in (*head.parameters(), *head.buffers()):
        if tensor.is_floating_point():
            tensor.add_(torch.rand(tensor.shape, generator=torch.Generator().manual_seed(2)), alpha=0.01)
    name = next(name for name in HEADS if type(head) is HEADS[name])
    settings = {k: v for k, v in dataclasses.asdict(head.config).items() if v != getattr(HEADS[name].Config(), k)}
    member = member_of(name, head.target.kind, **settings)
    save_head(tmp_path, head, member)
    again, found = load_head(tmp_path)
    assert found == member and again.config == head.config and not again.training
    assert torch.equal(again(states), head(states))
    reported = json.loads((tmp_path / "config.json").read_text())["parameters"]
    counters = [buffer for name, buffer in head.named_buffers() if name.endswith("num_batches_tracked")]
    assert reported == sum(tensor.numel() for tensor in head.state_dict().values()) - len(counters)


@torch.no_grad()
def test_accepts_half_precision_states(head: Head, states: HiddenStates) -> None:
    half = states.to(dtype=torch.bfloat16)
    exact = head(half.to(dtype=torch.float32))
    assert torch.equal(head(half), exact), "without autocast the states are read in the head's own precision"
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(head(half).float(), exact, rtol=0.05, atol=0.05)


def test_initial_weights_depend_on_the_member_s_seed_and_do_not_touch_the_global_generator(head: Head) -> None:
    name = next(name for name in HEADS if type(head) is HEADS[name])
    settings = {k: v for k, v in dataclasses.asdict(head.config).items() if v != getattr(HEADS[name].Config(), k)}

    def weights(seed: int) -> list[torch.Tensor]:
        member = member_of(name, head.target.kind, seed=seed, **settings)
        return list(build_head(member, head.shape, head.target).parameters())

    torch.manual_seed(99)
    before = torch.get_rng_state()
    first = weights(1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert all(torch.equal(a, b) for a, b in zip(first, weights(1), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, weights(2), strict=True))


@pytest.mark.parametrize("case", FITTED)
def test_fits_eight_examples_to_almost_no_loss(case: Any) -> None:
    head = build_case(case)
    states = states_of(head)
    targets = random_targets(LENGTHS, labels=3)
    normed = any(isinstance(module, torch.nn.BatchNorm1d) for module in head.modules())
    optimizer = torch.optim.Adam(head.parameters(), lr=0.001 if normed else 0.03)
    head.train()
    for _ in range(400):
        optimizer.zero_grad()
        loss = compute_loss(head.target.kind, head(states), states, targets, len(LENGTHS))
        loss.backward()
        optimizer.step()
        if loss.item() < 0.02:
            return
    raise AssertionError(f"still a loss of {loss.item():.3f}")


def count(name: str, target: Target, shape: StateShape = LARGE, **settings: Any) -> int:
    with torch.device("meta"):
        return count_parameters(HEADS[name](HEADS[name].Config(**settings), shape, target))


SPANS, TWO_LABELS = Target(SPAN), Target(LABEL, 2)
BERT_LARGE = 335_143_938
# The papers' tables: an exact count, or a percentage of BERT-large if only that is known.
SPAN_ROWS: dict[str, int | str] = {
    "last_linear": 2_050, "learned_pooling": 2_076, "average_pooling": 2_050,
    "adapter_64": 68_802, "adapter_64_skip": 70_850,
    "adapter_64_separate": 1_643_202, "adapter_64_separate_skip": 1_645_250,
    "adapter_386": 414_952, "adapter_386_skip": 417_000,
    "adapter_386_separate": 9_910_552, "adapter_386_separate_skip": 9_912_600,
    "pooled_adapter_386": 398_498, "two_adapters_386": 811_400,
    "cnn_1xn": "0.099", "cnn_1xn_dilated": "0.121", "cnn_1xn_no_dropout": "0.099",
    "pooled_cnn_1xn": "0.093", "pooled_cnn_1xn_average": "0.093",
    "pooled_adapter_cnn_1xn": "0.207", "pooled_adapter_cnn_nxn": "0.332",
    "pooled_adapter_inception": "1.994", "pooled_adapter_xception": "1.970",
}  # fmt: skip
LABEL_ROWS = {
    "learned_pooling": 2_077, "pooled_adapter_386": 398_499, "pooled_adapter_386_average": 398_472,
    "xception_abbreviated": 267_010, "xception_abbreviated_cls": 269_058, "xception_full": 20_716_634,
}  # fmt: skip


@pytest.mark.parametrize("name", list(SPAN_ROWS))
def test_span_rows_at_bert_large_have_the_published_parameters(name: str) -> None:
    head, settings = list_presets()[name]
    found, published = count(head, SPANS, **settings), SPAN_ROWS[name]
    assert found == published if isinstance(published, int) else f"{100 * found / BERT_LARGE:.3f}" == published


@pytest.mark.parametrize("name", list(LABEL_ROWS))
def test_classification_rows_at_bert_large_have_the_published_parameters(name: str) -> None:
    head, settings = list_presets()[name]
    assert count(head, TWO_LABELS, **settings) == LABEL_ROWS[name]


def test_the_flat_adapter_at_bert_base_has_the_published_parameters() -> None:
    head, settings = list_presets()["flat_adapter_128"]
    assert count(head, TWO_LABELS, StateShape(13, 768, True), **settings) == 524_418


def test_the_pooled_output_is_one_more_layer_for_cls_only() -> None:
    without = StateShape(25, 1024, False)
    assert count("learned_pooling", TWO_LABELS, without) == 2_076 == count("learned_pooling", TWO_LABELS, read="mean")


def test_two_towers_read_the_difference_product_and_cosine_of_every_layer() -> None:
    states = random_pairs(SHAPES["pooler"], LENGTHS)
    head = build_head(member_of("linear", SCORE, pairs="towers"), SHAPES["pooler"], TARGETS[SCORE])
    assert states.second is not None
    expected = torch.zeros(len(LENGTHS))
    weight = head.output.weight[0].view(4, 2 * 32 + 1)  # (layer, value)
    for row in range(len(LENGTHS)):
        for layer in range(4):
            u, v = states.read("mean")[row, layer], states.second.read("mean")[row, layer]  # (hidden) each
            cosine = u @ v / (u.norm() * v.norm())
            values = torch.cat([(u - v).abs(), u * v, cosine.view(1)])  # (value)
            expected[row] += values @ weight[layer]
    torch.testing.assert_close(head(states)[:, 0], expected + head.output.bias)


def test_a_skip_adds_the_last_layer_to_the_input_of_the_output_layer() -> None:
    assert count("two_adapters", SPANS, skip=True) == 811_400 + 2 * 1024


def test_batch_norm_means_and_variances_count_and_step_counters_do_not() -> None:
    assert count_parameters(torch.nn.BatchNorm1d(7)) == 4 * 7


def test_the_control_reads_the_last_layer_and_never_the_pooled_output() -> None:
    states = random_states(SHAPES["pooler"], LENGTHS)
    head = build_head(member_of("last_linear", LABEL), SHAPES["pooler"], TARGETS[LABEL])
    expected = states.read("cls")[:, 3] @ head.output.weight.T + head.output.bias
    torch.testing.assert_close(head(states), expected)


def test_learned_pooling_is_the_weighted_mean_of_the_formula() -> None:
    states = random_states(SHAPES["pooler"], LENGTHS)
    head = build_head(member_of("learned_pooling", SPAN), SHAPES["pooler"], SPANS)
    with torch.no_grad():
        head.pooling.scale.fill_(1.7)
    shares = head.pooling.weights.exp() / head.pooling.weights.exp().sum()
    pooled = sum(1.7 * shares[layer] * states.read("tokens")[:, layer] for layer in range(4))
    torch.testing.assert_close(head(states), head.output(pooled))


@pytest.mark.parametrize("shared", [True, False])
def test_an_adapter_is_the_gelu_of_a_map_per_layer_concatenated_with_the_last_layer(shared: bool) -> None:
    states = random_states(SHAPES["no pooler"], LENGTHS)
    member = member_of("adapter", SPAN, size=3, shared=shared, skip=True)
    head = build_head(member, SHAPES["no pooler"], SPANS)
    tokens, parts = states.read("tokens"), []
    for layer in range(4):
        weight = head.adapter.weight if shared else head.adapter.weight[layer]
        bias = head.adapter.bias if shared else head.adapter.bias[layer]
        parts.append(torch.nn.functional.gelu(tokens[:, layer] @ weight.T + bias))
    torch.testing.assert_close(head(states), head.output(torch.cat([*parts, tokens[:, -1]], dim=1)))
