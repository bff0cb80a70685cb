"""Attention over packed sequences, registered with transformers, and the requirements of its kernel.

Two functions can replace a model's attention: "bertvision_varlen" (CUDA, half precision, no padding computed) and
"bertvision_looped", which calls plain SDPA sequence by sequence and runs anywhere; the packing tests use it.
Neither applies dropout to attention weights, since the variable-length kernel has none. All other dropout is unchanged.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

VARLEN, LOOPED = "bertvision_varlen", "bertvision_looped"
HALF = (torch.float16, torch.bfloat16)


def register() -> None:
    """Register both functions with transformers. Idempotent."""
    for name, function in ((VARLEN, _varlen_attention), (LOOPED, _looped_attention)):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, _no_mask)


def varlen_obstacle(device: torch.device, dtype: torch.dtype, head_size: int, sliding: bool = False) -> str | None:
    """Return why the variable-length kernel cannot run on a CUDA device, or None if it can."""
    if torch.version.hip is not None:
        return "variable-length attention is only used on NVIDIA devices"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "variable-length attention needs compute capability 8.0 or higher"
    if dtype not in HALF:
        return f"variable-length attention needs half precision, not {str(dtype).removeprefix('torch.')}"
    parameters = _varlen_parameters()
    if parameters is None:
        return f"torch {torch.__version__} has no variable-length attention"
    if sliding and "window_size" not in parameters:
        return f"variable-length attention in torch {torch.__version__} does not support sliding windows"
    if head_size % 8 or head_size > 256:
        return f"variable-length attention needs a head size that is a multiple of 8, at most 256, not {head_size}"
    return None


def _varlen_parameters() -> frozenset[str] | None:
    try:
        return frozenset(inspect.signature(load_varlen()).parameters)
    except ImportError:
        return None


def load_varlen() -> Callable[..., Tensor]:
    # Imported on use: the module registers CUDA operators, and older versions of torch lack it.
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn  # type: ignore[return-value]  # a Tensor unless auxiliary outputs are requested


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Return no mask: the bounds of the sequences replace it."""


def _varlen_attention(
    module: nn.Module,
    query: Tensor,  # (1, head, token, head size), key and value alike
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed_bounds: Tensor | None = None,
    packed_longest: int = 0,
    **_: Any,
) -> tuple[Tensor, None]:
    assert packed_bounds is not None, "packed attention needs the bounds of the sequences"
    if value.dtype not in HALF:
        raise RuntimeError(f"variable-length attention got {value.dtype}: use half precision or autocast")
    options: dict[str, Any] = {"scale": scaling}
    if sliding_window is not None:
        options["window_size"] = (sliding_window - 1, sliding_window - 1)
    query, key, value = (part[0].transpose(0, 1).to(value.dtype) for part in (query, key, value))  # (token, head, size)
    bounds, longest = packed_bounds, packed_longest
    output = load_varlen()(query, key, value, bounds, bounds, longest, longest, **options)  # (token, head, size)
    return output.unsqueeze(0), None


def _looped_attention(
    module: nn.Module,
    query: Tensor,  # (1, head, token, head size), key and value alike
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed_bounds: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    assert packed_bounds is not None, "packed attention needs the bounds of the sequences"
    outputs = []
    for start, end in zip(packed_bounds[:-1].tolist(), packed_bounds[1:].tolist(), strict=True):
        one_query, one_key, one_value = (part[:, :, start:end] for part in (query, key, value))  # (1, head, own token)
        mask = None if sliding_window is None else _window_mask(end - start, sliding_window, query.device)
        outputs.append(scaled_dot_product_attention(one_query, one_key, one_value, attn_mask=mask, scale=scaling))
    return torch.cat(outputs, dim=2).transpose(1, 2), None  # (1, token, head, head size)


def _window_mask(length: int, sliding_window: int, device: torch.device) -> Tensor:
    # transformers passes the window plus one: a token attends to `sliding_window - 1` tokens on each side.
    positions = torch.arange(length, device=device)
    return (positions[:, None] - positions[None, :]).abs() < sliding_window  # (token, token)
