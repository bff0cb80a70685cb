import numpy as np
import pytest
import torch
from tiny_encoders import tiny_model
from tiny_training import build_tiny_features

from bertvision.data.packing import fill_batches
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.recording import Graphs, round_up
from bertvision.sources import StreamedSource
from bertvision.sources import streamed as module


@pytest.mark.parametrize("keep", [("tokens",), ("cls", "mean")])
def test_padded_batches_have_the_same_states(keep: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where encoding is recorded; here it runs each time."""
    monkeypatch.setattr(Graphs, "run", lambda _, key, step: step())
    features = build_tiny_features("squad2")
    encoder = Encoder(tiny_model("bert", num_attention_heads=2), attention="looped")
    plan = fill_batches(features.lengths, np.random.default_rng(0).permutation(len(features)), tokens=130)
    plain, filled = (StreamedSource(encoder, features, plan, keep, encode_tokens=200) for _ in range(2))
    filled.recorded = True
    group = filled._prepare(range(2))
    real = sum(int(features.lengths[windows].sum()) for windows in plan[:2])
    assert group.filled and len(group.tokens.input_ids) == round_up(real) > real
    for one, other in zip(filled.batches(), plain.batches(), strict=True):
        assert one.windows.tolist() == other.windows.tolist() and one.total == other.total
        assert one.states.lengths.tolist() == other.states.lengths.tolist()
        for part in keep:
            torch.testing.assert_close(one.states.read(part), other.states.read(part))


def test_large_batches_are_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    features = build_tiny_features("squad2")
    encoder = Encoder(tiny_model("bert", num_attention_heads=2), attention="looped")
    source = StreamedSource(encoder, features, [np.arange(5)], ("tokens",))
    source.recorded = True
    size = round_up(int(features.lengths[:5].sum())) * encoder.shape.layers * encoder.shape.hidden * 4
    for most, filled in ((size, False), (size + 1, True)):
        source.most_bytes = most
        assert source._prepare(range(1)).filled == filled
    monkeypatch.setattr(module, "MOST_WORK", encoder.work * int(features.lengths[:5].sum()))
    assert not source._prepare(range(1)).filled


def test_recorded_sizes_stay_within_the_memory_limit() -> None:
    features = build_tiny_features("squad2")
    encoder = Encoder(tiny_model("bert", num_attention_heads=2), attention="looped")
    source = StreamedSource(encoder, features, [np.arange(2), np.arange(9), np.arange(2)], ("tokens",))
    source.recorded = True
    small, large = (round_up(int(features.lengths[:count].sum())) for count in (2, 9))
    source.most_bytes = (small + large) * encoder.shape.layers * encoder.shape.hidden * 4
    assert [source._prepare(range(step, step + 1)).filled for step in range(3)] == [True, False, True]
