"""How many files of the package a reader must follow: those whose functions a command executes.

    BERTVISION_REAL_DATA=… python benchmarks/files_executed.py [--list]

Counts files with at least one executed function, their lines, the functions, switches between files, and modules
loaded, for `run configs/rte.toml` on a few rows, the same for SQuAD 2.0, and `predict` on one pair. PYTHONPATH selects
the sources. Code that only runs at import (decorators, class bodies) does not count.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

COUNT = r"""
import json, sys, threading
from pathlib import Path

import bertvision
root = str(Path(bertvision.__file__).parent) + "/"
OPTIMIZED, seen, state = 1, {}, {"file": None, "switches": 0, "importing": 0}

def watch(frame, event, _):
    if event not in ("call", "return"):
        return
    code = frame.f_code
    if code.co_filename == "<frozen importlib._bootstrap>" and code.co_name == "_find_and_load":
        state["importing"] += 1 if event == "call" else -1
    ours = code.co_filename.startswith(root) and code.co_flags & OPTIMIZED
    if event == "return" or state["importing"] or not ours:
        return
    seen.setdefault(code.co_filename, set()).add((code.co_qualname, code.co_firstlineno))
    if code.co_filename != state["file"]:
        state["file"], state["switches"] = code.co_filename, state["switches"] + 1

from bertvision.__main__ import main
sys.argv = ["bertvision", *json.loads(sys.argv[1])]
sys.setprofile(watch)
try:
    main()
except SystemExit as leave:
    assert not leave.code, leave.code
finally:
    sys.setprofile(None)
print(json.dumps({
    "files": {name.removeprefix(root): len(functions) for name, functions in seen.items()},
    "lines": sum(len(Path(name).read_text().splitlines()) for name in seen),
    "switches": state["switches"],
    "modules": sum(name.startswith("bertvision") for name in sys.modules),
    "training": sorted(name for name in sys.modules if name.startswith("bertvision.training")),
}), file=sys.stderr)
"""
ROOT = Path(__file__).parents[1]


def main() -> None:
    data = Path(os.environ["BERTVISION_REAL_DATA"])
    with tempfile.TemporaryDirectory() as name:
        few = ["data.limit_train=32", "data.limit_dev=16", f"run={name}/rte"]
        rte = ["run", str(ROOT / "configs/rte.toml"), f"task.data={data / 'glue/RTE'}", *few]
        spans = [f"task.train={data / 'squad/train-v2.0.third.json.gz'}", f"task.dev={data / 'squad/dev-v2.0.json.gz'}"]
        squad = ["run", str(ROOT / "configs/squad2.toml"), *spans, "task.data=none", *few[:2], f"run={name}/squad"]
        text = ["--text", "A man plays a guitar.", "--text-pair", "Someone makes music."]
        rows = {
            "run configs/rte.toml": count(rte),
            "the same for SQuAD": count(squad),
            "predict": count(["predict", f"{name}/rte", *text]),
        }
    print("| | files executed | their lines | functions | file switches | modules loaded | of these, training |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for title, row in rows.items():
        functions = sum(row["files"].values())
        counts = len(row["files"]), row["lines"], functions, row["switches"], row["modules"], len(row["training"])
        print(f"| {title} | " + " | ".join(f"{number:,}" for number in counts) + " |")
    if "--list" in sys.argv:
        for title, row in rows.items():
            print(f"\n{title}")
            print("\n".join(f"  {functions:4} {file}" for file, functions in sorted(row["files"].items())))


def count(arguments: list[str]) -> dict:
    done = subprocess.run([sys.executable, "-c", COUNT, json.dumps(arguments)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(done.stderr.splitlines()[-1])


if __name__ == "__main__":
    main()
