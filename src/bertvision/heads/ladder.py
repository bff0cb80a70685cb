"""ladder: a narrow transformer alongside the encoder that reads the encoder's layers one by one and mixes tokens.

A side network (Sung et al. 2022, "LST: Ladder Side-Tuning") for encoders that were fine-tuned little or not at all. Its
pre-norm blocks convolve over neighbouring tokens (Gulati et al. 2020, "Conformer") and attend over the whole sequence
(Vaswani et al. 2017). Parameters with BERT-large for spans: ladder_64 2,590,658, most of them in the projections (1024
to the width, one per layer); ladder_128_last4 1,124,354; ladder_128_deep 1,292,674, meant for an untouched encoder and
several passes. LOG.md reports the effect of each part.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.encoder.states import HiddenStates, ReadPart, StateShape
from bertvision.errors import UserError
from bertvision.heads.base import AS_MADE, HEADS, Head, HeadConfig, Target
from bertvision.heads.convolutions import Neighbours
from bertvision.heads.token_attention import attend
from bertvision.heads.towers import compare, compared_size, pairs_setting
from bertvision.settings import MOST_LAYERS, MOST_WIDTH, setting


@dataclass(frozen=True)
class LadderConfig(HeadConfig):
    width: int = setting(128, "width of the ladder: values per token", at_least=1, at_most=MOST_WIDTH)
    attention_heads: int = setting(
        4, "number of attention heads, among which the width is divided", at_least=1, at_most=MOST_WIDTH
    )
    expand: int = setting(2, "inner width of a block's MLP, as a multiple of `width`", at_least=1, at_most=64)
    kernel: int = setting(
        7, "tokens that each block convolves over, an odd number; 1 = no convolution", at_least=1, at_most=10_001
    )
    layers: tuple[int, ...] | None = setting(
        None,
        "layers to read, in this order: 0 = embeddings, -1 = the last; default: all",
        at_least=-MOST_LAYERS, at_most=MOST_LAYERS,
    )  # fmt: skip
    blocks: int | None = setting(
        None,
        "number of blocks; default: one per layer. With fewer, each reads several layers; extra blocks read none",
        at_least=1,
        at_most=MOST_LAYERS,
    )
    shared: bool = setting(False, "one projection for all layers (true) or one per layer (false)", off="separate")
    shared_blocks: bool = setting(False, "use the same weights in every block")
    normalised: bool = setting(True, "normalise states before projecting them", off="raw")
    dropout: float = setting(0.0, "dropout on the output of each convolution, attention and MLP", at_least=0, below=1)
    drop_states: float = setting(0.0, "dropout on the states before they are projected", at_least=0, below=1)
    read: str = setting(
        "cls",
        f"labels and scores: predict from the [CLS] token ('cls') or from the mean over tokens ('mean'); {AS_MADE}",
        choices=("cls", "mean"),
    )
    pairs: str = pairs_setting()

    def mistakes(self) -> list[str]:
        mistakes = super().mistakes()
        counted = self.width > 0 and self.attention_heads > 0
        if counted and (self.width % (8 * self.attention_heads) or self.width > 256 * self.attention_heads):
            mistakes.append(
                f"`width` = {self.width} can't be divided among {self.attention_heads} `attention_heads`: "
                "each needs a multiple of 8 values, at most 256"
            )
        if self.kernel % 2 == 0:
            mistakes.append(f"`kernel` must be odd, not {self.kernel}")
        if self.layers is not None and not self.layers:
            mistakes.append("`layers` is empty: list at least one layer, or leave it out to read all")
        return mistakes


class TokenMixing(nn.Module):
    """A depthwise convolution over neighbouring tokens, GELU, and a pointwise map: nearby tokens show where a span
    begins and ends. It is the convolution of the Conformer without its gate and batch norm."""

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
    """x + convolution(x), if there is one, then x + attention(norm(x)), then x + MLP(norm(x)). All three terms start
    near zero, so that x starts as the projected states."""

    def __init__(
        self, width: int, attention_heads: int, expand: int, kernel: int, dropout: float, scale: float
    ) -> None:
        super().__init__()
        self.attention_heads = attention_heads
        self.mixing = TokenMixing(width, kernel) if kernel > 1 else None
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        # No bias: on the keys, it would add a constant to all scores of a query, which softmax ignores.
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.gather = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, expand * width), nn.Linear(expand * width, width)
        self.dropout = nn.Dropout(dropout)
        for last in (self.gather, self.narrow, *([self.mixing.pointwise] if self.mixing else [])):
            nn.init.normal_(last.weight, std=scale)
            nn.init.zeros_(last.bias)

    def forward(self, x: Tensor, states: HiddenStates, neighbours: Neighbours | None) -> Tensor:
        if self.mixing is not None:
            assert neighbours is not None, "a block with a convolution needs the neighbours"
            x = x + self.dropout(self.mixing(x, neighbours))  # (token, width)
        projected = self.query_key_value(self.attention_norm(x))  # (token, 3 * width)
        query, key, value = projected.unflatten(1, (3, self.attention_heads, -1)).unbind(1)  # (token, head, size)
        found = attend(query, key, value, states)  # (token, head, size)
        x = x + self.dropout(self.gather(found.flatten(1)))  # (token, width)
        inner = functional.gelu(self.widen(self.mlp_norm(x)))  # (token, expand * width)
        return x + self.dropout(self.narrow(inner))  # (token, width)


@HEADS.register("ladder")
class Ladder(Head):
    """Predicts spans at each token; labels and scores from the first token, [CLS], or from the mean over tokens."""

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
        self.output = nn.Linear(compared_size(width) if self.towers else width, target.outputs)

    @property
    def reads(self) -> tuple[ReadPart, ...]:
        """Always all tokens, for any kind of target."""
        return ("tokens",)

    def forward(self, states: HiddenStates) -> Tensor:
        found = self.norm(self._climb(states))  # (position, width)
        if self.towers:
            assert states.second is not None, "a head that reads two towers needs the second texts"
            found = compare(found, self.norm(self._climb(states.second)))  # (sequence, value)
        return self.output(found)  # (position, output)

    def _climb(self, states: HiddenStates) -> Tensor:
        """The top of the ladder, at each position."""
        tokens = states.read(*self.reads)  # (token, layer, hidden)
        # In the weights' dtype even under autocast: rounding errors would accumulate from block to block.
        x = tokens.new_zeros(tokens.shape[0], self.config.width, dtype=self.output.weight.dtype)  # (token, width)
        neighbours = Neighbours(states, tokens.shape[0], self.config.kernel // 2) if self.config.kernel > 1 else None
        for rung, layers in enumerate(self.rungs):
            for layer in layers:
                x = x + self._project(layer, tokens[:, layer])  # (token, width)
            x = self.blocks[rung % len(self.blocks)](x, states, neighbours)  # (token, width)
        if self.target.kind.position == "token":
            return x
        return x[states.starts] if self.config.read == "cls" else states.mean_over_tokens(x)  # (sequence, width)

    def _project(self, layer: int, state: Tensor) -> Tensor:
        state = self._cast(state)  # (token, hidden)
        if self.config.normalised:
            # A few dimensions of an encoder's states are far larger than the rest. The norm computes in float32
            # internally. Without autocast its output keeps the dtype of the states, so no float32 copy is made.
            with torch.autocast(state.device.type, enabled=False):
                state = functional.layer_norm(state, state.shape[1:])  # (token, hidden)
        state = self.drop_states(state)  # (token, hidden)
        return self.projections["shared" if self.config.shared else str(layer)](state)  # (token, width)


def build_projection(hidden: int, width: int) -> nn.Linear:
    """Build a projection that preserves unit scale."""
    linear = nn.Linear(hidden, width)
    nn.init.normal_(linear.weight, std=hidden**-0.5)
    nn.init.zeros_(linear.bias)
    return linear


def find_layers(wanted: tuple[int, ...] | None, count: int) -> list[int]:
    """Return the layers to read, numbered from 0. Raise UserError if one is out of range or listed twice."""
    if wanted is None:
        return list(range(count))
    missing = [layer for layer in wanted if not -count <= layer < count]
    if missing:
        raise UserError(
            f"head 'ladder': there is no layer {', '.join(map(str, missing))}. This encoder has layers 0 (embeddings) "
            f"to {count - 1}, or {-count} to -1 counted from the end."
        )
    found = [layer % count for layer in wanted]
    if len(set(found)) < len(found):
        raise UserError(f"head 'ladder': `layers` = {list(wanted)} lists a layer twice; this encoder has {count}.")
    return found


def share_layers(layers: list[int], blocks: int) -> list[list[int]]:
    """Divide consecutive layers among the blocks as evenly as possible, the first blocks getting one more. If there are
    more blocks than layers, the last blocks get none."""
    size, longer = divmod(len(layers), blocks)
    ends = [block * size + min(block, longer) for block in range(blocks + 1)]
    return [layers[start:end] for start, end in zip(ends, ends[1:], strict=False)]
