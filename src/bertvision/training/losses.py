"""The loss of a kind of target, summed over a batch's windows and divided by `total`, the step's windows in all.

Dividing by the step's total, not by what is here, makes micro-batches and processes add up to the very same step. Where
some windows only fill a batch up, `total` is a tensor instead: the weight of each window, 0 for those.
"""

from torch import Tensor

from bertvision.encoder.states import HiddenStates
from bertvision.kinds import Kind
from bertvision.sources.base import StateBatch, Targets


def compute_loss(kind: Kind, outputs: Tensor, states: HiddenStates, targets: Targets, total: int | Tensor) -> Tensor:
    """A model's loss from its outputs (position, output), in float32."""
    return _add(kind.losses(outputs.unsqueeze(0).float(), states, targets), total)[0]


def compute_losses(kind: Kind, outputs: Tensor, batch: StateBatch) -> Tensor:
    """The loss of each member of a stack from outputs (member, position, output), in float32."""
    return _add(kind.losses(outputs.float(), batch.states, batch.targets), batch.total)  # (member)


def _add(losses: Tensor, total: int | Tensor) -> Tensor:
    if isinstance(total, Tensor):
        return (losses * total).sum(1)  # (member)
    return losses.sum(1) / total  # (member)
