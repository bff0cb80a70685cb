"""Rounding of stored states; values that do not fit are found, not rounded away."""

import numpy as np
import pytest
import torch
from torch import Tensor

from bertvision.sources.store.dtypes import DTYPES, find_unfit, from_stored, item_bytes, stored_width, to_stored

TINY = float(torch.finfo(torch.float32).tiny)


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Values like those of states: a different scale for each token and layer, with some outliers."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 10 ** (torch.rand(*shape[:-1], 1, generator=generator) * 8 - 4)  # (position, layer, 1)
    values = torch.randn(*shape, generator=generator) * sizes  # (position, layer, hidden)
    values[..., 3] *= 20
    return values


def test_float32_is_stored_bit_for_bit() -> None:
    values = draw(50, 3, 32)
    assert torch.equal(from_stored(to_stored(values, "float32"), torch.float32), values)


def test_float16_rounds_as_numpy_does() -> None:
    values = draw(50, 3, 32).clamp(-65_504, 65_504)
    expected = values.numpy().astype(np.float16)
    assert (to_stored(values, "float16").numpy().view(np.uint16) == expected.view(np.uint16)).all()
    assert (from_stored(to_stored(values, "float16"), torch.float32).numpy() == expected.astype(np.float32)).all()


def test_bfloat16_is_the_upper_half_of_a_float32_rounded_to_even() -> None:
    values = draw(50, 3, 32)
    bits = values.numpy().view(np.uint32).astype(np.uint64)
    expected = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    assert (to_stored(values, "bfloat16").view(torch.int16).numpy().view(np.uint16) == expected).all()
    back = from_stored(to_stored(values, "bfloat16"), torch.float32).numpy()
    assert (back.view(np.uint32) == expected.astype(np.uint32) << 16).all()


def test_int8_is_a_multiple_of_the_scale_followed_by_the_scale() -> None:
    values = draw(50, 3, 32)
    stored = to_stored(values, "int8").numpy()
    assert stored.shape == (50, 3, 36) and stored.dtype == np.int8
    steps = np.ascontiguousarray(stored[..., 32:]).view("<f4")  # (position, layer, 1)
    assert (steps == np.abs(values.numpy()).max(axis=-1, keepdims=True) / np.float32(127)).all()
    expected = np.rint(values.numpy().astype(np.float64) / steps)
    assert (np.abs(stored[..., :32] - expected) <= 1).all()  # a value halfway between two may be rounded either way
    assert (stored[..., :32] == expected).mean() > 0.999
    assert np.abs(stored[..., :32].astype(int)).max(axis=-1).min() == 127, "the largest number has the largest step"
    back = from_stored(torch.from_numpy(stored), torch.float32).numpy()
    assert (back == stored[..., :32].astype(np.float32) * steps).all()


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_the_error_is_at_most_half_the_scale(dtype: str, size: float) -> None:
    values = (draw(200, 2, 32) * size).double().float()
    error = (from_stored(to_stored(values, dtype), torch.float32).double() - values.double()).abs()
    largest = values.double().abs().amax(dim=-1, keepdim=True).expand_as(error)
    bound = {"float32": 0 * largest, "bfloat16": values.double().abs() * 2**-8, "int8": largest / 254}[dtype]
    assert bool((error <= bound * (1 + 1e-6)).all())


@pytest.mark.parametrize("size", [0.0, TINY / 100, TINY, 10 * TINY, 126 * TINY, 128 * TINY])
def test_int8_of_tiny_values_stays_tiny(size: float) -> None:
    values = torch.linspace(-1, 1, 32)[None, None] * size  # (1, 1, hidden)
    back = from_stored(to_stored(values, "int8"), torch.float32)
    assert bool(back.isfinite().all())
    assert float((back.double() - values.double()).abs().max()) <= size / 254 * (1 + 1e-6) + TINY / 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_states_are_returned_in_the_requested_dtype(dtype: str) -> None:
    stored = to_stored(draw(4, 3, 32).clamp(-1e4, 1e4), dtype)
    whole = from_stored(stored, torch.float32)
    for wanted in (torch.float32, torch.bfloat16, torch.float16):
        found = from_stored(stored, wanted)
        assert found.dtype == wanted and found.shape == (4, 3, 32)
        assert torch.equal(found, whole.to(wanted))


@pytest.mark.parametrize("given", [torch.bfloat16, torch.float16])
def test_storing_in_the_encoders_half_precision_is_lossless(given: torch.dtype) -> None:
    values = draw(20, 3, 32).clamp(-1e4, 1e4).to(given)
    same = "bfloat16" if given == torch.bfloat16 else "float16"
    for dtype in ("float32", same):
        assert torch.equal(from_stored(to_stored(values, dtype), given), values)
    error = (from_stored(to_stored(values, "int8"), torch.float32) - values.float()).abs()
    assert bool((error <= values.float().abs().amax(dim=-1, keepdim=True) / 254 * (1 + 1e-5)).all())


@pytest.mark.parametrize(
    ("dtype", "hidden", "expected"), [("float32", 32, 128), ("bfloat16", 32, 64), ("int8", 32, 36)]
)
def test_bytes_of_one_state(dtype: str, hidden: int, expected: int) -> None:
    assert stored_width(hidden, dtype) * item_bytes(dtype) == expected
    assert to_stored(torch.zeros(1, 1, hidden), dtype).nbytes == expected


def test_no_positions_can_be_stored() -> None:
    for dtype in DTYPES:
        stored = to_stored(torch.zeros(0, 3, 32), dtype)
        assert from_stored(stored, torch.float32).shape == (0, 3, 32)
        assert find_unfit(torch.zeros(0, 3, 32), stored).tolist() == []


# ---------------------------------------------------------------------- what does not fit


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinite_values_are_found(dtype: str, value: float) -> None:
    values = draw(30, 3, 32).clamp(-100, 100)
    values[7, 2, 31] = values[29, 0, 0] = value
    assert find_unfit(values, to_stored(values, dtype)).tolist() == [7, 29]


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities_of_both_signs_do_not_cancel(dtype: str) -> None:
    values = torch.zeros(4, 2, 32)
    values[1, 0, 0], values[2, 1, 5] = float("inf"), float("-inf")
    assert find_unfit(values, to_stored(values, dtype)).tolist() == [1, 2]


@pytest.mark.parametrize(("value", "fits"), [(65_504, True), (65_519, True), (65_520, False), (-70_000, False)])
def test_float16_ends_where_it_rounds_to_infinity(value: float, fits: bool) -> None:
    values = torch.zeros(5, 2, 32)
    values[3, 1, 4] = value
    assert find_unfit(values, to_stored(values, "float16")).tolist() == ([] if fits else [3])
    for dtype in ("float32", "bfloat16", "int8"):
        assert find_unfit(values, to_stored(values, dtype)).tolist() == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_large_values_fit_although_their_sum_does_not(dtype: str) -> None:
    values = torch.full((100, 3, 32), 3e38)
    assert find_unfit(values, to_stored(values, dtype)).tolist() == []
    largest = from_stored(to_stored(values, dtype), torch.float32)
    torch.testing.assert_close(largest, values, rtol=2**-8, atol=0)
