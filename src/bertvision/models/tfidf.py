"""TF-IDF of words and word pairs with logistic or ridge regression: what reads no encoder at all.

Part of every leaderboard. Where it wins, it is the model: vocabulary.json and head.safetensors, no pickle.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertvision.disk import check_files, load_tensors, mark_done, read_json, save_tensors, write_json
from bertvision.errors import UserError
from bertvision.training.convex import Linear, LogisticRegression

NAME = "tfidf_lr"
VOCABULARY, WEIGHTS = "vocabulary.json", "head.safetensors"
MANY_ROWS = 1000
"""From this many rows on, words that occur in a single text are left out, unless there are no others."""


class Words:
    """The vocabulary of some texts, and their TF-IDF values."""

    def __init__(self, vectorizer: Any) -> None:
        self.vectorizer = vectorizer

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Words | None":
        """Learn the vocabulary; None if the texts have no words."""
        for rows in (2, 1) if len(texts) >= MANY_ROWS else (1,):
            vectorizer = _vectorizer(min_df=rows)
            with contextlib.suppress(ValueError):  # an empty vocabulary
                vectorizer.fit(texts)
                return cls(vectorizer)
        return None

    @classmethod
    def restore(cls, vocabulary: list[str], weights: Tensor) -> "Words":
        vectorizer = _vectorizer(vocabulary={word: number for number, word in enumerate(vocabulary)})
        vectorizer.idf_ = weights.double().numpy()
        return cls(vectorizer)

    @property
    def vocabulary(self) -> list[str]:
        return [str(word) for word in self.vectorizer.get_feature_names_out()]

    def weight_count(self, labels: int) -> int:
        """Parameters of a linear layer on these words."""
        return (len(self.vectorizer.vocabulary_) + 1) * max(1, labels)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """(row, word) as a sparse tensor."""
        found = self.vectorizer.transform(texts).tocoo()
        index = torch.from_numpy(np.stack([found.row, found.col]).astype(np.int64))  # (2, value)
        return torch.sparse_coo_tensor(
            index, torch.from_numpy(found.data), found.shape, check_invariants=False
        ).coalesce()


def _vectorizer(**settings: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, dtype=np.float32, **settings)


@dataclass(frozen=True)
class Tfidf:
    """A fitted TF-IDF model."""

    words: Words
    weight: Tensor  # (word, output)
    bias: Tensor  # (output)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """(row, output) logits or scores."""
        return (self.words(texts) @ self.weight + self.bias).numpy()

    @property
    def parameters(self) -> int:
        return self.weight.numel() + self.bias.numel()

    def save(self, folder: Path, stamp: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / VOCABULARY, self.words.vocabulary)
        idf = torch.from_numpy(np.asarray(self.words.vectorizer.idf_, dtype=np.float32))  # (word)
        tensors = {"idf": idf, "weight": self.weight.contiguous(), "bias": self.bias.contiguous()}
        save_tensors(folder / WEIGHTS, tensors)
        mark_done(folder, stamp)

    @classmethod
    def load(cls, folder: Path) -> "Tfidf":
        check_files(folder)
        vocabulary = read_json(folder / VOCABULARY, list[str])
        if vocabulary is None or not (folder / WEIGHTS).is_file():
            raise UserError(f"no TF-IDF model in '{folder}': expected {VOCABULARY} and {WEIGHTS}.")
        try:
            found = load_tensors(folder / WEIGHTS)
            idf, weight, bias = found["idf"], found["weight"], found["bias"]
            count = len(set(vocabulary))
            if idf.shape != (count,) or weight.shape[:1] != (count,) or bias.shape != weight.shape[1:]:
                raise ValueError(f"its weights are not for {len(vocabulary):,} different words")
            return cls(Words.restore(vocabulary, idf), weight, bias)
        except UserError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"the TF-IDF model in '{folder}' is damaged: fit the model again. ({error})") from None


def fit_tfidf(
    texts: Sequence[str],
    targets: Tensor,
    weights: Tensor,
    labels: int,
    strength: float,
    words: Words,
    start: Linear | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Linear:
    """Fit label indices (row) or, with `labels` 0, scores (row)."""
    inputs = words(texts)  # (row, word)
    if labels:
        data = LogisticRegression(inputs, targets, labels, weights.unsqueeze(0))
        return data.fit(strength, start=start, should_stop=should_stop)
    from scipy.sparse import coo_matrix
    from sklearn.linear_model import Ridge

    index, values = inputs.indices().numpy(), inputs.values().numpy()
    table = coo_matrix((values, index), shape=tuple(inputs.shape)).tocsr()
    found = Ridge(alpha=strength, solver="sparse_cg").fit(table, targets.numpy(), sample_weight=weights.numpy())
    weight = torch.from_numpy(found.coef_.astype(np.float32)).view(1, -1, 1)  # (1, word, 1)
    return Linear(weight, torch.tensor([[float(found.intercept_)]]))
