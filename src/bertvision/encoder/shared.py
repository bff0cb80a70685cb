"""The encoder that a thread used last stays loaded, so that fits and predictions in a row load it once."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import affects_output, identify, load_encoder, resolve

_last = threading.local()  # one per thread: a tokenizer must not be used by two at once


def shared_encoder(
    name: str,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    attention: str = "auto",
    layers: Sequence[int] | None = None,
) -> Encoder:
    """Like `load_encoder`, frozen, but the same object as in this thread's last call if nothing has changed."""
    key = (*_version(name), str(device), dtype, attention, None if layers is None else tuple(layers))
    if getattr(_last, "key", None) != key:
        forget()  # before loading, so that two encoders never need memory at once
        encoder = load_encoder(name, device, dtype, attention, layers=layers)
        _last.encoder, _last.key = encoder.eval().requires_grad_(False), key
    found: Encoder = _last.encoder
    return found


def forget() -> None:
    """Release this thread's encoder."""
    _last.encoder = _last.key = None


def _version(name: str) -> tuple[Any, ...]:
    """What changes when the encoder's files do: their sizes and times, or the commit of a hub name."""
    folder = Path(resolve(name))
    if not folder.is_dir():
        return name, identify(name)
    files = [(path.name, path.stat()) for path in sorted(folder.iterdir()) if affects_output(path)]
    return str(folder.absolute()), *((file, stat.st_size, stat.st_mtime_ns) for file, stat in files)
