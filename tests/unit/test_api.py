"""What is no argument of the Python API is refused with a sentence, before any data or encoder is read."""

from pathlib import Path
from typing import Any

import pytest

import bertvision as bv
from bertvision.errors import UserError
from bertvision.pipeline.predict import check_choice


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (5, "the model must be the path of a file or folder, not 5"),
        (None, "the model must be the path"),
        (["a"], "the model must be the path"),
        ("", "the model must be the path"),
        ("x" * 300, "a name in it is longer than 255 bytes"),
        ("a\0b", "it has a null character"),
        ("\udcff", "characters that are not Unicode"),
        ("~nobody_here/x", "is no model: give the folder of a run"),
    ],
)
def test_what_is_no_model_is_not_loaded(name: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        bv.load(name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"text": 5}, "text must be a text, not 5"),
        ({"label": ["a"]}, "label must be a text"),
        ({"kind": 3}, "kind must be a text"),
        ({"rows": "many"}, "rows must be a whole number, or None for all rows, not 'many'"),
        ({"rows": True}, "rows must be a whole number"),
        ({"seconds": "long"}, "seconds must be a number above 0"),
        ({"seconds": float("inf")}, "seconds must be a number above 0"),
        ({"seconds": float("nan")}, "seconds must be a number above 0"),
        ({"seed": -1}, "seed must be a whole number of 0 or more"),
        ({"seed": 2**32}, "up to 4,294,967,295"),
        ({"heads": 5}, "heads must be 'auto' or names of heads, not 5"),
        ({"heads": [5]}, "heads must be 'auto' or names of heads"),
        ({"metric": 5}, "metric must be the name of a metric"),
        ({"encoder": 5}, "the encoder must be the path of a file or folder, not 5"),
        ({"to": 5}, "the folder of the model must be the path"),
        ({"to": "a\0b"}, "it has a null character"),
        ({"tune": "never"}, "tune must be True, False or 'auto', not 'never'"),
    ],
    ids=str,
)
def test_wrong_options_of_fit_are_refused_before_any_work(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\na,b\nc,d\n")
    with pytest.raises(UserError, match=words):
        bv.fit(tmp_path / "a.csv", **{"to": tmp_path / "model", **options})


@pytest.mark.parametrize("train", [None, 5, [1, 2], b"a.csv", object()])
def test_what_is_no_data_is_not_fitted(train: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a data frame"):
        bv.fit(train, to=tmp_path / "model")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"config": 5}, "the config must be the path of a file or folder, not 5"),
        ({"task": 5}, r"\[task\] must be a section with keys, not 5"),
        ({"task": "rte", "heads": "adapter"}, "'heads' must be a list of head names or tables, not 'adapter'"),
        ({"task": "rte", "encoder": 5}, r"\[encoder\] must be a section with keys, not 5"),
        ({"task": "rte", "train": {"epochs": 10**400}}, "'train.epochs' is too large"),
        ({"task": "rte", "run": Path("x")}, "'run' must be a string or none"),
        ({"task": "rte", "nothing": 1}, "there is no setting 'nothing'"),
    ],
    ids=str,
)
def test_wrong_settings_of_a_run_are_refused_before_any_work(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        bv.run(**given)


@pytest.mark.parametrize("folder", [5, None, "", "a\0b", "x" * 5000])
def test_what_is_no_folder_is_no_run(folder: Any) -> None:
    for make in (bv.Run, bv.Predictor, bv.Model):
        with pytest.raises(UserError):
            make(folder)


@pytest.mark.parametrize(("head", "epochs"), [(5, None), (["a"], None), (None, "1"), (None, float("nan")), (None, -1)])
def test_what_is_no_model_of_a_run_is_refused(head: Any, epochs: Any) -> None:
    with pytest.raises(UserError, match="must be the name of a model|must be a number from 0"):
        check_choice(head, epochs)


def test_a_long_value_in_a_message_is_cut_in_its_middle() -> None:
    text = str(UserError(f"there is no '{'x' * 5000}': give another.\nsecond line"))
    first, second = text.split("\n")
    assert first.startswith("there is no 'xxx") and first.endswith("xxx': give another.") and len(first) < 750
    assert second == "second line" and str(UserError("short")) == "short"
