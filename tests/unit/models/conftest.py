"""Fitted models read the means of a random encoder. They say more about its texts than [CLS]."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_encoder_folder(mean_encoder_folder: Path) -> Path:
    return mean_encoder_folder
