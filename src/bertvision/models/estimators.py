"""scikit-learn estimators for texts: `Classifier` predicts labels, `Regressor` scores.

    clf = bv.Classifier().fit(texts, labels)
    clf.predict(texts)                                  an array of labels
    clf.save("models/intents")                          bv.Classifier.load, bv.load and `bertvision predict` read it

They fit with `fit_table`, as the command `fit` does. Texts are strings, or pairs such as (question, passage).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from bertvision.disk import as_path
from bertvision.errors import UserError
from bertvision.kinds import Predictions
from bertvision.kinds.label import LabelPredictions
from bertvision.kinds.score import ScorePredictions
from bertvision.models.columns import (
    as_labels,
    as_scores,
    as_texts,
    as_weights,
    drop_weightless,
    name_of,
    name_weights,
)
from bertvision.models.estimator_files import keep_fit, pack, read_estimator, read_suspects, save_model, unpack
from bertvision.models.fit import Fit, Options, fit_table
from bertvision.models.leaderboard import Lines
from bertvision.models.model import Model
from bertvision.models.save import find_suspects
from bertvision.progress import Reporter, RichReporter
from bertvision.tasks.own_table import from_columns

EXPECTED_FAILED_CHECKS = {
    "check_sample_weight_equivalence_on_dense_data": "a row of weight 2 is not the same as two rows: the folds and "
    "the scores that choose the model count rows. A row of weight 0 is the same as none.",
    "check_methods_subset_invariance": "texts are encoded in batches of similar length, so other batches round "
    "differently in the seventh digit.",
}
"""Checks of scikit-learn's `check_estimator` that fail even when tables of numbers are written as texts, and why.
Without that, scikit-learn runs no checks beyond cloning: they need numbers, and the tags ask for text."""


class _TextEstimator(BaseEstimator):
    """What both estimators share. The model's files are in a temporary folder until `save`."""

    encoder: Any
    heads: Any
    seconds: Any
    seed: Any
    metric: Any
    skip_empty: Any
    verbose: Any
    model_: Model

    _kind: ClassVar[str]

    def _fit(self, texts: Any, targets: Any, sample_weight: Any, class_weight: Any = None) -> Fit:
        read = as_texts(texts)
        if len(read) == 1:
            raise UserError("one sample is too few to choose a model: pass lists with more rows.")
        table = from_columns(
            read, targets, weights=as_weights(sample_weight), kind=self._kind, skip_empty=self.skip_empty
        )
        options = Options(
            str(self.encoder), self.heads, self.seconds, self.seed, self.metric, class_weight,
            tune=getattr(self, "tune", False),
        )  # fmt: skip
        found = fit_table(drop_weightless(table), options, reporter=self._reporter)
        self.model_ = keep_fit(found)
        return found

    @property
    def _reporter(self) -> Reporter:
        return RichReporter() if self.verbose else Reporter()

    def _predict(self, texts: Any) -> Predictions:
        check_is_fitted(self)
        predictor = self.model_.predictor
        predictor.reporter = self._reporter
        return predictor.predict(predictor.read_texts(as_texts(texts)))

    @property
    def chosen_(self) -> str:
        """The name of the chosen model."""
        return self.model_.chosen

    @property
    def leaderboard_(self) -> Lines:
        """What was tried: a list of dicts with name, scores, seconds and parameters of each. It prints as a table."""
        return Lines.of(self.model_.facts)

    @property
    def notes_(self) -> list[str]:
        """Remarks on the data: rows left out, labels that look alike, too few rows …"""
        return list(self.model_.facts.get("notes", ()))

    # ------------------------------------------------------------------ saving

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Save the model as a folder. `load`, `bv.load` and `bertvision predict` read it."""
        check_is_fitted(self)
        to = as_path(path, "the folder of the model")
        params = {**self.get_params(deep=False), "encoder": str(self.encoder)}
        save_model(self.model_, to, params, getattr(self, "classes_", None), overwrite)
        return to

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """A fitted estimator from a folder that `save`, `bv.fit` or `bertvision fit` wrote."""
        folder = as_path(path, "the folder of the model")
        model = Model(folder)
        if model.kind != cls._kind:
            fitting = (kind.__name__ for kind in (Classifier, Regressor) if kind._kind == model.kind)
            right = ".".join(["bv", *fitting, "load"])  # no estimator predicts spans
            raise UserError(f"'{folder}' predicts a {model.kind}: load it with {right}.")
        params, classes = read_estimator(folder)
        params = {"encoder": model.facts["encoder"], "seed": model.facts.get("seed", 0), **params}
        estimator = cls(**{name: params[name] for name in cls._get_param_names() if name in params})
        estimator.model_ = model
        estimator._restore(classes)
        return estimator

    def _restore(self, classes: np.ndarray | None) -> None:
        """Set the other fitted attributes after loading."""

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        model = state.pop("model_", None)
        return state if model is None else {**state, "_files": pack(model)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        files = state.pop("_files", None)
        super().__setstate__(state)
        if files is not None:
            self.model_ = unpack(files)

    # ------------------------------------------------------------------ scikit-learn

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags


class Classifier(ClassifierMixin, _TextEstimator):
    """Predict the label of a text with small heads on every layer of a frozen encoder.

    encoder       "embedded", a hub name or a folder
    heads         "auto", a name or a list of names of the leaderboard ("linear", "mlp", "tfidf_lr" …)
    seconds       the total time, without tuning; None: models are tried for as long as encoding takes, or 20 seconds
    seed          of the folds and of the training
    metric        "accuracy" (default) or "f1_macro": the metric to choose the model by
    class_weight  None, "balanced", or a dict from label to weight
    tune          also tune the encoder on the rows: True, False, or "auto" (if rows are few)
    skip_empty    leave out rows with an empty text or label instead of raising an error
    verbose       print notes and progress

    After `fit`: classes_, model_, chosen_, leaderboard_, notes_, and suspects_ (rows that may be mislabelled).
    """

    _kind = "label"

    def __init__(
        self,
        encoder: str = "embedded",
        heads: str | Sequence[str] = "auto",
        seconds: float | None = None,
        seed: int = 0,
        metric: str | None = None,
        class_weight: str | dict[Any, float] | None = None,
        skip_empty: bool = False,
        verbose: bool = False,
        tune: bool | str = False,
    ) -> None:
        self.encoder = encoder
        self.heads = heads
        self.seconds = seconds
        self.seed = seed
        self.metric = metric
        self.class_weight = class_weight
        self.skip_empty = skip_empty
        self.verbose = verbose
        self.tune = tune

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit texts (row) and labels (row). Rows with a weight of 0 are left out."""
        classes, names = as_labels(y)
        if len(classes) < 2:
            raise UserError(f"all labels are of one class, {classes[0]!r}: at least two classes are needed.")
        found = self._fit(X, names, sample_weight, name_weights(self.class_weight))
        kept = set(found.task.labels)  # without those of rows that were left out
        self.classes_ = classes[[name_of(label) in kept for label in classes]]  # (class)
        self.suspects_ = self._describe_suspects([vars(suspect) for suspect in find_suspects(found)])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """(row) the most probable label of each text."""
        probabilities = self.predict_proba(X)  # (row, class)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])

    def predict_proba(self, X: Any) -> np.ndarray:
        """(row, class) probabilities, calibrated on held-out rows, in the order of classes_."""
        found = self._predict(X)
        assert isinstance(found, LabelPredictions)
        order = [found.labels.index(name_of(label)) for label in self.classes_]
        return np.asarray(found.probabilities[:, order], dtype=np.float64)

    def _restore(self, classes: np.ndarray | None) -> None:
        labels = self.model_.labels
        self.classes_ = np.array(sorted(labels)) if classes is None else classes  # (class)
        if {name_of(label) for label in self.classes_} != set(labels):
            raise UserError(f"'{self.model_.folder}' is damaged: its estimator.json lists other labels than the model.")
        self.suspects_ = self._describe_suspects(read_suspects(self.model_.folder), own=classes is not None)

    def _describe_suspects(self, found: list[dict[str, Any]], own: bool = True) -> list[dict[str, Any]]:
        """Rows that may be mislabelled, most suspicious first. `row` counts from 0. A model that was fitted to a file
        has `id` instead."""
        labels = {name_of(label): label for label in self.classes_}
        return [
            {
                **({"row": int(one["id"]) - 1} if own else {"id": one["id"]}),
                "label": labels[one["label"]],
                "predicted": labels[one["predicted"]],
                "probability_of_label": float(one["probability_of_label"]),
                "probability_of_predicted": float(one["probability_of_predicted"]),
                **({"text": one["text"]} if "text" in one else {}),
            }
            for one in found
        ]


class Regressor(RegressorMixin, _TextEstimator):
    """Predict a score for a text. Parameters as for `Classifier`; `metric` is "pearson" (default) or "spearman"."""

    _kind = "score"

    def __init__(
        self,
        encoder: str = "embedded",
        heads: str | Sequence[str] = "auto",
        seconds: float | None = None,
        seed: int = 0,
        metric: str | None = None,
        skip_empty: bool = False,
        verbose: bool = False,
    ) -> None:
        self.encoder = encoder
        self.heads = heads
        self.seconds = seconds
        self.seed = seed
        self.metric = metric
        self.skip_empty = skip_empty
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit texts (row) and scores (row). Rows with a weight of 0 are left out."""
        self._fit(X, as_scores(y), sample_weight)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """(row) a score for each text."""
        found = self._predict(X)
        assert isinstance(found, ScorePredictions)
        return np.asarray(found.values, dtype=np.float64)
