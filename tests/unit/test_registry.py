import pytest

from bertvision.errors import UserError
from bertvision.registry import Registry


def make() -> Registry[type]:
    fruits: Registry[type] = Registry("fruit")
    fruits.register("pear")(int)
    fruits.register("apple")(str)
    return fruits


def test_a_name_returns_the_object_and_the_decorator_returns_it_unchanged() -> None:
    fruits = make()
    assert fruits["pear"] is int and fruits.register("fig")(float) is float and fruits["fig"] is float


def test_names_are_in_order_of_registration() -> None:
    fruits = make()
    assert list(fruits) == ["pear", "apple"] and len(fruits) == 2 and "pear" in fruits and "plum" not in fruits


def test_a_taken_name_is_refused_and_the_first_object_stays() -> None:
    fruits = make()
    with pytest.raises(RuntimeError, match="two fruits are named 'pear'"):
        fruits.register("pear")(bytes)
    assert fruits["pear"] is int


def test_an_unknown_name_suggests_the_nearest_and_lists_all() -> None:
    with pytest.raises(UserError, match="there is no fruit 'paer': did you mean 'pear'.*apple, pear"):
        make()["paer"]
