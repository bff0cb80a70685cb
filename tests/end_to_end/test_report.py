"""The report of a real (tiny) run of every kind: all files, correct numbers, no repeated work, and clear errors."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sealed import edit_json

from bertvision.errors import UserError
from bertvision.report import build, strengths
from bertvision.report.analyses import layer_importance

pytest.importorskip("vl_convert", reason="needs the report extra")
Command = Callable[..., Any]
OPTIONS = (
    "finetune.snapshots=[0.5]", "train.snapshots=[0.5,1]", "train.seeds=2", 'ensembles=[["encoder","adapter_4"]]',
)  # fmt: skip
EVERYWHERE = {
    "scores_dev_1", "comparisons_dev_1", "pairs_dev_1", "scores_dev_0_5", "choices", "score_against_compute",
    "costs_table", "finetuning_curve", "length_histogram", "layer_weights", "layer_importance", "layer_map",
    "disagreements",
}  # fmt: skip
OF_KIND = {
    "squad2": {"has_and_no_answer", "wrong_predictions", "second_answer", "threshold_curve", "passage_lengths"},
    "rte": {"confusion_matrix", "reliability_curve"},
    "stsb": {"predicted_against_true"},
}


@pytest.fixture
def make(finished: Callable[..., Path], squad_folder: Path, glue_folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """make("rte") → a copy of a finished run with seeds, two snapshots and an ensemble, which a test may modify."""

    def copy(task: str, *options: str, to: str = "run") -> Path:
        data = squad_folder if task.startswith("squad") else glue_folder
        return Path(shutil.copytree(finished(*OPTIONS, *options, name=task, data=data), tmp_path / to))

    return copy


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (folder / "report.json").read_text(encoding="utf-8"), parse_constant=lambda word: pytest.fail(word)
    )
    return found


def blocks_of(folder: Path) -> dict[str, dict[str, Any]]:
    return {block["key"]: block for section in read(folder)["sections"] for block in section["blocks"]}


@pytest.mark.parametrize("task", ["squad2", "rte", "stsb"])
def test_a_report_has_every_block_of_its_task(task: str, make: Callable[..., Path], command: Command) -> None:
    run = make(task)
    said = command("report", run)
    assert said.code == 0, said.err
    assert said.out.strip() == f"report: {run / 'report.html'}"
    blocks, report = blocks_of(run), read(run)
    assert report["finding"].endswith(".") and report["sections"][0]["title"] == "Layer map"
    maps = report["sections"][0]["blocks"]
    assert len({json.dumps(block["rows"]) for block in maps}) > 1
    assert all(block["example"]["label"] and block["example"]["group"] for block in maps)
    assert {key.removesuffix("_dev") for key in blocks} >= EVERYWHERE | OF_KIND[task]
    for key, block in blocks.items():
        assert block["sentences"], key
        for ending in (["json", "csv"] if "rows" in block else []) + (["svg", "png"] if "picture" in block else []):
            assert (run / "report" / f"{key}.{ending}").stat().st_size > 0
        assert "picture" not in block or block["alt"], f"{key} has a picture without alt text"
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.count('id="layer_map_dev"') == 1 and len(page) < 5_000_000
    assert (run / "report.md").read_text(encoding="utf-8").startswith("# ")
    assert (run / "snapshots/epoch_1/heads/adapter_4_seed0/README.md").is_file()


def test_tables_contain_the_scores_of_scores_json(make: Callable[..., Path], command: Command) -> None:
    run = make("rte")
    command("report", run)
    models = json.loads((run / "scores.json").read_text())["snapshots"]["1"]
    with (run / "report/scores_dev_1.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    seeds = [models[f"adapter_4_seed{seed}"]["scores"]["dev"]["accuracy"] for seed in (0, 1)]
    assert float(rows["adapter_4, 2 seeds"]["accuracy"]) == pytest.approx(sum(seeds) / 2)
    assert float(rows["encoder alone"]["accuracy"]) == pytest.approx(models["encoder"]["scores"]["dev"]["accuracy"])
    assert float(rows["baseline"]["accuracy"]) == pytest.approx(models["baseline"]["scores"]["dev"]["accuracy"])


def test_a_second_report_runs_no_encoder_and_is_identical(
    make: Callable[..., Path], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make("rte")
    command("report", run)
    before = read(run)
    for module in (layer_importance, strengths):
        monkeypatch.setattr(module, "open_encoder", lambda *_: pytest.fail("the encoder ran again"))
    said = command("report", run)
    assert said.code == 0 and read(run) == before


def test_without_the_encoder_or_the_data_other_blocks_remain(
    make: Callable[..., Path], command: Command, tmp_path: Path
) -> None:
    run = make("rte")
    assert command("report", run, "--no-encoder").code == 0
    assert not {"layer_map_dev", "layer_importance_dev"} & set(blocks_of(run))
    assert read(run)["sections"][0]["title"] == "Scores"
    edit_json(run / "config.json", lambda config: config["task"].update(data=str(tmp_path / "gone")))
    said = command("report", run)
    assert said.code == 0 and "“Layer map” is left out: the examples of dev" in said.err
    assert {"scores_dev_1", "confusion_matrix_dev"} <= set(blocks_of(run))


def test_several_runs_are_compared_on_one_page(make: Callable[..., Path], command: Command, tmp_path: Path) -> None:
    runs = make("rte", to="one"), make("stsb", to="two")
    said = command("report", *runs)
    assert said.code == 0 and said.out.strip() == f"report: {tmp_path / 'report.html'}"
    assert {"runs", "tasks"} <= set(blocks_of(tmp_path))
    assert command("report", *runs, "--to", tmp_path / "elsewhere").code == 0
    assert (tmp_path / "elsewhere/report.html").is_file()


def test_the_settings_on_the_page_reproduce_the_run(
    make: Callable[..., Path], command: Command, tmp_path: Path
) -> None:
    run = make("rte")
    command("report", run, "--no-encoder")
    config = tmp_path / "again.toml"
    config.write_text(read(run)["settings"], encoding="utf-8")
    said = command("evaluate", config, f"run={run}", "--json")
    assert said.code == 0, said.err
    assert said.json["snapshots"] == json.loads((run / "scores.json").read_text())["snapshots"]


def test_an_unfinished_run_is_reported_without_a_traceback(command: Command, tmp_path: Path) -> None:
    said = command("report", tmp_path)
    assert said.code == 2 and "no scores.json" in said.err and "bertvision run" in said.err
    assert "Traceback" not in said.err


def test_files_of_others_in_the_report_folder_are_left_alone(
    make: Callable[..., Path], command: Command, tmp_path: Path
) -> None:
    run, place = make("rte"), tmp_path / "project"
    (place / "report").mkdir(parents=True)
    (place / "report/thesis.png").write_bytes(b"mine")
    assert command("report", run, "--no-encoder", "--to", place).code == 0
    (place / "report/data.csv").write_text("mine")
    written = set((place / "report").iterdir())
    assert command("report", run, "--no-encoder", "--to", place).code == 0
    assert set((place / "report").iterdir()) == written
    assert (place / "report/thesis.png").read_bytes() == b"mine"


@pytest.mark.parametrize("inside", [False, True])
def test_a_run_is_not_compared_with_itself(inside: bool, make: Callable[..., Path], command: Command) -> None:
    run = make("rte")
    other = shutil.copytree(run, run / "inner") if inside else run
    said = command("report", run, other)
    assert said.code == 2 and ("--to" if inside else "named twice") in said.err
    assert not (run / "report.html").exists()


def test_texts_are_not_shown_if_the_data_has_changed(
    make: Callable[..., Path], command: Command, glue_folder: Path, tmp_path: Path
) -> None:
    # With this seed, the best head and the encoder disagree on some examples.
    run, data = make("rte", "seed=2"), tmp_path / "data"
    shutil.copytree(glue_folder, data)
    edit_json(run / "config.json", lambda config: config["task"].update(data=str(data)))
    assert command("report", run, "--no-encoder").code == 0
    assert "rows" in blocks_of(run)["disagreements_dev"]
    (dev,) = data.rglob("RTE/dev.tsv") if list(data.rglob("RTE/dev.tsv")) else data.rglob("dev.tsv")
    header, *rows = dev.read_text(encoding="utf-8").splitlines()
    dev.write_text("\n".join([header, *reversed(rows)]) + "\n", encoding="utf-8")
    assert command("report", run, "--no-encoder").code == 0
    assert "rows" not in blocks_of(run)["disagreements_dev"]


def test_missing_per_example_results_are_restored_by_evaluate(make: Callable[..., Path], command: Command) -> None:
    run = make("rte")
    (run / "snapshots/epoch_1/predictions/dev/encoder/results.safetensors").unlink()
    said = command("report", run, "--no-encoder")
    assert said.code == 2 and f"bertvision run {run}" in said.err and "Traceback" not in said.err
    assert command("evaluate", run).code == 0
    assert command("report", run, "--no-encoder").code == 0


def test_a_page_is_written_even_if_model_cards_can_not_be(
    make: Callable[..., Path], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make("rte")

    def refuse(*_: object) -> int:
        raise UserError("this folder is somebody else's")

    monkeypatch.setattr(build, "write_cards", refuse)
    said = command("report", run, "--no-encoder", "--to", tmp_path / "mine")
    assert said.code == 0 and "without model cards" in said.err and (tmp_path / "mine/report.html").is_file()


def test_an_unwritable_folder_is_reported_with_its_option(make: Callable[..., Path], command: Command) -> None:
    said = command("report", make("rte"), "--no-encoder", "--to", "/proc/nowhere")
    assert said.code == 2 and "--to" in said.err and "Traceback" not in said.err


def test_the_demo_ends_in_a_report(command: Command, tiny_encoder_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "demo"
    small = ("task.train_questions=60", "task.dev_questions=12", "data.max_length=64", "data.overlap=16")
    said = command("demo", f"encoder.name={tiny_encoder_folder}", "encoder.device=cpu", f"run={run}", *small)
    assert said.code == 0, said.err
    assert said.out.rstrip().endswith(f"report: {run / 'report.html'}   (open it in a browser)")
    assert "Fine-tune" in said.err and "on 60 synthetic questions; save it after 0.5 and 1 epochs" in said.err
    assert "Train 6 small heads" in said.err and "12 dev questions" in said.err
    assert {"layer_map_dev", "layer_importance_dev", "across_snapshots_dev", "threshold_curve_dev"} <= set(
        blocks_of(run)
    )
