"""Spans decoded on a GPU are the same as on a CPU."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_training import build_tiny_features

from bertvision.evaluation.spans.decode import decode_spans
from bertvision.tasks import TaskConfig, build_task

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("rounded", [False, True])
def test_answers_and_their_order_equal_those_of_the_cpu(rounded: bool) -> None:
    folder = Path(__file__).parents[1] / "fixtures" / "squad_tiny"
    examples = build_task(TaskConfig("squad2", data=str(folder))).read("train")
    features = build_tiny_features("squad2")
    logits = np.random.default_rng(0).normal(size=(2, len(features.input_ids))).astype(np.float32)
    if rounded:  # many spans tie
        logits = logits.round()
    found, expected = (decode_spans(*logits, features, examples, 20, 30, device=device) for device in ("cuda", "cpu"))
    assert list(found) == list(expected)
