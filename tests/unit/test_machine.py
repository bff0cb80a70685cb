import pytest

from bertvision import machine
from bertvision.errors import UserError
from bertvision.machine import Machine


def test_a_tracker_that_is_not_installed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "get_available_trackers", lambda: [])
    with pytest.raises(UserError, match="finetune.track = 'wandb' needs the package wandb: pip install wandb"):
        Machine("cpu", track="wandb")


def test_an_unavailable_device_is_reported() -> None:
    with pytest.raises(UserError, match="encoder.device = 'nonsense' can't be used on this machine"):
        Machine("nonsense")
