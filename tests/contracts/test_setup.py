"""setup.sh stops with one sentence if something is missing, and leaves a working .venv alone. No network is used."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "setup.sh"


def executable(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def set_up(folder: Path, python: Path) -> subprocess.CompletedProcess[str]:
    shutil.copy(SCRIPT, folder)
    environment = {**os.environ, "PYTHON": str(python)}
    return subprocess.run(["sh", "setup.sh", "demo"], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (None, "was not found. Install Python 3.11 to 3.14, or name yours: make demo PYTHON=python3.12"),
        ("echo 3.10", "is 3.10. Name another one: make demo PYTHON=python3.12"),
        ('[ "$1" = -c ] && echo 3.12', "can't create a virtual environment. On Debian and Ubuntu: apt install"),
    ],
    ids=["missing", "too old", "no venv"],
)
def test_an_unusable_python_stops_the_setup_with_one_sentence(body: str | None, error: str, tmp_path: Path) -> None:
    python = tmp_path / "python" if body is None else executable(tmp_path / "python", body)
    done = set_up(tmp_path, python)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: ") and error in done.stderr and done.stderr.count("\n") == 1


def test_a_working_venv_is_used_whatever_python_is_named(tmp_path: Path) -> None:
    executable(tmp_path / ".venv/bin/python", f'echo "$@" >> {tmp_path}/calls')
    done = set_up(tmp_path, tmp_path / "missing")
    assert done.returncode == 0, done.stderr
    assert "--editable .[demo]" in (tmp_path / "calls").read_text(encoding="utf-8").splitlines()[-1]


def test_a_failed_install_is_not_called_done(tmp_path: Path) -> None:
    executable(tmp_path / ".venv/bin/python", 'case "$*" in *editable*) exit 1 ;; esac')
    done = set_up(tmp_path, tmp_path / "missing")
    assert done.returncode == 1 and "Run the same command again." in done.stderr
