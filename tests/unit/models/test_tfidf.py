"""TF-IDF as a model: equal to scikit-learn's, saved without pickle."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline

from bertvision.errors import UserError
from bertvision.models.tfidf import Tfidf, Words, fit_tfidf

TEXTS = ["good film", "a good, good story", "bad film", "a bad story about bad people", "good people", "bad end"]
LABELS = [1, 1, 0, 0, 1, 0]


def fitted(labels: int, strength: float = 0.5) -> Tfidf:
    words = Words.of(TEXTS)
    assert words is not None
    targets = torch.tensor(LABELS) if labels else torch.tensor([1.0, 2.5, -1.0, -2.0, 1.0, -1.5])
    fit = fit_tfidf(TEXTS, targets, torch.ones(6), labels, strength, words)
    return Tfidf(words, fit.weight[0], fit.bias[0])


def test_it_predicts_as_the_same_pipeline_of_scikit_learn() -> None:
    expected = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(C=2.0, tol=1e-8)
    ).fit(TEXTS, LABELS)
    found = torch.from_numpy(fitted(2)(["good story", "bad film", "unknown words"])).softmax(1)
    np.testing.assert_allclose(found, expected.predict_proba(["good story", "bad film", "unknown words"]), atol=2e-3)
    scores = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), Ridge(alpha=0.5)).fit(
        TEXTS, [1.0, 2.5, -1.0, -2.0, 1.0, -1.5]
    )
    np.testing.assert_allclose(fitted(0)(["good story"])[:, 0], scores.predict(["good story"]), atol=1e-3)


def test_a_saved_model_predicts_the_same_and_holds_no_pickle(tmp_path: Path) -> None:
    model = fitted(2)
    model.save(tmp_path, "stamp")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["head.safetensors", "stamp.json", "vocabulary.json"]
    again = Tfidf.load(tmp_path)
    np.testing.assert_allclose(again(TEXTS), model(TEXTS), rtol=1e-5, atol=1e-6)
    (tmp_path / "vocabulary.json").unlink()
    with pytest.raises(UserError, match="vocabulary.json is missing"):
        Tfidf.load(tmp_path)


def test_texts_without_words_have_no_vocabulary() -> None:
    assert Words.of(["!", "?", "…"]) is None
