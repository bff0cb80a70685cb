"""Texts that earlier fits encoded are not encoded again, and the result is the same."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bertvision.data.examples import Example
from bertvision.data.windows import build_features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.shared import shared_encoder
from bertvision.kinds import LABEL
from bertvision.models import states_cache
from bertvision.models.states_cache import StatesCache
from bertvision.progress import Bar
from bertvision.sources import MemoryStates

TEXTS = [" ".join(["the", "in", "x", "7"][: 1 + row % 4]) + f" {row}" for row in range(12)]
ROW = 2 * 4 * 32 * 4  # bytes: mean and deviation of four layers of 32 float32 values


class Counted:
    """A cache that counts the rows that are encoded."""

    def __init__(self, encoder: Encoder, most_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.encoder, self.cache, self.encoded = encoder, StatesCache(most_bytes), 0
        encode = MemoryStates.encode

        def count(*given: Any, windows: Any, **more: Any) -> MemoryStates:
            self.encoded += len(windows)
            return encode(*given, windows=windows, **more)

        monkeypatch.setattr(states_cache.MemoryStates, "encode", count)

    def __call__(self, texts: list[str]) -> tuple[dict[str, torch.Tensor], int, float]:
        """The states, the rows that were encoded, and the seconds."""
        self.encoded = 0
        states, seconds = self.cache.encode(
            self.encoder, features_of(self.encoder, texts), ("mean", "deviation"), Bar()
        )
        return states, self.encoded, seconds


def features_of(encoder: Encoder, texts: list[str]) -> Any:
    assert encoder.tokenizer is not None
    examples = [Example(str(row), text) for row, text in enumerate(texts)]
    return build_features(examples, encoder.tokenizer, LABEL, False, 64)


@pytest.fixture
def encoder(tiny_encoder_folder: Path) -> Encoder:
    return shared_encoder(str(tiny_encoder_folder))


def test_only_new_texts_are_encoded_and_all_states_are_right(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = MemoryStates.encode(encoder, features_of(encoder, TEXTS), ("mean", "deviation")).parts
    call = Counted(encoder, 1 << 20, monkeypatch)
    assert call(TEXTS[:8])[1] == 8
    states, encoded, seconds = call(TEXTS[4:][::-1])
    assert encoded == 4
    for part, values in expected.items():
        torch.testing.assert_close(states[part], values[4:].flip(0), atol=1e-5, rtol=1e-5)
    again, encoded, same = call(TEXTS[4:][::-1])
    assert encoded == 0 and same == pytest.approx(seconds)  # the seconds are those of the encoding
    assert all((again[part] == states[part]).all() for part in states)


def test_the_cache_forgets_what_was_not_used_for_longest(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Counted(encoder, 6 * ROW, monkeypatch)
    call(TEXTS[:4])
    call(TEXTS[4:6])
    call(TEXTS[:4])  # 4 and 5 are now the oldest
    call(TEXTS[6:8])
    assert call(TEXTS[:4])[1] == 0 and call(TEXTS[4:6])[1] == 2
    assert call(TEXTS)[1] > 0 and call(TEXTS)[1] > 0  # twelve rows do not fit
