"""`bertvision reproduce`: every published row beside ours, resumed where it stopped, on local data with a tiny BERT."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tiny_encoders import tiny_tokenizer
from transformers import BertConfig, BertModel
from two_steps import FIXTURES, save_wide_encoder
from typer.testing import CliRunner, Result

from bertvision.cli import app
from bertvision.errors import UserError
from bertvision.papers import reproduce as command
from bertvision.papers.published import find_paper
from bertvision.pipeline.job import Job
from bertvision.pipeline.run import run_job

SQUAD, GLUE = FIXTURES / "squad_tiny", FIXTURES / "glue_tiny"
SMALL = ["data.limit_train=12", "data.limit_dev=4", "encoder.device=cpu"]


@pytest.fixture(scope="session")
def wide_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_wide_encoder(tmp_path_factory.mktemp("encoder"))


def reproduce(*words: object) -> Result:
    return CliRunner().invoke(app, ["reproduce", *map(str, words)], env={"COLUMNS": "200"})


def test_without_a_name_the_experiments_are_listed() -> None:
    output = reproduce().output
    assert all(name in output for name in ("2020-spans", "2020-answerability", "2021-squad", "2021-glue"))


def test_every_published_row_stands_beside_ours_and_a_second_call_trains_nothing(
    wide_encoder: Path, tmp_path: Path
) -> None:
    words = ["2021-squad", "--quick", "--encoder", wide_encoder, "--data", SQUAD, "--to", tmp_path / "out", *SMALL]
    first = reproduce(*words)
    assert first.exit_code == 0, first.output
    for text in ("First published", "Last published", "adapter 384 (AP)", "baseline", "control"):
        assert text in first.output
    assert "70.1" in first.output and "73.4" in first.output and "BERT-large" not in first.output
    assert f"The encoder is {wide_encoder.name}" in first.output and "A quick run" in first.output
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert [block["title"] for block in report["sections"][0]["blocks"]] == [
        table.title for table in find_paper("2021-squad").of_size(384)[1]
    ]
    assert (tmp_path / "out" / "first" / "report.html").is_file()
    weights = tmp_path / "out" / "last" / "snapshots" / "epoch_1" / "heads" / "adapter_384" / "head.safetensors"
    written = weights.stat().st_mtime_ns
    again = reproduce(*words)
    assert again.exit_code == 0 and weights.stat().st_mtime_ns == written


def test_tasks_of_glue_are_found_in_several_folders_and_missing_ones_are_named(
    wide_encoder: Path, tmp_path: Path
) -> None:
    for task in ("CoLA", "STS-B"):
        (tmp_path / task[:2]).mkdir()
        (tmp_path / task[:2] / task).symlink_to(GLUE / task)
    (tmp_path / "Co" / "MNLI").mkdir()  # without a dev set
    (tmp_path / "Co" / "MNLI" / "train.tsv").symlink_to(GLUE / "MNLI" / "train.tsv")
    folders = ["--data", tmp_path / "Co", "--data", tmp_path / "ST"]
    only = [word for task in ("cola", "stsb", "rte", "mnli") for word in ("--only", f"first_{task}")]
    words = ["2021-glue", "--quick", "--encoder", wide_encoder, *folders, "--to", tmp_path / "out", *SMALL]
    ended = reproduce(*words, *only)
    assert ended.exit_code == 0, ended.output
    assert "no train and dev files for them: first_mnli, first_rte." in ended.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == [
        "first_cola", "first_stsb", "report",
    ]  # fmt: skip
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    (table,) = report["sections"][0]["blocks"]  # that of the last published scores has none of these runs
    scored = {(row["task"], row["metric"]) for row in table["rows"] if row["ours"] is not None}
    assert scored == {("CoLA", "Matthews"), ("STS-B", "Pearson"), ("STS-B", "Spearman")}
    assert {row["task"] for row in table["rows"]} == {"CoLA", "STS-B", "RTE", "MNLI matched", "MNLI mismatched"}


def test_runs_of_earlier_calls_stay_in_the_report(wide_encoder: Path, tmp_path: Path) -> None:
    words = ["2021-glue", "--quick", "--encoder", wide_encoder, "--data", GLUE, "--to", tmp_path / "out", *SMALL]
    for name in ("first_cola", "first_rte"):
        ended = reproduce(*words, "--only", name)
        assert ended.exit_code == 0, ended.output
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    (table,) = report["sections"][0]["blocks"]
    assert {row["task"] for row in table["rows"] if row["ours"] is not None} == {"CoLA", "RTE"}
    assert [row["run"] for row in report["sections"][1]["blocks"][0]["rows"]] == ["first_cola", "first_rte"]


def test_a_stopped_experiment_goes_on_with_the_run_it_was_stopped_in(
    wide_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_in_the_second(job: Job) -> Any:
        if job.folder.path.name == "first_stsb":
            raise KeyboardInterrupt
        return run_job(job)

    words = ["2021-glue", "--encoder", wide_encoder, "--data", GLUE, "--to", tmp_path / "out", *SMALL]
    words += ["--only", "first_cola", "--only", "first_stsb"]
    monkeypatch.setattr(command, "run_job", stop_in_the_second)
    stopped = reproduce(*words)
    assert stopped.exit_code == 130 and "run the same command again to resume" in stopped.output
    assert "[1/2] first_cola: about" in stopped.output and "with those after it" in stopped.output
    weights = tmp_path / "out" / "first_cola" / "snapshots" / "epoch_1" / "heads" / "flat_adapter_128"
    written = (weights / "head.safetensors").stat().st_mtime_ns
    monkeypatch.undo()
    ended = reproduce(*words)
    assert ended.exit_code == 0 and (weights / "head.safetensors").stat().st_mtime_ns == written
    assert "Runs without figures are finished." in ended.output and "no score of ours" not in ended.output
    # The settings and the number of examples are not those of the papers.
    assert "Settings that differ from the papers': data.limit_train=12, data.limit_dev=4." in ended.output
    assert re.search(r"first_cola \d+ of 8,551, first_stsb \d+ of 5,749\.", ended.output)
    assert "of our 6 scores" in ended.output  # BERT and the head: Matthews; Pearson and Spearman


def test_the_cost_is_shown_without_running(wide_encoder: Path, tmp_path: Path) -> None:
    words = ["--encoder", wide_encoder, "--data", GLUE, "--only", "first_rte", "--to", tmp_path / "out", *SMALL]
    ended = reproduce("2021-glue", "--cost", *words)
    assert ended.exit_code == 0, ended.output
    assert "What it will cost" in ended.output and "first_rte" in ended.output
    assert not (tmp_path / "out" / "first_rte" / "scores.json").exists()


def test_mistakes_are_explained_before_any_work(wide_encoder: Path, tmp_path: Path) -> None:
    for words, message in (
        (["2020-span"], "no published experiment '2020-span': did you mean '2020-spans'"),
        (["2021-glue", "--encoder", wide_encoder, "--only", "last_rt"], "has no run 'last_rt'"),
        (["2021-squad", "--encoder", wide_encoder, "--only", "last_large"], "'last_large' (--only) is for BERT-large"),
        (["2021-glue", "--encoder", wide_encoder, "--data", tmp_path / "gone"], "there is no folder"),
        (["2021-glue", "--encoder", wide_encoder, "--data", tmp_path], "give the folder of GLUE"),
        (["2021-squad", "--encoder", wide_encoder, "--data", SQUAD, "train.lr=fast"], "train.lr"),
        (["2021-squad", "--encoder", wide_encoder, "--data", SQUAD, "run=runs/mine"], "with --to"),
        (["2021-squad", "--quick", "--encoder", wide_encoder, "--to", tmp_path / "out"], "task.data=FOLDER"),  # offline
        (["2021-squad", "--encoder", "gone/bert"], "the config.json of 'gone/bert' was not found"),
    ):
        ended = reproduce(*words)
        assert isinstance(ended.exception, UserError) and message in str(ended.exception), ended.output
    assert "from the hub (--data FOLDER" in ended.output and "from the hub (--encoder FOLDER" in ended.output


EXPERIMENTS = {
    "2020-spans": ["finetune.epochs=0.3", "finetune.snapshots=[]", "train.snapshots=[0.3]"],
    "2020-answerability": ["finetune.epochs=0.2", "finetune.snapshots=[]", "train.snapshots=[0.2]", "train.epochs=2"],
    "2021-squad": [],
    "2021-glue": [],
}
"""Experiment → overrides that leave out most snapshots."""


@pytest.mark.parametrize("name", [name for name, fewer in EXPERIMENTS.items() if fewer])
def test_the_heads_of_2020_train_at_one_snapshot(name: str, wide_encoder: Path, tmp_path: Path) -> None:
    words = ["--quick", "--encoder", wide_encoder, "--data", SQUAD, "--to", tmp_path / "out", *SMALL]
    ended = reproduce(name, *words, *EXPERIMENTS[name])
    assert ended.exit_code == 0, ended.output
    blocks = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["sections"][0]["blocks"]
    key = "EM ours" if name == "2020-spans" else "acc. ours"
    (heads,) = [block for block in blocks if block["title"] == "Heads"]
    lines = [line for table in find_paper(name).tables if table.title == "Heads" for line in table.lines]
    first = min(line.epochs for line in lines)
    scored = {row["model"] for row in heads["rows"] if row[key] is not None}
    assert scored == {line.name for line in lines if line.epochs == first} | {"baseline", "BERT", "control"}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_published_row_of_an_experiment_gets_a_score(name: str, wide_encoder: Path, tmp_path: Path) -> None:
    data = ["--data", SQUAD, "--data", GLUE, "--to", tmp_path / "out", *SMALL]
    ended = reproduce(name, "--quick", "--encoder", wide_encoder, *data)
    assert ended.exit_code == 0, ended.output
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    rows = [row for block in report["sections"][0]["blocks"] for row in block["rows"]]
    lines = [line for table in find_paper(name).of_size(384)[1] for line in table.lines]
    assert len(rows) >= sum(len(line.figures) if "metric" in rows[0] else 1 for line in lines)
    ours = [[value for key, value in row.items() if key.endswith("ours")] for row in rows]
    assert all(values and None not in values for values in ours)


@pytest.mark.slow
def test_a_random_bert_large_runs_the_spans_of_2020(tmp_path: Path) -> None:
    """The right shape: 24 layers of 1024. Fewer snapshots, since each takes 1.3 GB."""
    folder = tmp_path / "bert-large"
    config = BertConfig(
        vocab_size=len(tiny_tokenizer()), hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
        intermediate_size=4096,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    few = ["finetune.epochs=0.5", "finetune.snapshots=[0.3]", "train.snapshots=[0.3]", "data.limit_train=8"]
    words = ["2020-spans", "--quick", "--encoder", folder, "--data", SQUAD, "--to", tmp_path / "out"]
    ended = reproduce(*words, *SMALL[1:], *few)
    assert ended.exit_code == 0, ended.output
    assert "adapter 386 shared, skip" in ended.output and "pooling, adapter, Xception" in ended.output
    scores = json.loads((tmp_path / "out" / "spans" / "scores.json").read_text(encoding="utf-8"))
    assert scores["snapshots"]["0.3"]["adapter_386_skip"]["parameters"] == 417_000
