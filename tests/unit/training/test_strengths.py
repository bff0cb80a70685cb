"""The walk along a path of strengths."""

import pytest

from bertvision.training.strengths import OutOfTimeError, search_path, strength_at


@pytest.mark.parametrize("best", [-3, -1, 0, 1, 3])
@pytest.mark.parametrize("first", [0, 2])
def test_the_walk_ends_at_the_lowest_loss_and_tries_nothing_twice(best: int, first: int) -> None:
    tried: list[int] = []

    def judge(step: int) -> float:
        tried.append(step)
        return float((step - best) ** 2)

    assert search_path(judge, first, most=20) == (best, False)
    assert len(tried) == len(set(tried)) and first == tried[0]


def test_the_walk_stops_after_a_number_of_steps() -> None:
    tried: list[int] = []
    found = search_path(lambda step: tried.append(step) or float(-step), most=4)
    assert found == (3, False) and tried == [0, 1, 2, 3]


def test_a_cut_walk_returns_the_best_so_far_and_says_so() -> None:
    losses = {0: 2.0, 1: 1.0, 2: None}
    assert search_path(losses.__getitem__) == (1, True)
    with pytest.raises(OutOfTimeError):
        search_path(lambda step: None)


def test_neighbouring_strengths_differ_by_the_square_root_of_ten_and_grow_with_the_inputs() -> None:
    assert strength_at(0, 2000) == 100 and strength_at(-2, 2000) == pytest.approx(1000)
    assert strength_at(1, 400) == pytest.approx(20 / 10**0.5)
