"""The columns that scikit-learn hands to an estimator: texts, labels, scores and weights."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from bertvision.errors import UserError, shorten
from bertvision.models.table_rows import take_rows
from bertvision.tasks.in_memory import as_list, is_missing
from bertvision.tasks.own_table import OwnTable


def as_texts(values: Any) -> list[Any]:
    """Texts, or pairs such as (question, passage), of a list, tuple, array, Series or single-column frame."""
    if isinstance(values, tuple) and len(values) == 2 and all(isinstance(value, str) for value in values):
        raise UserError(
            "two texts in a tuple could be a pair or two texts: pass [(question, passage)] or [text, text]."
        )
    if hasattr(values, "columns"):
        if len(values.columns) != 1:
            raise UserError(f"texts must be one column, found {len(values.columns)}. Pass one, such as frame['text'].")
        values = values[values.columns[0]]
    elif hasattr(values, "__array__") and not hasattr(values, "tolist"):
        values = np.asarray(values)
    found = as_list(values, "texts")
    if found and all(isinstance(entry, list) and len(entry) == 1 for entry in found):
        found = [entry[0] for entry in found]  # an array with one column
    for number, entry in enumerate(found):
        if not _is_text(entry) and not (
            isinstance(entry, list | tuple) and len(entry) == 2 and all(map(_is_text, entry))
        ):
            raise UserError(f"texts must be strings, or pairs of strings, but entry {number} is {shorten(entry)}.")
    return [tuple(entry) if isinstance(entry, list) else entry for entry in found]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or is_missing(value)


def as_labels(values: Any) -> tuple[np.ndarray, list[str | None]]:
    """The classes (class), sorted, in the type of the labels; and the name of each row's label, None if it has none."""
    column = _as_column(values)  # (row)
    missing = np.array([is_missing(value) for value in column.tolist()], dtype=bool)  # (row)
    present = column[~missing]  # (labelled row)
    if not len(present):
        raise UserError("no row has a label.")
    wrong = next((value for value in present.tolist() if not isinstance(value, str | int | float)), None)
    if wrong is not None:
        raise UserError(f"labels must be text, whole numbers or booleans, found {shorten(wrong)}.")
    check_classification_targets(present)
    try:
        classes = np.unique(present)  # (class)
    except TypeError:
        raise UserError("labels must all have the same type, but text and numbers are mixed.") from None
    return classes, [None if gap else name_of(value) for value, gap in zip(column.tolist(), missing, strict=True)]


def name_of(label: Any) -> str:
    """The name of a label in model folders: numbers and booleans as in JSON."""
    label = label.item() if isinstance(label, np.generic) else label
    return str(label) if isinstance(label, str) else json.dumps(label)


def name_weights(class_weight: Any) -> Any:
    """Class weights by the names of the labels."""
    if not isinstance(class_weight, Mapping):
        return class_weight
    return {name_of(label): weight for label, weight in class_weight.items()}


def as_scores(values: Any) -> list[Any]:
    found: list[Any] = _as_column(values).tolist()
    return found


def as_weights(values: Any) -> list[Any] | None:
    if values is None:
        return None
    found = as_list(np.asarray(values), "sample_weight")
    if not any(found):
        raise UserError("sample_weight is zero for every row.")
    return found


def _as_column(values: Any) -> np.ndarray:
    if values is None:
        raise UserError("this estimator requires y to be passed, but the target y is None.")
    found: np.ndarray = column_or_1d(values, warn=True)
    return found


def drop_weightless(table: OwnTable) -> OwnTable:
    """The table without rows of weight 0. They would still count in the scores and in the vocabulary of TF-IDF."""
    weights = table.weights
    if weights is None or all(weights):
        return table
    kept = [row for row, weight in enumerate(weights) if weight]
    found = take_rows(table, kept)
    if table.labels is not None and len(set(found.labels or ())) < 2:
        raise UserError("only one class has rows with a positive sample_weight: at least two classes are needed.")
    return found
