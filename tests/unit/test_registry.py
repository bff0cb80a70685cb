import pytest

from bertvision.errors import UserError
from bertvision.registry import Registry


def make() -> Registry[type]:
    fruits: Registry[type] = Registry("fruit")
    fruits.register("pear")(int)
    fruits.register("apple")(str)
    return fruits


def test_a_name_becomes_the_thing_and_the_decorator_gives_it_back() -> None:
    fruits = make()
    assert fruits["pear"] is int and fruits.register("fig")(float) is float and fruits["fig"] is float


def test_names_come_in_the_order_of_registration_and_are_counted() -> None:
    fruits = make()
    assert list(fruits) == ["pear", "apple"] and len(fruits) == 2 and "pear" in fruits and "plum" not in fruits


def test_a_taken_name_is_refused_and_the_first_thing_stays() -> None:
    fruits = make()
    with pytest.raises(RuntimeError, match="two fruits are called 'pear'"):
        fruits.register("pear")(bytes)
    assert fruits["pear"] is int


def test_an_unknown_name_suggests_the_nearest_and_lists_all() -> None:
    with pytest.raises(UserError, match="there is no fruit 'paer': did you mean 'pear'.*apple, pear"):
        make()["paer"]
