"""adapter: every layer's state through a small non-linear map, all of them side by side into the output.

The 2020 paper's head (the map of Houlsby et al. 2019 without its way up). At BERT-large for spans: size 64 shared
68,802, separate 1,643,202; size 386 shared 414,952, separate 9,910,552; the skip adds 2,048.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Head, ReadConfig, Target
from bertvision.heads.blocks import ALIGNMENT, SeparateAdapter, SharedAdapter, alignment_of, linear_of_parts, pad_to
from bertvision.heads.fused import can_fuse, read_out
from bertvision.settings import setting


@dataclass(frozen=True)
class AdapterConfig(ReadConfig):
    size: int = setting(64, "values a layer's state becomes", at_least=1)
    shared: bool = setting(True, "one map for all layers, or one for each", off="separate")
    skip: bool = setting(False, "the last layer's state goes to the output too")


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
        # Asked here first, so that a CPU never enters the kernels' module.
        if self.config.shared and read.is_cuda and can_fuse(read, self.output.weight):
            return self._forward_fused(read)  # (position, output)
        adapted = self.adapter(read, alignment_of(read))  # (position, layer, width)
        parts = [(adapted, self.config.size)]
        if self.config.skip:
            parts.append((self.last(states), self.shape.hidden))  # (position, hidden)
        return linear_of_parts(self.output, parts)  # (position, output)

    def _forward_fused(self, read: Tensor) -> Tensor:
        """The same, with fewer readings of what the adapter gives."""
        weight, bias = pad_to(self.adapter.weight, -2, ALIGNMENT), pad_to(self.adapter.bias, -1, ALIGNMENT)
        own, skipped = self.output.weight.tensor_split([self.layers * self.config.size], dim=1)
        columns = pad_to(own.unflatten(1, (self.layers, -1)), -1, ALIGNMENT).flatten(1)  # (2, layer * width)
        out = read_out(read, weight, bias, columns) + self.output.bias  # (position, 2)
        return out + functional.linear(read[:, self.shape.layers - 1], skipped) if self.config.skip else out
