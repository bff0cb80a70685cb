"""Triton kernels for `heads/fused.py`. Triton comes with torch for CUDA; this module is imported only where it runs."""

# mypy: ignore-errors

import triton
import triton.language as tl

PEAK = tl.constexpr(0.3989422804014327)  # 1 / √2π, the normal density at 0
SLOPE = tl.constexpr(0.2316418882663604)  # 0.3275911 / √2, a constant of the approximation below


@triton.jit
def normal(values):
    """Cumulative distribution and density of the normal distribution, the terms of GELU and its derivative, from one
    exponential (Abramowitz and Stegun 1964, 7.1.26: error at most 1e-7)."""
    density = tl.exp(-0.5 * values * values)
    t = 1 / (1 + SLOPE * tl.abs(values))
    tail = 0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    tail = 0.5 * density * t * tail
    return tl.where(values < 0, tail, 1 - tail), PEAK * density


@triton.jit
def forward(product, columns, out, positions, eighths, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    width = eighths * 8  # shows Triton that the width is a multiple of 8: it loads eight values at a time
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # (row)
    # Summed over columns once, at the end: each reduction synchronises the threads.
    first = tl.zeros((ROWS, COLUMNS), tl.float32)
    second = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, width, COLUMNS):
        places = begin + tl.arange(0, COLUMNS)  # (column)
        inside = places < width
        mask = (rows < positions)[:, None] & inside[None, :]
        values = tl.load(product + rows[:, None] * width + places[None, :], mask=mask, other=0.0).to(tl.float32)
        share, _ = normal(values)  # (row, column)
        one = tl.load(columns + places, mask=inside, other=0.0).to(tl.float32)  # (column)
        two = tl.load(columns + width + places, mask=inside, other=0.0).to(tl.float32)
        active = values * share
        first += active * one[None, :]
        second += active * two[None, :]
    tl.store(out + rows * 2, tl.sum(first, axis=1), mask=rows < positions)
    tl.store(out + rows * 2 + 1, tl.sum(second, axis=1), mask=rows < positions)


@triton.jit
def backward(product, columns, given, back, sums, positions, eighths, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    width = eighths * 8  # shows Triton that the width is a multiple of 8: it loads eight values at a time
    places = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)  # (column)
    inside = places < width
    one = tl.load(columns + places, mask=inside, other=0.0).to(tl.float32)  # (column)
    two = tl.load(columns + width + places, mask=inside, other=0.0).to(tl.float32)
    to_one = tl.zeros((ROWS, COLUMNS), tl.float32)
    to_two = tl.zeros((ROWS, COLUMNS), tl.float32)
    to_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
    begin = tl.program_id(1).to(tl.int64) * chunk
    for start in range(0, chunk, ROWS):
        rows = begin + start + tl.arange(0, ROWS)  # (row)
        there = rows < positions
        mask = there[:, None] & inside[None, :]
        at = rows[:, None] * width + places[None, :]
        values = tl.load(product + at, mask=mask, other=0.0).to(tl.float32)  # (row, column)
        left = tl.load(given + rows * 2, mask=there, other=0.0)  # (row)
        right = tl.load(given + rows * 2 + 1, mask=there, other=0.0)
        share, density = normal(values)
        gradient = (share + values * density) * (left[:, None] * one[None, :] + right[:, None] * two[None, :])
        tl.store(back + at, gradient.to(back.dtype.element_ty), mask=mask)
        active = values * share
        to_one += active * left[:, None]
        to_two += active * right[:, None]
        to_bias += gradient
    row = sums + tl.program_id(1).to(tl.int64) * 3 * width
    tl.store(row + places, tl.sum(to_one, axis=0), mask=inside)
    tl.store(row + width + places, tl.sum(to_two, axis=0), mask=inside)
    tl.store(row + 2 * width + places, tl.sum(to_bias, axis=0), mask=inside)
