"""What `predict` takes: a text, a pair, or a list of both. Nothing else, and nothing is misread."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bertvision.data.texts import is_alone, read_texts
from bertvision.errors import UserError

PAIR = ("who ?", "a king")


@pytest.mark.parametrize(
    ("given", "expected", "alone"),
    [
        ("a king", [("a king", None)], True),
        (PAIR, [PAIR], True),
        ({"question": "who ?", "passage": "a king"}, [PAIR], True),
        ({"text": "who ?", "text_pair": "a king"}, [PAIR], True),
        (["who ?", "a king"], [("who ?", None), ("a king", None)], False),
        ([PAIR, "a king"], [PAIR, ("a king", None)], False),
        ([{"question": "who ?", "passage": "a king"}], [PAIR], False),
        (np.array(["a", "b"]), [("a", None), ("b", None)], False),
        ((text for text in "ab"), [("a", None), ("b", None)], False),
        ([], [], False),
    ],
    ids=lambda value: "a generator" if isinstance(value, Iterator) else str(value),
)
def test_texts_and_pairs_are_told_apart(given: Any, expected: Any, alone: bool) -> None:
    assert is_alone(given) == alone and read_texts(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        5, None, b"a king", {"a"}, ("a", "b", "c"), ("a",), (), ("a", 3), [3], [["who ?", "a king"]], [b"a"],
        {"question": "who ?"}, {"text": "a", "passage": "b"}, {"text": "a", "text_pair": "b", "id": 3}, [None],
        SimpleNamespace(columns=["text"]), np.array("a"), np.array([["who ?", "a king"]]),
    ],
    ids=str,
)  # fmt: skip
def test_everything_else_is_refused_with_one_sentence(given: Any) -> None:
    with pytest.raises(UserError, match=r"^predict takes a text, a pair, or a list .* Found .*\.$"):
        read_texts(given)


def test_empty_texts_are_refused_by_their_number_or_name() -> None:
    with pytest.raises(UserError, match="text 1 is empty"):
        read_texts(["a", ("a", " ")])
    with pytest.raises(UserError, match="'--text' is empty"):
        read_texts([" "], ids=["--text"])
