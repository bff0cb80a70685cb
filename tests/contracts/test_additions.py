"""The cost of an addition, shown on a copy of the package: a head is one file, a task one row, a metric one function, a
kind one file, an analysis one file. Each then works on the command line, in training, scores, ensembles, kits and
reports.

Nothing else in the copy is touched, so no other edit is needed.
"""

import csv
import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADDITIONS = ROOT / "tests" / "fixtures" / "additions"
ROWS = "    for row in (\n"
GRADES = ("bad", "fair", "good")

# All commands in one process: importing torch takes longer than any of them.
SCRIPT = """
import sys
from bertvision.__main__ import main

for words in sys.argv[1].split("|"):
    sys.argv = ["bertvision", *words.split()]
    try:
        main()
    except SystemExit as leave:
        if leave.code:
            sys.exit(f"{words}: {leave.code}")
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a copy of the package with one more head, task, metric, kind and analysis."""
    source = tmp_path_factory.mktemp("copy")
    copy = source / "bertvision"
    shutil.copytree(ROOT / "src" / "bertvision", copy, ignore=shutil.ignore_patterns("__pycache__", "shipped"))
    shutil.copy(ADDITIONS / "max_pooling.py", copy / "heads")
    shutil.copy(ADDITIONS / "grade.py", copy / "kinds")
    shutil.copy(ADDITIONS / "right_answers.py", copy / "report" / "analyses")
    metrics = copy / "evaluation" / "metrics.py"
    metrics.write_text(metrics.read_text() + (ADDITIONS / "within_one.txt").read_text())
    tasks = copy / "tasks" / "glue.py"
    assert tasks.read_text().count(ROWS) == 1
    tasks.write_text(tasks.read_text().replace(ROWS, ROWS + (ADDITIONS / "toys_row.txt").read_text()))
    return source


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TOYS in GLUE's format, and grades in a CSV: one word of each sentence determines the target."""
    folder, draw = tmp_path_factory.mktemp("data"), random.Random(0)
    words = ["king", "river", "dog"]
    (folder / "TOYS").mkdir()
    for split, count in (("train", 60), ("dev", 24)):
        told = [draw.randrange(2) for _ in range(count)]
        lines = [f"{number}\tthe {words[one]} {number}\t{one}" for number, one in enumerate(told)]
        (folder / "TOYS" / f"{split}.tsv").write_text("index\tsentence\tlabel\n" + "\n".join(lines) + "\n")
        with (folder / f"{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows(
                [f"the {words[grade]} {n}", GRADES[grade]] for n, grade in enumerate(i % 3 for i in range(count))
            )
    return folder


def call(package: Path, folder: Path, *commands: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "|".join(commands)],
        env={"PYTHONPATH": str(package), "PATH": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def config_of(folder: Path, encoder: Path, task: str) -> Path:
    path = folder / "config.toml"
    path.write_text(
        f"""
heads = ["learned_pooling", {{ head = "max_pooling", seeds = 2 }}]
ensembles = [["encoder", "learned_pooling"], {{ members = ["encoder", "max_pooling"], method = "fitted" }}]
run = "{folder / "run"}"
[task]
{task}
[data]
hold_out = 0.25
max_length = 32
[encoder]
name = "{encoder}"
device = "cpu"
[finetune]
epochs = 0
[train]
epochs = 3
batch_rows = 16
"""
    )
    return path


def test_a_head_is_one_file_a_task_one_row_and_a_metric_one_function(
    package: Path, data: Path, tmp_path: Path, tiny_encoder_folder: Path
) -> None:
    config = config_of(tmp_path, tiny_encoder_folder, f'name = "toys"\ndata = "{data / "TOYS"}"')
    shown = call(package, tmp_path, "heads max_pooling", "tasks", f"run {config}", f"report {tmp_path / 'run'}")
    assert "The maximum over the layers" in shown and "is it about a toy?" in shown
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    models = scores["snapshots"]["0"]
    assert scores["metrics"] == ["accuracy", "within_one"]
    # With two labels, each is adjacent to the other; both seeds of the new head were trained and scored.
    assert all(model["scores"]["dev"]["within_one"] == 100.0 for model in models.values())
    assert {"max_pooling_seed0", "max_pooling_seed1"} <= set(models)
    table = json.loads((tmp_path / "run" / "report" / "scores_dev_0.json").read_text())
    assert {"within one", "within one from", "within one to"} <= set(table[0]), "the bootstrap knows the metric"
    resolved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert resolved["finetune"]["batch_rows"] == 8, "the recipe is in the task's row"
    check_analysis(tmp_path / "run")


def check_analysis(run: Path) -> None:
    """An analysis is one file: its block appears where it declares, and is left out if its data is missing."""
    report = json.loads((run / "report.json").read_text())
    keys = {section["title"]: [block["key"] for block in section["blocks"]] for section in report["sections"]}
    said = keys["Predictions"]
    assert said.index("reliability_curve_dev") < said.index("right_answers_dev") < said.index("disagreements_dev")
    assert list(keys)[-1] == "Beyond" and keys["Beyond"] == ["layers_there_are_dev"]
    rows = json.loads((run / "report" / "right_answers_dev.json").read_text())
    scores = json.loads((run / "scores.json").read_text())["snapshots"]["0"]
    right = round(scores["encoder"]["scores"]["dev"]["accuracy"] * 24 / 100)
    assert rows[0] == {"model": "encoder alone", "right": right}
    assert "Number of right answers" in (run / "report.html").read_text()


def test_a_kind_is_one_file(package: Path, data: Path, tmp_path: Path, tiny_encoder_folder: Path) -> None:
    labels = json.dumps(GRADES)
    task = (
        f'name = "files"\nkind = "grade"\ntrain = "{data / "train.csv"}"\ndev = "{data / "dev.csv"}"\nlabels = {labels}'
    )
    config, run = config_of(tmp_path, tiny_encoder_folder, task), tmp_path / "run"
    kit = tmp_path / "kit"
    call(
        package, tmp_path, f"run {config} finetune.epochs=1 finetune.lr=0.001 train.snapshots=[1]", f"report {run}",
        f"run {config} run={tmp_path / 'zero'}", f"kit {tmp_path / 'zero'} --to {kit}",
    )  # fmt: skip
    row = json.loads(call(package, tmp_path, f"predict {run} --text dog --json"))
    assert row["grade"] in GRADES and len(row["reached"]) == 2
    ask = f"predict {run} --file {data / 'dev.csv'} --out {tmp_path / 'said.json'}"
    shown = call(package, tmp_path, f"predict {run} --text dog", ask, f"predict {kit} --text dog").splitlines()
    assert shown[0].startswith(f"{row['grade']}  ["), "without --json"
    assert re.fullmatch(rf"files  ({'|'.join(GRADES)})  \[.*held-out.*\]", shown[1]), "of a kit, with trust"
    assert set(json.loads((tmp_path / "said.json").read_text()).values()) <= set(GRADES)
    scores = json.loads((run / "scores.json").read_text())
    dev = {name: model["scores"]["dev"] for name, model in scores["snapshots"]["1"].items()}
    # Grades are consecutive, so the median is in the middle and the others are adjacent to it.
    assert dev["baseline"] == {"within_one": 100.0, "accuracy": pytest.approx(100 / 3), "total": 24}
    assert {"max_encoder_learned_pooling", "fitted_encoder_max_pooling_seed0"} <= set(dev)
    assert "always predicts the median grade" in (run / "summary.md").read_text()
    answers = json.loads(call(package, tmp_path, f"predict {kit} --text dog --json"))
    assert answers["files"]["grade"] in GRADES and answers["files"]["trust"]["examples"] >= 0
