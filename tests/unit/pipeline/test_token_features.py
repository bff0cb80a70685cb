"""Token features on disk: every window, with the ids, offsets and targets that Hugging Face's tokenizer gives."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from typer.testing import CliRunner

from bertvision.cli import app
from bertvision.config import build_config
from bertvision.pipeline.job import Job
from bertvision.pipeline.token_features import write_token_features


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def make_job(task: str, data: Path, encoder: Path, run: Path, max_length: int = 32) -> Job:
    tables = {
        "task": {"name": task, "data": str(data)},
        "encoder": {"name": str(encoder), "device": "cpu"},
        "data": {"max_length": max_length, "overlap": 8, "hold_out": 0.25},
        "run": str(run),
    }
    return Job(build_config(tables))


def test_windows_of_spans_point_at_their_answers(tiny_encoder_folder: Path, squad_folder: Path, tmp_path: Path) -> None:
    job = make_job("squad2", squad_folder, tiny_encoder_folder, tmp_path / "run")
    files = write_token_features(job)
    assert [path.name for path in files] == ["train.jsonl", "held_out.jsonl", "dev.jsonl"]
    assert all(path.parent == tmp_path / "run" / "features" for path in files)
    examples = {example.id: example for split in ("train", "held_out", "dev") for example in job.examples(split)}
    answered, several = 0, 0
    for path in files:
        rows = read(path)
        assert {row["example_id"] for row in rows} == {one.id for one in job.examples(path.stem)}
        for row in rows:
            example = examples[row["example_id"]]
            assert len(row["input_ids"]) == len(row["token_type_ids"]) == len(row["offset_mapping"]) <= 32
            several += row["window"] > 0
            start, end = row["start_positions"], row["end_positions"]
            if end:
                low, high = row["offset_mapping"][start][0], row["offset_mapping"][end][1]
                answered += (example.text_pair or "")[low:high] in [answer.text for answer in example.answers or ()]
    assert answered > 3 and several > 0


def test_rows_of_labels_and_scores_equal_the_tokenizers(
    tiny_encoder_folder: Path, glue_folder: Path, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder_folder)
    for task, kind in (("rte", int), ("stsb", float)):
        job = make_job(task, glue_folder, tiny_encoder_folder, tmp_path / task, max_length=128)
        (*_, dev) = write_token_features(job, tmp_path / f"{task}_features")
        rows = read(dev)
        assert len(rows) == len(job.examples("dev")) and dev.parent == tmp_path / f"{task}_features"
        for row, example in zip(rows, job.examples("dev"), strict=True):
            expected = tokenizer(example.text, example.text_pair)
            assert (row["input_ids"], row["token_type_ids"]) == (expected["input_ids"], expected["token_type_ids"])
            assert row["labels"] == example.target and type(row["labels"]) is kind and row["window"] == 0
            assert "offset_mapping" not in row and "start_positions" not in row


def test_the_command_names_its_files(
    tiny_encoder_folder: Path, glue_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "rte.toml"
    config.write_text(
        f'[task]\nname = "rte"\ndata = "{glue_folder}"\n[encoder]\nname = "{tiny_encoder_folder}"\ndevice = "cpu"\n'
    )
    ended = CliRunner().invoke(app, ["features", str(config), "--to", "out"], catch_exceptions=False)
    windows = len(read(tmp_path / "out" / "dev.jsonl"))
    assert ended.exit_code == 0 and f"out/dev.jsonl: {windows} windows" in ended.output
