"""xception_short: a short Xception along the hidden dimension of [CLS], with the layers as channels.

"Xception abbreviated" in the 2020 paper, with the blocks of Chollet 2017. Parameters with BERT-large for two labels:
267,010, of which 264,066 are trainable; 269,058 with the skip.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.heads.base import HEADS, Head, ReadConfig, Target
from bertvision.heads.convolutions import Convolution, HalvingBlock, PositionMask, check_width
from bertvision.settings import setting


@dataclass(frozen=True)
class XceptionShortConfig(ReadConfig):
    skip: bool = setting(False, "also feed the last layer's state to the output layer")


@HEADS.register("xception_short")
class XceptionShort(Head):
    Config = XceptionShortConfig
    positions = frozenset({"sequence"})
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "xception_abbreviated": {},
        "xception_abbreviated_cls": {"skip": True},
    }

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        check_width("xception_short", shape.hidden, 9)
        self.first = Convolution(self.layers, 64, size=3, stride=3)
        self.second = Convolution(64, 128, size=3)
        # The mean ignores positions outside the width.
        self.block = HalvingBlock(128, 256, 512, nn.AvgPool1d(3, stride=2, padding=1, count_include_pad=False))
        self.output = nn.Linear(512 + config.skip * shape.hidden, target.outputs)

    def forward(self, states: HiddenStates) -> Tensor:
        real = PositionMask.of(states)
        values = functional.relu(self.first(self.states(states), real))  # (sequence, channel, width)
        values = self.block(functional.relu(self.second(values, real)), real)  # (sequence, channel, width)
        features = functional.relu(values).mean(dim=2)  # (sequence, channel)
        if self.config.skip:
            features = torch.cat([features, self.last(states).to(features.dtype)], dim=1)
        return self.output(features)  # (sequence, output)
