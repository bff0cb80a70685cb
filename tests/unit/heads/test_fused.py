"""Span adapters with fused kernels: with plain functions in place of the kernels, the output must be unchanged."""

import pytest
import torch
from tiny_training import member_of, random_states
from torch import Tensor
from torch.nn import functional

from bertvision.encoder.states import StateShape
from bertvision.heads import Target, adapter, build_head, fused
from bertvision.heads.fused import can_fuse
from bertvision.kinds import LABEL, SPAN, Kind

SHAPE = StateShape(layers=3, hidden=8, pooled=True)


def read_plainly(states: Tensor, weight: Tensor, bias: Tensor, columns: Tensor) -> Tensor:
    assert len(weight) % 8 == 0, "the kernels read eight values at once"
    return functional.gelu(states @ weight.T + bias).flatten(1) @ columns.T  # (position, 2)


@pytest.mark.parametrize("row", ["adapter_64", "adapter_64_skip", "adapter_386_skip"])
@pytest.mark.parametrize("kind", [SPAN, LABEL])
def test_an_adapter_returns_the_same_through_the_kernels(row: str, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head = build_head(member_of(row, kind), SHAPE, Target(kind, 2))
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    states = random_states(SHAPE, [5, 9])
    expected = head(states)
    expected.square().sum().backward()
    gradients = {name: weight.grad.clone() for name, weight in head.named_parameters()}
    head.zero_grad()
    monkeypatch.setattr(adapter, "can_fuse", lambda *_: True)
    monkeypatch.setattr(adapter, "read_out", read_plainly)
    found = head(states)
    found.square().sum().backward()
    torch.testing.assert_close(found, expected)
    for name, weight in head.named_parameters():
        torch.testing.assert_close(weight.grad, gradients[name], rtol=1e-4, atol=1e-4, msg=name)


def test_kernels_that_cannot_be_compiled_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoCompiler:
        @property
        def forward(self) -> None:
            raise RuntimeError("Failed to find C compiler.")

    monkeypatch.setattr(fused, "_load_kernels", NoCompiler)
    fused._kernels_run_on.cache_clear()
    with pytest.warns(UserWarning, match="without their fused kernels.*Failed to find C compiler"):
        assert not fused._kernels_run_on(torch.device("cpu"))
    fused._kernels_run_on.cache_clear()


def test_a_cpu_has_no_kernels() -> None:
    assert not can_fuse(torch.zeros(1000, 10, 128, dtype=torch.bfloat16), torch.zeros(2, 8))
