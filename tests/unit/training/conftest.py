"""Fixtures for the tests of fine-tuning."""

from collections.abc import Callable, Iterator

import pytest
import torch

from bertvision.data.windows import Features


@pytest.fixture(scope="module")
def squad(tiny_features: Callable[[str], Features]) -> Features:
    return tiny_features("squad2")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread: sums over several threads differ in the last digit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
