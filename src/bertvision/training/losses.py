"""The loss of each kind of target, summed over a batch's windows and divided by `total`, the step's windows in all.

Dividing by the step's total, not by what is here, makes micro-batches and processes add up to the very same step. Where
some windows only fill a batch up, `total` is a tensor instead: the weight of each window, 0 for those.
"""

import torch
from torch import Tensor
from torch.nn import functional

from bertvision.encoder.states import HiddenStates
from bertvision.sources.base import StateBatch, Targets
from bertvision.tasks.base import TargetKind


def compute_loss(
    kind: TargetKind, outputs: Tensor, states: HiddenStates, targets: Targets, total: int | Tensor
) -> Tensor:
    """A model's loss from its outputs (position, output), in float32."""
    return _add(_losses(kind, outputs.unsqueeze(0), states, targets), total)[0]


def compute_losses(kind: TargetKind, outputs: Tensor, batch: StateBatch) -> Tensor:
    """The loss of each member of a stack from outputs (member, position, output), in float32."""
    return _add(_losses(kind, outputs, batch.states, batch.targets), batch.total)  # (member)


def _add(losses: Tensor, total: int | Tensor) -> Tensor:
    if isinstance(total, Tensor):
        return (losses * total).sum(1)  # (member)
    return losses.sum(1) / total  # (member)


def _losses(kind: TargetKind, outputs: Tensor, states: HiddenStates, targets: Targets) -> Tensor:
    outputs = outputs.float()
    if kind is TargetKind.SPAN:
        return span_losses(outputs, states, targets)
    members = len(outputs)
    if kind is TargetKind.LABEL:
        labels = targets.value.long().repeat(members)  # (member · sequence)
        losses = functional.cross_entropy(outputs.flatten(0, 1), labels, reduction="none")  # (member · sequence)
        return losses.unflatten(0, (members, -1))  # (member, sequence)
    return (outputs.squeeze(2) - targets.value).square()  # (member, sequence)


def span_losses(outputs: Tensor, states: HiddenStates, targets: Targets) -> Tensor:
    """Cross-entropy over the tokens of each window, the mean of start and end."""
    padded, mask = states.pad(outputs.transpose(0, 1))  # (window, longest, member, 2), (window, longest)
    padded = padded.masked_fill(~mask[..., None, None], torch.finfo(padded.dtype).min)
    wanted = torch.stack([targets.start, targets.end], dim=1).unsqueeze(1)  # (window, 1, 2)
    losses = functional.cross_entropy(padded, wanted.expand(-1, len(outputs), -1), reduction="none")
    return losses.mean(2).T  # (window, member, 2) → (member, window)
