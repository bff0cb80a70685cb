"""ladder: a narrow transformer beside the encoder, which reads a layer's state at each rung and mixes tokens there.

A side network (Sung et al. 2022, "LST: Ladder Side-Tuning") for encoders that were fine-tuned little or not at all. Its
pre-norm blocks convolve over a few tokens (Gulati et al. 2020, "Conformer") and attend over all of a sequence (Vaswani
et al. 2017). At BERT-large for spans: ladder_64 2,590,658, mostly projections (1024 to the width, one a layer);
ladder_128_last4 1,124,354; ladder_128_deep 1,292,674, for an encoder that was not fine-tuned and several passes. LOG.md
has what each part is worth.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.encoder.states import HiddenStates, ReadPart, StateShape
from bertvision.errors import UserError
from bertvision.heads.base import HEADS, Head, HeadConfig, Target, setting
from bertvision.heads.convolutions import Neighbours
from bertvision.heads.token_attention import attend


@dataclass(frozen=True)
class LadderConfig(HeadConfig):
    width: int = setting(128, "values a token has in the ladder", at_least=1)
    attention_heads: int = setting(4, "attention heads that share the width", at_least=1)
    expand: int = setting(2, "how many times as wide a block's MLP is inside", at_least=1)
    kernel: int = setting(7, "tokens that each block convolves over before it attends, odd; 1: no convolution")
    layers: tuple[int, ...] | None = setting(
        None, "layers to read, in this order: 0 = embeddings, -1 = the last; absent: all of them"
    )
    blocks: int | None = setting(
        None, "absent: one a layer; fewer: each reads a share of the layers; further ones read nothing", at_least=1
    )
    shared: bool = setting(False, "one projection for all layers, or one for each", off="separate")
    shared_blocks: bool = setting(False, "one block's weights at every rung")
    normalised: bool = setting(True, "states are normalised before they are projected", off="raw")
    dropout: float = setting(0.0, "share dropped of what attention and MLP add, in training", at_least=0, below=1)
    drop_states: float = setting(
        0.0, "share dropped of the states' values before they are projected, in training", at_least=0, below=1
    )
    read: str = setting(
        "cls", "labels and scores are read off at 'cls' = [CLS], or off the 'mean' over tokens", choices=("cls", "mean")
    )

    def mistakes(self) -> list[str]:
        mistakes = super().mistakes()
        counted = self.width > 0 and self.attention_heads > 0
        if counted and (self.width % (8 * self.attention_heads) or self.width > 256 * self.attention_heads):
            mistakes.append(
                f"`width` {self.width} can't be shared by {self.attention_heads} `attention_heads`: "
                "each needs 8, 16, 24 … 256 values"
            )
        if self.kernel < 1 or self.kernel % 2 == 0:
            mistakes.append(f"`kernel` must be odd and at least 1, not {self.kernel}")
        if self.layers is not None and not self.layers:
            mistakes.append("`layers` is empty: name at least one, or leave it out to read all")
        return mistakes


class TokenMixing(nn.Module):
    """Each channel over a few neighbouring tokens, GELU, a map of the channels: where a span begins and ends shows in
    its surroundings (the convolution of the Conformer, without its gate and batch norm)."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.reach = size // 2
        self.norm = nn.LayerNorm(width)
        self.depthwise = nn.Parameter(torch.randn(size, width) * size**-0.5)  # (neighbour, width)
        self.pointwise = nn.Linear(width, width)

    def forward(self, x: Tensor, neighbours: Neighbours) -> Tensor:
        around = neighbours.around(self.norm(x), self.reach)  # (token, neighbour, width)
        mixed = (around * self.depthwise.to(around.dtype)).sum(dim=1)  # (token, width)
        return self.pointwise(functional.gelu(mixed))  # (token, width)


class Block(nn.Module):
    """x + convolution(x), where there is one, x + attention(norm(x)), then x + MLP(norm(x)). All begin near nothing, so
    that x begins as what was read."""

    def __init__(
        self, width: int, attention_heads: int, expand: int, kernel: int, dropout: float, scale: float
    ) -> None:
        super().__init__()
        self.attention_heads = attention_heads
        self.mixing = TokenMixing(width, kernel) if kernel > 1 else None
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        # No bias: one on the keys would add the same to all scores of a query, and softmax does not see that.
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.gather = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, expand * width), nn.Linear(expand * width, width)
        self.dropout = nn.Dropout(dropout)
        for last in (self.gather, self.narrow, *([self.mixing.pointwise] if self.mixing else [])):
            nn.init.normal_(last.weight, std=scale)
            nn.init.zeros_(last.bias)

    def forward(self, x: Tensor, states: HiddenStates, neighbours: Neighbours | None) -> Tensor:
        if self.mixing is not None:
            assert neighbours is not None, "a block that convolves needs to know the neighbours"
            x = x + self.dropout(self.mixing(x, neighbours))  # (token, width)
        projected = self.query_key_value(self.attention_norm(x))  # (token, 3 * width)
        query, key, value = projected.unflatten(1, (3, self.attention_heads, -1)).unbind(1)  # (token, head, size)
        found = attend(query, key, value, states)  # (token, head, size)
        x = x + self.dropout(self.gather(found.flatten(1)))  # (token, width)
        inner = functional.gelu(self.widen(self.mlp_norm(x)))  # (token, expand * width)
        return x + self.dropout(self.narrow(inner))  # (token, width)


@HEADS.register("ladder")
class Ladder(Head):
    """Spans are read off at each token, labels and scores at the first one, [CLS], or off the mean over all."""

    Config = LadderConfig
    mixes_tokens = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "ladder_64": {"width": 64},
        "ladder_128_last4": {"width": 128, "layers": (-4, -3, -2, -1)},
        "ladder_128_deep": {"width": 128, "layers": (-3, -2, -1), "blocks": 6, "dropout": 0.2, "drop_states": 0.2},
    }

    def __init__(self, config: Any, shape: StateShape, target: Target) -> None:
        super().__init__(config, shape, target)
        layers = find_layers(config.layers, shape.layers)
        blocks, width = config.blocks or len(layers), config.width
        self.rungs = share_layers(layers, blocks)
        self.drop_states = nn.Dropout(config.drop_states)
        names = ["shared"] if config.shared else [str(layer) for layer in layers]
        self.projections = nn.ModuleDict({name: build_projection(shape.hidden, width) for name in names})
        scale = 0.02 / (2 * blocks) ** 0.5
        self.blocks = nn.ModuleList(
            Block(width, config.attention_heads, config.expand, config.kernel, config.dropout, scale)
            for _ in range(1 if config.shared_blocks else blocks)
        )
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, target.outputs)

    @property
    def reads(self) -> ReadPart:
        """All tokens, wherever the answer is read off."""
        return "tokens"

    def forward(self, states: HiddenStates) -> Tensor:
        tokens = states.read(self.reads)  # (token, layer, hidden)
        # In the weights' precision also under autocast: rounding would add up from rung to rung.
        x = tokens.new_zeros(len(tokens), self.config.width, dtype=self.output.weight.dtype)  # (token, width)
        # Found once for all blocks.
        neighbours = Neighbours(states, len(tokens), self.config.kernel // 2) if self.config.kernel > 1 else None
        for rung, layers in enumerate(self.rungs):
            for layer in layers:
                x = x + self._project(layer, tokens[:, layer])  # (token, width)
            x = self.blocks[rung % len(self.blocks)](x, states, neighbours)  # (token, width)
        if self.target.kind.position == "sequence":
            x = x[states.starts] if self.config.read == "cls" else states.mean_over_tokens(x)  # (sequence, width)
        return self.output(self.norm(x))  # (position, output)

    def _project(self, layer: int, state: Tensor) -> Tensor:
        state = self._cast(state)  # (token, hidden)
        if self.config.normalised:
            # A few dimensions of an encoder's states are far larger than the rest. The norm computes in float32 inside;
            # without autocast its output stays in the states' precision, and no float32 copy is made of them.
            with torch.autocast(state.device.type, enabled=False):
                state = functional.layer_norm(state, state.shape[1:])  # (token, hidden)
        state = self.drop_states(state)  # (token, hidden)
        return self.projections["shared" if self.config.shared else str(layer)](state)  # (token, width)


def build_projection(hidden: int, width: int) -> nn.Linear:
    """A projection that gives values of unit scale from values of unit scale."""
    linear = nn.Linear(hidden, width)
    nn.init.normal_(linear.weight, std=hidden**-0.5)
    nn.init.zeros_(linear.bias)
    return linear


def find_layers(wanted: tuple[int, ...] | None, count: int) -> list[int]:
    """The layers to read, counted from 0, out of `count`; raises UserError where one is not there or is there twice."""
    if wanted is None:
        return list(range(count))
    missing = [layer for layer in wanted if not -count <= layer < count]
    if missing:
        raise UserError(
            f"head 'ladder': there is no layer {', '.join(map(str, missing))} to read: this encoder has layers 0 "
            f"(embeddings) to {count - 1}, or {-count} to -1 counted from the end."
        )
    found = [layer % count for layer in wanted]
    if len(set(found)) < len(found):
        raise UserError(f"head 'ladder': `layers` = {list(wanted)} names a layer twice; this encoder has {count}.")
    return found


def share_layers(layers: list[int], blocks: int) -> list[list[int]]:
    """Consecutive shares, the first ones one longer where they can't be equal; blocks beyond the layers get none."""
    size, longer = divmod(len(layers), blocks)
    ends = [block * size + min(block, longer) for block in range(blocks + 1)]
    return [layers[start:end] for start, end in zip(ends, ends[1:], strict=False)]
