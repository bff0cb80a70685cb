"""Results are typed, equal if the predictions are, plain in `to_dict`, and safe and readable as HTML."""

import dataclasses
import json
from html.parser import HTMLParser
from typing import Any

import pytest

from bertvision.kinds import LABEL, SCORE, SPAN
from bertvision.kinds.result import CONTEXT, Result

EVIL = '<script>alert("x")</script> & \udcff'
TRUST = {"right": 0.75, "examples": 40}
PASSAGE = "Ada wrote it in 1843."


def label(name: str = "yes", **changes: Any) -> Result:
    row = {"label": name, "probabilities": {name: 0.8, "no": 0.2}}
    return LABEL.result(row, **{"task": "t", "trust": TRUST, "text": "a text", **changes})


def span(answer: str, start: int | None, end: int | None, passage: str = PASSAGE, **changes: Any) -> Result:
    row = {"answer": answer, "start": start, "end": end, "probability": 0.9, "n_best": [{"text": "1843"}]}
    return SPAN.result(row, **{"task": "q", "trust": TRUST, "text": "When?", "text_pair": passage, **changes})


class Reader(HTMLParser):
    """The tags of a piece of HTML, its text, and what is marked in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text, self.marked = "", ""
        self.feed(html)
        assert not self.open, "every tag is closed"

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        self.marked += data if self.open and self.open[-1] == "mark" else ""


def test_to_dict_has_the_promised_keys_and_is_json() -> None:
    assert label().to_dict() == {
        "task": "t", "label": "yes", "probability": 0.8, "probabilities": {"yes": 0.8, "no": 0.2}, "trust": TRUST,
    }  # fmt: skip
    score = SCORE.result({"score": 2.5}, task="s", trust={"off_by": 0.5, "examples": 9}, text="a", text_pair="b")
    assert score.to_dict() == {"task": "s", "score": 2.5, "trust": {"off_by": 0.5, "examples": 9}}
    found, none = span("1843", 16, 20), span("", None, None)
    assert found.to_dict() == {
        "task": "q", "answer": "1843", "start": 16, "end": 20, "probability": 0.9, "no_answer": False, "trust": TRUST,
    }  # fmt: skip
    assert (none.to_dict()["no_answer"], none.to_dict()["answer"], none.to_dict()["start"]) == (True, "", None)
    for one in (label(), score, found, none):
        assert list(one.to_dict())[0] == "task" and list(one.to_dict())[-1] == "trust"
        assert json.loads(json.dumps(one.to_dict())) == one.to_dict()


def test_a_result_is_a_value() -> None:
    assert label() == label(text="another text") != label(trust=None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        label().label = "no"  # type: ignore[attr-defined]


def test_a_repr_is_one_line_that_says_the_prediction_and_its_trust() -> None:
    assert repr(label()) == "<t: yes (yes 80 %, no 20 %)  [75 % of 40 similar held-out answers were right]>"
    assert repr(label(trust=None)) == "<t: yes (yes 80 %, no 20 %)>"
    assert repr(span("1843", 16, 20)).startswith("<q: 1843 (90 %, characters 16 to 20)")
    assert "no similar answers" in repr(label(trust={"examples": 0}))


@pytest.mark.parametrize(
    "result",
    [
        label(EVIL, text=EVIL, task=EVIL),
        span(EVIL, 3, 3 + len(EVIL), f"So {EVIL} it is", text=EVIL),
        span("", None, None, EVIL),
        SCORE.result({"score": 1.0}, task=EVIL, trust=None, text=EVIL),
    ],
    ids=["label", "span", "no answer", "score"],
)
def test_text_is_escaped_in_html(result: Result) -> None:
    html = result._repr_html_()
    assert set(Reader(html).tags) <= {"div", "span", "b", "mark"}
    assert "<script" not in html and "http" not in html
    html.encode()  # half a surrogate pair is no character


def test_html_marks_the_answer_in_its_passage_and_cuts_a_long_one() -> None:
    assert Reader(span("1843", 16, 20)._repr_html_()).marked == "1843"
    assert PASSAGE in Reader(span("", None, None)._repr_html_()).text
    assert Reader(span("", None, None)._repr_html_()).marked == ""
    long = Reader(span("1843", 5000, 5004, "x" * 5000 + "1843" + "y" * 5000)._repr_html_())
    assert long.marked == "1843" and f"… {'x' * CONTEXT}1843{'y' * CONTEXT} …" in long.text


def test_html_shows_the_most_likely_labels_as_bars() -> None:
    chances = {f"label {number}": (number + 1) / 210 for number in range(20)}
    row = {"label": "label 19", "probabilities": chances}
    text = Reader(LABEL.result(row, task="t", trust=None, text="a")._repr_html_()).text
    assert text.index("10 % label 19") < text.index("9 % label 18") and "label 11" not in text
    assert "and 12 more labels" in text
