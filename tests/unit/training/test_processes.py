"""Two processes train the same weights as one, and stay in step when their clocks and signals differ."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from tiny_training import checkpoints_in, log_nothing, tiny_finetuning

from bertvision.data.windows import Features
from bertvision.kinds import SPAN

ROOT = Path(__file__).parents[3]
SCRIPT = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from safetensors.torch import save_file
from tiny_encoders import tiny_model
from tiny_training import build_tiny_features, checkpoints_in, log_nothing, member_of, tiny_finetuning
from bertvision.encoder.encoder import Encoder
from bertvision.heads import Target, build_head
from bertvision.progress import Reporter
from bertvision.sources import StreamedSource

from bertvision.kinds import SPAN
from bertvision.training.train import train_heads
from bertvision.training.stack import Alone, Member

folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
features = build_tiny_features("squad2")
lines = []
log = lambda event, **values: lines.append(values)

# A checkpoint is due in only one of them, and only the other is interrupted.
work = tiny_finetuning(features, SPAN, 0.0, batch_rows=5)
assert (work.machine.rank, work.machine.processes) == (rank, 2)
backward = work._backward
def interrupted(*given):
    if work.step == 3 and rank == 1 and interrupting:
        os.kill(os.getpid(), signal.SIGINT)
    return backward(*given)
work._backward, interrupting = interrupted, True
try:
    work.run([2.0], lambda *_: None, checkpoints_in(folder, 0 if rank == 0 else 1e9), log)
    raise AssertionError("not interrupted")
except KeyboardInterrupt:
    assert work.step == 4, work.step
interrupting = False
work.run([2.0], lambda *_: None, checkpoints_in(folder, 1e9), log)
assert bool(lines) == (rank == 0), lines
if rank == 0:
    save_file(work.model.state_dict(), folder / "finetuned.safetensors")

# A NaN loss in one process stops the member in both.
encoder = Encoder(tiny_model("bert", num_attention_heads=2), attention="padded").eval()
plan = [batch for batches in work.plan.epochs for batch in batches]
source = StreamedSource(encoder, features, plan, ("tokens",), share=(rank, 2))
members = []
for name in ("adapter", "broken"):
    config = member_of("adapter", SPAN, size=4, name=name)
    members.append(Member(config, build_head(config, encoder.shape, Target(SPAN)), range(len(plan))))
learn = Alone.learn
def breaking(unit, *given):
    learn(unit, *given)
    if unit.members == [members[1]] and members[1].taken == 5 and rank == 1:
        unit.losses = unit.losses * float("nan")
Alone.learn = breaking
import bertvision.training.train as module
module.LOG_STEPS = 5
lines.clear()
tokens_of = lambda step: int(features.lengths[plan[step]].sum())
checkpoints = checkpoints_in(folder / "heads", 0 if rank == 1 else 1e9)
train_heads(members, source, tokens_of, work.machine, checkpoints, log, Reporter())
assert [member.failed for member in members] == [False, True], members
assert bool(lines) == (rank == 0), lines
if rank == 0:
    save_file(members[0].head.state_dict(), folder / "adapter.safetensors")
    (folder / "loss").write_text(str(lines[-1]["loss"]["adapter"]))
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run_two(folder: Path) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "fixtures")])
    shared = {
        **os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "", "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folder)], stderr=subprocess.PIPE, text=True,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        errors = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)


def test_two_processes_end_with_the_weights_of_one(tiny_features: Callable[[str], Features], tmp_path: Path) -> None:
    run_two(tmp_path)
    work = tiny_finetuning(tiny_features("squad2"), SPAN, 0.0, batch_rows=5)
    work.run([2.0], lambda *_: None, checkpoints_in(tmp_path / "one"), log_nothing)
    found = load_file(tmp_path / "finetuned.safetensors")
    # The gradient of biases that shift all keys or all tokens alike is pure rounding, which Adam turns into full steps.
    shifts = ("key.bias", "layer.2.output.LayerNorm.bias", "output.linear.bias")
    for name, tensor in work.model.state_dict().items():
        if not name.endswith(shifts):
            torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-5)
    assert (tmp_path / "adapter.safetensors").is_file() and 0 < float((tmp_path / "loss").read_text()) < 10
