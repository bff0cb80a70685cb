"""Runs in several processes (torchrun), on one machine and on two: the weights of one process, whoever is killed."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
STORED = ("train.source=stored", "store.dtype=float32", "finetune.checkpoint_seconds=0", "train.checkpoint_seconds=0")
LOST = "another process of this launch has ended, or has not answered"
# The gradient of biases that shift all keys or all tokens alike is pure rounding, which Adam turns into full steps.
SHIFTS = ("key.bias", "layer.2.output.LayerNorm.bias", "linear.bias", "output.bias")

OFF: dict[str, Any] = {"num_attention_heads": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

Command = Callable[..., Any]


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Launch:
    """`torchrun` with so many processes, on one machine or, as `nodes` launches that make up one job, on several."""

    def __init__(self) -> None:
        self.begun: list[subprocess.Popen[str]] = []

    def start(
        self, *words: object, processes: int = 4, nodes: int = 1, folders: list[Path] | None = None, **settings: Any
    ) -> list["subprocess.Popen[str]"]:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={processes}"]
        launcher += [f"--nnodes={nodes}", "--master_addr=127.0.0.1", f"--master_port={port}"]
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "fixtures")])
        environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "PASSIVE"}
        environment |= {
            name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()
        }
        started = [
            subprocess.Popen(
                [*launcher, f"--node_rank={node}", str(ROOT / "tests/fixtures/launched.py"), *map(str, words)],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                cwd=folders[node] if folders else None,
            )
            for node in range(nodes)
        ]  # fmt: skip
        self.begun += started
        return started

    def __call__(self, *words: object, **settings: Any) -> list[Ended]:
        started = self.start(*words, **settings)
        said = [one.communicate(timeout=300) for one in started]
        return [Ended(one.returncode, out, err) for one, (out, err) in zip(started, said, strict=True)]


@pytest.fixture
def launch() -> Iterator[Launch]:
    found = Launch()
    yield found
    for one in found.begun:
        one.kill()
        one.wait()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without dropout, which each process draws for its own windows."""
    from tiny_encoders import say_how_to_read, tiny_model, tiny_tokenizer

    folder = tmp_path_factory.mktemp("encoder")
    tiny_model("bert", **OFF).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    say_how_to_read(folder, "cls")
    return folder


@pytest.fixture
def squad(tmp_path: Path, encoder: Path, write_config: Callable[..., Path], squad_folder: Path) -> Path:
    return write_config(tmp_path, encoder, name="squad2", data=squad_folder)


def weights(run: Path) -> dict[str, torch.Tensor]:
    files = [*run.glob("snapshots/*/encoder/*.safetensors"), *run.glob("snapshots/*/heads/*/*.safetensors")]
    return {f"{file.relative_to(run)}/{name}": value for file in files for name, value in load_file(file).items()}


def assert_near(run: Path, other: Path) -> None:
    """Equal up to rounding. Adam turns that of a gradient near zero into a part of a step, which is 1e-3."""
    found, wanted = weights(run), weights(other)
    assert found.keys() == wanted.keys() and len(wanted) >= 5
    for name, tensor in wanted.items():
        if not name.endswith(SHIFTS):
            torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-4)


def assert_equal(run: Path, other: Path) -> None:
    found, wanted = weights(run), weights(other)
    assert found.keys() == wanted.keys() and len(wanted) > 40
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def assert_clean(run: Path) -> None:
    assert not list(run.rglob(".*")) and not (run / "checkpoints").exists()


def test_four_processes_end_with_the_weights_of_one(squad: Path, launch: Launch, command: Command) -> None:
    (ended,) = launch("run", squad, *STORED)
    assert ended.code == 0, ended.err
    run, one = squad.parent / "run", squad.parent / "one"
    assert command("run", squad, *STORED, f"run={one}").code == 0
    assert_near(run, one)
    assert ended.out.count("run folder: ") == 1 and "4 processes" in ended.err
    assert json.loads((run / "environment.json").read_text())["processes"] == 4
    (stored, alone) = (next((folder / "states").iterdir()) for folder in (run, one))
    assert json.loads((stored / "manifest.json").read_text())["contents"]["dtype"] == "float32"
    assert len(list(stored.iterdir())) == len(list(alone.iterdir()))
    assert_clean(run)


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, encoder: Path, write_config: Callable[..., Path], squad_folder: Path
) -> Path:
    """The folder of a run in four processes that nothing happened to."""
    folder, launch = tmp_path_factory.mktemp("whole"), Launch()
    (ended,) = launch("run", write_config(folder, encoder, name="squad2", data=squad_folder), *STORED)
    assert ended.code == 0, ended.err
    return folder / "run"


@pytest.mark.slow
def test_two_machines_end_with_the_weights_of_one(squad: Path, launch: Launch, whole: Path) -> None:
    ends = launch("run", squad, *STORED, processes=2, nodes=2)
    assert [ended.code for ended in ends] == [0, 0], ends
    assert_equal(squad.parent / "run", whole)
    assert_clean(squad.parent / "run")


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(("rank", "stage", "step"), [(2, "finetune", 4), (0, "finetune", 4), (3, "heads", 9)])
def test_where_a_process_is_killed_the_others_end_and_the_same_command_resumes_to_the_same_weights(
    rank: int, stage: str, step: int, nodes: int, squad: Path, launch: Launch, whole: Path
) -> None:
    happens = [[rank, stage, step, "SIGKILL"]]
    ends = launch("run", squad, *STORED, processes=4 // nodes, nodes=nodes, HAPPENS=happens)
    errors = "".join(ended.err for ended in ends)
    assert all(ended.code for ended in ends)
    for other in {0, 1, 2, 3} - {rank}:
        assert errors.count(f"process {other + 1} of 4: error: {LOST}") == 1, errors
    ends = launch("run", squad, *STORED, processes=4 // nodes, nodes=nodes)
    assert [ended.code for ended in ends] == [0] * nodes, ends
    assert "resuming" in ends[0].err
    assert_equal(squad.parent / "run", whole)
    assert_clean(squad.parent / "run")


@pytest.mark.slow
def test_torchrun_can_start_again_where_a_process_was_killed(squad: Path, launch: Launch, whole: Path) -> None:
    settings = {"HAPPENS": [[1, "finetune", 4, "SIGKILL"]], "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    restart = {"PET_MAX_RESTARTS": "1", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "127.0.0.1:0"}
    (ended,) = launch("run", squad, *STORED, **settings, **restart)
    assert ended.code == 0, ended.err
    assert "resuming fine-tuning at step" in ended.err and LOST in ended.err
    assert_equal(squad.parent / "run", whole)


@pytest.mark.slow
def test_a_signal_to_one_process_saves_the_state_of_all(squad: Path, launch: Launch, whole: Path) -> None:
    (ended,) = launch("run", squad, *STORED[:2], HAPPENS=[[2, "finetune", 4, "SIGTERM"]])
    assert ended.code and LOST not in ended.err, ended.err
    assert "Progress is saved: run the same command again to resume." in ended.err
    (step,) = (squad.parent / "run/checkpoints/finetune").iterdir()
    assert step.name == "step_000000004"
    (ended,) = launch("run", squad, *STORED)
    assert ended.code == 0 and "resuming fine-tuning at step 4" in ended.err
    assert_equal(squad.parent / "run", whole)


@pytest.mark.slow
def test_a_process_that_hangs_is_not_waited_for_longer_than_agreed(squad: Path, launch: Launch) -> None:
    (ended,) = launch("run", squad, *STORED, processes=2, HAPPENS=[[1, "finetune", 4, "SIGSTOP"]], PATIENCE="5")
    assert ended.code and ended.err.count(f"process 1 of 2: error: {LOST}") == 1, ended.err


@pytest.mark.slow
def test_machines_with_different_folders_are_refused(squad: Path, launch: Launch, tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    ends = launch("run", squad, "run=runs/rte", processes=1, nodes=2, folders=folders)
    for number, ended in enumerate(ends):
        assert ended.code and f"process {number + 1} of 2: error: run = 'runs/rte' is not the same folder" in ended.err
    assert not list(tmp_path.glob("*/runs/rte/config.json"))


@pytest.mark.slow
def test_a_launch_is_refused_where_another_one_writes(squad: Path, launch: Launch) -> None:
    from bertvision.disk import lock_in, writing_in

    with writing_in(lock_in(squad.parent / "run")):
        (ended,) = launch("run", squad, processes=2)
    assert ended.code and ended.err.count("error: another process is writing to") == 2, ended.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        # Convex heads amplify differences between encoders: here, there are none.
        ("finetune.epochs=0", 'heads=["learned_pooling", "linear", {head="adapter", size=4, read="mean"}]'),
        ('heads=["learned_pooling", {head="adapter", size=4, read="mean"}]',),
    ],
    ids=["untouched", "fine-tuned"],
)
def test_labels_from_states_in_memory_end_with_the_weights_of_one_process(
    words: tuple[str, ...],
    tmp_path: Path,
    encoder: Path,
    write_config: Callable[..., Path],
    glue_folder: Path,
    launch: Launch,
    command: Command,
) -> None:
    from tiny_encoders import tiny_model
    from transformers import AutoModelForSequenceClassification

    checkpoint = tmp_path / "checkpoint"  # its output layer has no dropout; a new one would
    shutil.copytree(encoder, checkpoint)
    tiny_model("bert", AutoModelForSequenceClassification, **OFF, num_labels=2).save_pretrained(checkpoint)
    config = write_config(tmp_path, checkpoint, name="rte", data=glue_folder)
    (ended,) = launch("run", config, *words)
    assert ended.code == 0, ended.err
    assert command("run", config, *words, f"run={tmp_path / 'one'}").code == 0
    assert_near(tmp_path / "run", tmp_path / "one")
