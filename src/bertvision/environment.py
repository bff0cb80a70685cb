"""What a run ran on: versions, commit, device. Written into every run folder."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

from bertvision.machine import Machine

PACKAGES = (
    "bertvision",
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "safetensors",
    "numpy",
    "scikit-learn",
    "scipy",
)


def describe_environment(machine: Machine) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain")),
        "device": machine.describe(),
        "processes": machine.processes,
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*words: str) -> str | None:
    """What git says of the checkout this package lies in; None when it is installed, or there is no git."""
    folder = Path(__file__).resolve().parent
    if "site-packages" in folder.parts:
        return None
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
