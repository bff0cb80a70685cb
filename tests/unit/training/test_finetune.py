import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoders import tiny_model
from tiny_training import Listening, checkpoints_in, log_nothing, tiny_finetuning
from torch.nn.functional import cross_entropy
from transformers import BertForQuestionAnswering, BertForSequenceClassification, get_linear_schedule_with_warmup

from bertvision.data.windows import Features
from bertvision.encoder.output_layer import OutputLayers, build_output_layer
from bertvision.encoder.recording import Graphs
from bertvision.encoder.states import PackedTokens
from bertvision.errors import UserError
from bertvision.kinds import LABEL, SCORE, SPAN, Kind
from bertvision.progress import Reporter
from bertvision.training import finetune
from bertvision.training.finetune import Finetuning, Usage
from bertvision.training.half_weights import HalfWeights
from bertvision.training.optimizer import build_optimizer

ROOT = Path(__file__).parents[3]
Weights = dict[str, torch.Tensor]
pytestmark = pytest.mark.usefixtures("one_thread")


def weights(work: Finetuning) -> Weights:
    return {name: tensor.clone() for name, tensor in work.model.state_dict().items()}


# Shifting all keys alike does not change attention, nor does shifting all tokens change spans: the gradients of these
# biases are pure rounding, which Adam turns into full steps, so they are not compared.
SHIFTS = ("key.bias",)
SPAN_SHIFTS = (*SHIFTS, "layer.2.output.LayerNorm.bias", "output.linear.bias")


def assert_same_steps(found: Weights, expected: Weights, spared: tuple[str, ...] = SPAN_SHIFTS) -> None:
    """Check equality up to rounding. A weight whose gradient happens to be near 0 moves by more if another processor
    rounds differently, for the same reason: one in a hundred may, by less than a tenth of a step."""
    for name, tensor in expected.items():
        if not name.endswith(spared):
            apart = (found[name] - tensor).abs() - 1e-5 * tensor.abs()
            assert float((apart > 1e-5).float().mean()) < 0.01, name
            torch.testing.assert_close(
                found[name], tensor, rtol=1e-5, atol=1e-4, msg=lambda text, name=name: name + text
            )


def assert_equal(found: Weights, expected: Weights) -> None:
    assert found.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(found[name], expected[name])]
    assert not different


def run(work: Finetuning, folder: Path, snapshots: list[float] | None = None, seconds: float = 1e9) -> list[float]:
    """Train and return the snapshots in the order they were taken."""
    seen: list[float] = []
    work.run(snapshots or [2.0], lambda epochs, cost: seen.append(epochs), checkpoints_in(folder, seconds), log_nothing)
    return seen


# ---------------------------------------------------------------------- against plain transformers


def plain_batch(features: Features, windows: np.ndarray) -> dict[str, torch.Tensor]:
    longest = int(features.lengths[windows].max())
    batch = {name: torch.zeros(len(windows), longest, dtype=torch.int64) for name in ("input_ids", "token_type_ids")}
    batch["attention_mask"] = torch.zeros(len(windows), longest, dtype=torch.int64)
    for row, window in enumerate(windows):
        place, length = features.tokens_of(window), int(features.lengths[window])
        batch["input_ids"][row, :length] = torch.from_numpy(features.input_ids[place].astype(np.int64))
        batch["token_type_ids"][row, :length] = torch.from_numpy(features.type_ids[place].astype(np.int64))
        batch["attention_mask"][row, :length] = 1
    return batch


def plain_training(
    model: Any,
    work: Finetuning,
    steps: int,
    loss_of: Callable[[Any, Any, np.ndarray], Any],
    rates: dict[str, float] | None = None,
) -> None:
    """The usual loop over padded batches, as a user of transformers writes it. `rates` are other learning rates, by the
    first part of weights' names."""
    bare, groups = ("bias", "LayerNorm.weight"), []
    for name, weight in model.named_parameters():
        decay, rate = 0.0 if name.endswith(bare) else 0.01, (rates or {}).get(name.split(".")[0], 1e-3)
        groups.append({"params": [weight], "weight_decay": decay, "lr": rate})
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    scheduler = get_linear_schedule_with_warmup(optimizer, 0, steps)
    model.train()
    for step in range(steps):
        windows = work.plan.batch(step)
        optimizer.zero_grad()
        loss_of(model, plain_batch(work.features, windows), windows).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()


def copy_into(model: Any, work: Finetuning, output: Any) -> None:
    model.bert.load_state_dict(work.encoder.model.state_dict(), strict=False)
    output.load_state_dict(work.output.linear.state_dict())


def assert_close(model: Any, output: Any, work: Finetuning) -> None:
    theirs = {f"encoder.model.{name}": tensor for name, tensor in model.bert.state_dict().items()}
    assert len(theirs) > 50
    theirs |= {f"output.linear.{name}": tensor for name, tensor in output.state_dict().items()}
    assert_same_steps(weights(work), theirs, SPAN_SHIFTS if work.kind is SPAN else SHIFTS)


def test_spans_end_with_the_weights_of_a_plain_transformers_loop(squad: Features, tmp_path: Path) -> None:
    work = tiny_finetuning(squad, SPAN, dropout=0.0, warmup=0.0)
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_attention_heads": 2}
    model = BertForQuestionAnswering(tiny_model("bert", **no_dropout).config)
    copy_into(model, work, model.qa_outputs)
    run(work, tmp_path)

    def span_loss(model: Any, batch: Any, windows: np.ndarray) -> torch.Tensor:
        outputs, padding = model(**batch), batch["attention_mask"] == 0
        # The model's own loss would include padded tokens in the softmax.
        logits = (outputs.start_logits, outputs.end_logits)
        targets = (torch.from_numpy(values[windows].astype(np.int64)) for values in (squad.start, squad.end))
        losses = (cross_entropy(x.masked_fill(padding, -1e30), y) for x, y in zip(logits, targets, strict=True))
        return sum(losses) / 2

    plain_training(model, work, 6, span_loss)
    assert work.step == 6
    assert_close(model, model.qa_outputs, work)


@pytest.mark.parametrize(("task", "kind"), [("rte", LABEL), ("stsb", SCORE)])
def test_labels_and_scores_end_with_the_weights_of_a_plain_transformers_loop(
    task: str, kind: Kind, tiny_features: Callable[[str], Features], tmp_path: Path
) -> None:
    features = tiny_features(task)
    work = tiny_finetuning(features, kind, dropout=0.0, warmup=0.0, batch_rows=3)
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_attention_heads": 2}
    config = tiny_model("bert", num_labels=1 if kind is SCORE else 2, **no_dropout).config
    model = BertForSequenceClassification(config)
    copy_into(model, work, model.classifier)
    run(work, tmp_path)
    dtype = torch.float32 if kind is SCORE else torch.int64

    def own_loss(model: Any, batch: Any, windows: np.ndarray) -> torch.Tensor:
        return model(**batch, labels=torch.from_numpy(features.target[windows]).to(dtype)).loss

    plain_training(model, work, 6, own_loss)
    assert_close(model, model.classifier, work)


@pytest.mark.parametrize(("task", "kind"), [("rte", LABEL), ("stsb", SCORE)])
def test_the_output_layer_has_its_own_learning_rate(
    task: str, kind: Kind, tiny_features: Callable[[str], Features], tmp_path: Path
) -> None:
    features = tiny_features(task)
    work = tiny_finetuning(features, kind, dropout=0.0, warmup=0.0, batch_rows=3, output_lr=3e-2)
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_attention_heads": 2}
    config = tiny_model("bert", num_labels=1 if kind is SCORE else 2, **no_dropout).config
    model = BertForSequenceClassification(config)
    copy_into(model, work, model.classifier)
    run(work, tmp_path)
    dtype = torch.float32 if kind is SCORE else torch.int64

    def own_loss(model: Any, batch: Any, windows: np.ndarray) -> torch.Tensor:
        return model(**batch, labels=torch.from_numpy(features.target[windows]).to(dtype)).loss

    plain_training(model, work, 6, own_loss, {"classifier": 3e-2})
    assert_close(model, model.classifier, work)


class Twice(BertForSequenceClassification):
    """A plain transformers model whose second output layer reads the mean over tokens."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.other = torch.nn.Linear(config.hidden_size, config.num_labels)

    def both(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        found, mask = self.bert(**batch), batch["attention_mask"].unsqueeze(2)
        mean = (found.last_hidden_state * mask).sum(1) / mask.sum(1)
        return self.classifier(found.pooler_output), self.other(mean)


def both_ways(features: Features, dropout: float = 0.0, **changes: Any) -> Finetuning:
    def build(encoder: Any) -> OutputLayers:
        layers = {}
        for seed, (read, part) in enumerate({"cls": "pooled", "mean": "mean"}.items()):
            layers[read] = build_output_layer(LABEL, encoder.shape, 2, part, torch.Generator().manual_seed(seed))
            layers[read].dropout.p = dropout
        return OutputLayers(layers)

    settings = {"warmup": 0.0, "batch_rows": 3, "output_lr": 1e-2, **changes}
    return tiny_finetuning(features, LABEL, dropout, output=build, **settings)


def test_two_output_layers_learn_from_the_mean_of_their_losses(
    tiny_features: Callable[[str], Features], tmp_path: Path
) -> None:
    features = tiny_features("rte")
    work = both_ways(features)
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_attention_heads": 2}
    model = Twice(tiny_model("bert", num_labels=2, **no_dropout).config)
    model.bert.load_state_dict(work.encoder.model.state_dict(), strict=False)
    pairs = {"cls": model.classifier, "mean": model.other}
    for read, linear in pairs.items():
        linear.load_state_dict(work.output.layers[read].linear.state_dict())
    run(work, tmp_path)

    def mean_loss(model: Any, batch: Any, windows: np.ndarray) -> torch.Tensor:
        labels = torch.from_numpy(features.target[windows]).long()
        return sum(cross_entropy(logits, labels) for logits in model.both(batch)) / 2

    plain_training(model, work, 6, mean_loss, {"classifier": 1e-2, "other": 1e-2})
    theirs = {f"encoder.model.{name}": tensor for name, tensor in model.bert.state_dict().items()}
    for read, linear in pairs.items():
        theirs |= {f"output.layers.{read}.linear.{name}": tensor for name, tensor in linear.state_dict().items()}
    assert_same_steps(weights(work), theirs, SHIFTS)


def test_two_output_layers_with_their_own_rate_survive_a_kill(
    tiny_features: Callable[[str], Features], tmp_path: Path
) -> None:
    features = tiny_features("rte")
    whole, killed, again = (both_ways(features, dropout=0.1) for _ in range(3))
    run(whole, tmp_path / "whole")
    kill_at(killed, 3)
    with pytest.raises(Killed):
        run(killed, tmp_path / "killed", seconds=0)
    run(again, tmp_path / "killed")
    assert_equal(weights(again), weights(whole))


# ---------------------------------------------------------------------- micro-batches and memory


def test_micro_batches_give_the_same_steps_as_one_batch(squad: Features, tmp_path: Path) -> None:
    whole, pieces = (tiny_finetuning(squad, SPAN, 0.0, memory_tokens=tokens) for tokens in (32768, 50))
    sizes: list[int] = []
    backward = pieces._backward
    pieces._backward = lambda tokens, *rest: (sizes.append(len(tokens)), backward(tokens, *rest))[1]
    run(whole, tmp_path / "whole")
    run(pieces, tmp_path / "pieces")
    assert len(sizes) == 36 and set(sizes) == {1}  # 18 windows twice, one at a time
    assert_same_steps(weights(pieces), weights(whole))


def run_out_of_memory_once(work: Finetuning, at_call: int) -> list[int]:
    """Make the backward pass fail at one call. Return a list that collects the windows of each call."""
    calls: list[int] = []
    backward, halve = work._backward, work._halve_memory

    def failing(tokens: PackedTokens, *rest: Any) -> torch.Tensor:
        calls.append(len(tokens))
        if len(calls) == at_call:
            backward(tokens, *rest)  # gradients of a half-finished step
            raise torch.cuda.OutOfMemoryError("simulated")
        return backward(tokens, *rest)

    def checked() -> bool:
        assert sys.exc_info()[0] is None, "the error's frames would keep the memory"
        return halve()

    work._backward, work._halve_memory = failing, checked
    return calls


def test_out_of_memory_halves_the_micro_batches_and_ends_with_the_same_weights(squad: Features, tmp_path: Path) -> None:
    listening = Listening()
    work = tiny_finetuning(squad, SPAN, 0.0, listening, memory_tokens=200)
    calls = run_out_of_memory_once(work, at_call=4)
    run(work, tmp_path / "halved")
    assert work.memory_tokens == 100 and max(calls[:4]) == 4 and max(calls[4:]) == 2
    assert len(listening.lines) == 1 and "100 tokens at once (finetune.memory_tokens)" in listening.lines[0]
    plain = tiny_finetuning(squad, SPAN, 0.0)
    run(plain, tmp_path / "plain")
    assert_same_steps(weights(work), weights(plain))


def test_too_little_memory_for_one_window_is_reported(squad: Features, tmp_path: Path) -> None:
    work = tiny_finetuning(squad, SPAN, memory_tokens=400)
    tried: list[int] = []

    def never(*_: Any) -> torch.Tensor:
        tried.append(work.memory_tokens)
        raise torch.cuda.OutOfMemoryError("simulated")

    work._backward = never
    with pytest.raises(UserError, match="data.max_length"):
        run(work, tmp_path)
    assert tried == [400, 200, 100, 50, 48] and work.step == 0


# ---------------------------------------------------------------------- as on a GPU


def as_on_a_gpu(work: Finetuning, monkeypatch: pytest.MonkeyPatch) -> Finetuning:
    """Use half weights and padded batches as if steps were recorded, but without recording them."""
    monkeypatch.setattr(Graphs, "run", lambda _, key, step: step())
    work.encoder.take_route("looped")
    work.half = HalfWeights(work.encoder, torch.float32, work.output.parameters())
    named = work._named_parameters()
    work.parameters = [parameter for _, parameter in named]
    work.optimizer = build_optimizer(named, work.lr, work.config.decay)
    work.recorded = True
    return work


@pytest.mark.parametrize("memory_tokens", [32768, 120])
def test_padded_batches_and_half_weights_give_the_same_steps(
    memory_tokens: int, squad: Features, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tiny_finetuning(squad, SPAN, 0.0)
    run(plain, tmp_path / "plain")
    work = as_on_a_gpu(tiny_finetuning(squad, SPAN, 0.0, memory_tokens=memory_tokens), monkeypatch)
    micros = work._prepare(0).micros
    assert all(micro.filled for micro in micros) and (len(micros) > 1) == (memory_tokens == 120)
    run(work, tmp_path / "work")
    assert_same_steps(weights(work), weights(plain))


def test_a_killed_run_with_half_weights_ends_with_the_same_weights(
    squad: Features, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = as_on_a_gpu(tiny_finetuning(squad, SPAN, batch_rows=3), monkeypatch)
    kept: dict[float, Weights] = {}

    def keep(epochs: float, _: Usage) -> None:
        kept[epochs] = weights(whole)

    whole.run([0.5, 2.0], keep, checkpoints_in(tmp_path / "whole"), log_nothing)
    assert_equal(kept[2.0], weights(whole))
    killed = as_on_a_gpu(tiny_finetuning(squad, SPAN, batch_rows=3), monkeypatch)
    kill_at(killed, 7)
    with pytest.raises(Killed):
        run(killed, tmp_path / "killed", [2.0], seconds=0)
    again = as_on_a_gpu(tiny_finetuning(squad, SPAN, batch_rows=3), monkeypatch)
    run(again, tmp_path / "killed", [2.0])
    assert_equal(weights(again), weights(whole))


# ---------------------------------------------------------------------- snapshots


def test_snapshots_are_taken_in_order_at_fractions_of_an_epoch(squad: Features, tmp_path: Path) -> None:
    work = tiny_finetuning(squad, SPAN, batch_rows=3)  # 6 steps per epoch
    seen: list[tuple[float, int, int]] = []

    def keep(epochs: float, cost: Usage) -> None:
        seen.append((epochs, work.step, cost.tokens))

    work.run([1.0, 2.0, 0.5, 0.0], keep, checkpoints_in(tmp_path), log_nothing)
    tokens = np.cumsum([0] + [squad.lengths[work.plan.batch(step)].sum() for step in range(12)])
    assert seen == [(epochs, step, tokens[step]) for epochs, step in ((0.0, 0), (0.5, 3), (1.0, 6), (2.0, 12))]


def test_snapshots_at_the_same_step_are_all_saved(squad: Features, tmp_path: Path) -> None:
    work = tiny_finetuning(squad, SPAN, batch_rows=18)  # one step per epoch
    assert run(work, tmp_path, [0.0, 0.1, 0.2, 0.9, 1.0, 1.1, 2.0]) == [0.0, 0.1, 0.2, 0.9, 1.0, 1.1, 2.0]


def test_losses_are_logged_with_steps_tokens_and_seconds(
    squad: Features, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetune, "LOG_STEPS", 10)
    work = tiny_finetuning(squad, SPAN, batch_rows=3)
    lines: list[dict[str, Any]] = []
    work.run([2.0], lambda *_: None, checkpoints_in(tmp_path), lambda event, **values: lines.append(values))
    assert [line["step"] for line in lines] == [10, 12] and lines[-1]["tokens"] == 2 * squad.lengths.sum()
    assert all(0 < line["loss"] < 20 for line in lines)


# ---------------------------------------------------------------------- killed and started again


class Killed(BaseException):
    pass


def kill_at(work: Finetuning, step: int) -> None:
    """Simulate a kill in the middle of a step."""
    backward = work._backward

    def dying(tokens: PackedTokens, *rest: Any) -> torch.Tensor:
        if work.step == step:
            raise Killed
        return backward(tokens, *rest)

    work._backward = dying


@pytest.fixture(scope="module")
def uninterrupted(squad: Features, tmp_path_factory: pytest.TempPathFactory) -> Weights:
    work = tiny_finetuning(squad, SPAN, batch_rows=3)
    run(work, tmp_path_factory.mktemp("whole"))
    return weights(work)


@pytest.mark.parametrize("steps", [[0], [1], [5], [11], [2, 3, 7, 8]])
def test_killed_at_any_step_and_started_again_ends_in_the_same_weights(
    steps: list[int], squad: Features, uninterrupted: Weights, tmp_path: Path
) -> None:
    for step in steps:
        work = tiny_finetuning(squad, SPAN, batch_rows=3)
        kill_at(work, step)
        torch.manual_seed(step)  # other draws in the process must not matter
        with pytest.raises(Killed):
            run(work, tmp_path, seconds=0)  # a checkpoint after each step
    listening = Listening()
    work = tiny_finetuning(squad, SPAN, batch_rows=3, reporter=listening)
    run(work, tmp_path, seconds=0)
    assert_equal(weights(work), uninterrupted)
    assert work.tokens == 2 * squad.lengths.sum()
    assert listening.lines == ([f"resuming fine-tuning at step {steps[-1]:,}."] if steps[-1] else [])


def test_steps_since_the_last_checkpoint_are_repeated_after_a_kill(
    squad: Features, uninterrupted: Weights, tmp_path: Path
) -> None:
    work = tiny_finetuning(squad, SPAN, batch_rows=3)
    kill_at(work, 10)
    with pytest.raises(Killed):
        run(work, tmp_path, [0.5, 2.0])  # the only checkpoint is the one at the snapshot, step 3
    again = tiny_finetuning(squad, SPAN, batch_rows=3)
    assert run(again, tmp_path, [0.5, 2.0]) == [0.5, 2.0]  # the caller knows that it has the first snapshot
    assert_equal(weights(again), uninterrupted)


def test_a_snapshot_requested_after_its_step_restarts_training(
    squad: Features, uninterrupted: Weights, tmp_path: Path
) -> None:
    work = tiny_finetuning(squad, SPAN, batch_rows=3)
    kill_at(work, 8)
    with pytest.raises(Killed):
        run(work, tmp_path, [2.0], seconds=0)
    again, seen = tiny_finetuning(squad, SPAN, batch_rows=3), []
    steps = checkpoints_in(tmp_path), log_nothing, [0.5, 2.0]
    again.run([0.5, 2.0], lambda epochs, cost: seen.append((epochs, again.step)), *steps)
    assert seen == [(0.5, 3), (2.0, 12)]
    assert_equal(weights(again), uninterrupted)


def test_a_snapshot_requested_at_the_step_of_the_checkpoint_is_saved(squad: Features, tmp_path: Path) -> None:
    work = tiny_finetuning(squad, SPAN, batch_rows=3)
    kill_at(work, 3)
    with pytest.raises(Killed):
        run(work, tmp_path, [2.0], seconds=0)  # the newest checkpoint is at step 3, half an epoch
    again = tiny_finetuning(squad, SPAN, batch_rows=3)
    assert run(again, tmp_path, [0.5, 2.0]) == [0.5, 2.0]


def test_a_nan_loss_ends_fine_tuning_with_advice(squad: Features, tmp_path: Path) -> None:
    work = tiny_finetuning(squad, SPAN, batch_rows=3)
    backward = work._backward
    work._backward = lambda *given: backward(*given) * float("nan")
    with pytest.raises(UserError, match="diverged: the loss at step 12 is nan. Set finetune.lr to less"):
        run(work, tmp_path)


def test_a_kill_while_a_snapshot_is_saved_repeats_it_with_the_same_weights(squad: Features, tmp_path: Path) -> None:
    kept: list[Weights] = []
    for dies in (True, False):
        work = tiny_finetuning(squad, SPAN, batch_rows=3)

        def keep(epochs: float, cost: Usage, work: Finetuning = work, dies: bool = dies) -> None:
            if epochs == 1.0:
                kept.append(weights(work))
                if dies:
                    raise Killed

        try:
            work.run([0.5, 1.0, 2.0], keep, checkpoints_in(tmp_path), log_nothing)
        except Killed:
            assert dies
    assert len(kept) == 2
    assert_equal(*kept)


def test_ctrl_c_is_held_until_the_step_is_complete_and_saved(
    squad: Features, uninterrupted: Weights, tmp_path: Path
) -> None:
    work = tiny_finetuning(squad, SPAN, batch_rows=3)
    backward = work._backward

    def interrupted(tokens: PackedTokens, *rest: Any) -> torch.Tensor:
        if work.step == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return backward(tokens, *rest)

    work._backward = interrupted
    with pytest.raises(KeyboardInterrupt):
        run(work, tmp_path)
    found = checkpoints_in(tmp_path).load()
    assert work.step == 5 and found is not None and found.step == 5
    again = tiny_finetuning(squad, SPAN, batch_rows=3)
    run(again, tmp_path)
    assert_equal(weights(again), uninterrupted)


SCRIPT = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from tiny_training import build_tiny_features, checkpoints_in, log_nothing, tiny_finetuning

from bertvision.kinds import SPAN
folder = Path(sys.argv[1])
work = tiny_finetuning(build_tiny_features("squad2"), SPAN, batch_rows=3)
print("ready", flush=True)
work.run([2.0], lambda *_: None, checkpoints_in(folder, 0), log_nothing)
"""


def test_a_process_killed_at_a_random_moment_ends_with_the_same_weights(
    squad: Features, uninterrupted: Weights, tmp_path: Path
) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "fixtures")])
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    # Within a step, after some of the twelve: a kill before the first checkpoint or after the last proves nothing.
    draw = random.Random(os.getpid())
    some = f"step_{draw.randint(1, 10):09d}"
    while process.poll() is None and not any(one.name >= some for one in (tmp_path / "checkpoints").glob("step_*")):
        time.sleep(0.001)
    time.sleep(draw.uniform(0.0, 0.02))
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    again = tiny_finetuning(squad, SPAN, batch_rows=3)
    run(again, tmp_path)
    assert_equal(weights(again), uninterrupted)


def test_dropout_depends_only_on_the_seed(squad: Features, tmp_path: Path) -> None:
    ends = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        work = tiny_finetuning(squad, SPAN, dropout=0.3)
        work.seed = seed
        torch.manual_seed(len(ends))
        state = torch.get_rng_state()
        run(work, tmp_path / name)
        assert torch.equal(torch.get_rng_state(), state), "the process's own generator is left alone"
        ends.append(weights(work))
    assert_equal(ends[0], ends[1])
    assert any(not torch.equal(ends[0][name], ends[2][name]) for name in ends[0])


def test_the_reporter_is_silent_by_default(squad: Features, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tiny_finetuning(squad, SPAN, reporter=Reporter()), tmp_path)
    assert capsys.readouterr().out == ""
