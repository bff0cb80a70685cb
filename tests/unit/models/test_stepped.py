"""Heads that are trained in steps are judged on rows that they have not read."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertvision.encoder.shared import shared_encoder
from bertvision.heads import Target
from bertvision.machine import Machine
from bertvision.models.candidates import Rows
from bertvision.models.clock import Clock
from bertvision.models.split import Split
from bertvision.models.stepped import SteppedCandidate
from bertvision.models.table_rows import build_task_of, encode, examples_of, features_of, targets_of
from bertvision.progress import Reporter
from bertvision.tasks.own_table import from_columns

WORDS = ["the", "of", "in", "at", "to", "on"]


@pytest.mark.parametrize("name", ["adapter_64", "attentive"])
@pytest.mark.parametrize("folds", [1, 3])
def test_outputs_do_not_depend_on_the_labels_of_the_judged_rows(
    name: str, folds: int, tiny_encoder_folder: Path
) -> None:
    texts = [f"{WORDS[row % 6]} {WORDS[row // 6]} {row}" for row in range(30)]
    table = from_columns(texts, ["a", "b"] * 15, kind="label")
    machine = Machine("cpu")
    encoder = shared_encoder(str(tiny_encoder_folder), machine.device, machine.dtype)
    task = build_task_of(table, None)
    examples = examples_of(table, task, "train")
    split = Split([torch.arange(fold, 30, 3) for fold in range(folds)], 30)
    judged = []
    for flipped in (False, True):
        targets = targets_of(examples, task)  # (row)
        if flipped:
            targets[split.held[-1]] = 1 - targets[split.held[-1]]
        features = features_of(
            encoder, task, [replace(one, target=int(target)) for one, target in zip(examples, targets, strict=True)]
        )
        states, _ = encode(encoder, features, "texts", Reporter(), with_tokens=True)
        rows = Rows(texts, targets, torch.ones(30), states, encoder.shape, Target(task.kind, 2), 0)
        candidate = SteppedCandidate(name, epochs=1)
        candidate.encoder, candidate.features, candidate.machine = encoder, features, machine
        outputs = candidate.attempt(rows, split, Clock(None)).outputs  # (judged row, output)
        judged.append(outputs[torch.isin(split.judged, split.held[-1])])  # (row of the last fold, output)
    assert torch.equal(*judged)
