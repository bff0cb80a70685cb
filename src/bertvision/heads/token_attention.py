"""Attention within each sequence of a packed batch (Vaswani et al. 2017), for heads.

Three routes return the same values up to rounding: variable-length (CUDA, half precision, no padding computed), padded,
and looped, which runs sequence by sequence on a CPU if padding would cost more than the calls.
"""

import functools

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bertvision.encoder.attention import load_varlen, varlen_obstacle
from bertvision.encoder.states import HiddenStates

# On a CPU, the attention call for one more sequence takes about as long as this many padded pairs of tokens.
PAIRS_A_CALL = 5000


def attend(query: Tensor, key: Tensor, value: Tensor, states: HiddenStates) -> Tensor:
    """Softmax attention, scaled by the square root of the size. Query, key and value are (token, head, size)."""
    if _kernel_takes(value):
        return _attend_unpadded(query, key, value, states)  # (token, head, size)
    if states.is_padded:
        return _attend_padded(query, key, value, states)  # (token, head, size)
    if value.device.type == "cpu" and _padded_pairs(states) > PAIRS_A_CALL * len(states):
        return _attend_looped(query, key, value, states)  # (token, head, size)
    return _attend_padded(query, key, value, states)  # (token, head, size)


def _kernel_takes(value: Tensor) -> bool:
    """Whether the variable-length kernel can run on these values."""
    return value.is_cuda and _find_obstacle(value.device, value.dtype, value.shape[2]) is None


_find_obstacle = functools.cache(varlen_obstacle)


def _attend_unpadded(query: Tensor, key: Tensor, value: Tensor, states: HiddenStates) -> Tensor:
    bounds, longest = states.bounds, int(states.lengths.max())
    return load_varlen()(query, key, value, bounds, bounds, longest, longest)  # (token, head, size)


def _attend_padded(query: Tensor, key: Tensor, value: Tensor, states: HiddenStates) -> Tensor:
    (rows, mask), (keys, _), (values, _) = (states.pad(part) for part in (query, key, value))
    rows, keys, values = (part.transpose(1, 2) for part in (rows, keys, values))  # (sequence, head, longest, size)
    # Only keys are masked: the results of padded queries are dropped. A row of padding has no tokens; it attends to its
    # first slot, since attention to nothing would be NaN.
    mask = mask | (torch.arange(mask.shape[1], device=mask.device) == 0)  # (sequence, longest)
    found = scaled_dot_product_attention(rows, keys, values, attn_mask=mask[:, None, None])
    return states.unpad(found.transpose(1, 2))  # (token, head, size)


def _attend_looped(query: Tensor, key: Tensor, value: Tensor, states: HiddenStates) -> Tensor:
    lengths = states.lengths.tolist()
    found = []
    for parts in zip(query.split(lengths), key.split(lengths), value.split(lengths), strict=True):
        rows, keys, values = (part.transpose(0, 1).unsqueeze(0) for part in parts)  # (1, head, own token, size)
        found.append(scaled_dot_product_attention(rows, keys, values)[0].transpose(0, 1))  # (own token, head, size)
    return torch.cat(found)  # (token, head, size)


def _padded_pairs(states: HiddenStates) -> int:
    """Number of token pairs that padding adds."""
    longest = int(states.lengths.max())
    return len(states) * longest**2 - int(states.lengths.square().sum())
