"""Compiling of layers, and collecting outputs batch by batch in the order of the windows."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_training import Listening

from bertvision.data.windows import Features
from bertvision.kinds import LABEL, SPAN, Kind
from bertvision.pipeline import snapshot
from bertvision.pipeline.snapshot import LONG_WORK, Collector, compile_if_long, put_in_order

LENGTHS = np.array([3, 1, 4, 2, 5], dtype=np.int32)
BATCHES = [np.array([4, 2]), np.array([0]), np.array([3, 1])]


def features() -> Features:
    tokens, zeros = int(LENGTHS.sum()), np.zeros(len(LENGTHS), dtype=np.int32)
    return Features(
        input_ids=np.zeros(tokens, dtype=np.int32),
        type_ids=np.zeros(tokens, dtype=np.int8),
        lengths=LENGTHS,
        starts=np.cumsum(LENGTHS, dtype=np.int64) - LENGTHS,
        example=np.arange(len(LENGTHS), dtype=np.int32),
        offsets=np.zeros((tokens, 2), dtype=np.int32),
        start=zeros,
        end=zeros,
        target=zeros.astype(np.float32),
    )


@pytest.mark.parametrize("most", [0, 100, 1 << 20])
@pytest.mark.parametrize("kind", [SPAN, LABEL])
def test_outputs_are_returned_in_the_order_of_the_features(
    kind: Kind, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MOST_WAITING", most)
    rows = int(LENGTHS.sum()) if kind is SPAN else len(LENGTHS)
    whole = torch.arange(2.0 * rows).reshape(rows, 2)
    made, found = features(), Collector()
    for windows in BATCHES:
        tokens = [torch.arange(rows)[made.tokens_of(window)] for window in windows]
        place = torch.cat(tokens) if kind is SPAN else torch.from_numpy(windows)
        found.add(windows, [whole[place], -whole[place].double()])
        assert sum(part.nbytes for _, part in found.waiting) <= most
    ordered = put_in_order(found.fetch(), ["one", "other"], made, kind)
    assert all(part.dtype == np.float32 for part in ordered.values())
    np.testing.assert_array_equal(ordered["one"], whole)
    np.testing.assert_array_equal(ordered["other"], -whole)


def try_it(wanted: str, tokens: float, unpadded: bool = True) -> tuple[int, list[str]]:
    """How often layers were compiled, and the printed lines."""
    calls: list[int] = []
    reporter = Listening()
    encoder: Any = SimpleNamespace(work=1000, compile_layers=lambda: (calls.append(1), unpadded)[1])
    job: Any = SimpleNamespace(config=SimpleNamespace(encoder=SimpleNamespace(compile=wanted)), reporter=reporter)
    compile_if_long(job, encoder, tokens)
    return len(calls), reporter.lines


@pytest.mark.parametrize(
    ("wanted", "tokens", "expected"),
    [("auto", LONG_WORK / 1000 - 1, 0), ("auto", LONG_WORK / 1000, 1), ("off", 1e30, 0), ("on", 1, 1)],
)
def test_layers_are_compiled_for_long_work_or_on_request(wanted: str, tokens: float, expected: int) -> None:
    calls, lines = try_it(wanted, tokens)
    assert calls == expected == len(lines)


def test_compiling_a_padded_encoder_is_declined_with_a_message() -> None:
    assert (
        "not compiling the encoder's layers: encoder.compile has no effect with padding"
        in try_it("on", 1, unpadded=False)[1][0]
    )
    assert try_it("auto", LONG_WORK, unpadded=False)[1] == []
