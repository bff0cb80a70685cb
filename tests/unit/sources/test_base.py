import threading
import time

import pytest

from bertvision.sources.base import make_ahead


@pytest.mark.parametrize("count", [0, 1, 3])
def test_all_items_come_in_order(count: int) -> None:
    assert list(make_ahead(lambda item: item * item, iter(range(20)), count)) == [item * item for item in range(20)]
    assert list(make_ahead(str, [], count)) == []


def test_a_few_items_are_made_ahead_and_no_more() -> None:
    made: list[int] = []
    items = make_ahead(lambda item: made.append(item) or item, range(100), 3)
    assert made == [] and next(items) == 0
    for _ in range(200):
        if len(made) == 3:
            break
        time.sleep(0.01)
    assert made == [0, 1, 2]
    assert next(items) == 1


def test_an_error_is_raised_when_its_item_is_requested() -> None:
    def make(item: int) -> float:
        return 1 / (2 - item)

    items = make_ahead(make, range(5), 3)
    assert [next(items), next(items)] == [0.5, 1.0]
    with pytest.raises(ZeroDivisionError):
        next(items)


def test_a_consumer_that_stops_leaves_no_thread_behind() -> None:
    items = make_ahead(str, range(1000), 3)
    next(items)
    assert any(thread.name.startswith("ahead") for thread in threading.enumerate())
    items.close()
    assert not any(thread.name.startswith("ahead") for thread in threading.enumerate())
