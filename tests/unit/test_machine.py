import pytest

from bertvision import machine
from bertvision.errors import UserError
from bertvision.machine import Machine


def test_a_tracker_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "get_available_trackers", lambda: [])
    with pytest.raises(UserError, match="finetune.track = 'wandb' needs that package: pip install wandb"):
        Machine("cpu", track="wandb")


def test_a_device_that_is_not_here_is_said() -> None:
    with pytest.raises(UserError, match="encoder.device = 'nonsense' is not usable here"):
        Machine("nonsense")
