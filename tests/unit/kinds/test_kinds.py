"""Each kind is a single object, even when copied or pickled, and files refer to it by name."""

import copy
import json
import pickle

import pytest

from bertvision.disk import fingerprint
from bertvision.errors import UserError
from bertvision.heads import HEADS
from bertvision.kinds import KINDS, LABEL, SCORE, SPAN, Kind, metric_title


def test_the_kinds_are_label_score_and_span() -> None:
    assert list(KINDS) == ["label", "score", "span"] and list(KINDS.values()) == [LABEL, SCORE, SPAN]


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_copies_and_pickles_are_the_same_object(kind: Kind) -> None:
    assert copy.deepcopy(kind) is kind and copy.copy(kind) is kind and pickle.loads(pickle.dumps(kind)) is kind


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_files_and_fingerprints_use_the_name_of_a_kind(kind: Kind) -> None:
    assert str(kind) == kind.name and KINDS[kind.name] is kind
    assert fingerprint(kind) == fingerprint(kind.name), "runs from versions that stored kinds as strings stay valid"
    assert json.dumps({"kind": str(kind)}) == f'{{"kind": "{kind.name}"}}'


def test_an_unknown_kind_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'label'"):
        KINDS["labels"]


def test_every_kind_has_heads_that_support_it_and_titles_for_its_metrics() -> None:
    for kind in KINDS.values():
        assert any(HEADS[name].takes(kind) for name in HEADS)
    assert metric_title("f1_macro") == "macro F1" and metric_title("exact") == "EM" and metric_title("mine") == "mine"


SPOT = {"probability": 0.7, "n_best": []}


@pytest.mark.parametrize(
    ("kind", "row", "value", "line"),
    [
        (LABEL, {"label": "yes", "probabilities": {"no": 0.2, "yes": 0.8}}, "yes", "yes (no 20 %, yes 80 %)"),
        (SCORE, {"score": 2.34567}, 2.34567, "2.346"),
        (SPAN, {**SPOT, "answer": "Ada", "start": 3, "end": 6}, "Ada", "Ada (70 %, characters 3 to 6)"),
        (SPAN, {**SPOT, "answer": "", "start": None, "end": None}, "", "no answer (70 %)"),
    ],
)
def test_a_row_is_described_in_one_line(kind: Kind, row: dict, value: object, line: str) -> None:
    result = kind.result(row, task="t", trust=None, text="a")
    assert kind.value_of(row) == kind.value_of(result.to_dict()) == value and result.describe() == line
