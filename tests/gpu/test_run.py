"""Fine-tuning, heads and scoring on a GPU: bf16 through the unpadded route, and running out of memory."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_training import Listening, checkpoints_in, log_nothing, tiny_finetuning

import bertvision as bv
from bertvision.data.packing import plan_batches
from bertvision.data.windows import Features
from bertvision.kinds import SPAN
from bertvision.machine import Machine
from bertvision.training.finetune import Finetuning

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_whole_run_is_unpadded_in_half_precision_and_is_not_repeated(
    tiny_encoder_folder: Path, squad_folder: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "task": {"name": "squad2", "data": str(squad_folder)},
        "encoder": str(tiny_encoder_folder),
        "heads": ["learned_pooling", "adapter", "pooled_adapter"],
        "data": {"max_length": 64, "overlap": 16},
        "finetune": {"epochs": 2, "snapshots": [1], "batch_tokens": 256},
        "run": str(tmp_path / "run"),
    }
    run = bv.run(**settings)
    models = run.scores["snapshots"]["2"]
    assert set(models) == {"baseline", "encoder", "last_linear", "learned_pooling", "adapter", "pooled_adapter"}
    assert all(0 <= model["scores"]["dev"]["f1"] <= 100 for model in models.values())
    environment = (run.folder / "environment.json").read_text()
    assert "bfloat16" in environment
    lines = (run.folder / "metrics.jsonl").read_text()
    bv.run(**settings)
    assert (run.folder / "metrics.jsonl").read_text() == lines


def repeat(features: Features, times: int) -> Features:
    """Repeat the windows many times, for a batch that needs a lot of memory."""
    arrays = {field.name: getattr(features, field.name) for field in dataclasses.fields(features)}
    tiled = {name: np.concatenate([values] * times) for name, values in arrays.items()}
    tiled["starts"] = np.cumsum(tiled["lengths"], dtype=np.int64) - tiled["lengths"]
    return Features(**tiled)


def finetuning_on_cuda(features: Features, memory_tokens: int, reporter: Listening) -> Finetuning:
    work = tiny_finetuning(features, SPAN, dropout=0.0, epochs=1.0, batch_rows=len(features))
    machine = Machine("cuda", "bfloat16")
    encoder, output = work.encoder.to("cuda"), work.output.to("cuda")
    encoder.take_route("auto", machine.dtype)
    config = dataclasses.replace(work.config, memory_tokens=memory_tokens)
    plan = plan_batches(features.lengths, 1, 0, rows=len(features))
    return Finetuning(encoder, output, features, plan, SPAN, config, 0, machine, reporter)


def test_out_of_memory_halves_the_budget_and_takes_the_same_step(
    tiny_features: Callable[[str], Features], tmp_path: Path
) -> None:
    features, total = repeat(tiny_features("squad2"), 2000), torch.cuda.get_device_properties(0).total_memory
    listening = Listening()
    scarce = finetuning_on_cuda(features, 10**9, listening)
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 1.5e9) / total)
    try:
        scarce.run([1.0], lambda *_: None, checkpoints_in(tmp_path / "scarce"), log_nothing)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert listening.lines and all("out of GPU memory" in line for line in listening.lines)
    assert scarce.memory_tokens < int(features.lengths.sum())
    plenty = finetuning_on_cuda(features, 65536, Listening())
    plenty.run([1.0], lambda *_: None, checkpoints_in(tmp_path / "plenty"), log_nothing)
    assert plenty.memory_tokens == 65536
    # Adam's first step is the sign of the gradient: a weight whose gradient is only rounding error may differ by 2 lr.
    pairs = zip(scarce.model.parameters(), plenty.model.parameters(), strict=True)
    same = [float(((a - b).abs() < 1e-4).float().mean()) for a, b in pairs if a.grad is not None and a.ndim == 2]
    assert min(same) > 0.9
