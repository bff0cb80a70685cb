"""Fused GELU and output layer for span adapters on a GPU, with fewer reads and writes of the adapter's wide product.

A shared adapter computes layer × size values per token (9,650 with BERT-large and size 386) and reduces them to two
numbers. Over forward and backward, plain torch reads or writes these values eleven times; the fused version needs five:
the product writes them, the forward kernel reads them, the backward kernel reads them and writes their gradient along
with all sums over tokens, and the weight's gradient reads that. The kernels are in `_kernels.py`.
"""

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bertvision.encoder.attention import HALF

# The fastest of many choices on an H200, for 13 and 25 layers.
ROWS, COLUMNS, WARPS = 2, 512, 4
BACK_ROWS, BACK_COLUMNS, BACK_WARPS = 32, 64, 4
PROGRAMS = 1024  # about how many run at once on a large GPU
LEAST = 1_000_000  # values in the states; below this, launching the kernels takes longer than they save


def can_fuse(states: Tensor, weight: Tensor) -> bool:
    """Whether the kernels can run on these states with this weight of the output layer, (output, …). They do not
    support stacked members."""
    if not states.is_cuda or states.dtype not in HALF or states.numel() < LEAST or len(weight) != 2:
        return False
    return not torch._C._functorch.is_batchedtensor(weight) and _kernels_run_on(states.device)


def read_out(states: Tensor, weight: Tensor, bias: Tensor, columns: Tensor) -> Tensor:
    """GELU(weight · state + bias), concatenated over layers and multiplied by `columns`: (position, 2) in float32.

    states (position, layer, hidden), weight (width, hidden), bias (width), columns (2, layer * width).
    """
    out: Tensor = ReadOut.apply(states, weight, bias, columns)
    return out


class ReadOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor, columns: Tensor) -> Tensor:
        positions, layers, hidden = states.shape
        columns = columns.contiguous()  # the second row is read right after the first
        with _on_device_of(states):
            half = weight.to(states.dtype)  # (width, hidden)
            product = torch.addmm(
                bias.to(states.dtype), states.reshape(-1, hidden), half.T
            )  # (position * layer, width)
            width = layers * len(weight)
            assert width % 8 == 0, "the kernels read eight values at once"
            out = torch.empty(positions, 2, dtype=torch.float32, device=states.device)  # (position, 2)
            grid = (-(-positions // ROWS),)
            _load_kernels().forward[grid](
                product, columns, out, positions, width // 8, ROWS, COLUMNS, num_warps=WARPS
            )  # fmt: skip
        ctx.save_for_backward(states, half, product, columns)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        states, half, product, columns = ctx.saved_tensors
        (positions, layers, hidden), width = states.shape, columns.shape[1]
        given = gradients[0].float().contiguous()  # (position, 2)
        blocks = -(-width // BACK_COLUMNS)
        parts = max(1, min(PROGRAMS // blocks, -(-positions // BACK_ROWS)))
        chunk = -(-positions // (parts * BACK_ROWS)) * BACK_ROWS  # positions of a part
        with _on_device_of(states):
            back = torch.empty_like(product)  # (position * layer, width of a layer)
            sums = torch.empty(parts, 3, width, dtype=torch.float32, device=states.device)
            _load_kernels().backward[blocks, parts](
                product, columns, given, back, sums, positions, width // 8, chunk, BACK_ROWS, BACK_COLUMNS,
                num_warps=BACK_WARPS,
            )  # fmt: skip
            whole = sums.sum(0)  # (two columns and the bias, layer * width)
            to_bias = whole[2].unflatten(0, (layers, -1)).sum(0)  # (width)
            to_weight = (back.T @ states.reshape(-1, hidden)).float()  # (width, hidden)
            to_states = (back @ half).view_as(states) if ctx.needs_input_grad[0] else None
        return to_states, to_weight, to_bias, whole[:2]


@contextlib.contextmanager
def _on_device_of(states: Tensor) -> Iterator[None]:
    """Make the states' device current, where kernels are launched, and disable autocast, which would change the dtype
    of products."""
    device = torch.cuda.device(states.device) if states.is_cuda else contextlib.nullcontext()
    with device, torch.autocast(states.device.type, enabled=False):
        yield


@functools.cache
def _load_kernels() -> Any:
    """Import the kernels; None if Triton is not installed."""
    try:
        from bertvision.heads import _kernels
    except ImportError:
        return None
    return _kernels


@functools.cache
def _kernels_run_on(device: torch.device) -> bool:
    """Whether the kernels can be compiled: Triton needs a C compiler and a writable cache."""
    if _load_kernels() is None:
        return False
    try:
        states = torch.zeros(1, 1, 8, dtype=torch.bfloat16, device=device)
        read_out(states, states.new_zeros(8, 8), states.new_zeros(8), torch.zeros(2, 8, device=device))
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        warnings.warn(f"span adapters run without their fused kernels, which is slower ({reason}).", stacklevel=2)
        return False
    return True
