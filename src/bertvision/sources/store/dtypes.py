"""How numbers are stored: as they are, in half precision, or as one byte each with a scale for each token and layer."""

import torch
from torch import Tensor

# The name of each stored dtype in a safetensors header.
SAFETENSORS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int8": "I8"}
TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}
DTYPES = tuple(SAFETENSORS)
SCALE_BYTES = 4


def stored_width(hidden: int, dtype: str) -> int:
    """Entries of a stored state: int8 carries its scale, a float32, in four more bytes behind its numbers."""
    return hidden + SCALE_BYTES if dtype == "int8" else hidden


def item_bytes(dtype: str) -> int:
    return TORCH[dtype].itemsize


def to_stored(states: Tensor, dtype: str) -> Tensor:
    """States as they are stored; what does not fit becomes infinite, for `find_unfit` to find."""
    if dtype != "int8":
        return states.to(TORCH[dtype])  # (position, layer, hidden)
    values = states.float()  # (position, layer, hidden)
    scale = (values.abs().amax(dim=-1, keepdim=True) / 127).clamp_min(torch.finfo(torch.float32).tiny)
    whole = (values / scale).round().to(torch.int8)
    return torch.cat([whole, scale.view(torch.int8)], dim=-1)  # (position, layer, hidden + 4)


def from_stored(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """The states again, as numbers of this dtype."""
    if stored.dtype != torch.int8:
        return stored.to(dtype)  # (position, layer, hidden)
    scale = stored[..., -SCALE_BYTES:].contiguous().view(torch.float32)  # (position, layer, 1)
    return stored[..., :-SCALE_BYTES].to(torch.float32).mul_(scale).to(dtype)  # (position, layer, hidden)


def find_unfit(states: Tensor, stored: Tensor) -> Tensor:
    """The positions with a number that is NaN or infinite, or that its stored form can't hold."""
    kept = states if stored.dtype == torch.int8 else stored  # a scale fits any finite number
    # A sum shows any of them; the look at each number is for the rare batch that has one.
    if bool(kept.sum(dtype=torch.float32).isfinite()):
        return torch.zeros(0, dtype=torch.int64)
    return (~kept.isfinite()).flatten(1).any(dim=1).nonzero().squeeze(1).cpu()  # (unfit,)
