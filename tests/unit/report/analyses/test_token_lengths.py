import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny_blocks import curve_run, drawn, layers_of
from tiny_reports import build_tiny_run

from bertvision.data.windows import build_features
from bertvision.disk import read_json
from bertvision.kinds import KINDS, SPAN, Kind
from bertvision.pipeline.finished import FinishedRun
from bertvision.pipeline.lengths import keep_lengths
from bertvision.report.analyses.token_lengths import length_histogram


def test_lengths_have_the_quantiles_of_all_windows(tmp_path: Path) -> None:
    run = curve_run(tmp_path, {1: 60.0}, {})
    run.lengths(train={10: 3, 30: 6, 100: 1}, dev={20: 1, 128: 3}, held_out={7: 1})
    block = length_histogram(run.write(), "dev")
    assert block is not None and block.table is not None and block.picture is not None
    train_row, dev_row = block.table.rows
    assert train_row == ["train", 10, pytest.approx(31.0), 30, 100, 100, 0, 0.0]
    assert dev_row == ["dev", 4, pytest.approx(101.0), 128, 128, 128, 3, 75.0]
    assert block.sentences[2] == (
        "Windows at the limit of 128 tokens: 0 of train (0.0 %) and 3 of dev (75.0 %). Their text may have been cut."
    )
    rows = [(row["split"], row["from"], row["to"], row["windows"], row["share"]) for row in drawn(block)]
    assert rows == [
        ("train", 9, 12, 3, 30.0),
        ("train", 29, 32, 6, 60.0),
        ("train", 97, 100, 1, 10.0),
        ("dev", 17, 20, 1, 25.0),
        ("dev", 125, 128, 3, 75.0),
    ]


def test_max_length_is_the_limit_and_short_texts_are_not_cut(tmp_path: Path) -> None:
    run = curve_run(tmp_path, {1: 60.0}, {})
    run.lengths(dev={20: 1})
    block = length_histogram(run.write(data={"max_length": 21}), "dev")
    assert block is not None
    assert block.sentences == [
        "dev has 1 window. The median length is 20 tokens, the 95th percentile 20 and the maximum 20.",
        "No window reaches the limit of 21 tokens, so no text was cut.",
    ]


def test_a_run_without_lengths_has_no_histogram(tmp_path: Path) -> None:
    assert length_histogram(curve_run(tmp_path, {1: 60.0}, {}).write(), "dev") is None


def test_uncut_texts_have_their_own_percentiles(tmp_path: Path) -> None:
    """100 texts of 10, 20, … 1,000 tokens: 98 % have at most 980 tokens. dev was scored by an earlier version."""
    run = curve_run(tmp_path, {1: 60.0}, {})
    run.lengths({"train": {10 * n: 1 for n in range(1, 101)}}, train={128: 5}, dev={20: 1})
    block = length_histogram(run.write(), "dev")
    assert block is not None and block.table is not None
    train, dev = block.table.records()
    names = ["uncut texts", "uncut mean", "uncut 98th percentile", "uncut 99th percentile", "uncut longest"]
    assert [train[name] for name in names] == [100, 505.0, 980, 990, 1000] and [dev[name] for name in names] == [
        None
    ] * 5
    assert block.sentences[-1] == (
        "Before they are cut into windows, 100 texts of train have 505.0 tokens on average, 98 % of them at most 980 "
        "and 99 % at most 990."
    )
    assert "Uncut: question and passage" in block.note


def test_a_run_records_the_lengths_of_its_texts_before_they_are_cut(squad: Path) -> None:
    run = FinishedRun(squad)
    for split in ("train", "held_out", "dev"):
        examples = run.job.examples(split)
        whole = build_features(examples, run.job.tokenizer, SPAN, True, 10_000)  # (question): one window each
        assert len(whole) == len(examples)
        assert np.repeat(*run.uncut_lengths[split]).tolist() == sorted(whole.lengths.tolist())
    assert len(np.repeat(*run.lengths["dev"])) > len(run.job.examples("dev"))  # some were cut


def test_a_run_of_an_earlier_version_gets_uncut_lengths_when_it_is_scored_again(squad: Path, tmp_path: Path) -> None:
    run = FinishedRun(shutil.copytree(squad, tmp_path / "squad"))
    path = run.folder.path / "lengths.json"
    whole = read_json(path)
    older = {split: {key: one[key] for key in ("stamp", "lengths", "windows")} for split, one in whole.items()}
    path.write_text(json.dumps(older))
    assert FinishedRun(run.folder.path).uncut_lengths == {}
    assert length_histogram(FinishedRun(run.folder.path), "dev") is not None
    keep_lengths(run.job)
    assert read_json(path) == whole


def test_sentences_have_no_uncut_lengths(rte: Path) -> None:
    assert FinishedRun(rte).uncut_lengths == {}


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_mark_has_a_tooltip_for_every_kind(tmp_path: Path, kind: Kind) -> None:
    heads = ["learned_pooling", {"head": "adapter_64", "data_fraction": [0.1, 1.0]}]
    run = build_tiny_run(tmp_path, kind, (0.0, 1.0), seeds=2, heads=heads)
    block = length_histogram(run, "dev")
    assert block is not None and block.picture is not None and block.in_words() and block.sentences
    assert all("tooltip" in layer["encoding"] for layer in layers_of(block.picture))
