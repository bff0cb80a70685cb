"""Classifier, Regressor and LayerFeatures behave like scikit-learn's estimators and like their model folders."""

import copy
import gc
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, r2_score, recall_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted, validate_data

import bertvision as bv
from bertvision.encoder import shared
from bertvision.errors import UserError
from bertvision.models.estimators import EXPECTED_FAILED_CHECKS

WORDS = {"places": ["in", "on", "at", "to"], "letters": ["x", "y", "z", "w"]}


def texts_of(kinds: list[str], seed: int = 0) -> list[str]:
    """Each text has four words of its kind."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS[kind], 4)) + f" {row}" for row, kind in enumerate(kinds)]


KINDS = ["places", "letters"] * 20
TEXTS = texts_of(KINDS)
NEW = texts_of(KINDS[:6], seed=1)


@pytest.fixture(scope="module")
def encoder(tiny_encoder_folder: Path) -> str:
    return str(tiny_encoder_folder)


@pytest.fixture(scope="module")
def fitted(encoder: str) -> bv.Classifier:
    return bv.Classifier(encoder, "linear").fit(TEXTS, KINDS)


# ---------------------------------------------------------------------- predictions


def test_predictions_are_those_of_the_saved_model(fitted: bv.Classifier, tmp_path: Path) -> None:
    model = bv.load(fitted.save(tmp_path / "words"))
    rows = model.predict(NEW)
    assert fitted.predict(NEW).tolist() == [row.label for row in rows]
    expected = [[row.probabilities[label] for label in fitted.classes_] for row in rows]
    np.testing.assert_allclose(fitted.predict_proba(NEW), expected, atol=1e-6)
    assert model.facts["model"] == "words" and "models/words" in (tmp_path / "words" / "README.md").read_text()
    assert fitted.chosen_ == model.chosen and list(fitted.leaderboard_) == model.leaderboard


def test_probabilities_sum_to_one_and_score_is_the_accuracy(fitted: bv.Classifier) -> None:
    np.testing.assert_allclose(fitted.predict_proba(TEXTS).sum(axis=1), 1, atol=1e-6)
    wrong = KINDS[:30] + ["letters"] * 10
    assert fitted.score(TEXTS, wrong) == accuracy_score(wrong, fitted.predict(TEXTS))


@pytest.mark.parametrize(
    "labels",
    [
        np.where(np.array(KINDS) == "places", 10, 9),  # as text, "10" comes before "9"
        np.array(KINDS) == "places",
        np.array(KINDS, dtype=object),
        np.where(np.array(KINDS) == "places", -1.0, 1.0),
        np.array([1, 3], dtype=np.int8).repeat(20).reshape(2, 20).T.ravel(),
    ],
    ids=["int", "bool", "object", "float", "int8"],
)
def test_labels_keep_their_type_and_order_also_after_loading(labels: Any, encoder: str, tmp_path: Path) -> None:
    found = bv.Classifier(encoder, "last_lr").fit(TEXTS, labels)
    again = bv.Classifier.load(found.save(tmp_path / "model"))
    for one in (found, again):
        assert one.classes_.dtype == labels.dtype and one.classes_.tolist() == sorted(set(labels.tolist()))
        assert one.predict(TEXTS).dtype == labels.dtype
        assert (one.predict(TEXTS) == one.classes_[one.predict_proba(TEXTS).argmax(axis=1)]).all()
        assert one.score(TEXTS, labels) > 0.9


def test_a_regressor_predicts_numbers_and_scores_with_r2(encoder: str, tmp_path: Path) -> None:
    scores = [2.5 if kind == "places" else -1 for kind in KINDS]
    found = bv.Regressor(encoder, "linear").fit(TEXTS, np.array(scores, dtype=np.float32))
    predicted = found.predict(TEXTS)
    assert predicted.dtype == np.float64 and found.score(TEXTS, scores) == r2_score(scores, predicted) > 0.9
    again = bv.Regressor.load(found.save(tmp_path / "model"))
    assert (again.predict(NEW) == found.predict(NEW)).all()
    np.testing.assert_allclose(found.predict(NEW), [row.score for row in found.model_.predict(NEW)], atol=1e-5)
    with pytest.raises(UserError, match=r"predicts a score: load it with bv\.Regressor\.load"):
        bv.Classifier.load(tmp_path / "model")


def test_pairs_and_every_kind_of_column_are_read(encoder: str, fitted: bv.Classifier) -> None:
    pd = pytest.importorskip("pandas")
    expected = fitted.predict_proba(NEW)
    column = pd.Series(NEW, index=range(10, 16))
    for texts in (tuple(NEW), np.array(NEW), np.array(NEW, dtype=object)[:, None], column, pd.DataFrame({"a": column})):
        assert (fitted.predict_proba(texts) == expected).all()
    series = bv.Classifier(encoder, "linear").fit(pd.Series(TEXTS, index=TEXTS), pd.Series(KINDS, dtype="category"))
    assert (series.predict_proba(NEW) == expected).all()
    pairs = [(text, "the") for text in TEXTS]
    assert bv.Classifier(encoder, "linear").fit(pairs, KINDS).score(pairs, KINDS) > 0.9


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "texts, message",
    [
        ("one text", "texts must be a list with one entry per row, found str"),
        (None, "texts must be a list"),
        (np.zeros((40, 3)), r"entry 0 is \[0.0, 0.0, 0.0\]"),
        (["a", 7], "entry 1 is 7"),
        (("a", "b"), "could be a pair or two texts"),
        ([], "no text"),
        (["a", None], "Found None as text 1"),
        ([("a", "b")], "single texts"),
    ],
)
def test_inputs_that_are_not_texts_are_refused(texts: Any, message: str, fitted: bv.Classifier) -> None:
    with pytest.raises(UserError, match=message):
        fitted.predict(texts)


@pytest.mark.parametrize(
    "labels, message",
    [
        (None, "requires y to be passed"),
        (KINDS[1:], "texts has 40, labels has 39"),
        (["a"] * 40, "one class"),
        (np.linspace(0, 1, 40), "Unknown label type: continuous"),
        ([None, *KINDS[1:]], r"1 row has no label .*row 1.*skip_empty=True"),
        (np.array([1, *KINDS[1:]], dtype=object), "."),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels: Any, message: str, encoder: str) -> None:
    with pytest.raises(ValueError, match=message):
        bv.Classifier(encoder).fit(TEXTS, labels)


def test_nothing_works_before_fit(encoder: str, tmp_path: Path) -> None:
    for estimator in (bv.Classifier(encoder), bv.Regressor(encoder)):
        with pytest.raises(NotFittedError):
            estimator.predict(NEW)
        with pytest.raises(NotFittedError):
            estimator.save(tmp_path / "model")
        assert not hasattr(estimator, "leaderboard_")
    with pytest.raises(NotFittedError):
        bv.LayerFeatures(encoder).transform(NEW)


def test_skip_empty_leaves_out_rows_and_notes_it(encoder: str) -> None:
    found = bv.Classifier(encoder, "last_lr", skip_empty=True).fit([*TEXTS, "", "at"], [*KINDS, "places", None])
    assert any("Left out 2 rows" in note for note in found.notes_) and found.model_.facts["rows"] == 40


# ---------------------------------------------------------------------- weights


def test_balanced_class_weights_raise_the_recall_of_a_rare_label(encoder: str) -> None:
    random = np.random.default_rng(0)
    # Every rare text has the word x, and a third of the common ones: with x, about 12 of 48 texts are rare.
    labels = np.array(["rare"] * 12 + ["common"] * 108)
    hints = [label == "rare" or chance < 1 / 3 for label, chance in zip(labels, random.random(120), strict=True)]
    texts = [f"{'x' if hint else 'the'} {' '.join(random.choice(WORDS['places'], 2))}" for hint in hints]

    def recall(class_weight: Any) -> float:
        found = bv.Classifier(encoder, "linear", class_weight=class_weight).fit(texts, labels)
        return float(recall_score(labels, found.predict(texts), pos_label="rare"))

    plain = recall(None)
    assert recall("balanced") > plain + 0.2 and recall({"rare": 9.0}) > plain + 0.2


def test_a_row_of_weight_zero_is_left_out(encoder: str) -> None:
    wrong = ["places" if kind == "letters" else "letters" for kind in KINDS]
    weights = [1.0] * 40 + [0.0] * 41
    kept = bv.Classifier(encoder, ["linear", "tfidf_lr"]).fit(TEXTS, KINDS)
    weighted = bv.Classifier(encoder, ["linear", "tfidf_lr"]).fit(
        [*TEXTS, *TEXTS, "the"], [*KINDS, *wrong, "third"], sample_weight=np.array(weights)
    )
    assert weighted.classes_.tolist() == ["letters", "places"]
    assert (weighted.predict_proba(NEW) == kept.predict_proba(NEW)).all()


def test_weights_say_which_of_two_contradicting_labels_counts(encoder: str) -> None:
    texts = [f"{text} again" for text in TEXTS]
    wrong = ["places" if kind == "letters" else "letters" for kind in KINDS]
    weights = np.array([0.01] * 40 + [1.0] * 40)
    found = bv.Classifier(encoder, "linear").fit(TEXTS + texts, KINDS + wrong, sample_weight=weights)
    assert found.score(texts, wrong) > 0.8


def test_mislabelled_rows_are_suspects(encoder: str, tmp_path: Path) -> None:
    labels = np.array([int(kind == "places") for kind in KINDS])
    labels[6] = 0
    found = bv.Classifier(encoder, "linear").fit(TEXTS, labels)
    first = found.suspects_[0]
    assert (first["row"], first["label"], first["predicted"], first["text"]) == (6, 0, 1, TEXTS[6])
    again = bv.Classifier.load(found.save(tmp_path / "model")).suspects_[0]
    assert again == {key: value for key, value in first.items() if key != "text"}


# ---------------------------------------------------------------------- scikit-learn


def test_clone_copies_the_parameters_only(fitted: bv.Classifier) -> None:
    copied = clone(fitted)
    assert copied.get_params() == fitted.get_params() and not hasattr(copied, "model_")


def test_cross_validation_loads_the_encoder_once(encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.forget()
    loaded = []
    load = shared.load_encoder
    monkeypatch.setattr(shared, "load_encoder", lambda *words, **more: loaded.append(words) or load(*words, **more))
    scores = cross_val_score(bv.Classifier(encoder, "last_lr"), TEXTS, KINDS, cv=3)
    assert scores.mean() > 0.8 and len(loaded) == 1


def test_a_changed_encoder_is_loaded_again(encoder: str, tmp_path: Path) -> None:
    from tiny_encoders import tiny_model, tiny_tokenizer

    for seed in (0, 1):
        tiny_model("bert", seed=seed).save_pretrained(tmp_path)
        tiny_tokenizer().save_pretrained(tmp_path)
        found = bv.LayerFeatures(str(tmp_path)).fit_transform(NEW)
        shared.forget()
        assert (found == bv.LayerFeatures(str(tmp_path)).fit_transform(NEW)).all()


def test_a_grid_search_finds_the_head_and_refits_it(encoder: str) -> None:
    grid = GridSearchCV(bv.Classifier(encoder), {"heads": ["last_lr", ["linear"]]}, cv=2).fit(TEXTS, KINDS)
    assert grid.best_params_["heads"] in ("last_lr", ["linear"]) and grid.score(TEXTS, KINDS) > 0.9


def test_features_of_all_layers_work_in_a_pipeline(encoder: str) -> None:
    pipeline = make_pipeline(bv.LayerFeatures(encoder), StandardScaler(), LogisticRegression())
    assert cross_val_score(pipeline, TEXTS, KINDS, cv=2).mean() > 0.9
    names = pipeline.fit(TEXTS, KINDS)[:-1].get_feature_names_out()
    assert len(names) == 4 * 32 and names[32 * 3 + 17] == "layer3_mean_17"


def test_layer_features_are_the_states_of_the_encoder(encoder: str) -> None:
    import torch
    from tiny_encoders import plain_call
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(encoder).eval(), AutoTokenizer.from_pretrained(encoder)
    with torch.no_grad():
        ids = tokenizer(NEW[0])["input_ids"]
        layers = torch.stack(plain_call(model, ids, [0] * len(ids)).hidden_states)[:, 0]  # (layer, token, hidden)
    chosen = layers[[1, 3]]  # (layer, token, hidden)
    expected = {
        "mean": chosen.mean(1),
        "cls": chosen[:, 0],
        "max": chosen.amax(1),
        "deviation": chosen.std(1, unbiased=False),
        "mean+deviation": torch.cat([chosen.mean(1), chosen.std(1, unbiased=False)]),
    }
    for read, values in expected.items():
        features = bv.LayerFeatures(encoder, read, [1, -1])
        found = features.fit_transform(NEW)
        assert found.dtype == np.float32 and len(features.get_feature_names_out()) == found.shape[1]
        np.testing.assert_allclose(found[0], values.flatten().numpy(), atol=1e-4)
    with pytest.raises(UserError, match=r"layers is \[9\]"):
        bv.LayerFeatures(encoder, layers=[9]).fit(NEW)
    with pytest.raises(UserError, match="did you mean 'mean'"):
        bv.LayerFeatures(encoder, "meen").fit(NEW)


class Written:
    """Writes tables of numbers as texts, so that scikit-learn's checks can run."""

    def _write(self, X: Any, reset: bool = False) -> list[str]:
        if not reset:
            check_is_fitted(self)
        rows = validate_data(self, X, reset=reset)
        return [" ".join(f"{'abcdefgh'[n]} {round(10 * value)}" for n, value in enumerate(row[:8])) for row in rows]

    def fit(self, X: Any, y: Any = None, **weights: Any) -> Any:
        return super().fit(self._write(X, True), y, **weights)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array, tags.input_tags.string = True, False, False
        if tags.regressor_tags is not None:
            tags.regressor_tags.poor_score = True  # random weights read digits
        return tags


class WrittenClassifier(Written, bv.Classifier):
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        return super().fit(X, y, sample_weight=sample_weight)

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(self._write(X))


class WrittenRegressor(Written, bv.Regressor):
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        return super().fit(X, y, sample_weight=sample_weight)

    def predict(self, X: Any) -> Any:
        return super().predict(self._write(X))


class WrittenFeatures(Written, bv.LayerFeatures):
    def transform(self, X: Any) -> Any:
        return super().transform(self._write(X))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [WrittenClassifier, WrittenRegressor, WrittenFeatures])
def test_scikit_learns_checks_pass_but_for_the_listed_ones(kind: Any, encoder: str) -> None:
    estimator = kind(encoder) if kind is WrittenFeatures else kind(encoder, "linear")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(estimator, expected_failed_checks=EXPECTED_FAILED_CHECKS, on_fail=None)
    failed = {one["check_name"]: one["exception"] for one in found if one["status"] == "failed"}
    assert not failed and len(found) > 40


@pytest.mark.parametrize("kind", [bv.Classifier, bv.Regressor, bv.LayerFeatures])
def test_scikit_learn_knows_that_the_input_is_text(kind: Any) -> None:
    with pytest.warns(SkipTestWarning, match="Can't test estimator"):
        check_estimator(kind(), expected_failed_checks=EXPECTED_FAILED_CHECKS)
    assert get_tags(kind()).input_tags.string and not get_tags(kind()).input_tags.two_d_array


# ---------------------------------------------------------------------- saving and copying


def test_a_saved_estimator_predicts_the_same_with_the_same_parameters(encoder: str, tmp_path: Path) -> None:
    labels = np.array([int(kind == "places") for kind in KINDS])
    found = bv.Classifier(encoder, ["linear"], class_weight={0: 1.0, 1: 2.0}, seed=3).fit(TEXTS, labels)
    again = bv.Classifier.load(found.save(tmp_path / "model"))
    assert again.get_params() == found.get_params()
    assert (again.predict_proba(NEW) == found.predict_proba(NEW)).all() and again.predict(NEW).dtype == np.int64
    with pytest.raises(UserError, match="exists: choose another folder, or replace the model with overwrite=True"):
        found.save(tmp_path / "model")
    again.save(tmp_path / "model", overwrite=True)  # onto itself
    assert (bv.Classifier.load(tmp_path / "model").predict_proba(NEW) == found.predict_proba(NEW)).all()


def test_a_model_of_the_command_fit_can_be_loaded_as_an_estimator(encoder: str, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"text": TEXTS, "label": KINDS})
    model = bv.fit(frame, encoder=encoder, heads=["linear"], to=tmp_path / "model")
    found = bv.Classifier.load(tmp_path / "model")
    assert found.encoder == encoder and found.classes_.tolist() == ["letters", "places"]
    assert found.predict(NEW).tolist() == [row.label for row in model.predict(NEW)]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda fitted: pickle.loads(pickle.dumps(fitted))])
def test_a_copy_has_files_of_its_own_which_go_with_it(copied: Any, encoder: str) -> None:
    found = bv.Classifier(encoder, "last_lr").fit(TEXTS, KINDS)
    first, second = found, copied(found)
    folders = [one.model_.folder.parent for one in (first, second)]
    expected = first.predict_proba(NEW)
    del found, first
    gc.collect()
    assert not folders[0].exists() and folders[1].exists()
    assert (second.predict_proba(NEW) == expected).all()
    model = second.model_
    del second
    gc.collect()
    assert model.predict(NEW)  # the model keeps its folder
    del model
    gc.collect()
    assert not folders[1].exists()


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside", "..", "", ".hidden/../x"])
def test_a_pickle_can_not_write_outside_its_folder(name: str, fitted: bv.Classifier) -> None:
    state = fitted.__getstate__()
    state["_files"] = {**state["_files"], name: b"bad"}
    with pytest.raises(UserError, match="which no model has"):
        bv.Classifier().__setstate__(state)


def test_the_leaderboard_prints_as_a_table(fitted: bv.Classifier) -> None:
    written = repr(fitted.leaderboard_)
    assert "accuracy, %" in written and "5-fold cross-validation on 40 rows" in written
    assert all(line["name"] in written for line in fitted.leaderboard_)
    assert "<td>majority</td>" in fitted.leaderboard_._repr_html_()
    assert json.loads(json.dumps(fitted.leaderboard_)) == list(fitted.leaderboard_)


def test_damaged_suspects_are_refused(encoder: str, tmp_path: Path) -> None:
    labels = np.array([int(kind == "places") for kind in KINDS])
    labels[6] = 0
    folder = bv.Classifier(encoder, "linear").fit(TEXTS, labels).save(tmp_path / "model")
    path = tmp_path / "model" / "suspects.csv"
    path.write_bytes(path.read_bytes().replace(b"0.", b"1.", 1))
    with pytest.raises(UserError, match=r"suspects\.csv is damaged \(its checksum is wrong\).*fit the model again"):
        bv.Classifier.load(folder)


def test_a_private_file_behind_a_link_is_not_copied(encoder: str, tmp_path: Path) -> None:
    texts = [f"the {'king' if number % 2 else 'river'} {number}" for number in range(20)]
    folder = bv.Classifier(encoder=encoder, heads=["linear"]).fit(texts, ["a", "b"] * 10).save(tmp_path / "model")
    (tmp_path / "private").write_text("secret")
    (tmp_path / "model" / "notes.txt").symlink_to(tmp_path / "private")
    found = bv.Classifier.load(folder)
    with pytest.raises(UserError, match="leads out of"):
        found.save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
