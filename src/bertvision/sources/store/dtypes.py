"""Stored number formats: float32, half precision, or int8 with one scale per token and layer."""

import torch
from torch import Tensor

# The name of each stored dtype in a safetensors header.
SAFETENSORS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int8": "I8"}
TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}
DTYPES = tuple(SAFETENSORS)
SCALE_BYTES = 4


def stored_width(hidden: int, dtype: str) -> int:
    """Number of entries in a stored state. An int8 state is followed by the four bytes of its float32 scale."""
    return hidden + SCALE_BYTES if dtype == "int8" else hidden


def item_bytes(dtype: str) -> int:
    return TORCH[dtype].itemsize


def to_stored(states: Tensor, dtype: str) -> Tensor:
    """Convert states to their stored form. Values out of range become infinite; `find_unfit` finds them."""
    if dtype != "int8":
        return states.to(TORCH[dtype])  # (position, layer, hidden)
    values = states.float()  # (position, layer, hidden)
    scale = (values.abs().amax(dim=-1, keepdim=True) / 127).clamp_min(torch.finfo(torch.float32).tiny)
    whole = (values / scale).round().to(torch.int8)
    return torch.cat([whole, scale.view(torch.int8)], dim=-1)  # (position, layer, hidden + 4)


def from_stored(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert stored states back to the given dtype."""
    if stored.dtype != torch.int8:
        return stored.to(dtype)  # (position, layer, hidden)
    scale = stored[..., -SCALE_BYTES:].contiguous().view(torch.float32)  # (position, layer, 1)
    return stored[..., :-SCALE_BYTES].to(torch.float32).mul_(scale).to(dtype)  # (position, layer, hidden)


def find_unfit(states: Tensor, stored: Tensor) -> Tensor:
    """Return the positions with a value that is NaN, infinite, or out of range for the stored dtype."""
    checked = states if stored.dtype == torch.int8 else stored  # with its scale, int8 holds any finite value
    # A finite sum rules them out; values are checked one by one only in the rare batch that has one.
    if bool(checked.sum(dtype=torch.float32).isfinite()):
        return torch.zeros(0, dtype=torch.int64)
    return (~checked.isfinite()).flatten(1).any(dim=1).nonzero().squeeze(1).cpu()  # (unfit,)
