"""The hidden states of texts, as numpy arrays: every layer of every token, or one state per layer."""

from typing import Any

import numpy as np

from bertvision.data.examples import Example
from bertvision.data.packing import fill_batches
from bertvision.data.windows import build_features
from bertvision.encoder.encoder import Encoder
from bertvision.errors import UserError, suggest
from bertvision.kinds import LABEL
from bertvision.machine import sharing_cores
from bertvision.pipeline.snapshot import encode_batches
from bertvision.progress import Reporter

READS: tuple[Any, ...] = ("tokens", "cls", "mean")


def text_states(
    encoder: Encoder, examples: list[Example], max_length: int, read: str, reporter: Reporter
) -> list[np.ndarray]:
    """Return float32 arrays, one per text: (token, layer, hidden) for "tokens", else (layer, hidden). A text or pair is
    one sequence, cut at `max_length` tokens."""
    if read not in READS:
        raise UserError(f"read is {read!r}: {suggest(read, READS)}")
    alone = [number for number, one in enumerate(examples) if one.text_pair is None]
    if 0 < len(alone) < len(examples):  # windows are of texts, or all of pairs
        pairs = [number for number, one in enumerate(examples) if one.text_pair is not None]
        joined: dict[int, np.ndarray] = {}
        for some in (alone, pairs):
            found = text_states(encoder, [examples[number] for number in some], max_length, read, reporter)
            joined |= dict(zip(some, found, strict=True))
        return [joined[number] for number in range(len(examples))]
    assert encoder.tokenizer is not None
    features = build_features(examples, encoder.tokenizer, LABEL, False, max_length)
    plan = fill_batches(features.lengths, np.argsort(-features.lengths, kind="stable"), tokens=8192)
    by_text: dict[int, np.ndarray] = {}
    with sharing_cores(int(features.lengths.sum()), reporter):
        for windows, states in encode_batches(encoder, features, plan, (read,)):  # type: ignore[arg-type]  # checked
            values = states.read(read).float().cpu().numpy()  # type: ignore[arg-type]  # (token or text, layer, hidden)
            values = values[:, : encoder.shape.layers]  # without the pooled output
            ends = np.cumsum(features.lengths[windows])[:-1] if read == "tokens" else np.arange(1, len(windows))
            parts = np.split(values, ends)  # (token or 1, layer, hidden) each
            by_text |= {int(w): part if read == "tokens" else part[0] for w, part in zip(windows, parts, strict=True)}
    return [by_text[text] for text in range(len(examples))]
