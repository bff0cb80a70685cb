"""LayerFeatures: the pooled hidden states of every layer, as features for a scikit-learn pipeline of your own.

make_pipeline(bv.LayerFeatures(), StandardScaler(), LogisticRegression())
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from bertvision.data.examples import Example
from bertvision.data.texts import read_texts
from bertvision.data.windows import build_features
from bertvision.encoder.loading import shape_of
from bertvision.encoder.shared import shared_encoder
from bertvision.encoder.states import Part
from bertvision.errors import UserError, suggest
from bertvision.kinds import LABEL
from bertvision.machine import Machine, sharing_cores
from bertvision.models.columns import as_texts
from bertvision.models.table_rows import most_tokens
from bertvision.sources import MemoryStates

READS: dict[str, tuple[Part, ...]] = {
    "mean": ("mean",),
    "cls": ("cls",),
    "max": ("max",),
    "deviation": ("deviation",),
    "mean+deviation": ("mean", "deviation"),
}


class LayerFeatures(TransformerMixin, BaseEstimator):
    """The hidden states of a frozen encoder, pooled over the tokens of each text.

    encoder   "embedded", a hub name or a folder
    read      "mean", "cls", "max", "deviation" (the standard deviation over tokens) or "mean+deviation"
    layers    None: all. Or a list: 0 is the embeddings, -1 the last layer
    """

    def __init__(self, encoder: str = "embedded", read: str = "mean", layers: Sequence[int] | None = None) -> None:
        self.encoder = encoder
        self.read = read
        self.layers = layers

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check texts and settings. Nothing is learned."""
        _read_texts(X)
        if self.read not in READS:
            raise UserError(f"read is {self.read!r}: {suggest(str(self.read), READS)}")
        shape = shape_of(str(self.encoder)).shape
        self.layers_ = _choose(self.layers, shape.layers)
        self._n_features_out = len(READS[self.read]) * len(self.layers_) * shape.hidden
        return self

    def transform(self, X: Any) -> np.ndarray:
        """(row, part · layer · hidden) in float32."""
        check_is_fitted(self)
        examples = _read_texts(X)
        machine = Machine()
        encoder = shared_encoder(str(self.encoder), machine.device, machine.dtype)
        assert encoder.tokenizer is not None
        features = build_features(examples, encoder.tokenizer, LABEL, False, most_tokens(encoder))
        with sharing_cores():
            states = MemoryStates.encode(encoder, features, READS[self.read]).parts
        parts = [states[part][:, self.layers_].flatten(1) for part in READS[self.read]]  # (row, layer · hidden) each
        return np.ascontiguousarray(torch.cat(parts, dim=1).float().cpu().numpy())

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """layer3_mean_17 is value 17 of the mean of layer 3."""
        check_is_fitted(self)
        parts = READS[self.read]
        hidden = self._n_features_out // (len(parts) * len(self.layers_))
        names = [f"layer{n}_{part}_{at}" for part in parts for n in self.layers_ for at in range(hidden)]
        return np.array(names, dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = []
        return tags


def _read_texts(values: Any) -> list[Example]:
    return [Example(str(number), *pair) for number, pair in enumerate(read_texts(as_texts(values)))]


def _choose(wanted: Sequence[int] | None, count: int) -> list[int]:
    """The numbers of the layers, from 0. The pooled output, which follows the layers in [CLS] states, is not one."""
    if wanted is None:
        return list(range(count))
    found = [int(layer) for layer in wanted]
    if not found or any(not -count <= layer < count for layer in found):
        raise UserError(f"layers is {found}: list layers from 0 (embeddings) to {count - 1} (the last, also -1).")
    return [layer % count for layer in found]
