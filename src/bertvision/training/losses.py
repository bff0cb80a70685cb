"""The loss of each kind of target, summed over a batch's windows and divided by `total`, the step's windows in all.

Dividing by the step's total, not by what is here, makes micro-batches and processes add up to the very same step.
"""

import torch
from torch import Tensor
from torch.nn import functional

from bertvision.encoder.states import HiddenStates
from bertvision.sources.base import Targets
from bertvision.tasks.base import TargetKind


def compute_loss(kind: TargetKind, outputs: Tensor, states: HiddenStates, targets: Targets, total: int) -> Tensor:
    """A head's or output layer's loss, in float32."""
    outputs = outputs.float()
    if kind is TargetKind.SPAN:
        return span_loss(outputs, states, targets) / total
    if kind is TargetKind.LABEL:
        return functional.cross_entropy(outputs, targets.value.long(), reduction="sum") / total
    return functional.mse_loss(outputs.squeeze(1), targets.value, reduction="sum") / total


def span_loss(outputs: Tensor, states: HiddenStates, targets: Targets) -> Tensor:
    """Cross-entropy over the tokens of each window, the mean of start and end, summed over windows."""
    padded, mask = states.pad(outputs)  # (window, longest, 2), (window, longest)
    padded = padded.masked_fill(~mask.unsqueeze(-1), torch.finfo(padded.dtype).min)
    start = functional.cross_entropy(padded[..., 0], targets.start, reduction="sum")
    end = functional.cross_entropy(padded[..., 1], targets.end, reduction="sum")
    return (start + end) / 2
