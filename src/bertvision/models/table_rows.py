"""A user's table as the rows that candidates read: task, targets, weights, tokens and pooled states."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import torch

from bertvision.data.examples import Example
from bertvision.data.packing import fill_batches
from bertvision.data.windows import Features, build_features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import POOLED, Part, ReadPart, pack_tokens
from bertvision.errors import UserError, shorten
from bertvision.progress import Reporter
from bertvision.sources import MemoryStates
from bertvision.tasks.base import Task
from bertvision.tasks.own_table import OwnTable

MAX_LENGTH = 256
KEEP: tuple[ReadPart, ...] = ("deviation", "mean")
"""The states that every fit reads."""
ClassWeight = str | dict[str, float] | None
COPIES, TOWERS = 4, 2
"""How often the states are in memory at the worst moment: two readings side by side, and a standardised copy. Pairs
that are read as two towers need about twice that, and as much time again to encode."""
MEMORY_SHARE = 0.5
ENCODING_SHARE = 0.5
"""Part of the user's time that encoding may take."""
TIMED_TOKENS = 4096
TOKENS_AT_ONCE = 8192
TOKENS_SHARE = 0.2
"""Part of the free memory that the states of all tokens may take."""


# ---------------------------------------------------------------------- the table


def build_task_of(table: OwnTable, metric: str | None) -> Task:
    labels = tuple(sorted(set(table.labels or ())))
    metrics = ("accuracy", "f1_macro") if table.kind.has_labels else table.kind.default_metrics(())
    if metric is not None and metric not in metrics:
        raise UserError(f"metric is '{metric}': choose from {', '.join(metrics)}.")
    if metric is not None:
        metrics = (metric, *(other for other in metrics if other != metric))
    return Task("own", table.kind, metrics, {}, labels, False, MAX_LENGTH, table.name, table.pairs is not None)


def examples_of(table: OwnTable, task: Task, split: str) -> list[Example]:
    index = {label: number for number, label in enumerate(task.labels)}
    targets: Sequence[float] = (
        [index[label] for label in table.labels] if table.labels is not None else table.scores or []
    )
    pairs: Sequence[str | None] = table.pairs or [None] * len(table)
    # Ids as `run` gives them, so that a report finds the texts in the file again.
    return [
        Example(f"{split}-{row}", text, pair, target)
        for row, (text, pair, target) in enumerate(zip(table.texts, pairs, targets, strict=True))
    ]


def joined_texts(table: OwnTable) -> list[str]:
    """Each text, or both texts of a pair."""
    if table.pairs is None:
        return table.texts
    return [f"{text}\n{pair}" for text, pair in zip(table.texts, table.pairs, strict=True)]


def targets_of(examples: list[Example], task: Task) -> torch.Tensor:
    dtype = torch.long if task.labels else torch.float32
    return torch.tensor([example.target for example in examples], dtype=dtype)  # (row)


def weights_of(table: OwnTable, task: Task, examples: list[Example], class_weight: ClassWeight) -> torch.Tensor:
    """(row) weights of the loss, with a mean of 1."""
    weights = torch.ones(len(examples)) if table.weights is None else torch.tensor(table.weights, dtype=torch.float32)
    if class_weight is not None and task.labels:
        targets = targets_of(examples, task)  # (row)
        weights = weights * _class_weights(class_weight, task, targets, weights)[targets]
    return weights / weights.mean().clamp(min=1e-12)  # (row)


def _class_weights(
    wanted: str | dict[str, float], task: Task, targets: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """(label)"""
    if wanted == "balanced":
        counts = torch.bincount(targets, weights, minlength=len(task.labels)).float()  # (label)
        return weights.sum() / (len(task.labels) * counts.clamp(min=1e-12))
    if not isinstance(wanted, dict):
        raise UserError(f"class_weight is {shorten(wanted)}: give 'balanced', or a dict from label to weight.")
    named = {str(label): float(weight) for label, weight in wanted.items()}
    unknown = [label for label in named if label not in task.labels]
    if unknown:
        raise UserError(f"class_weight has labels that the data lacks: {', '.join(unknown)}.")
    if any(not 0 < weight < float("inf") for weight in named.values()):
        raise UserError("class_weight must have positive, finite weights.")
    return torch.tensor([named.get(label, 1.0) for label in task.labels])


# ---------------------------------------------------------------------- encoding


def parts_for(ways: Sequence[str]) -> tuple[ReadPart, ...]:
    """The states to compute for an encoder that is read in these ways."""
    found: tuple[ReadPart, ...] = tuple(part for part in POOLED if part in {*KEEP, *ways})
    return found


def features_of(encoder: Encoder, task: Task, examples: list[Example]) -> Features:
    assert encoder.tokenizer is not None
    return build_features(examples, encoder.tokenizer, task.kind, False, most_tokens(encoder))


def most_tokens(encoder: Encoder) -> int:
    """Tokens of a text that are read."""
    return min(MAX_LENGTH, encoder.max_length or MAX_LENGTH)


def note_cut(encoder: Encoder, features: Features) -> list[str]:
    """A note on texts that are too long, if there are any."""
    length, rows = most_tokens(encoder), len(features)
    full = int((features.lengths >= length).sum())
    note = f"{full:,} of {rows:,} texts have {length} tokens or more; only the first {length} are read."
    return [note] if full else []


def encode(
    encoder: Encoder,
    features: Features,
    what: str,
    reporter: Reporter,
    with_tokens: bool = False,
    parts: tuple[ReadPart, ...] = KEEP,
) -> tuple[dict[str, torch.Tensor], float]:
    """The states on the CPU, and the seconds that it took: pooled ones (row, layer, hidden) in float32. With
    `with_tokens` also those of all tokens (token, layer, hidden), in half precision, if there is memory for them."""
    keep: tuple[ReadPart, ...] = (*parts, "tokens") if with_tokens and tokens_fit(encoder, features) else parts
    shape, count = encoder.shape, {"tokens": len(features.input_ids)}
    found: dict[str, torch.Tensor] = {
        part: torch.empty(
            count.get(part, len(features)), shape.read_layers(part), shape.hidden,
            dtype=torch.float16 if part == "tokens" else torch.float32,
        )
        for part in keep
    }  # fmt: skip
    # Longest first: neighbours need little padding.
    order = np.argsort(-features.lengths, kind="stable")  # (row)
    started = time.monotonic()
    with reporter.bar(f"encoding {what}", int(features.lengths.sum()), "tokens") as bar, torch.no_grad():
        for rows in fill_batches(features.lengths, order, tokens=TOKENS_AT_ONCE):
            states = encoder(pack_tokens(features, rows), keep=keep).parts()
            for part, values in found.items():
                at = features.find_tokens(rows) if part == "tokens" else rows  # (token or row)
                values[torch.from_numpy(at)] = states[part].to("cpu", values.dtype)
            bar.advance(int(features.lengths[rows].sum()))
    return found, time.monotonic() - started


def encode_towers(
    encoder: Encoder, features: Features, what: str, reporter: Reporter, parts: tuple[ReadPart, ...] = KEEP
) -> tuple[MemoryStates, float]:
    """The states of the texts of pairs, each encoded alone and once, and the seconds that it took."""
    towers = features.towers
    found, seconds = encode(encoder, towers.texts, f"{what}, each alone", reporter, parts=parts)
    states: dict[Part, torch.Tensor] = {part: found[part] for part in parts}
    return MemoryStates(states, encoder.shape.pooled, towers=towers), seconds


def tokens_fit(encoder: Encoder, features: Features) -> bool:
    """Whether there is memory for the states of all tokens, in half precision."""
    needed = len(features.input_ids) * encoder.shape.layers * encoder.shape.hidden * 2
    return needed < TOKENS_SHARE * psutil.virtual_memory().available


# ---------------------------------------------------------------------- limits


def limit_rows(
    table: OwnTable,
    features: Features,
    encoder: Encoder,
    seconds: float | None,
    seed: int,
    keep: tuple[ReadPart, ...] = KEEP,
) -> tuple[OwnTable, str]:
    """The table, or a random part of it if it does not fit into memory or into the user's time, and a note that says
    so. `seconds` is what is left of the user's time."""
    times = 1 if table.pairs is None else TOWERS
    fits, why = _rows_that_fit(encoder, len(keep)) // times, "memory"
    if seconds is not None:
        in_time = rows_in_time(encoder, features, ENCODING_SHARE * seconds / times)
        fits, why = (in_time, "time") if in_time < fits else (fits, why)
    if fits >= len(table):
        return table, ""
    kept = draw_rows(table, max(fits, 50), seed)
    if len(kept) == len(table):
        return table, ""
    note = f"Using {len(kept):,} of {len(table):,} rows, drawn at random: there is no {why} for more."
    return take_rows(table, kept), note


def _rows_that_fit(encoder: Encoder, parts: int) -> int:
    row = parts * encoder.shape.layers * encoder.shape.hidden * 4 * COPIES
    return int(MEMORY_SHARE * psutil.virtual_memory().available / row)


def rows_in_time(encoder: Encoder, features: Features, seconds: float) -> int:
    """How many rows of average length the encoder reads in so many seconds, judging by a few."""
    some = np.random.default_rng(0).permutation(len(features))  # (row)
    some = some[: max(1, int(np.searchsorted(features.lengths[some].cumsum(), TIMED_TOKENS)))]
    batch = pack_tokens(features, some)
    with torch.no_grad():
        encoder(pack_tokens(features, some[:1]), keep=KEEP)  # the first call is slower
        started = time.monotonic()
        encoder(batch, keep=KEEP)
    rate = int(features.lengths[some].sum()) / max(1e-6, time.monotonic() - started)
    return int(min(len(features), rate * max(0.0, seconds) / float(features.lengths.mean())))


def draw_rows(table: OwnTable, count: int, seed: int) -> list[int]:
    """Rows drawn at random, in order, with at least two of every label that has them."""
    order = np.random.default_rng([seed, 4]).permutation(len(table)).tolist()
    chosen = set(order[:count])
    if table.labels is not None:
        found: dict[str, int] = {}
        for row in order:
            label = table.labels[row]
            if found.get(label, 0) < 2:
                chosen.add(row)
                found[label] = found.get(label, 0) + 1
    return sorted(chosen)


def take_rows(table: OwnTable, rows: Sequence[int]) -> OwnTable:
    columns = ("texts", "pairs", "labels", "scores", "weights", "ids", "places")
    given: dict[str, Any] = {name: getattr(table, name) for name in columns}
    taken: dict[str, Any] = {
        name: None if values is None else [values[row] for row in rows] for name, values in given.items()
    }
    return replace(table, **taken)
