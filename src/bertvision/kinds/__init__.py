"""Kinds of target: label, score, span. Each kind is one object, defined in its own module of this package.

KINDS["label"].output_count(labels=3) → 3        SPAN.position → "token"
"""

import importlib
import pkgutil

from bertvision.kinds.base import (
    KINDS,
    Decoding,
    ExampleResults,
    Figure,
    Kind,
    Predictions,
    kind_in,
    load_results,
    save_predictions,
    save_results,
)
from bertvision.kinds.result import Result

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

LABEL, SCORE, SPAN = KINDS["label"], KINDS["score"], KINDS["span"]


def metric_title(key: str) -> str:
    """Return the display name of a metric of any kind; an unknown key is returned unchanged."""
    titles = (kind.title(key) for kind in KINDS.values())
    return next((title for title in titles if title is not None), key)


__all__ = [
    "KINDS", "LABEL", "SCORE", "SPAN", "Decoding", "Figure", "Kind", "ExampleResults", "Predictions", "Result",
    "kind_in", "load_results", "metric_title", "save_predictions", "save_results",
]  # fmt: skip
