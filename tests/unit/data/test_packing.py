from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.data.packing import (
    BLOCK,
    POOL,
    BatchPlan,
    draw_order,
    fill_batches,
    find_pools,
    plan_batches,
    plan_pass,
)

LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=60).map(lambda values: np.array(values, dtype=np.int32))
SIZES = st.one_of(
    st.integers(1, 20).map(lambda rows: {"rows": rows}), st.integers(1, 2000).map(lambda tokens: {"tokens": tokens})
)


@settings(max_examples=60, deadline=None)
@given(LENGTHS, SIZES, st.integers(0, 2**31), st.sampled_from([0.3, 1.0, 2.5]))
def test_every_window_comes_exactly_once_per_epoch(lengths: np.ndarray, size: Any, seed: int, epochs: float) -> None:
    plan = plan_batches(lengths, epochs, seed, **size)
    assert len(plan.epochs) == np.ceil(epochs)
    for batches in plan.epochs:
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 2000), st.integers(0, 100))
def test_a_batch_holds_as_many_windows_as_fit_and_at_least_one(lengths: np.ndarray, tokens: int, seed: int) -> None:
    batches = plan_batches(lengths, 1, seed, tokens=tokens).epochs[0]
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        held = lengths[batch].sum()
        assert held <= tokens or len(batch) == 1
        assert following is None or held + lengths[following[0]] > tokens


@settings(max_examples=30, deadline=None)
@given(LENGTHS, st.integers(1, 20))
def test_batches_of_rows_are_full_except_the_last(lengths: np.ndarray, rows: int) -> None:
    batches = plan_batches(lengths, 1, 0, rows=rows).epochs[0]
    assert [len(batch) for batch in batches[:-1]] == [rows] * (len(batches) - 1) and 1 <= len(batches[-1]) <= rows


def test_plans_depend_on_seed_and_epoch_only() -> None:
    lengths = np.full(50, 10, dtype=np.int32)

    def order(plan: BatchPlan, epoch: int) -> list[int]:
        return [int(window) for window in np.concatenate(plan.epochs[epoch])]

    first, again, other = (plan_batches(lengths, 2, seed, rows=7) for seed in (5, 5, 6))
    assert order(first, 0) == order(again, 0) and order(first, 1) == order(again, 1)
    assert order(first, 0) != order(other, 0) and order(first, 0) != order(first, 1)


def test_more_epochs_do_not_change_the_first() -> None:
    lengths = np.arange(1, 41, dtype=np.int32)
    short, long = plan_batches(lengths, 0.5, 3, tokens=90), plan_batches(lengths, 4, 3, tokens=90)
    assert [b.tolist() for b in short.epochs[0]] == [b.tolist() for b in long.epochs[0]]


def test_sums_of_many_tokens_do_not_overflow() -> None:
    lengths = np.full(3_000, 2**20, dtype=np.int32)  # 3.1e9 tokens, over 2**31
    batches = fill_batches(lengths, np.arange(3_000), tokens=2**20 * 10)
    assert [len(batch) for batch in batches] == [10] * 300


def test_steps_are_counted_over_all_epochs() -> None:
    plan = plan_batches(np.full(10, 5, dtype=np.int32), 3, 0, rows=4)
    assert plan.steps == 9
    flat = [batch for batches in plan.epochs for batch in batches]
    assert all(plan.batch(step).tolist() == flat[step].tolist() for step in range(9))
    with pytest.raises(IndexError):
        plan.batch(9)


@pytest.mark.parametrize(
    ("epochs", "steps"),
    [(0, 0), (0.1, 1), (0.25, 2), (0.3, 3), (0.96, 10), (1, 10), (1.5, 15), (2, 20), (3, 30), (9, 30)],
)
def test_a_fraction_of_an_epoch_is_the_nearest_step(epochs: float, steps: int) -> None:
    plan = plan_batches(np.full(20, 5, dtype=np.int32), 3, 0, rows=2)  # 10 steps per epoch
    assert plan.step_at(epochs) == steps


@settings(max_examples=40, deadline=None)
@given(LENGTHS, SIZES, st.lists(st.floats(0, 3), min_size=2, max_size=5).map(sorted))
def test_later_epochs_never_end_at_earlier_steps(lengths: np.ndarray, size: Any, epochs: list[float]) -> None:
    plan = plan_batches(lengths, 3, 0, **size)
    steps = [plan.step_at(value) for value in epochs]
    assert steps == sorted(steps) and steps[0] >= 0 and steps[-1] <= plan.steps == plan.step_at(3)


SHARES = st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.9, 1.0])
WANTED = st.sets(st.tuples(st.integers(1, 4), SHARES), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(LENGTHS, SIZES, WANTED, st.integers(0, 100))
def test_a_members_steps_do_not_depend_on_other_members(lengths: np.ndarray, size: Any, wanted: Any, seed: int) -> None:
    together = plan_pass(lengths, wanted, seed, **size)
    for one in wanted:
        alone = plan_pass(lengths, {one}, seed, **size)
        mine = [alone.steps[step].tolist() for step in alone.courses[one]]
        assert mine == [together.steps[step].tolist() for step in together.courses[one]]
        # Nor are they encoded together with other steps.
        begins = [[step in plan.starts for step in plan.courses[one]] for plan in (alone, together)]
        assert begins[0] == begins[1]


@settings(max_examples=80, deadline=None)
@given(LENGTHS, SIZES, WANTED, st.integers(0, 100))
def test_each_epoch_repeats_the_same_fraction_of_the_first(
    lengths: np.ndarray, size: Any, wanted: Any, seed: int
) -> None:
    whole = plan_pass(lengths, wanted, seed, **size)
    order = np.concatenate(plan_batches(lengths, 1, seed, **size).epochs[0]).tolist()
    for (epochs, share), course in whole.courses.items():
        assert course == sorted(set(course)) and course[-1] < len(whole.steps)
        taken = np.concatenate([whole.steps[step] for step in course]).tolist()
        assert len(taken) % epochs == 0
        each = len(taken) // epochs
        assert each >= 1 and (share < 1 or each == len(lengths))
        for epoch in range(epochs):
            assert sorted(taken[epoch * each : (epoch + 1) * each]) == sorted(order[:each])
        if share < 1 and epochs > 1 and each > 20:
            assert taken[each : 2 * each] != order[:each], "later epochs are shuffled"


def test_a_fraction_is_the_first_part_of_the_first_epochs_full_batches() -> None:
    whole = plan_pass(np.full(1000, 7), {(1, 0.3), (1, 0.1), (2, 1.0)}, 5, rows=10)
    assert whole.courses[1, 0.3] == list(range(30)) and whole.courses[1, 0.1] == list(range(10))
    assert all(len(whole.steps[step]) == 10 for step in whole.courses[1, 0.3])
    assert whole.courses[2, 1.0] == list(range(200)) and len(whole.steps) == 200


def test_steps_no_member_needs_are_dropped_after_the_next_tenth() -> None:
    assert len(plan_pass(np.full(1000, 7), {(1, 0.25)}, 5, rows=10).steps) == 30
    assert len(plan_pass(np.full(1000, 7), {(3, 0.2)}, 5, rows=10).steps) == 60


# ---------------------------------------------------------------------- block shuffle


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 100))
def test_a_block_shuffle_has_every_window_once(count: int, seed: int) -> None:
    assert sorted(draw_order(count, "blocks", seed, 3, 0).tolist()) == list(range(count))


def test_the_plain_shuffle_is_the_generators_permutation() -> None:
    expected = np.random.default_rng([7, 3, 1]).permutation(1000)
    assert draw_order(1000, "windows", 7, 3, 1).tolist() == expected.tolist()


def test_neighbours_of_a_run_stay_in_one_pool_and_pools_are_mixed() -> None:
    order = draw_order(BLOCK * POOL * 5, "blocks", 0)
    pools = order.reshape(5, BLOCK * POOL)
    for pool in pools:
        runs, counts = np.unique(pool // BLOCK, return_counts=True)
        assert len(runs) == POOL and set(counts.tolist()) == {BLOCK}, "whole runs: a disk reads each at once"
        assert np.abs(np.diff(pool)).mean() > BLOCK * POOL / 2, "mixed: the next window is from another run"
    assert not np.array_equal(np.sort(np.unique(pools[0] // BLOCK)), np.arange(POOL)), "runs from all over the data"


@pytest.mark.parametrize("size", [{"rows": 16}, {"rows": 100}, {"tokens": 900}])
def test_pools_begin_at_the_steps_that_hold_their_first_window(size: dict[str, int]) -> None:
    lengths = np.full(BLOCK * POOL * 3 + 5, 50, dtype=np.int32)
    plan = plan_pass(lengths, {(2, 1.0), (2, 0.5)}, 0, **size, shuffle="blocks")
    assert plan.pools[0] == 0 and plan.pools == sorted(set(plan.pools)) and plan.pools[-1] < len(plan.steps)
    epoch = plan_batches(lengths, 1, 0, **size, shuffle="blocks").epochs[0]
    before = np.cumsum([0, *map(len, epoch)])
    for number, step in enumerate(find_pools(epoch)):
        assert before[step] >= number * BLOCK * POOL > (before[step - 1] if step else -1)
    assert plan_pass(lengths, {(1, 1.0)}, 0, **size).pools == []
