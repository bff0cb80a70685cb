"""Runs whose heads begin with those of another run: trained, skipped when done, trained again, killed and resumed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sealed import reseal

from bertvision.pipeline.held_out import HeldOut
from bertvision.pipeline.predict import Predictor

Command = Callable[..., Any]
# On the untouched encoder, whose states both tasks share. [CLS] states have a pooled output in addition to the layers.
RAW = ("finetune.epochs=0", 'heads=["learned_pooling",{head="adapter",size=4}]')
HEADS = "snapshots/epoch_0/heads"
SLOW = 1e-30  # a learning rate so small that weights do not change
Weights = dict[str, torch.Tensor]


@pytest.fixture
def span_head(finished: Callable[..., Path], squad_folder: Path, tmp_path: Path) -> Path:
    """The folder of a trained span head, in a copy of its run that a test may modify."""
    shutil.copytree(finished(*RAW, name="squad2", data=squad_folder), tmp_path / "spans")
    return tmp_path / "spans" / HEADS / "adapter_4"


@pytest.fixture
def answerable(tmp_path: Path, write_config: Callable[..., Path], squad_folder: Path) -> Path:
    return write_config(tmp_path, name="squad2_answerable", data=squad_folder)


def entry(begin: str, **settings: object) -> str:
    """An override for adapters that begin with a folder, or with the folders of a TOML list."""
    more = "".join(f",{key}={value}" for key, value in settings.items())
    return f'heads=[{{head="adapter",size=4,begin={begin},name="begun"{more}}}]'


def weights(run: Path, name: str) -> Weights:
    return load_file(run / HEADS / name / "head.safetensors")


def changed(folder: Path) -> None:
    """Overwrite the weights in the file."""
    file = folder / "head.safetensors"
    save_file({name: tensor + 0.25 for name, tensor in load_file(file).items()}, file)
    reseal(folder)


def test_initial_weights_come_from_the_folder_except_the_output_layer(
    span_head: Path, answerable: Path, command: Command, tmp_path: Path
) -> None:
    shutil.copytree(span_head, tmp_path / "other")
    changed(tmp_path / "other")
    begin = f'["{span_head}","{tmp_path}/other"]'
    for stack in (1, 4):
        said = command("run", answerable, RAW[0], entry(begin, seeds=2, lr=SLOW), f"train.stack={stack}",
                       f'run="{tmp_path}/run{stack}"')  # fmt: skip
        assert said.code == 0, said.err
        outputs = []
        for name, folder in (("adapter_4", span_head), ("other", tmp_path / "other")):
            given = load_file(folder / "head.safetensors")
            for seed in (0, 1):
                found = weights(tmp_path / f"run{stack}", f"begun_seed{seed}_begin_{name}")
                assert torch.equal(found["adapter.weight"], given["adapter.weight"])
                assert torch.equal(found["adapter.bias"], given["adapter.bias"])
                outputs.append(found["output.weight"])
        assert torch.equal(outputs[0], outputs[2]) and not torch.equal(outputs[0], outputs[1]), "drawn from the seed"


def test_a_head_is_done_as_long_as_its_initial_weights_are_the_same(
    span_head: Path, answerable: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    monkeypatch.chdir(tmp_path)
    relative = span_head.relative_to(tmp_path)

    def moment() -> int:
        return (run / HEADS / "begun" / "stamp.json").stat().st_mtime_ns

    assert command("run", answerable, RAW[0], entry(f'"{relative}"')).code == 0
    first = moment()
    shutil.copytree(tmp_path / "spans", tmp_path / "copied")
    monkeypatch.chdir("/")
    assert command("run", run).code == 0 and moment() == first, "the run folder records the full path"
    copied = tmp_path / "copied" / span_head.relative_to(tmp_path / "spans")
    assert command("run", answerable, RAW[0], entry(f'"{copied}"')).code == 0 and moment() == first
    changed(copied)
    assert command("run", answerable, RAW[0], entry(f'"{copied}"')).code == 0 and moment() != first
    shutil.rmtree(tmp_path / "copied")
    assert len(Predictor(run, "begun").predict_texts([("who?", "a king")])) == 1, "predicting needs only the run"
    assert "`begin`" in command("run", answerable, RAW[0], entry(f'"{copied}"')).err


def test_a_killed_pass_resumes_to_the_same_weights(
    span_head: Path, answerable: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (RAW[0], entry(f'"{span_head}"'), "train.checkpoint_seconds=0")
    assert command("run", answerable, *words, f'run="{tmp_path}/whole"').code == 0

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(HeldOut, "score", interrupt)  # after the first of two epochs
        assert command("run", answerable, *words).code == 130
    again = command("run", answerable, *words)
    assert again.code == 0 and "resuming the training of the heads at step" in again.err
    begun, given = weights(tmp_path / "run", "begun"), load_file(span_head / "head.safetensors")
    for name, tensor in weights(tmp_path / "whole", "begun").items():
        assert torch.equal(tensor, begun[name]), name
    assert not torch.equal(begun["adapter.weight"], given["adapter.weight"]), "it has learned something"


def test_misfits_are_reported_before_any_work_and_by_check(
    span_head: Path, answerable: Path, command: Command, tmp_path: Path
) -> None:
    misfit = f'heads=[{{head="adapter",size=8,begin="{span_head}"}}]'
    for word in ("run", "check"):
        said = command(word, answerable, RAW[0], misfit)
        assert said.code == 2 and "can't begin with" in said.err and "Traceback" not in said.err
    assert not (tmp_path / "run" / "snapshots").exists()


def test_a_head_does_not_overwrite_the_one_it_begins_with(
    span_head: Path, write_config: Callable[..., Path], squad_folder: Path, command: Command, tmp_path: Path
) -> None:
    config = write_config(tmp_path, name="squad2", data=squad_folder)
    heads = f'heads=[{{head="adapter",size=4,begin="{span_head}"}}]'
    said = command("run", config, RAW[0], heads, f'run="{tmp_path}/spans"')
    assert said.code == 2 and "which this run itself writes" in said.err


def test_tables_report_and_card_say_which_head_began_with_trained_weights(
    span_head: Path, answerable: Path, command: Command, tmp_path: Path
) -> None:
    note, run = "began with the weights of a trained head", tmp_path / "run"
    said = command("run", answerable, RAW[0], entry(f'"{span_head}"'))
    assert said.code == 0 and f"begun {note}" in " ".join(said.out.split()), said.out
    assert command("report", run).code == 0
    assert f"begun {note}" in (run / "report.md").read_text(encoding="utf-8")
    begun, control = ((run / HEADS / name / "README.md").read_text() for name in ("begun", "last_linear"))
    assert f"- it {note}" in begun and note not in control
    assert note not in (tmp_path / "spans" / "summary.md").read_text(encoding="utf-8"), (
        "random weights are not mentioned"
    )
