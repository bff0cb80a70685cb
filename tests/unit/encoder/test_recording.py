"""When steps are recorded, replayed or run eagerly, with a fake graph instead of a GPU."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from bertvision.encoder import recording
from bertvision.encoder.recording import Graphs, Pool
from bertvision.errors import UserError


class StandIn:
    """A graph that replays the calls made while it was recorded."""

    now: "StandIn | None" = None

    def __init__(self) -> None:
        self.work: list[Any] = []

    def replay(self) -> None:
        for work in self.work:
            work()


class Work:
    """A step that adds to memory, and can be made to fail while it is recorded."""

    def __init__(self, errors: list[Exception] | None = None) -> None:
        self.memory, self.errors = torch.zeros(1), errors or []

    def __call__(self) -> torch.Tensor:
        if StandIn.now is None:
            self.memory += 1
            return self.memory
        if self.errors:
            raise self.errors.pop(0)
        StandIn.now.work.append(lambda: self.memory.add_(1))
        return self.memory


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def stand_in(graph: StandIn, pool: Pool) -> Iterator[None]:
        StandIn.now = graph
        try:
            yield
        finally:
            StandIn.now = None

    monkeypatch.setattr(recording, "_recording", stand_in)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", StandIn)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


def test_each_size_runs_eagerly_then_is_recorded_then_replayed_and_every_step_counts_once() -> None:
    graphs, work = Graphs(), Work()
    results = []
    for step, key in enumerate(["a", "b", "a", "a", "b", "a"], 1):
        results.append(graphs.run(key, work))
        assert work.memory.item() == step
    assert set(graphs.recorded) == {"a", "b"} and all(result is work.memory for result in results)


def test_a_step_too_large_to_record_is_tried_twice_and_then_runs_eagerly() -> None:
    full = torch.cuda.OutOfMemoryError("full")
    graphs, work = Graphs(), Work([full, full])
    for step in range(1, 5):
        graphs.run("a", work)
        assert work.memory.item() == step
    assert not graphs.recorded and graphs.unrecorded == {"a"}
    graphs, work = Graphs(), Work([full])  # enough after emptying the cache
    for step in range(1, 4):
        graphs.run("a", work)
        assert work.memory.item() == step
    assert set(graphs.recorded) == {"a"}


def test_a_step_that_can_not_be_recorded_names_the_setting_to_change() -> None:
    graphs, work = Graphs(), Work([RuntimeError("operation not permitted when stream is capturing\nmore")])
    graphs.run("a", work)
    with pytest.raises(UserError, match=r"\(operation not permitted when stream is capturing\): set encoder.record"):
        graphs.run("a", work)
