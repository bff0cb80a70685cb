"""`fit` on a GPU: its small models are fitted there, and end where they do on a CPU."""

from pathlib import Path

import pytest
import torch

from bertvision.models.fit import Options, fit_table
from bertvision.tasks.own_table import from_columns

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
WORDS = (["cat", "dog", "fox"], ["town", "hill", "lake"])


@pytest.mark.parametrize("kind", ["label", "score"])
def test_convex_heads_have_the_same_outputs_on_both_devices(kind: str, tiny_encoder_folder: Path) -> None:
    texts = [f"the {WORDS[row % 2][row // 2 % 3]} number {row}" for row in range(120)]
    targets = [["animal", "place"][row % 2] if kind == "label" else float(row % 2) for row in range(120)]
    table = from_columns(texts, targets, kind=kind)
    heads = ["best_layer_lr", "linear", "mlp"]
    found = {}
    for device in ("cpu", "cuda"):
        fit = fit_table(table, Options(str(tiny_encoder_folder), heads, device=device))
        found[device] = {trial.name: trial.outputs for trial in fit.trials}  # (row, output) each
        assert all(outputs.device.type == "cpu" for outputs in found[device].values())
    for name in ("last_lr", "linear"):
        # The encoder computes in bfloat16 on the GPU.
        torch.testing.assert_close(found["cpu"][name], found["cuda"][name], atol=0.3, rtol=0.1)
    assert found["cuda"]["mlp"].isfinite().all()
