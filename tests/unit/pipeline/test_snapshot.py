from types import SimpleNamespace
from typing import Any

import pytest
from tiny_training import Listening

from bertvision.pipeline.snapshot import LONG_WORK, compile_if_long


def try_it(wanted: str, tokens: float, unpadded: bool = True) -> tuple[int, list[str]]:
    """How often layers were compiled, and what was said."""
    calls: list[int] = []
    told = Listening()
    encoder: Any = SimpleNamespace(work=1000, compile_layers=lambda: (calls.append(1), unpadded)[1])
    job: Any = SimpleNamespace(config=SimpleNamespace(encoder=SimpleNamespace(compile=wanted)), reporter=told)
    compile_if_long(job, encoder, tokens)
    return len(calls), told.lines


@pytest.mark.parametrize(
    ("wanted", "tokens", "expected"),
    [("auto", LONG_WORK / 1000 - 1, 0), ("auto", LONG_WORK / 1000, 1), ("off", 1e30, 0), ("on", 1, 1)],
)
def test_layers_are_compiled_where_the_work_is_long_or_it_is_asked_for(
    wanted: str, tokens: float, expected: int
) -> None:
    calls, told = try_it(wanted, tokens)
    assert calls == expected == len(told)


def test_who_asks_for_what_is_not_possible_is_told() -> None:
    assert "are not compiled: only an unpadded encoder's are" in try_it("on", 1, unpadded=False)[1][0]
    assert try_it("auto", LONG_WORK, unpadded=False)[1] == []
