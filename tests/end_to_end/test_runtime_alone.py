"""An exported model predicts in an environment without torch: a new one, with the built wheel of the runtime."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bertvision as bv
from bertvision.export.write import export_model

ROOT = Path(__file__).parents[2]
MOST_CPU = 1.0
"""Seconds from the start of Python to the first answer."""
SCRIPT = """
import json, sys, time
import bertvision_runtime
found = bertvision_runtime.load(sys.argv[1], threads=1).predict(json.loads(sys.argv[2]))
seconds = time.process_time()
heavy = [name for name in ("torch", "transformers", "bertvision", "onnx") if name in sys.modules]
print(json.dumps({"found": found.to_dict(), "seconds": seconds, "heavy": heavy}))
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_environment_without_torch_answers_as_this_one(tmp_path: Path) -> None:
    def run(*words: object) -> str:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=clean, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    export_model("default", tmp_path / "kit", tasks=["sst2"])
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    wheels = tmp_path / "wheels"
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, ROOT / "runtime")
    (wheel,) = wheels.glob("bertvision_runtime-*.whl")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    assert "torch" not in run(python, "-m", "pip", "list").split()
    words = (python, "-c", SCRIPT.replace("found.to_dict()", "found['sst2'].to_dict()"), tmp_path / "kit")
    found = min((json.loads(run(*words, json.dumps("A fine film."))) for _ in range(3)), key=lambda one: one["seconds"])
    assert not found["heavy"] and found["seconds"] <= MOST_CPU
    expected = bv.load("default", ["sst2"], device="cpu").predict(["A fine film."])[0]["sst2"]
    plain = expected if isinstance(expected, dict) else expected.to_dict()
    assert found["found"]["label"] == plain["label"] and found["found"]["trust"] == plain["trust"]
    assert found["found"]["probabilities"] == pytest.approx(plain["probabilities"], abs=1e-4)
