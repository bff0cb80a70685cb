"""`encoder.layers`: the states of chosen layers equal those layers of the full states."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoders import ARCHITECTURES, PACKED, plain_call, random_sequences, tiny_model

from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder, check_route
from bertvision.encoder.loading import load_encoder, shape_of
from bertvision.encoder.output_layer import build_output_layer
from bertvision.encoder.states import PackedTokens
from bertvision.errors import UserError
from bertvision.kinds import KINDS, Kind
from bertvision.sources import MemorySource, MemoryStates, StreamedSource

ROUTES = [(name, "padded") for name in ARCHITECTURES] + [(name, "looped") for name in PACKED]
KEEP = ("tokens", "last", "cls", "mean")


def tokens() -> PackedTokens:
    return PackedTokens.from_lists(*random_sequences())


# Choices among four layers: some, some counted from the end, only the last, all.
@pytest.mark.parametrize(
    ("layers", "places"), [([0, 3], [0, 3]), ([-3, -1], [1, 3]), ([-1], [3]), (range(4), range(4))]
)
@pytest.mark.parametrize(("architecture", "route"), ROUTES)  # BERT, RoBERTa and MPNet have a pooler, the others do not
@torch.no_grad()
def test_chosen_layers_are_slices_of_all(architecture: str, route: str, layers: Any, places: Any) -> None:
    model = tiny_model(architecture)
    whole = Encoder(model, attention=route, padded_tokens=40)(tokens(), keep=KEEP)
    encoder = Encoder(model, attention=route, padded_tokens=40, layers=list(layers))
    some = encoder(tokens(), keep=KEEP)

    places = list(places)
    assert encoder.layers == tuple(places) and encoder.model_layers == 4
    assert encoder.shape.layers == len(places) and encoder.shape.read_layers("cls") == some.read("cls").shape[1]
    assert torch.equal(some.read("tokens"), whole.read("tokens")[:, places])
    assert torch.equal(some.read("mean"), whole.read("mean")[:, places])
    assert torch.equal(some.read("cls"), whole.read("cls")[:, [*places, *([4] if whole.pooled else [])]])
    assert some.pooled == whole.pooled == encoder.shape.pooled
    assert torch.equal(some.last_tokens, whole.last_tokens) and torch.equal(some.last_cls, whole.last_cls)


@pytest.mark.parametrize("route", ["padded", "looped"])
@torch.no_grad()
def test_chosen_layers_equal_those_of_a_plain_call(route: str) -> None:
    model = tiny_model("bert")
    sequences = zip(*random_sequences(), strict=True)
    expected = torch.cat([torch.stack(plain_call(model, *one).hidden_states, 2)[0] for one in sequences])
    found = Encoder(model, attention=route, layers=[0, 2, 3])(tokens()).read("tokens")
    torch.testing.assert_close(found, expected[:, [0, 2, 3]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("keep", [("tokens",), ("cls",), ("mean",), ("last",), ("cls", "last")])
@torch.no_grad()
def test_a_part_requested_alone_equals_the_part_requested_with_others(keep: Any) -> None:
    encoder = Encoder(tiny_model("bert"), layers=[1, 3])
    alone, beside = encoder(tokens(), keep=keep), encoder(tokens(), keep=KEEP)
    for part in keep:
        assert torch.equal(getattr(alone, part), getattr(beside, part))


@pytest.mark.parametrize("kind", KINDS.values())
@pytest.mark.parametrize("reads", ["pooled", "cls", "mean"])
@torch.no_grad()
def test_the_encoders_own_output_layer_is_unaffected(kind: Kind, reads: Any) -> None:
    model = tiny_model("bert")
    outputs = []
    for layers in (None, [0, 3], [-1]):
        encoder = Encoder(model, layers=layers)
        generator = torch.Generator().manual_seed(0)
        layer = build_output_layer(kind, encoder.shape, 2, reads, generator=generator).eval()
        outputs.append(layer(encoder(tokens(), keep=layer.keep)))
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])


def test_the_packed_route_is_checked_on_chosen_layers() -> None:
    encoder = Encoder(tiny_model("bert"), attention="looped", layers=[1, 3])
    assert 0 < check_route(encoder, tokens()) < 1e-5
    assert encoder.route == "looped" and encoder.layers == (1, 3)


@pytest.mark.parametrize("part", ["cls", "mean"])
def test_states_streamed_and_in_memory_have_the_chosen_layers(
    part: Any, tiny_encoder_folder: Path, tiny_features: Callable[[str], Features]
) -> None:
    features = tiny_features("stsb")
    plan = [np.arange(3), np.array([4, 3])]
    whole, some = (load_encoder(str(tiny_encoder_folder), layers=layers) for layers in (None, [0, 2, -1]))
    expected = StreamedSource(whole, features, plan, (part,)).batches()
    sources = (
        StreamedSource(some, features, plan, (part,)),
        MemorySource(MemoryStates.encode(some, features, (part,)), features, plan),
    )
    for all_of_them, *found in zip(expected, *(source.batches() for source in sources), strict=True):
        places = [0, 2, 3, 4] if part == "cls" else [0, 2, 3]  # the pooled output comes after the layers
        for batch in found:
            wanted = all_of_them.states.read(part)[:, places]
            torch.testing.assert_close(batch.states.read(part), wanted, rtol=1e-5, atol=1e-5)


def test_the_shape_of_chosen_layers_is_known_before_the_weights(tiny_encoder_folder: Path) -> None:
    name = str(tiny_encoder_folder)
    size = shape_of(name, [0, 2, -1])
    assert size.shape == load_encoder(name, layers=[0, 2, -1]).shape and size.layers == (0, 2, 3)
    assert size.parameters == shape_of(name).parameters, "the parameter count is that of the whole encoder"
    assert shape_of(name).layers == (0, 1, 2, 3)
    assert shape_of("bert-large-uncased", [0, 12, -1]).layers == (0, 12, 24)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([0, 4], "there is no layer 4"),
        ([-5, -1], "there is no layer -5"),
        ([0, 0, 3], "layer 0 is listed twice"),
        ([3, -1], "layer 3 is listed twice"),
        ([3, 0], r"in ascending order, \[0, 3\]"),
        ([-1, 0], r"in ascending order, \[0, 3\]"),
        ([0, 2], "add -1, the last layer"),
        ([], "add -1, the last layer"),
    ],
)
def test_layers_that_do_not_fit_are_reported_with_the_valid_range(
    layers: list[int], words: str, tiny_encoder_folder: Path
) -> None:
    name = str(tiny_encoder_folder)
    for ask in (shape_of, load_encoder):
        with pytest.raises(UserError, match=rf"encoder\.layers = .*{name}.*{words}.*layers 0 .*to 3") as caught:
            ask(name, layers=layers)
        assert str(layers) in str(caught.value)
