"""When steps are recorded, played or taken by themselves; with a stand-in for the graph, since there is no GPU here."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from bertvision.encoder import recording
from bertvision.encoder.recording import Graphs, Pool
from bertvision.errors import UserError


class StandIn:
    """A graph that plays what was called while it was recorded."""

    now: "StandIn | None" = None

    def __init__(self) -> None:
        self.work: list[Any] = []

    def replay(self) -> None:
        for work in self.work:
            work()


class Work:
    """A step that adds to memory, and fails while it is recorded where it is told to."""

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


def test_each_size_is_taken_by_itself_then_recorded_then_played_and_every_step_counts_once() -> None:
    graphs, work = Graphs(), Work()
    results = []
    for step, key in enumerate(["a", "b", "a", "a", "b", "a"], 1):
        results.append(graphs.run(key, work))
        assert work.memory.item() == step
    assert set(graphs.recorded) == {"a", "b"} and all(result is work.memory for result in results)


def test_a_step_that_memory_does_not_suffice_to_record_is_tried_twice_and_then_taken_by_itself() -> None:
    full = torch.cuda.OutOfMemoryError("full")
    graphs, work = Graphs(), Work([full, full])
    for step in range(1, 5):
        graphs.run("a", work)
        assert work.memory.item() == step
    assert not graphs.recorded and graphs.unrecorded == {"a"}
    graphs, work = Graphs(), Work([full])  # enough without what was kept for later
    for step in range(1, 4):
        graphs.run("a", work)
        assert work.memory.item() == step
    assert set(graphs.recorded) == {"a"}


def test_a_step_that_can_not_be_recorded_at_all_says_what_to_do() -> None:
    graphs, work = Graphs(), Work([RuntimeError("operation not permitted when stream is capturing\nmore")])
    graphs.run("a", work)
    with pytest.raises(UserError, match=r"\(operation not permitted when stream is capturing\): set encoder.record"):
        graphs.run("a", work)
