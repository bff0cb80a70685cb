import pytest
import torch
from tiny_training import compute_loss, random_states, random_targets
from torch.nn import functional

from bertvision.encoder.states import StateShape
from bertvision.kinds import LABEL, SCORE, SPAN, Kind
from bertvision.sources import Targets

SHAPE = StateShape(2, 4, False)
LENGTHS = [5, 1, 9, 3]
STATES = random_states(SHAPE, LENGTHS)
SPANS = random_targets(LENGTHS)


def logits(rows: int, width: int) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(3)) * 4


def test_the_span_loss_is_the_mean_cross_entropy_of_start_and_end_per_window() -> None:
    outputs = logits(sum(LENGTHS), 2)
    by_hand = []
    for window, part in enumerate(outputs.split(LENGTHS)):  # one by one, so there is no padding at all
        start = functional.cross_entropy(part[None, :, 0], SPANS.start[window : window + 1])
        end = functional.cross_entropy(part[None, :, 1], SPANS.end[window : window + 1])
        by_hand.append((start + end) / 2)
    found = compute_loss(SPAN, outputs, STATES, SPANS, total=4)
    torch.testing.assert_close(found, torch.stack(by_hand).mean())


def test_the_span_loss_equals_that_of_a_padded_batch_with_masked_logits() -> None:
    outputs = logits(sum(LENGTHS), 2)
    padded = torch.full((4, 9, 2), float("-inf"))
    for window, part in enumerate(outputs.split(LENGTHS)):
        padded[window, : len(part)] = part
    expected = sum(functional.cross_entropy(padded[..., i], t) for i, t in enumerate((SPANS.start, SPANS.end))) / 2
    torch.testing.assert_close(compute_loss(SPAN, outputs, STATES, SPANS, 4), expected)


def test_labels_use_cross_entropy_and_scores_squared_error() -> None:
    targets = random_targets(LENGTHS, labels=3)
    outputs = logits(4, 3)
    expected = functional.cross_entropy(outputs, targets.value.long())
    torch.testing.assert_close(compute_loss(LABEL, outputs, STATES, targets, 4), expected)
    scores = Targets(SPANS.start, SPANS.end, torch.tensor([0.5, 5.0, 2.25, 0.0]))
    one = logits(4, 1)
    torch.testing.assert_close(compute_loss(SCORE, one, STATES, scores, 4), ((one[:, 0] - scores.value) ** 2).mean())


@pytest.mark.parametrize(("kind", "width"), [(SPAN, 2), (LABEL, 2), (SCORE, 1)])
def test_micro_batch_losses_add_up_to_the_batch_loss(kind: Kind, width: int) -> None:
    rows = sum(LENGTHS) if kind is SPAN else 4
    outputs = logits(rows, width).requires_grad_()
    whole = compute_loss(kind, outputs, STATES, SPANS, 4)
    whole.backward()
    pieces = outputs.detach().clone().requires_grad_()
    sizes = [sum(LENGTHS[:1]), sum(LENGTHS[1:])] if kind is SPAN else [1, 3]
    cuts = zip(pieces.split(sizes), STATES.split([1, 3]), [slice(0, 1), slice(1, 4)], strict=True)
    losses = [
        compute_loss(kind, part, states, Targets(SPANS.start[w], SPANS.end[w], SPANS.value[w]), 4)
        for part, states, w in cuts
    ]
    sum(losses).backward()
    torch.testing.assert_close(sum(losses), whole)
    torch.testing.assert_close(pieces.grad, outputs.grad)


def test_half_precision_outputs_are_scored_in_float32() -> None:
    outputs = logits(4, 2).to(torch.bfloat16)
    loss = compute_loss(LABEL, outputs, STATES, SPANS, 4)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, functional.cross_entropy(outputs.float(), SPANS.value.long()))


def test_a_confident_wrong_span_has_a_finite_loss_and_gradient() -> None:
    outputs = torch.full((sum(LENGTHS), 2), -1e4)
    outputs[[4, 5, 14, 17]] = 1e4
    outputs.requires_grad_()
    targets = Targets(torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64), torch.zeros(4))
    loss = compute_loss(SPAN, outputs, STATES, targets, 4)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(outputs.grad).all()
