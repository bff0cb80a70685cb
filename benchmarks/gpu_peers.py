"""Encoder shapes and windows for all rows of `benchmarks/gpu.py`, and the peers: transformers as in its example
scripts, and LoRA through peft.

A window is a row of Python lists. A DataLoader pads the rows of a batch to the longest one, or all rows to one length.
`finetune` and `encode` return endless iterators that take one step at a time and yield the number of its real tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import AutoModel, AutoModelForQuestionAnswering, BertConfig

from bertvision.data.windows import Features

PADDED = {"input_ids": 0, "token_type_ids": 0, "attention_mask": 0}
MOST_ROWS = 6400  # building more Python lists would only take time

PeerRow = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    inner: int

    def config(self) -> BertConfig:
        return BertConfig(
            num_hidden_layers=self.layers, hidden_size=self.hidden, num_attention_heads=self.heads,
            intermediate_size=self.inner,
        )  # fmt: skip

    def linear_flops(self) -> float:
        """Operations in a token's forward pass, without attention."""
        return self.layers * (8 * self.hidden**2 + 4 * self.hidden * self.inner)

    def attention_flops(self, attended: float) -> float:
        return self.layers * 4 * self.hidden * attended


SHAPES = {
    "large": Shape(24, 1024, 16, 4096),
    "base": Shape(12, 768, 12, 3072),
    "gte-small": Shape(12, 384, 12, 1536),
    "minilm": Shape(6, 384, 12, 1536),
    "tiny": Shape(2, 32, 2, 64),
}


def draw_lengths(windows: int, mean: float, longest: int) -> np.ndarray:
    """Draw log-normal lengths, clipped at both ends, with this mean."""
    spread = np.exp(0.4 * np.random.default_rng(0).standard_normal(windows))  # (window)
    low, high = 0.0, 100.0 * longest
    for _ in range(60):  # bisection: the mean grows with the scale
        scale = (low + high) / 2
        lengths = np.clip(scale * spread, min(16, mean / 2), longest).astype(np.int32)  # (window)
        low, high = (scale, high) if lengths.mean() < mean else (low, scale)
    assert abs(lengths.mean() / mean - 1) < 0.03, f"the mean is {lengths.mean()}, not {mean}"
    return lengths


def draw_features(lengths: np.ndarray) -> Features:
    """Draw windows of random tokens, a third of them without an answer."""
    draws = np.random.default_rng(1)
    windows, tokens = len(lengths), int(lengths.sum())
    starts = np.cumsum(lengths, dtype=np.int64) - lengths  # (window)
    position = np.arange(tokens) - np.repeat(starts, lengths)  # (token) within its window
    ids = draws.integers(1000, 30000, tokens, dtype=np.int32)  # (token)
    ids[starts] = 101  # [CLS]
    start = np.where(draws.random(windows) < 1 / 3, 0, draws.integers(0, lengths)).astype(np.int32)  # (window)
    end = np.where(start == 0, 0, draws.integers(start, lengths)).astype(np.int32)  # (window)
    return Features(
        input_ids=ids, type_ids=(position >= 12).astype(np.int8), lengths=lengths, starts=starts,
        example=np.arange(windows, dtype=np.int32), offsets=np.zeros((tokens, 2), dtype=np.int32), start=start, end=end,
        target=np.full(windows, np.nan, dtype=np.float32),
    )  # fmt: skip


def attended_length(features: Features) -> float:
    """Mean number of tokens that a token attends to."""
    lengths = features.lengths.astype(np.float64)  # (window)
    return float((lengths**2).sum() / lengths.sum())


# ---------------------------------------------------------------------- peers


def build_rows(features: Features) -> list[PeerRow]:
    """The windows as a tokenizer would return them, with the positions of the answers."""
    rows = []
    for window in range(min(MOST_ROWS, len(features))):
        tokens = features.tokens_of(window)
        ids = features.input_ids[tokens].tolist()
        types = features.type_ids[tokens].tolist()
        answer = {"start_positions": int(features.start[window]), "end_positions": int(features.end[window])}
        rows.append({"input_ids": ids, "token_type_ids": types, "attention_mask": [1] * len(ids), **answer})
    return rows


def collate(rows: list[PeerRow], length: int | None) -> dict[str, Tensor]:
    """Pad the rows of one batch to `length`, or to the longest one."""
    wide = length or max(len(row["input_ids"]) for row in rows)
    batch = {
        name: torch.tensor([row[name] + [fill] * (wide - len(row[name])) for row in rows])  # (row, wide)
        for name, fill in PADDED.items()
    }
    return batch | {name: torch.tensor([row[name] for row in rows]) for name in ("start_positions", "end_positions")}


def build_plain(config: BertConfig, device: torch.device) -> nn.Module:
    """The model of the question-answering example, with float32 weights."""
    with device:
        return AutoModelForQuestionAnswering.from_config(config, attn_implementation="sdpa").to(device).train()


def build_lora(config: BertConfig, device: torch.device) -> nn.Module:
    """The same with LoRA of rank 8 on queries and values; everything else but the output layer is frozen."""
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(task_type="QUESTION_ANS", r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["query", "value"])
    return get_peft_model(build_plain(config, device), lora).to(device).train()


def build_frozen(config: BertConfig, device: torch.device, dtype: torch.dtype) -> nn.Module:
    with device:
        return AutoModel.from_config(config, attn_implementation="sdpa", dtype=dtype).to(device).eval()


def finetune(
    model: nn.Module,
    rows: list[PeerRow],
    batch_rows: int,
    length: int | None,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> Iterator[int]:
    """The plain loop: forward under autocast, backward, clip, one AdamW step."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-5, fused=True)
    for batch in _batches(rows, batch_rows, length):
        tokens = int(batch["attention_mask"].sum())
        inputs = {name: part.to(device) for name, part in batch.items()}
        with autocast():
            loss = model(**inputs).loss
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield tokens


def encode(
    model: nn.Module, rows: list[PeerRow], batch_rows: int, length: int | None, device: torch.device
) -> Iterator[int]:
    """The frozen pass: compute the hidden states of every layer and discard them."""
    for batch in _batches(rows, batch_rows, length):
        tokens = int(batch["attention_mask"].sum())
        inputs = {name: batch[name].to(device) for name in PADDED}
        with torch.no_grad():
            model(**inputs, output_hidden_states=True)
        yield tokens


def _batches(rows: list[PeerRow], batch_rows: int, length: int | None) -> Iterator[dict[str, Tensor]]:
    """Endless batches in random order."""
    draws = torch.Generator().manual_seed(0)
    loader: DataLoader[Any] = DataLoader(
        rows,  # type: ignore[arg-type]  # a list is a dataset
        batch_rows,
        shuffle=True,
        drop_last=True,
        collate_fn=partial(collate, length=length),
        generator=draws,
    )
    while True:
        yield from loader
