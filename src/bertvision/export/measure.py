"""Compare an exported graph with the model it was made from, and choose thresholds and measure trust again on it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bertvision.data.examples import Example
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.export.parts import Part
from bertvision.export.session import Session
from bertvision.kinds import Predictions
from bertvision.machine import Machine, sharing_cores
from bertvision.pipeline.snapshot import compute_outputs
from bertvision.progress import Reporter
from bertvision.tasks.demo import build_corpus

COMPARED = 1000
"""Examples on which the graph is compared with torch."""
SAMPLES = 100
"""Questions of the demo that are compared where there is no other data."""


@dataclass(frozen=True)
class Measured:
    """A task on the exported graph."""

    threshold: float
    trust: dict[str, Any] | None
    parity: dict[str, Any]
    """For parity.json."""
    why_not: str | None
    """Why threshold and trust are those of the model it was made from; None if they were computed again."""


def measure(
    part: Part, encoder: Encoder, session: Session, names: list[str], data: str | None, reporter: Reporter
) -> Measured:
    """Threshold and trust of a task on the graph, and how its outputs differ from torch's. `names` are its outputs."""
    found = part.held_out(data)
    examples = found if isinstance(found, list) else _sample_texts(part)
    features = part.build_features(encoder, examples)
    tokens = int(features.lengths.sum())
    with sharing_cores(tokens, reporter), reporter.bar(f"measuring {part.task.name}", tokens, "tokens") as bar:
        outputs = session.run(names, features, part.towers, bar)  # each (token or window, output)
    predictions = _decode(part, outputs, examples, features)
    threshold, trust, scores = part.threshold, part.trust, None
    if isinstance(found, list):
        kind = part.task.kind
        results = kind.example_results(predictions, examples)
        chosen = kind.pick_threshold(results, part.unanswerable)
        threshold = 0.0 if chosen is None else chosen
        trust = kind.measure_trust(results, part.task.labels, threshold)
        scores = kind.score(part.task.metrics, results, chosen)
    parity = _compare(part, encoder, outputs, predictions, threshold, examples, reporter) | {
        "examples_are": "held-out data" if isinstance(found, list) else "texts of the demo",
        "threshold": threshold, "threshold_in_torch": part.threshold, "scores": scores,
    }  # fmt: skip
    return Measured(threshold, trust, parity, None if isinstance(found, list) else found)


def _decode(part: Part, outputs: list[Any], examples: list[Example], features: Features) -> Predictions:
    kind, joined = part.task.kind, outputs[0]  # (token or window, output)
    if part.method is not None:
        weights = None if part.weights is None else np.array(part.weights)  # (member,)
        joined = kind.combine(outputs, features, part.method, weights)
    return kind.decode(part.task, joined, features, examples, part.how)


def _compare(
    part: Part,
    encoder: Encoder,
    outputs: list[Any],
    predictions: Predictions,
    threshold: float,
    examples: list[Example],
    reporter: Reporter,
) -> dict[str, Any]:
    """The first examples again with torch: largest difference of an output, and the share of equal answers, each at
    its own threshold."""
    some = examples[:COMPARED]
    features = part.build_features(encoder, some)
    kind, tokens = part.task.kind, int(features.lengths.sum())
    with sharing_cores(tokens, reporter), reporter.bar(f"comparing {part.task.name}", tokens, "tokens") as bar:
        expected = compute_outputs(encoder, part.models, features, kind, Machine("cpu", "float32"), bar=bar)
    rows = kind.rows_of(features)
    pairs = zip(outputs, expected.values(), strict=True)
    difference = max(float(np.abs(one[:rows] - other).max()) for one, other in pairs)
    torchs = _decode(part, list(expected.values()), some, features).predicted(part.threshold)
    own = predictions.predicted(threshold)[: len(some)]
    equal = [_are_equal(one, other) for one, other in zip(own, torchs, strict=True)]
    return {"examples": len(some), "largest_difference": difference, "equal_answers": sum(equal) / len(equal)}


def _are_equal(one: Any, other: Any) -> bool:
    """Scores are equal if nobody would see a difference."""
    return abs(one - other) <= 0.01 if isinstance(one, float) else bool(one == other)


def _sample_texts(part: Part) -> list[Example]:
    """Questions and passages of the demo, for a task whose data is not at hand."""
    paragraphs = [one for article in build_corpus("dev", SAMPLES)["data"] for one in article["paragraphs"]]
    if part.task.takes_pairs:
        return [Example(q["id"], q["question"], one["context"]) for one in paragraphs for q in one["qas"]]
    return [Example(q["id"], q["question"]) for one in paragraphs for q in one["qas"]]
