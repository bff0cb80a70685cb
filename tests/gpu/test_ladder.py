"""The ladder on a GPU: unpadded attention in half precision, compared with padded attention."""

from typing import Any

import pytest
import torch
from tiny_training import random_states
from torch import Tensor

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads import HEADS, Target
from bertvision.heads import token_attention as attention
from bertvision.kinds import SPAN
from bertvision.machine import drawing_from

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LENGTHS = [5, 1, 60, 133, 17, 2, 262]
SHAPE = StateShape(4, 64, False)
TOLERANCE = {torch.bfloat16: 0.03, torch.float16: 0.005}
ROUTES = ("_attend_unpadded", "_attend_padded", "_attend_looped")


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


def ladder(**settings: Any) -> Any:
    with drawing_from(torch.device("cpu"), 0), torch.no_grad():
        head = HEADS["ladder"](HEADS["ladder"].Config(**settings), SHAPE, Target(SPAN))
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return head.to("cuda")


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the attention routes taken, in order."""
    taken: list[str] = []
    for route in ROUTES:
        own = getattr(attention, route)

        def call(*parts: Any, own: Any = own, route: str = route) -> Tensor:
            taken.append(route)
            return own(*parts)

        monkeypatch.setattr(attention, route, call)
    return taken


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [16, 32, 64])
def test_unpadded_attention_and_its_gradients_equal_padded_attention_within_rounding(
    dtype: torch.dtype, size: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    # As in a block, these are slices of one product, so not contiguous.
    joined = torch.randn(sum(LENGTHS), 3, 4, size, generator=generator).to("cuda", dtype)
    weights = torch.randn(sum(LENGTHS), 4, size, generator=generator).to("cuda", dtype)
    states = HiddenStates(torch.tensor(LENGTHS), tokens=torch.zeros(sum(LENGTHS), 1, 1, device="cuda"))
    found, gradients = [], []
    for route, given in ((attention.attend, joined), (attention._attend_padded, joined.float())):
        given = given.clone().requires_grad_()
        found.append(route(*given.unbind(1), states))
        (found[-1] * weights).sum().backward()
        gradients.append(given.grad)
    assert found[0].dtype == dtype and attention._kernel_takes(joined[:, 0])
    assert distance(found[0], found[1]) < TOLERANCE[dtype]
    assert distance(gradients[0], gradients[1]) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_a_ladder_trains_the_same_unpadded_and_padded(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = random_states(SHAPE, LENGTHS).to("cuda", dtype)
    taken = count_calls(monkeypatch)
    outputs, gradients = [], []
    for unpadded in (True, False):
        if not unpadded:
            monkeypatch.setattr(attention, "_kernel_takes", lambda value: False)
        head = ladder()
        with torch.autocast("cuda", dtype):
            outputs.append(head(states))
        outputs[-1].float().square().mean().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in head.parameters()]))
    assert taken == ["_attend_unpadded"] * 4 + ["_attend_padded"] * 4
    assert distance(outputs[0], outputs[1]) < TOLERANCE[dtype]
    assert distance(gradients[0], gradients[1]) < 3 * TOLERANCE[dtype]


@torch.no_grad()
def test_scoring_in_float32_takes_the_padded_route_and_agrees_with_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    states, head = random_states(SHAPE, LENGTHS), ladder().eval()
    taken = count_calls(monkeypatch)
    ours = head(states.to("cuda"))
    assert set(taken) == {"_attend_padded"}
    torch.testing.assert_close(ours.cpu(), head.cpu()(states), rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_changing_one_sequence_changes_no_other() -> None:
    states, head = random_states(SHAPE, LENGTHS).to("cuda", torch.bfloat16), ladder().eval()
    with torch.autocast("cuda", torch.bfloat16):
        before = head(states)
        states.read("tokens")[6:66] = 0.5
        changed = head(states)
    assert torch.equal(before[:6], changed[:6]) and torch.equal(before[66:], changed[66:])
    assert not torch.equal(before[6:66], changed[6:66])


@torch.no_grad()
def test_a_forward_pass_does_not_synchronise_with_the_device() -> None:
    states, head = random_states(SHAPE, LENGTHS).to("cuda", torch.bfloat16), ladder().eval()
    with torch.autocast("cuda", torch.bfloat16):
        head(states)
        torch.cuda.set_sync_debug_mode("error")
        try:
            head(states)
        finally:
            torch.cuda.set_sync_debug_mode("default")
