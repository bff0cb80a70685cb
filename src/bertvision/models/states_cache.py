"""Pooled states of the texts that were encoded last: cross-validations and grid searches fit the same texts often."""

import hashlib
import time
from collections import OrderedDict
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import Part
from bertvision.progress import Bar
from bertvision.sources import MemoryStates


class StatesCache:
    """At most `most_bytes` of states for each encoder that is in memory. What was not used for longest goes first.

    A cached row was encoded in another batch, so its last digit can differ from that of a fresh one.
    """

    def __init__(self, most_bytes: int = 512 << 20) -> None:
        self.most_bytes = most_bytes
        self._rows: WeakKeyDictionary[Encoder, OrderedDict[bytes, tuple[Tensor, float]]] = WeakKeyDictionary()

    def encode(
        self, encoder: Encoder, features: Features, keep: tuple[Part, ...], bar: Bar
    ) -> tuple[dict[str, Tensor], float]:
        """Part → (row, layer, hidden), in float32 on the CPU; and the seconds that encoding all rows took, now or
        earlier: how long `heads="auto"` tries models depends on it."""
        known = self._rows.setdefault(encoder, OrderedDict())
        keys = [_key(features, row, keep) for row in range(len(features))]
        missing = np.array([row for row, key in enumerate(keys) if key not in known], dtype=np.int64)  # (missing row)
        fresh: dict[bytes, tuple[Tensor, float]] = {}
        if len(missing):
            started = time.monotonic()
            found = MemoryStates.encode(encoder, features, keep, bar=bar, windows=missing).parts
            states = (
                torch.stack([found[part] for part in keep], dim=1).float().cpu()
            )  # (missing row, part, layer, hidden)
            each = (time.monotonic() - started) / len(missing)
            fresh = {keys[row]: (one, each) for row, one in zip(missing.tolist(), states, strict=True)}
        rows = [fresh.get(key) or known[key] for key in keys]
        joined = torch.stack([one for one, _ in rows])  # (row, part, layer, hidden)
        self._remember(known, dict(zip(keys, rows, strict=True)), joined[0].nbytes)
        parts: dict[str, Tensor] = {
            part: joined[:, number].contiguous() for number, part in enumerate(keep)
        }  # (row, layer, hidden) each
        return parts, sum(seconds for _, seconds in rows)

    def _remember(
        self, known: OrderedDict[bytes, tuple[Tensor, float]], rows: dict[bytes, tuple[Tensor, float]], size: int
    ) -> None:
        if len(rows) * size > self.most_bytes:
            return  # a cross-validation of these rows would push out what it needs next
        for key, (states, seconds) in rows.items():
            if key not in known:
                known[key] = states.clone(), seconds  # without the batch that it is a part of
            known.move_to_end(key)
        while len(known) * size > self.most_bytes:
            known.popitem(last=False)


def _key(features: Features, row: int, keep: tuple[Part, ...]) -> bytes:
    tokens = features.tokens_of(row)
    return hashlib.blake2b(
        features.input_ids[tokens].tobytes() + features.type_ids[tokens].tobytes() + "+".join(keep).encode(),
        digest_size=16,
    ).digest()
