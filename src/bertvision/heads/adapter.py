"""adapter: a small non-linear projection of every layer's state, concatenated and followed by a linear layer.

From the 2020 paper: the adapter of Houlsby et al. 2019 without its up-projection. Parameters with BERT-large for spans:
size 64 shared 68,802, separate 1,643,202; size 386 shared 414,952, separate 9,910,552; the skip adds 2,048.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Head, ReadConfig, Target
from bertvision.heads.blocks import ALIGNMENT, SeparateAdapter, SharedAdapter, alignment_of, linear_of_parts, pad_to
from bertvision.heads.fused import can_fuse, read_out
from bertvision.settings import MOST_WIDTH, setting


@dataclass(frozen=True)
class AdapterConfig(ReadConfig):
    size: int = setting(64, "output size of the adapter, per layer", at_least=1, at_most=MOST_WIDTH)
    shared: bool = setting(True, "one adapter for all layers (true) or one per layer (false)", off="separate")
    skip: bool = setting(False, "also feed the last layer's state to the output layer")


@HEADS.register("adapter")
class Adapter(Head):
    Config = AdapterConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "adapter_64": {"size": 64},
        "adapter_64_skip": {"size": 64, "skip": True},
        "adapter_64_separate": {"size": 64, "shared": False},
        "adapter_64_separate_skip": {"size": 64, "shared": False, "skip": True},
        "adapter_386": {"size": 386},
        "adapter_386_skip": {"size": 386, "skip": True},
        "adapter_386_separate": {"size": 386, "shared": False},
        "adapter_386_separate_skip": {"size": 386, "shared": False, "skip": True},
    }

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        size, hidden = config.size, shape.hidden
        self.adapter = SharedAdapter(hidden, size) if config.shared else SeparateAdapter(self.layers, hidden, size)
        self.output = nn.Linear(self.layers * size + config.skip * hidden, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        read = self.states(states)  # (position, layer, hidden)
        # is_cuda is checked first, so that the kernels are never imported on a CPU.
        if self.config.shared and read.is_cuda and can_fuse(read, self.output.weight):
            return self._forward_fused(read)  # (position, output)
        adapted = self.adapter(read, alignment_of(read))  # (position, layer, width)
        parts = [(adapted, self.config.size)]
        if self.config.skip:
            parts.append((self.last(states), self.shape.hidden))  # (position, hidden)
        return linear_of_parts(self.output, parts)  # (position, output)

    def _forward_fused(self, read: Tensor) -> Tensor:
        """The same computation with fewer reads of the adapter's output."""
        weight, bias = pad_to(self.adapter.weight, -2, ALIGNMENT), pad_to(self.adapter.bias, -1, ALIGNMENT)
        own, skipped = self.output.weight.tensor_split([self.layers * self.config.size], dim=1)
        columns = pad_to(own.unflatten(1, (self.layers, -1)), -1, ALIGNMENT).flatten(1)  # (2, layer * width)
        out = read_out(read, weight, bias, columns) + self.output.bias  # (position, 2)
        return out + functional.linear(read[:, self.shape.layers - 1], skipped) if self.config.skip else out
