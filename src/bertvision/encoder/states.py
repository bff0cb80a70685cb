"""PackedTokens go into the encoder, HiddenStates come out: sequences laid end to end, no padding between them.

    tokens = PackedTokens.from_lists([[101, 7, 102], [101, 8, 9, 102]])      7 tokens in 2 sequences

Lengths stay on the CPU, so that nothing here waits for the device; index tensors on the device are in `Packing`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertvision.data.windows import Features

Part = Literal["tokens", "last", "cls", "mean"]
ReadPart = Literal["tokens", "cls", "mean"]


@dataclass(frozen=True)
class StateShape:
    """The states an encoder gives, known before any weight is loaded."""

    layers: int
    """Layers whose states are given. All of them are the encoder's plus one: layer 0 is the embedding output."""
    hidden: int
    pooled: bool
    """Whether there is a pooled output, which the [CLS] states then carry as their last entry."""

    def read_layers(self, part: ReadPart) -> int:
        """How many states a head finds for each token, [CLS] or mean that it reads."""
        return self.layers + int(self.pooled and part == "cls")


@dataclass(frozen=True)
class Packing:
    """Where each sequence lies in a packed batch, as index tensors on the device of the states."""

    starts: Tensor  # (sequence,)
    bounds: Tensor  # (sequence + 1,) int32, cumulative lengths
    owners: Tensor  # (token,) the sequence a token belongs to
    positions: Tensor  # (token,) counted from each sequence's start

    @classmethod
    def of(cls, lengths: Tensor, device: torch.device | str = "cpu") -> "Packing":
        """Sequences without a token come last, and only fill a batch up."""
        assert lengths.device.type == "cpu" and len(lengths) > 0, "lengths are a non-empty CPU tensor"
        assert int(lengths[0]) > 0 and int(lengths.min()) >= 0, "a packed sequence has at least one token"
        ends = lengths.cumsum(0)  # (sequence,)
        starts = ends - lengths  # (sequence,)
        owners = torch.repeat_interleave(torch.arange(len(lengths)), lengths)  # (token,)
        positions = torch.arange(int(ends[-1])) - starts[owners]  # (token,)
        bounds = torch.cat([starts[:1], ends]).to(torch.int32)  # (sequence + 1,)
        return cls(starts.masked_fill(lengths == 0, 0), bounds, owners, positions).to(device)

    def to(self, device: torch.device | str) -> "Packing":
        return Packing(*(part.to(device, non_blocking=True) for part in vars(self).values()))

    def pin(self) -> "Packing":
        """In memory that a GPU reads on its own, while the program goes on."""
        return Packing(*(part.pin_memory() for part in vars(self).values()))

    def mean(self, values: Tensor) -> Tensor:
        """Each sequence's mean over its tokens, in the values' precision but summed in float32."""
        lengths = self.bounds.diff().clamp(min=1)  # (sequence,) those that only fill a batch up have none
        total = torch.zeros(len(lengths), values.shape[1], device=values.device)  # (sequence, value)
        total = total.index_add(0, self.owners, values.float())  # (sequence, value)
        return (total / lengths.unsqueeze(1)).to(values.dtype)  # (sequence, value)


@dataclass(frozen=True)
class PackedTokens:
    """The encoder's input: token ids and segment ids of all sequences, one after another."""

    input_ids: Tensor  # (token,)
    type_ids: Tensor  # (token,)
    lengths: Tensor  # (sequence,) int64, on the CPU
    packing: Packing

    @classmethod
    def from_lists(cls, ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None) -> "PackedTokens":
        """Pack token ids; without `types` every segment id is zero."""
        lengths = torch.tensor([len(sequence) for sequence in ids])  # (sequence,)
        input_ids = torch.tensor(list(chain.from_iterable(ids)))  # (token,)
        if types is None:
            type_ids = torch.zeros_like(input_ids)  # (token,)
        else:
            assert [len(sequence) for sequence in types] == lengths.tolist(), "one segment id for each token"
            type_ids = torch.tensor(list(chain.from_iterable(types)))  # (token,)
        return cls(input_ids, type_ids, lengths, Packing.of(lengths))

    @property
    def position_ids(self) -> Tensor:
        """Positions that restart at each sequence."""
        return self.packing.positions  # (token,)

    @property
    def device(self) -> torch.device:
        return self.input_ids.device

    @cached_property
    def longest(self) -> int:
        return int(self.lengths.max())

    def to(self, device: torch.device | str) -> "PackedTokens":
        """The same tokens on another device."""
        ids, types = (part.to(device, non_blocking=True) for part in (self.input_ids, self.type_ids))
        return PackedTokens(ids, types, self.lengths, self.packing.to(device))

    def pin(self) -> "PackedTokens":
        """In memory that a GPU reads on its own, while the program goes on."""
        return PackedTokens(self.input_ids.pin_memory(), self.type_ids.pin_memory(), self.lengths, self.packing.pin())

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass
class HiddenStates:
    """The states of a packed batch; only the parts that were asked for are there."""

    lengths: Tensor  # (sequence,) int64, on the CPU
    tokens: Tensor | None = None  # (token, layer, hidden)
    last: Tensor | None = None  # (token, hidden), the last encoder layer alone
    cls: Tensor | None = None  # (sequence, layer [+ pooled], hidden)
    mean: Tensor | None = None  # (sequence, layer, hidden)
    pooled: bool = False
    """Whether the last entry of `cls` is the pooled output."""
    packing: Packing | None = None
    """Made from the lengths when it is first needed."""
    real: Tensor | None = None  # (token or sequence,)
    """1 where a head reads a position that counts, 0 where one only fills the batch up; None: all of them count."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def device(self) -> torch.device:
        return self._any_part().device

    @property
    def starts(self) -> Tensor:
        """Index of each sequence's first token."""
        return self._packing().starts  # (sequence,)

    @property
    def bounds(self) -> Tensor:
        """Where each sequence begins, and where the last one ends."""
        return self._packing().bounds  # (sequence + 1,) int32

    def mean_over_tokens(self, values: Tensor) -> Tensor:
        """Each sequence's mean of what its tokens have."""
        return self._packing().mean(values)  # (sequence, value)

    @property
    def last_tokens(self) -> Tensor:
        """Each token's state after the last encoder layer."""
        if self.last is not None:
            return self.last  # (token, hidden)
        return self.read("tokens")[:, -1]  # (token, hidden)

    @property
    def last_cls(self) -> Tensor:
        """The [CLS] state after the last encoder layer: never the pooled output."""
        return self.read("cls")[:, -2 if self.pooled else -1]  # (sequence, hidden)

    @property
    def pooled_output(self) -> Tensor:
        assert self.pooled, "this encoder has no pooled output"
        return self.read("cls")[:, -1]  # (sequence, hidden)

    def read(self, part: ReadPart) -> Tensor:
        """What a head reads: the states of all tokens, of [CLS], or the mean over tokens."""
        states = {"tokens": self.tokens, "cls": self.cls, "mean": self.mean}[part]
        assert states is not None, f"the states '{part}' were not kept"
        return states  # (token or sequence, layer, hidden)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "HiddenStates":
        moved: dict[str, Any] = {
            name: part.to(device=device, dtype=dtype, non_blocking=True) for name, part in self.parts().items()
        }
        packing = self.packing if self.packing is None or device is None else self.packing.to(device)
        return replace(self, **moved, packing=packing)

    def first(self, lengths: Tensor) -> "HiddenStates":
        """The states of the first sequences alone, which have these lengths."""
        tokens, sequences = int(lengths.sum()), len(lengths)
        cuts: dict[str, Any] = {
            name: part[: tokens if name in ("tokens", "last") else sequences] for name, part in self.parts().items()
        }
        return HiddenStates(lengths, **cuts, pooled=self.pooled)

    def split(self, sequence_counts: list[int], packings: list[Packing] | None = None) -> list["HiddenStates"]:
        """Cut into consecutive batches of so many sequences each; the states are views. The batches' own packings may
        be given, where they were made before."""
        assert sum(sequence_counts) == len(self), "the counts cover all sequences"
        lengths = self.lengths.split(sequence_counts)
        token_counts = [int(part.sum()) for part in lengths]
        cuts = {
            name: part.split(token_counts if name in ("tokens", "last") else sequence_counts)
            for name, part in self.parts().items()
        }
        return [
            HiddenStates(
                part_lengths,
                **{name: parts[i] for name, parts in cuts.items()},
                pooled=self.pooled,
                packing=packings[i] if packings else None,
            )
            for i, part_lengths in enumerate(lengths)
        ]

    def pick(self, rows: Tensor, part: ReadPart) -> "HiddenStates":
        """The states of some sequences, in this order, at least the part that is named; `rows` is on the CPU."""
        lengths, states = self.lengths[rows], self.read(part)
        if len(rows) == len(self) and bool((rows == torch.arange(len(self))).all()):
            return self
        index = rows
        if part == "tokens":
            before = (self.lengths.cumsum(0) - self.lengths)[rows]  # (row,) the first token of each
            packing = Packing.of(lengths)
            index = before[packing.owners] + packing.positions  # (token,)
        picked: dict[str, Any] = {part: states[index.to(states.device)]}
        return HiddenStates(lengths, **picked, pooled=self.pooled)

    def pad(self, values: Tensor, fill: float = 0.0) -> tuple[Tensor, Tensor]:
        """Values of tokens as rows of sequences, and the mask that is true where a token is."""
        longest = int(self.lengths.max())
        flat = values.new_full((len(self) * longest, *values.shape[1:]), fill)  # (sequence · longest, …)
        padded = flat.index_copy(0, self._slots(longest), values)  # (sequence · longest, …)
        lengths = (self._packing().bounds.diff()).unsqueeze(1)  # (sequence, 1)
        mask = torch.arange(longest, device=lengths.device) < lengths  # (sequence, longest)
        return padded.unflatten(0, (len(self), longest)), mask

    def unpad(self, padded: Tensor) -> Tensor:
        """The inverse of `pad`: rows of sequences back to a line of tokens."""
        return padded.flatten(0, 1).index_select(0, self._slots(padded.shape[1]))  # (token, …)

    def _slots(self, longest: int) -> Tensor:
        packing = self._packing()
        return packing.owners * longest + packing.positions  # (token,)

    def parts(self) -> dict[str, Tensor]:
        """What is there, by name."""
        named = {"tokens": self.tokens, "last": self.last, "cls": self.cls, "mean": self.mean}
        return {name: part for name, part in named.items() if part is not None}

    def _any_part(self) -> Tensor:
        parts = self.parts()
        assert parts, "these states hold no part at all"
        return next(iter(parts.values()))

    def _packing(self) -> Packing:
        if self.packing is None:
            self.packing = Packing.of(self.lengths, self.device)
        return self.packing


def pack_tokens(features: Features, windows: np.ndarray) -> PackedTokens:
    """The tokens of some windows, one after the other."""
    index = features.find_tokens(windows)  # (token)
    counts = torch.from_numpy(features.lengths[windows].astype(np.int64))  # (window)
    return PackedTokens(
        input_ids=torch.from_numpy(features.input_ids[index].astype(np.int64)),
        type_ids=torch.from_numpy(features.type_ids[index].astype(np.int64)),
        lengths=counts,
        packing=Packing.of(counts),
    )


# ---------------------------------------------------------------------- padded batches


class PaddedBatch(NamedTuple):
    """Some sequences of a packed batch as padded rows."""

    rows: Tensor  # (row,) the sequences in it
    source: Tensor  # (row, longest) the packed token of each slot, 0 where there is none
    mask: Tensor  # (row, longest)
    real: Tensor  # (token,) flat slots that hold a token


def pad_batches(lengths: Tensor, budget: int) -> Iterator[PaddedBatch]:
    """Padded batches of sequences of nearly the same length, at most `budget` slots each, longest first."""
    starts = lengths.cumsum(0) - lengths  # (sequence,)
    for rows in group_by_length(lengths.tolist(), budget):
        chosen = torch.tensor(rows)  # (row,)
        position = torch.arange(int(lengths[chosen].max()))  # (longest,)
        mask = position < lengths[chosen].unsqueeze(1)  # (row, longest)
        source = (starts[chosen].unsqueeze(1) + position).masked_fill(~mask, 0)  # (row, longest)
        yield PaddedBatch(chosen, source, mask, mask.flatten().nonzero().squeeze(1))


def group_by_length(lengths: list[int], budget: int) -> Iterator[list[int]]:
    order = sorted(range(len(lengths)), key=lambda sequence: -lengths[sequence])
    rows: list[int] = []
    for sequence in order:
        longest = lengths[rows[0]] if rows else 0
        full = (len(rows) + 1) * longest > budget
        # One more call costs about as much as a sixteenth of the budget in padding, so small groups may mix lengths.
        wasteful = 8 * lengths[sequence] < 7 * longest and len(rows) * longest > budget // 16
        if rows and (full or wasteful):
            yield rows
            rows = []
        rows.append(sequence)
    yield rows
