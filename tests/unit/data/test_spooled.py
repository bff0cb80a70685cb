"""What waits on disk equals what would be in memory: examples, their choices, and arrays."""

from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bertvision.data import spooled
from bertvision.data.examples import Answer, Example
from bertvision.data.spooled import GrowingArray, SpooledArray, choose, collect_examples, ids_of, pieces_of

TEXTS = st.text(st.characters(), max_size=20)  # with lone surrogates, line ends and null characters
ANSWERS = st.lists(st.builds(Answer, TEXTS, st.integers(0, 10**6)), max_size=3).map(tuple)
EXAMPLES = st.builds(
    Example, TEXTS, TEXTS, st.none() | TEXTS, st.none() | st.integers(0, 9) | st.floats(allow_nan=False),
    st.none() | ANSWERS, st.none() | TEXTS,
)  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the first few waits on disk."""
    for name, value in {"MOST_EXAMPLES": 3, "BLOCK": 4, "MOST_BYTES": 64, "PIECE": 5}.items():
        monkeypatch.setattr(spooled, name, value)


@settings(max_examples=60, deadline=None)
@given(st.lists(EXAMPLES, max_size=14), st.data())
def test_examples_on_disk_equal_those_in_memory(examples: list[Example], data: st.DataObject) -> None:
    found = collect_examples(iter(examples))
    assert isinstance(found, list) == (len(examples) <= 3)
    assert len(found) == len(examples) and list(found) == examples and list(found) == examples
    assert [type(one.target) for one in found] == [type(one.target) for one in examples]
    for index in data.draw(st.lists(st.integers(-len(examples), len(examples) - 1), max_size=9)) if examples else ():
        assert found[index] == examples[index]
    some = data.draw(st.slices(len(examples)))
    assert list(found[some]) == examples[some]
    with pytest.raises(IndexError):
        found[len(examples)]
    assert list(ids_of(found)) == [one.id for one in examples]
    assert list(ids_of(found)[some]) == [one.id for one in examples[some]]


@settings(deadline=None)
@given(st.lists(EXAMPLES, min_size=1, max_size=14), st.data())
def test_a_choice_of_examples_on_disk_is_that_of_a_list(examples: list[Example], data: st.DataObject) -> None:
    rows = np.array(data.draw(st.lists(st.integers(0, len(examples) - 1), max_size=9)), dtype=np.int64)
    wanted = [examples[row] for row in rows]
    found = choose(collect_examples(iter(examples)), rows)
    assert list(found) == wanted == choose(examples, rows)
    some = data.draw(st.slices(len(wanted)))
    assert list(found[some]) == wanted[some]
    again = np.arange(len(wanted))[::2]
    assert list(choose(found, again)) == wanted[::2]


def test_long_texts_wait_on_disk_however_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooled, "MOST_EXAMPLES", 1000)
    monkeypatch.setattr(spooled, "MOST_CHARACTERS", 100)
    examples = [Example("a", "x" * 60), Example("b", "y", "z" * 60)]
    assert isinstance(collect_examples(iter(examples[:1])), list)
    found = collect_examples(iter(examples))
    assert not isinstance(found, list) and list(found) == examples


def test_an_error_on_the_way_is_raised() -> None:
    def rows() -> Any:
        for number in range(9):
            yield Example(str(number), "a")
        raise ValueError("row 10")

    with pytest.raises(ValueError, match="row 10"):
        collect_examples(rows())


SHAPES = st.sampled_from([(), (2,)])
NUMBERS = st.sampled_from([0, 0, 0, -1, 7])


@settings(max_examples=200, deadline=None)
@given(st.data(), SHAPES, st.sampled_from([np.int8, np.int32, np.float32]), st.booleans())
def test_a_growing_array_equals_the_joined_parts(
    data: st.DataObject, shape: tuple[int, ...], dtype: Any, on_disk: bool
) -> None:
    part = st.integers(0, 9).flatmap(lambda count: arrays.arrays(dtype, (count, *shape), elements=NUMBERS))
    parts = data.draw(st.lists(part, max_size=8))
    whole = np.concatenate([*parts, np.zeros((0, *shape), dtype)])
    column = GrowingArray(dtype, *shape, on_disk=on_disk)
    for one in parts:
        column.append(one)
    found = column.finish()
    assert (found.shape, found.dtype, len(found)) == (whole.shape, whole.dtype, len(whole))
    assert isinstance(found, np.ndarray) or on_disk
    assert np.array_equal(np.asarray(found), whole)
    assert b"".join(pieces_of(found)) == whole.tobytes()
    some = data.draw(st.slices(len(whole)).filter(lambda one: one.step in (None, 1)))
    assert np.array_equal(found[some], whole[some])
    if len(whole):
        index = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=12)), dtype=np.int64)
        assert np.array_equal(found[index], whole[index])
    if shape:
        assert np.array_equal(found[:, 0], whole[:, 0])


def test_large_arrays_of_different_numbers_are_on_disk_and_equal_numbers_take_nothing() -> None:
    column, same = GrowingArray(np.int32), GrowingArray(np.int32, 2)
    for first in range(0, 1000, 100):
        column.append(np.arange(first, first + 100, dtype=np.int32))
        same.append(np.full((100, 2), -1, dtype=np.int32))
    found = column.finish()
    assert isinstance(found, SpooledArray) and same.finish().strides == (0, 0)
    with pytest.raises(IndexError):
        found[np.array([999, 1000])]


def test_spools_are_closed_with_what_reads_them() -> None:
    before = psutil.Process().num_fds()
    for _ in range(50):
        assert len(collect_examples(Example(str(number), "a") for number in range(9))) == 9
    assert psutil.Process().num_fds() <= before + 2
