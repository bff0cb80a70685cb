"""Answers as Arrow columns: their types follow from the kinds, and every value comes back."""

from dataclasses import dataclass
from typing import Any, TypedDict

import pytest

from bertvision.errors import UserError
from bertvision.kinds import KINDS, LABEL, SCORE, SPAN, Result

pyarrow = pytest.importorskip("pyarrow")

from bertvision.cluster.answers import answer_arrays, answer_fields, answer_rows, open_answers  # noqa: E402

RATED = {"right": 0.75, "examples": 64}
ROWS: list[dict[str, Any]] = [
    {
        "sst2": {"label": "a", "probability": 0.9, "probabilities": {"a": 0.9, "b": 0.1}, "trust": RATED},
        "stsb": {"task": "stsb", "score": 2.5, "trust": {"off_by": 0.5, "examples": 10}},
        "squad2": {
            "task": "squad2", "answer": "Ada", "start": 3, "end": 6, "probability": 0.5, "no_answer": False,
            "trust": {"examples": 0},
        },
    },
    {"error": "the text is empty."},
    {
        "sst2": {"label": "b\ud800", "probabilities": {"a": None, "b": 1.0}},
        "squad2": {"answer": "", "start": None, "no_answer": True},
    },
]  # fmt: skip
COLUMNS = {"sst2": LABEL, "stsb": SCORE, "squad2": SPAN}


class Tag(TypedDict):
    tag: str
    start: int


@dataclass(frozen=True, kw_only=True, repr=False)
class TagsResult(Result):
    tags: list[Tag]
    labels: list[str]
    sure: bool | None
    any: str | int

    def describe(self) -> str:
        return ""

    body = describe


class Tags:
    """The part of a further kind of target that columns need."""

    def result(self, row: Any, **shared: Any) -> TagsResult:
        raise NotImplementedError


def table(kinds: Any, rows: Any) -> list[dict[str, Any]]:
    fields = answer_fields(kinds)
    found = pyarrow.Table.from_arrays(answer_arrays(kinds, rows), schema=pyarrow.schema(fields))
    return found.to_pylist(maps_as_pydicts="strict")


def test_answers_come_back_as_they_were() -> None:
    one, failed, other = table(COLUMNS, ROWS)
    probabilities = {"label": "a", "probability": 0.9, "probabilities": {"a": 0.9, "b": 0.1}}
    assert one["sst2"] == {**probabilities, "trust": {**RATED, "off_by": None}}
    assert one["stsb"] == {"score": 2.5, "trust": {"right": None, "off_by": 0.5, "examples": 10}}
    assert one["squad2"] == {
        "answer": "Ada", "start": 3, "end": 6, "probability": 0.5, "no_answer": False,
        "trust": {"right": None, "off_by": None, "examples": 0},
    }  # fmt: skip
    assert failed == {"sst2": None, "stsb": None, "squad2": None, "error": "the text is empty."}
    assert other["sst2"]["label"] == "b\\ud800" and other["sst2"]["probabilities"] == {"a": None, "b": 1.0}
    assert other["sst2"]["trust"] is None
    assert other["squad2"]["answer"] == "" and other["squad2"]["start"] is None and other["error"] is None


def test_the_columns_do_not_depend_on_the_rows() -> None:
    assert answer_arrays(COLUMNS, [])[0].type == answer_fields(COLUMNS)[0].type
    assert [field.name for field in answer_fields(COLUMNS)] == ["sst2", "stsb", "squad2", "error"]


def test_every_kind_has_columns() -> None:
    assert len(KINDS) >= 3
    for kind in KINDS.values():
        (field, _) = answer_fields({"x": kind})
        assert "trust" in [inner.name for inner in field.type] and field.type.num_fields > 1


def test_lists_and_unions_of_a_kind_have_types() -> None:
    value = {"tags": [{"tag": "x", "start": 1}], "labels": ["a"], "sure": True, "any": 3}
    (row,) = table({"x": Tags()}, [{"x": value}])
    assert row["x"] == {**value, "any": "3", "trust": None}


def test_rows_that_fail_together_get_an_error_each() -> None:
    class Failing:
        def rows(self, examples: Any) -> Any:
            raise UserError("two texts are needed")

    assert answer_rows(Failing(), [1, 2]) == 2 * [{"error": "two texts are needed"}]  # type: ignore[arg-type, list-item]


def test_options_of_runs_are_refused_for_kits_and_the_other_way_round(tmp_path: Any) -> None:
    with pytest.raises(UserError, match="--head: only for runs"):
        open_answers("default", head="adapter")
    with pytest.raises(UserError, match="no model, run or kit"):
        open_answers(str(tmp_path / "nothing"))
    with pytest.raises(UserError, match="--tasks is for kits"):
        open_answers(str(tmp_path), tasks=["sst2"])
