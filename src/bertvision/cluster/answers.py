"""A model that answers rows of text, whatever it is: a run, a fitted model or a kit; and its answers as Arrow columns.

A run or a fitted model has one column of answers, `prediction`; a kit has one for each task. What is in a column
follows from the results of the task's kind: a label with its probabilities, a score, a span.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from bertvision.data.examples import Example
from bertvision.disk import file_fingerprint, fingerprint, inside, read_stamp
from bertvision.errors import UserError
from bertvision.heads.base import CONFIG
from bertvision.kinds import Kind
from bertvision.kinds.result import SHARED
from bertvision.kits.folder import FILE as KIT_FILE
from bertvision.kits.folder import find_kit, is_kit
from bertvision.kits.kit import Kit, KitResult
from bertvision.models.folder import TFIDF_FOLDER, is_fitted
from bertvision.models.predict import FittedPredictor
from bertvision.pipeline.folder import ENCODER
from bertvision.pipeline.predict import Predictor
from bertvision.tasks import glue
from bertvision.tasks.config import files_columns
from bertvision.tasks.files import Columns
from bertvision.tasks.new_text import ANY_COLUMNS, QUESTION_COLUMNS

PREDICTION, ERROR = "prediction", "error"
Row = dict[str, Any]
"""Column → a result as plain values, or `error` alone."""


class Answers:
    """A loaded model that answers rows of text."""

    kinds: dict[str, Kind]
    """Column → kind of target."""
    choices: list[Columns]
    """Names that the columns of a file can have."""
    stamp: str
    """Hash of everything that affects the answers."""
    rows: Callable[[list[Example]], list[Row]]


def open_answers(
    model: str,
    head: str | None = None,
    tasks: Sequence[str] | None = None,
    threshold: float | None = None,
    epochs: float | None = None,
    device: str = "auto",
) -> Answers:
    """Load a run, a fitted model or a kit: its folder, or the name of a shipped kit."""
    if not os.path.isfile(Path(model) / "scores.json") and is_kit(model):
        given = {"--head": head, "--threshold": threshold, "--epochs": epochs}
        if named := [name for name, value in given.items() if value is not None]:
            raise UserError(f"{', '.join(named)}: only for runs. A kit has one head per task, with its own threshold.")
        return _KitAnswers(model, tasks, device)
    if tasks is not None:
        raise UserError(f"--tasks is for kits, and '{model}' is not one: remove it, or pass a kit.")
    if not os.path.isdir(model):
        raise UserError(f"there is no model, run or kit '{model}' on the machine {os.uname().nodename}.")
    predictor = FittedPredictor(model, head) if is_fitted(model) else Predictor(model, head, epochs)
    return _PredictorAnswers(predictor, threshold)


class _KitAnswers(Answers):
    def __init__(self, name: str, tasks: Sequence[str] | None, device: str) -> None:
        folder = find_kit(name)
        self.kit = Kit(folder, tasks, device=device)
        self.kinds = {name: own.task.kind for name, own in self.kit.tasks.items()}
        self.choices = [Columns(*names) for names in ANY_COLUMNS]
        files = [inside(folder, KIT_FILE)]
        for task in sorted(self.kit.tasks):
            files += sorted(path for path in inside(folder, task).iterdir() if path.suffix == ".safetensors")
        self.stamp = fingerprint("kit", sorted(self.kit.tasks), file_fingerprint(files))

    def rows(self, examples: list[Example]) -> list[Row]:
        found = self.kit.predict_examples(examples)
        return [row.to_dict() if isinstance(row, KitResult) else row for row in found]


class _PredictorAnswers(Answers):
    def __init__(self, predictor: Predictor, threshold: float | None) -> None:
        self.predictor = predictor
        self.threshold = predictor.threshold if threshold is None else threshold
        self.kinds = {PREDICTION: predictor.task.kind}
        self.choices = _choices(predictor)
        self.stamp = fingerprint("run", _stamp(predictor), self.threshold)

    def rows(self, examples: list[Example]) -> list[Row]:
        found = self.predictor.predict_examples(examples, self.threshold)
        return [row if isinstance(row, dict) else {PREDICTION: row.to_dict()} for row in found]


def _choices(predictor: Predictor) -> list[Columns]:
    task = predictor.task
    if task.name in glue.GLUE:
        row = glue.GLUE[task.name]
        return [Columns(row.text, row.text_pair)]
    if task.windowed:
        return [Columns(*names) for names in QUESTION_COLUMNS]
    return [files_columns(predictor.task_config)]


def _stamp(predictor: Predictor) -> str:
    """Hash of the model's own files: of the encoder and its output layer, of the heads or the TF-IDF model."""
    model, folder = predictor.model, predictor.folder
    facts = [model.name, predictor.epochs, model.method, model.weights, predictor.evaluate.n_best]
    if not predictor.models:
        parts = inside(folder.snapshot(predictor.epochs), TFIDF_FOLDER)
        return fingerprint(*facts, file_fingerprint(sorted(path for path in parts.iterdir() if path.is_file())))
    stamps: list[Any] = [read_stamp(folder.encoder(predictor.epochs))]
    for name in predictor.models:
        if name != ENCODER:
            place = folder.head(predictor.epochs, name)
            stamps.append([read_stamp(place), file_fingerprint([place / CONFIG])])
    return fingerprint(*facts, predictor.trust if isinstance(predictor, FittedPredictor) else None, stamps)


def answer_rows(answers: Answers, examples: list[Example]) -> list[Row]:
    """The answers to some rows; each has an error if all of them together can't be answered."""
    try:
        return answers.rows(examples) if examples else []
    except UserError as error:
        return [{ERROR: str(error)} for _ in examples]


# ---------------------------------------------------------------------- Arrow


def answer_fields(kinds: Mapping[str, Kind]) -> list[Any]:
    """The Arrow fields of the answers of all tasks, and that of errors. They depend on nothing but the kinds."""
    import pyarrow

    trust = pyarrow.struct([("right", pyarrow.float64()), ("off_by", pyarrow.float64()), ("examples", pyarrow.int64())])
    fields = []
    for column, kind in kinds.items():
        inner = [pyarrow.field(name, _to_type(form)) for name, form in _answer_forms(kind).items()]
        fields.append(pyarrow.field(column, pyarrow.struct([*inner, pyarrow.field("trust", trust)])))
    return [*fields, pyarrow.field(ERROR, pyarrow.string())]


def answer_arrays(kinds: Mapping[str, Kind], rows: Sequence[Row]) -> list[Any]:
    """The columns of `answer_fields` for some rows."""
    import pyarrow

    found = []
    for field in answer_fields(kinds):
        values = [row.get(field.name) for row in rows]
        found.append(pyarrow.array([_fit(value, field.type) for value in values], field.type))
    return found


def _answer_forms(kind: Kind) -> dict[str, Any]:
    """The fields of a kind's results, as `to_dict` gives them, without task and trust."""
    form = get_type_hints(type(kind).result)["return"]
    types = get_type_hints(form)
    return {one.name: types[one.name] for one in dataclasses.fields(form) if one.repr and one.name not in SHARED}


def _to_type(form: Any) -> Any:
    """The Arrow type of a form of a kind's row. What has no type of its own is JSON."""
    import pyarrow

    origin, inner = get_origin(form), get_args(form)
    if origin is Annotated:
        return _to_type(inner[0])
    if origin in (Union, UnionType):
        some = [one for one in inner if one is not type(None)]
        return _to_type(some[0]) if len(some) == 1 else pyarrow.string()
    if is_typeddict(form):
        return pyarrow.struct(
            [(name, _to_type(own)) for name, own in get_type_hints(form, include_extras=True).items()]
        )
    if origin is dict and inner[0] is str and inner[1] is not Any:
        return pyarrow.map_(pyarrow.string(), _to_type(inner[1]))
    if origin is list:
        return pyarrow.list_(_to_type(inner[0]))
    return {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}.get(form, pyarrow.string())


def _fit(value: Any, form: Any) -> Any:
    """A value as pyarrow wants it for a type."""
    from pyarrow import types

    if value is None:
        return None
    if types.is_struct(form):
        return {own.name: _fit(value.get(own.name), own.type) for own in form}
    if types.is_map(form):
        return [(key, _fit(one, form.item_type)) for key, one in value.items()]
    if types.is_list(form):
        return [_fit(one, form.value_type) for one in value]
    if types.is_string(form) and not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if types.is_string(form):
        return value.encode("utf-8", "backslashreplace").decode()  # a lone surrogate, as JSON writes it
    return value
