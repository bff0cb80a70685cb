"""States in memory: the processes of a launch divide the encoder's pass; each ends with the states of all windows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from tiny_encoders import tiny_model
from torch import Tensor

from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.machine import Machine
from bertvision.sources import MemoryStates


@dataclass
class OneOf:
    """A process that is alone at the sum: it returns what this process contributes."""

    rank: int
    processes: int

    def sum_tensor(self, tensor: Tensor) -> Tensor:
        return tensor


@pytest.mark.parametrize("processes", [1, 2, 3, 50])
def test_the_parts_of_all_processes_add_up_to_the_states_of_one(
    processes: int, tiny_features: Callable[[str], Features]
) -> None:
    features, keep = tiny_features("rte"), cast(Any, ("cls", "mean"))
    encoder = Encoder(tiny_model("bert", num_attention_heads=2), attention="padded")
    whole = MemoryStates.encode(encoder, features, keep, 60)
    seen: list[int] = []
    forward = encoder.forward

    def counted(tokens: Any, *given: Any, **named: Any) -> Any:
        seen.append(len(tokens))
        return forward(tokens, *given, **named)

    encoder.forward = counted  # type: ignore[method-assign]
    machines = [cast(Machine, OneOf(rank, processes)) for rank in range(processes)]
    parts = [MemoryStates.encode(encoder, features, keep, 60, machine=machine).parts for machine in machines]
    assert processes == 50 or sum(seen) == len(features), "each window is encoded once"
    for name in keep:
        assert torch.equal(torch.stack([part[name] for part in parts]).sum(0), whole.parts[name])
