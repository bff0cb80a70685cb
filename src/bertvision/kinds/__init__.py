"""Kinds of target: label, score, span. A kind is one object in one file of this package, which imports them all.

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
    load_results,
    save_predictions,
    save_results,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

LABEL, SCORE, SPAN = KINDS["label"], KINDS["score"], KINDS["span"]


def metric_title(key: str) -> str:
    """The name of a figure for people, whichever kind it belongs to; an unknown one stays as it is."""
    titles = (kind.title(key) for kind in KINDS.values())
    return next((title for title in titles if title is not None), key)


__all__ = [
    "KINDS", "LABEL", "SCORE", "SPAN", "Decoding", "Figure", "Kind", "ExampleResults", "Predictions",
    "load_results", "metric_title", "save_predictions", "save_results",
]  # fmt: skip
