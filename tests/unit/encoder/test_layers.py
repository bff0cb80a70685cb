"""Listening to and compiling layers, with a compiler that does nothing; tests/gpu uses the real one."""

import warnings
from typing import Any

import pytest
import torch
from tiny_encoders import random_sequences, tiny_model
from torch._dynamo.testing import CompileCounterWithBackend

from bertvision.encoder.encoder import Encoder, Listener, compile_layers, find_layers, restore_layers
from bertvision.encoder.states import PackedTokens

FAMILIES = ("bert", "roberta", "electra", "distilbert", "modernbert")


def inputs() -> dict[str, Any]:
    return {"input_ids": torch.randint(5, 60, (3, 11)), "attention_mask": torch.ones(3, 11, dtype=torch.long)}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_listener_collects_the_hidden_states_of_transformers(family: str) -> None:
    model, given = tiny_model(family).eval(), inputs()
    with torch.no_grad():
        expected = model(**given, output_hidden_states=True).hidden_states
        output, found = Listener(find_layers(model)).run(model, given)
    assert len(found) == len(expected) == model.config.num_hidden_layers + 1
    for one, other in zip(found[:-1], expected[:-1], strict=True):
        assert torch.equal(one, other)
    assert torch.equal(output.last_hidden_state, expected[-1])  # ModernBERT's last norm comes after its last layer


def test_the_listener_collects_nothing_outside_a_run() -> None:
    model = tiny_model("bert").eval()
    listener = Listener(find_layers(model))
    model(**inputs())
    assert listener.found is None
    with pytest.raises(ValueError, match="input_ids"):
        listener.run(model, {})
    assert listener.found is None


def test_unknown_model_families_use_output_hidden_states() -> None:
    assert find_layers(tiny_model("mpnet")) == []
    assert Encoder(tiny_model("mpnet")).work == 0


def test_the_work_per_token_is_two_operations_per_weight_of_the_layers() -> None:
    model = tiny_model("bert", num_hidden_layers=3, hidden_size=32, intermediate_size=64, num_attention_heads=2)
    a_layer = 4 * (32 * 32 + 32) + (32 * 64 + 64) + (64 * 32 + 32) + 2 * 2 * 32  # attention, MLP in and out, two norms
    assert Encoder(model).work == 2 * 3 * a_layer


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> CompileCounterWithBackend:
    found = CompileCounterWithBackend("eager")
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda forward, **options: compile(forward, backend=found, **options))
    torch._dynamo.reset()
    return found


def test_all_layers_and_lengths_share_one_compilation(counter: CompileCounterWithBackend) -> None:
    encoder = Encoder(tiny_model("bert", num_hidden_layers=12), attention="padded").eval()
    batches = [
        PackedTokens.from_lists(*random_sequences([length] * rows)) for length, rows in ((9, 3), (14, 5), (31, 2))
    ]
    with torch.no_grad():
        expected = [encoder(batch).read("tokens") for batch in batches]
        compile_layers(find_layers(encoder.model))
        found = [encoder(batches[0]).read("tokens")]
        before = counter.frame_count
        found += [encoder(batch).read("tokens") for batch in batches[1:]]
    assert before == counter.frame_count == 1
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    restore_layers(find_layers(encoder.model))
    with torch.no_grad():
        encoder(batches[0])
    assert "forward" not in vars(find_layers(encoder.model)[0])


def test_a_layer_that_can_not_be_compiled_runs_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("no compiler here")

    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda forward, **options: compile(forward, backend=refuse, **options))
    torch._dynamo.reset()
    encoder = Encoder(tiny_model("bert"), attention="padded").eval()
    batch = PackedTokens.from_lists(*random_sequences([7, 9]))
    with torch.no_grad():
        expected = encoder(batch).read("tokens")
        compile_layers(find_layers(encoder.model))
        with pytest.warns(UserWarning, match="could not be compiled and runs uncompiled"):
            found = encoder(batch).read("tokens")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = encoder(batch).read("tokens")
    assert torch.equal(found, expected) and torch.equal(again, expected)


def test_only_an_unpadded_encoder_is_compiled() -> None:
    encoder = Encoder(tiny_model("bert"), attention="padded")
    assert not encoder.compile_layers() and not encoder.compiled
