"""PackedTokens go into the encoder, HiddenStates come out: sequences laid end to end, no padding between them.

    tokens = PackedTokens.from_lists([[101, 7, 102], [101, 8, 9, 102]])      7 tokens in 2 sequences

Lengths stay on the CPU, so nothing here waits for the device. `Packing` holds the index tensors on the device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertvision.data.windows import Features

Part = Literal["tokens", "last", "cls", "mean", "max", "deviation"]
ReadPart = Literal["tokens", "cls", "mean", "max", "deviation"]
POOLED: tuple[ReadPart, ...] = ("cls", "mean", "max", "deviation")
"""Parts with one state per sequence and layer: [CLS], or the mean, maximum or standard deviation over tokens."""


@dataclass(frozen=True)
class StateShape:
    """The shape of the states that an encoder returns, known before any weight is loaded."""

    layers: int
    """Number of layers returned. By default the encoder's layers plus one: layer 0 is the embedding output."""
    hidden: int
    pooled: bool
    """Whether the encoder has a pooled output, which is then the last entry of the [CLS] states."""

    def read_layers(self, *parts: ReadPart) -> int:
        """Number of states that a head reads per position, over all parts that it reads."""
        return sum(self.layers + int(self.pooled and part == "cls") for part in parts)


@dataclass(frozen=True)
class Packing:
    """Where each sequence is in a packed batch, as index tensors on the device of the states."""

    starts: Tensor  # (sequence,)
    bounds: Tensor  # (sequence + 1,) int32, cumulative lengths
    owners: Tensor  # (token,) the sequence a token belongs to
    positions: Tensor  # (token,) counted from each sequence's start

    @classmethod
    def of(cls, lengths: Tensor, device: torch.device | str = "cpu") -> "Packing":
        """Build the indices from the lengths. Sequences of length 0 are padding and come last."""
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
        """Copy to pinned memory, for asynchronous transfer to a GPU."""
        return Packing(*(part.pin_memory() for part in vars(self).values()))

    def sum(self, values: Tensor) -> Tensor:
        """Sum over the tokens of each sequence, in float32."""
        empty = torch.zeros(len(self.starts), values.shape[1], device=values.device)  # (sequence, value)
        return empty.index_add(0, self.owners, values.float())  # (sequence, value)

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the tokens of each sequence, summed in float32 and returned in the dtype of the values."""
        lengths = self.bounds.diff().clamp(min=1)  # (sequence,) sequences of padding have length 0
        return (self.sum(values) / lengths.unsqueeze(1)).to(values.dtype)  # (sequence, value)

    def softmax(self, values: Tensor) -> Tensor:
        """Softmax over the tokens of each sequence, in float32."""
        powers = (values.float() - self.max(values.detach().float())[self.owners]).exp()  # (token, value)
        return powers / self.sum(powers)[self.owners]  # (token, value)

    def deviation(self, values: Tensor) -> Tensor:
        """Standard deviation over the tokens of each sequence; 0 for a single token."""
        spread = values.float() - self.mean(values.float())[self.owners]  # (token, value)
        variance = self.mean(spread.square())  # (sequence, value)
        # The square root has no gradient at 0, where a layer map needs one.
        varies = variance > 0  # (sequence, value)
        return (variance.masked_fill(~varies, 1.0).sqrt() * varies).to(values.dtype)  # (sequence, value)

    def max(self, values: Tensor) -> Tensor:
        """Maximum over the tokens of each sequence; 0 for sequences of padding, which have no tokens."""
        index = self.owners.unsqueeze(1).expand_as(values)  # (token, value)
        empty = values.new_zeros(len(self.starts), values.shape[1])  # (sequence, value)
        return empty.scatter_reduce(0, index, values, "amax", include_self=False)  # (sequence, value)


@dataclass(frozen=True)
class PackedTokens:
    """The encoder's input: token ids and segment ids of all sequences, laid end to end."""

    input_ids: Tensor  # (token,)
    type_ids: Tensor  # (token,)
    lengths: Tensor  # (sequence,) int64, on the CPU
    packing: Packing

    @classmethod
    def from_lists(cls, ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None) -> "PackedTokens":
        """Pack token ids. Without `types`, every segment id is zero."""
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
        """Move to another device."""
        ids, types = (part.to(device, non_blocking=True) for part in (self.input_ids, self.type_ids))
        return PackedTokens(ids, types, self.lengths, self.packing.to(device))

    def pin(self) -> "PackedTokens":
        """Copy to pinned memory, for asynchronous transfer to a GPU."""
        return PackedTokens(self.input_ids.pin_memory(), self.type_ids.pin_memory(), self.lengths, self.packing.pin())

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass
class HiddenStates:
    """The states of a packed batch. Parts that were not requested are None."""

    lengths: Tensor  # (sequence,) int64, on the CPU
    tokens: Tensor | None = None  # (token, layer, hidden)
    last: Tensor | None = None  # (token, hidden), the last encoder layer alone
    cls: Tensor | None = None  # (sequence, layer [+ pooled], hidden)
    mean: Tensor | None = None  # (sequence, layer, hidden)
    max: Tensor | None = None  # (sequence, layer, hidden)
    deviation: Tensor | None = None  # (sequence, layer, hidden)
    pooled: bool = False
    """Whether the last entry of `cls` is the pooled output."""
    packing: Packing | None = None
    """Built from the lengths on first use."""
    real: Tensor | None = None  # (token or sequence,)
    """1 for positions that a head reads, 0 for padding that fills up the batch; None: no padding."""
    second: "HiddenStates | None" = None
    """Pairs whose texts are read alone: the states of the second texts. These are then those of the first texts."""
    is_padded: ClassVar[bool] = False
    """Whether these are padded rows (`encoder.padded`)."""

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
        """Index of each sequence's first token, and the end of the last sequence."""
        return self._packing().bounds  # (sequence + 1,) int32

    def owners(self, tokens: int) -> Tensor:
        """The sequence of each of the batch's tokens, counted from 1; 0 is outside the batch."""
        first = torch.zeros(tokens, dtype=torch.long, device=self.device)  # (token)
        return first.index_fill(0, self.starts, 1).cumsum(0)  # (token)

    def mean_over_tokens(self, values: Tensor) -> Tensor:
        """Mean of per-token values over each sequence."""
        return self._packing().mean(values)  # (sequence, value)

    def softmax_over_tokens(self, values: Tensor) -> Tensor:
        """Softmax of per-token values over the tokens of each sequence."""
        return self._packing().softmax(values).to(values.dtype)  # (token, value)

    @property
    def last_tokens(self) -> Tensor:
        """State of each token after the last encoder layer."""
        if self.last is not None:
            return self.last  # (token, hidden)
        return self.read("tokens")[:, -1]  # (token, hidden)

    @property
    def last_cls(self) -> Tensor:
        """The [CLS] state after the last encoder layer, never the pooled output."""
        return self.read("cls")[:, -2 if self.pooled else -1]  # (sequence, hidden)

    @property
    def pooled_output(self) -> Tensor:
        assert self.pooled, "this encoder has no pooled output"
        return self.read("cls")[:, -1]  # (sequence, hidden)

    def read(self, *parts: ReadPart) -> Tensor:
        """Return the states that a head reads: all tokens, or pooled states, side by side along the layers."""
        found = self.parts()
        missing = [part for part in parts if part not in found]
        assert not missing, f"the states {missing} were not requested"
        return found[parts[0]] if len(parts) == 1 else torch.cat([found[part] for part in parts], dim=1)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "HiddenStates":
        moved: dict[str, Any] = {
            name: part.to(device=device, dtype=dtype, non_blocking=True) for name, part in self.parts().items()
        }
        packing = self.packing if self.packing is None or device is None else self.packing.to(device)
        second = None if self.second is None else self.second.to(device, dtype)
        return replace(self, **moved, packing=packing, second=second)

    def detach(self) -> "HiddenStates":
        """The same states, through which no gradient flows."""
        cut: dict[str, Any] = {name: part.detach() for name, part in self.parts().items()}
        return replace(self, **cut)

    def first(self, lengths: Tensor) -> "HiddenStates":
        """Return the states of the first sequences only, which have these lengths."""
        tokens, sequences = int(lengths.sum()), len(lengths)
        cuts: dict[str, Any] = {
            name: part[: tokens if name in ("tokens", "last") else sequences] for name, part in self.parts().items()
        }
        return HiddenStates(lengths, **cuts, pooled=self.pooled)

    def split(self, sequence_counts: list[int], packings: list[Packing] | None = None) -> list["HiddenStates"]:
        """Split into consecutive batches with the given numbers of sequences; the states are views. `packings`, if
        given, are those of the batches."""
        assert sum(sequence_counts) == len(self), "the counts cover all sequences"
        lengths = self.lengths.split(sequence_counts)
        token_counts = [int(part.sum()) for part in lengths]
        cuts = {
            name: part.split(token_counts if name in ("tokens", "last") else sequence_counts)
            for name, part in self.parts().items()
        }
        seconds = [None] * len(lengths) if self.second is None else self.second.split(sequence_counts)
        return [
            HiddenStates(
                part_lengths,
                **{name: parts[i] for name, parts in cuts.items()},
                pooled=self.pooled,
                packing=packings[i] if packings else None,
                second=seconds[i],
            )
            for i, part_lengths in enumerate(lengths)
        ]

    def pick(self, rows: Tensor, *parts: ReadPart) -> "HiddenStates":
        """Return the states of the given sequences, in this order. At least `parts` are set; `rows` is on the CPU."""
        lengths, found = self.lengths[rows], self.parts()
        if len(rows) == len(self) and bool((rows == torch.arange(len(self))).all()):
            return self
        index = {part: rows for part in parts}
        if "tokens" in parts:
            before = (self.lengths.cumsum(0) - self.lengths)[rows]  # (row,) the first token of each
            packing = Packing.of(lengths)
            index["tokens"] = before[packing.owners] + packing.positions  # (token,)
        picked: dict[str, Any] = {part: found[part][index[part].to(self.device)] for part in parts}
        return HiddenStates(lengths, **picked, pooled=self.pooled)

    def pair(self, first: Tensor, second: Tensor, *parts: ReadPart) -> "HiddenStates":
        """Return the states of pairs of these sequences, given the index of the first and of the second of each."""
        return replace(self.pick(first, *parts), second=self.pick(second, *parts))

    def pad(self, values: Tensor, fill: float = 0.0) -> tuple[Tensor, Tensor]:
        """Pad per-token values to one row per sequence. Also return the mask, true for tokens."""
        longest = int(self.lengths.max())
        flat = values.new_full((len(self) * longest, *values.shape[1:]), fill)  # (sequence · longest, …)
        padded = flat.index_copy(0, self._slots(longest), values)  # (sequence · longest, …)
        lengths = (self._packing().bounds.diff()).unsqueeze(1)  # (sequence, 1)
        mask = torch.arange(longest, device=lengths.device) < lengths  # (sequence, longest)
        return padded.unflatten(0, (len(self), longest)), mask

    def unpad(self, padded: Tensor) -> Tensor:
        """Invert `pad`: return per-token values from padded rows."""
        return padded.flatten(0, 1).index_select(0, self._slots(padded.shape[1]))  # (token, …)

    def _slots(self, longest: int) -> Tensor:
        packing = self._packing()
        return packing.owners * longest + packing.positions  # (token,)

    def parts(self) -> dict[str, Tensor]:
        """The parts that are not None, by name."""
        named = {name: getattr(self, name) for name in ("tokens", "last", *POOLED)}
        return {name: part for name, part in named.items() if part is not None}

    def _any_part(self) -> Tensor:
        parts = self.parts()
        assert parts, "these states have no parts"
        return next(iter(parts.values()))

    def _packing(self) -> Packing:
        if self.packing is None:
            self.packing = Packing.of(self.lengths, self.device)
        return self.packing


def pack_tokens(features: Features, windows: np.ndarray) -> PackedTokens:
    """Pack the tokens of the given windows."""
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

    rows: Tensor  # (row,) the sequence in each row
    source: Tensor  # (row, longest) index of the packed token in each slot, 0 for padding
    mask: Tensor  # (row, longest)
    real: Tensor  # (token,) flat slots that hold a token


def pad_batches(lengths: Tensor, budget: int) -> Iterator[PaddedBatch]:
    """Yield padded batches of sequences with similar lengths, at most `budget` slots each, longest first."""
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
        # One more call costs about as much as padding of a sixteenth of the budget, so small groups may mix lengths.
        wasteful = 8 * lengths[sequence] < 7 * longest and len(rows) * longest > budget // 16
        if rows and (full or wasteful):
            yield rows
            rows = []
        rows.append(sequence)
    yield rows
