"""BitFit and LoRA: which weights are trained, which stay fixed, and snapshots that are plain encoders."""

import copy
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoders import random_sequences, tiny_model
from tiny_training import checkpoints_in, log_nothing, tiny_finetuning
from transformers import AutoModel

from bertvision.config import FinetuneConfig, build_config
from bertvision.data.windows import Features
from bertvision.disk import fingerprint, read_json
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import load_encoder
from bertvision.encoder.recording import Graphs
from bertvision.encoder.states import PackedTokens
from bertvision.errors import ConfigError, UserError
from bertvision.kinds import SPAN
from bertvision.pipeline.job import FINETUNE_VERSION, Job
from bertvision.pipeline.run import run_job
from bertvision.training.finetune import Finetuning
from bertvision.training.half_weights import HalfWeights
from bertvision.training.methods import PROJECTIONS, prepare_method
from bertvision.training.optimizer import build_optimizer

LAYERS, HIDDEN, RANK = 3, 32, 4
Weights = dict[str, torch.Tensor]
pytestmark = pytest.mark.usefixtures("one_thread")


def build(squad: Features, method: str, **changes: Any) -> Finetuning:
    settings = {"method": method, "lora_rank": RANK, "batch_rows": 3, "lr": 1e-2, **changes}
    return tiny_finetuning(squad, SPAN, **settings)


def clone(tensors: Weights) -> Weights:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def run(work: Finetuning, folder: Path, seconds: float = 1e9) -> Weights:
    """Train and return the encoder's weights at the last snapshot."""
    kept: list[Weights] = []

    def keep(epochs: float, _: Any) -> None:
        kept.append(clone(work.encoder.model.state_dict()))

    work.run([1.0, 2.0], keep, checkpoints_in(folder, seconds), log_nothing)
    return kept[-1]


def plain_weights(squad: Features) -> Weights:
    """The weights before fine-tuning."""
    return clone(build(squad, "full").encoder.model.state_dict())


def moved(before: Weights, after: Weights) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}


def batch() -> PackedTokens:
    return PackedTokens.from_lists(*random_sequences())


def states(encoder: Encoder) -> torch.Tensor:
    with torch.no_grad():
        return encoder.eval()(batch(), keep=("tokens",)).read("tokens")  # (token, layer, hidden)


# ---------------------------------------------------------------------- which weights are trained


def test_bitfit_trains_every_bias_that_affects_the_loss_and_nothing_else(squad: Features, tmp_path: Path) -> None:
    before, work = plain_weights(squad), build(squad, "bitfit")
    output = clone(work.output.state_dict())
    found = moved(before, run(work, tmp_path))
    biases = {name for name in before if name.endswith(".bias")}
    assert found == {name for name in biases if "pooler" not in name} and len(found) == 1 + LAYERS * 8
    assert moved(output, work.output.state_dict()) == {"linear.weight", "linear.bias"}


def test_lora_changes_only_queries_and_values_by_updates_of_its_rank(squad: Features, tmp_path: Path) -> None:
    before, work = plain_weights(squad), build(squad, "lora")
    output = clone(work.output.state_dict())
    after = run(work, tmp_path)
    names = {
        f"encoder.layer.{layer}.attention.self.{part}.weight" for layer in range(LAYERS) for part in ("query", "value")
    }
    assert moved(before, after) == names
    for name in names:
        difference = (after[name].double() - before[name].double()).numpy()  # (output, input)
        # A product of rank 4, up to rounding of the sum.
        assert np.linalg.matrix_rank(difference, tol=1e-5) == RANK
    assert moved(output, work.output.state_dict()) == {"linear.weight", "linear.bias"}


@pytest.mark.parametrize("rank", [1, RANK])
def test_the_number_of_trained_parameters_is_as_calculated(rank: int, squad: Features) -> None:
    output = 2 * HIDDEN + 2
    work = build(squad, "lora", lora_rank=rank)
    assert sum(weight.numel() for weight in work.parameters) == LAYERS * 2 * rank * 2 * HIDDEN + output
    # Each layer: queries, keys, values, the attention's output, its norm, the wide part (48), the output and its norm;
    # then the embeddings' norm and the pooler.
    biases = LAYERS * (7 * HIDDEN + 48) + 2 * HIDDEN
    assert sum(weight.numel() for weight in build(squad, "bitfit").parameters) == biases + output


def test_initial_updates_change_nothing_and_depend_only_on_the_seed(squad: Features) -> None:
    expected = states(build(squad, "full").encoder)
    torch.manual_seed(1)
    first = build(squad, "lora")
    torch.manual_seed(2)
    second = build(squad, "lora")
    assert torch.equal(states(first.encoder), expected)
    assert not moved(first.model.state_dict(), second.model.state_dict())
    other = Encoder(tiny_model("bert", num_attention_heads=2), attention="padded")
    prepare_method(other, first.config, seed=1)
    drawn = "encoder.layer.0.attention.self.query.lora_A.default.weight"
    assert not torch.equal(other.model.state_dict()[drawn], first.encoder.model.state_dict()[drawn])


# ---------------------------------------------------------------------- snapshots


def test_a_lora_snapshot_is_a_plain_encoder_with_the_same_states(squad: Features, tmp_path: Path) -> None:
    work, plain = build(squad, "lora"), build(squad, "full").encoder
    work.run([2.0], lambda *_: work.encoder.save(tmp_path / "saved"), checkpoints_in(tmp_path), log_nothing)
    expected = states(work.encoder)
    assert "encoder.layer.0.attention.self.query.lora_A.default.weight" in work.encoder.model.state_dict()
    theirs = AutoModel.from_pretrained(tmp_path / "saved")
    assert list(theirs.state_dict()) == list(plain.model.state_dict())
    found = states(Encoder(theirs, attention="padded"))
    assert not torch.allclose(states(plain), expected, atol=1e-2)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_merged_weights_equal_those_of_peft(squad: Features, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    work = build(squad, "lora", lora_alpha=3)
    after = run(work, tmp_path)
    settings = LoraConfig(r=RANK, lora_alpha=3, target_modules=["query", "value"])
    theirs = get_peft_model(build(squad, "full").encoder.model, settings)
    theirs.base_model.model.load_state_dict(work.encoder.model.state_dict())
    merged = theirs.merge_and_unload().state_dict()
    assert not moved(clone(merged), after)


def test_after_a_snapshot_the_unmerged_weights_are_bit_identical(squad: Features) -> None:
    work = build(squad, "lora")
    for _ in work.take_steps(3):
        pass
    before, held = clone(work.model.state_dict()), list(work.model.parameters())
    with work.method.merged():
        assert "lora" not in " ".join(work.model.state_dict())
    assert not moved(before, work.model.state_dict())
    assert all(one is other for one, other in zip(held, work.model.parameters(), strict=True))


# ---------------------------------------------------------------------- killed, and as on a GPU


class Killed(BaseException):
    pass


def kill_at(work: Finetuning, step: int) -> None:
    backward = work._backward

    def dying(*given: Any) -> torch.Tensor:
        if work.step == step:
            raise Killed
        return backward(*given)

    work._backward = dying


@pytest.mark.parametrize("method", ["bitfit", "lora"])
@pytest.mark.parametrize("step", [5, 9])
def test_a_killed_run_resumes_to_the_same_weights(method: str, step: int, squad: Features, tmp_path: Path) -> None:
    whole = build(squad, method)
    expected = run(whole, tmp_path / "whole")
    killed = build(squad, method)
    kill_at(killed, step)
    with pytest.raises(Killed):
        run(killed, tmp_path / "killed", seconds=0)
    again = build(squad, method)
    assert not moved(expected, run(again, tmp_path / "killed"))
    assert not moved(whole.model.state_dict(), again.model.state_dict())


def with_weights_on_the_side(work: Finetuning, dtype: torch.dtype) -> Finetuning:
    """Train as if steps were recorded, but without recording them."""
    work.encoder.take_route("looped")
    work.half = HalfWeights(work.encoder, dtype, work.output.parameters())
    named = work._named_parameters()
    work.parameters = [parameter for _, parameter in named]
    work.optimizer = build_optimizer(named, work.lr, work.config.decay)
    work.recorded = True
    return work


@pytest.mark.parametrize("method", ["bitfit", "lora"])
def test_half_weights_train_the_same_weights_in_the_same_steps(
    method: str, squad: Features, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Graphs, "run", lambda _, key, step: step())
    settings = {"dropout": 0.0, "lr": 1e-3}
    before = plain_weights(squad)
    plain = run(build(squad, method, **settings), tmp_path / "plain")
    aside = run(with_weights_on_the_side(build(squad, method, **settings), torch.float32), tmp_path / "aside")
    assert moved(before, aside) == moved(before, plain)
    for name, tensor in plain.items():
        # These biases shift all keys or all tokens alike: their gradients are pure rounding.
        if not name.endswith(("key.bias", "layer.2.output.LayerNorm.bias")):
            torch.testing.assert_close(aside[name], tensor, rtol=1e-4, atol=1e-4)


def test_snapshots_in_half_precision_keep_the_frozen_weights_in_float32(
    squad: Features, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Graphs, "run", lambda _, key, step: step())
    work = with_weights_on_the_side(build(squad, "lora"), torch.bfloat16)
    after = run(work, tmp_path)
    assert all(tensor.dtype == torch.float32 for tensor in after.values() if tensor.is_floating_point())
    found = moved(plain_weights(squad), after)
    assert len(found) == LAYERS * 2 and all(name.endswith(("query.weight", "value.weight")) for name in found)


def test_a_compiled_layer_takes_its_updates_and_is_not_compiled_again_after_a_snapshot(squad: Features) -> None:
    work = build(squad, "lora", dropout=0.0)
    layer = work.encoder.model.encoder.layer[0]
    given = torch.randn(1, 5, HIDDEN, generator=torch.Generator().manual_seed(0))  # (1, token, hidden)
    made: list[int] = []

    def count(graph: torch.fx.GraphModule, _: Any) -> Any:
        made.append(1)
        return graph.forward

    compiled = torch.compile(layer.forward, backend=count, dynamic=True)
    for _ in work.take_steps(2):
        pass
    layer.eval()
    first = compiled(given)
    torch.testing.assert_close(first, layer(given))
    with work.method.merged():
        pass
    before = len(made)
    assert torch.equal(compiled(given), first) and len(made) == before > 0


# ---------------------------------------------------------------------- families


@pytest.mark.parametrize("architecture", ["bert", "roberta", "electra", *PROJECTIONS])
def test_model_families_have_two_updates_per_layer(architecture: str) -> None:
    encoder = Encoder(tiny_model(architecture), attention="padded")
    before, outputs = clone(encoder.model.state_dict()), states(encoder)
    method = prepare_method(encoder, FinetuneConfig(method="lora", lora_rank=RANK), seed=0)
    learning = [weight for weight in encoder.parameters() if weight.requires_grad]
    assert len(method.projections) == LAYERS * 2 and sum(w.numel() for w in learning) == LAYERS * 2 * RANK * 2 * HIDDEN
    with torch.no_grad():
        for weight in learning:
            weight.add_(0.1)
    updated = states(encoder)
    assert not torch.allclose(updated, outputs, atol=1e-2)
    with method.merged():
        torch.testing.assert_close(states(encoder), updated, rtol=1e-4, atol=1e-4)
        assert len(moved(before, encoder.model.state_dict())) == LAYERS * 2


def test_an_encoder_without_suitable_modules_is_refused_and_its_modules_are_listed() -> None:
    encoder = Encoder(tiny_model("modernbert"), name="modern", attention="padded")
    with pytest.raises(UserError, match=r"query and value.*'modern' \(modernbert\) has no query and no value.*Wqkv"):
        prepare_method(encoder, FinetuneConfig(method="lora"), seed=0)
    with pytest.raises(UserError, match=r"biases, but 'modern' \(modernbert\) has none"):
        prepare_method(encoder, FinetuneConfig(method="bitfit"), seed=0)


def test_without_peft_the_package_is_named(squad: Features, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match="finetune.method = 'lora' needs the package peft: pip install peft"):
        build(squad, "lora")
    build(squad, "bitfit")


# ---------------------------------------------------------------------- settings and runs


def test_mistakes_in_a_method_are_shown_with_the_others() -> None:
    words = ["finetune.method=lorra", "finetune.lora_rank=0", "finetune.lora_alpha=0", "train.lr=0"]
    with pytest.raises(ConfigError) as caught:
        build_config({"task": {"name": "rte"}}, words)
    found = " ".join(caught.value.mistakes)
    assert len(caught.value.mistakes) == 4 and "did you mean 'lora'?" in found
    assert "'finetune.lora_rank' must be at least 1, not 0." in found
    assert "'finetune.lora_alpha' must be above 0 and less than 1,000,000, not 0.0." in found


@pytest.fixture
def job(tiny_encoder_folder: Path, glue_folder: Path, tmp_path: Path) -> Callable[..., Job]:
    """job("finetune.method=lora") → a small run on RTE, in a new folder."""
    tables = {
        "task": {"name": "rte", "data": str(glue_folder)},
        "data": {"max_length": 48, "hold_out": 0.25},
        "encoder": {"name": str(tiny_encoder_folder), "device": "cpu"},
        "finetune": {"lr": 1e-2, "batch_rows": 2, "lora_rank": RANK},
        "train": {"epochs": 1, "batch_rows": 4},
        "heads": ["last_linear"],
        "run": str(tmp_path / "run"),
    }
    return lambda *words: Job(build_config(copy.deepcopy(tables), words))


def test_the_stamp_depends_on_the_method_and_only_its_own_settings(job: Callable[..., Job]) -> None:
    def stamp(*words: str) -> str:
        return job(*words).stamps.finetune

    full, bitfit, lora = (stamp(f"finetune.method={method}") for method in ("full", "bitfit", "lora"))
    assert len({full, bitfit, lora, stamp("finetune.method=lora", "finetune.lora_rank=2")}) == 4
    assert full == stamp("finetune.lora_rank=2", "finetune.lora_alpha=3")
    assert bitfit == stamp("finetune.method=bitfit", "finetune.lora_rank=2")
    assert stamp("finetune.epochs=0") == stamp("finetune.epochs=0", "finetune.method=lora")


def test_older_runs_stay_finished_if_the_output_layer_learns_as_it_did(job: Callable[..., Job]) -> None:
    """Before, there were no methods, and the output layer read [CLS] and had the encoder's learning rate."""
    work = job(f"finetune.output_lr={job().config.finetune.lr}", "finetune.read=cls")
    settings = dataclasses.asdict(work.config.finetune)
    before = ("epochs", "lr", "schedule", "warmup", "decay", "clip", "batch_rows", "batch_tokens")
    parts = work.stamps.data("train"), work.stamps.encoder, {key: settings[key] for key in before}, 0, ("auto", "auto")
    assert work.stamps.finetune == fingerprint("finetune", FINETUNE_VERSION, *parts)
    assert len({work.stamps.finetune, job().stamps.finetune, job("finetune.read=mean").stamps.finetune}) == 3


def test_a_run_scores_its_merged_snapshot_and_counts_trained_parameters(
    job: Callable[..., Job], tiny_encoder_folder: Path
) -> None:
    def encoder_row(method: str) -> dict[str, Any]:
        work = job(f"finetune.method={method}")
        run_job(work)
        scores = read_json(work.folder.path / "scores.json")
        assert scores is not None
        return scores["snapshots"]["1"]["encoder"]

    full, lora = encoder_row("full"), encoder_row("lora")
    assert "trained_parameters" not in full and set(lora) == {*full, "trained_parameters"}
    assert lora["trained_parameters"] == LAYERS * 2 * RANK * 2 * HIDDEN + 2 * HIDDEN + 2
    assert lora["parameters"] == full["parameters"]
    place = job().folder.encoder(1.0)
    saved = load_encoder(str(place), "cpu", torch.float32, "padded").model.state_dict()
    before = AutoModel.from_pretrained(tiny_encoder_folder).state_dict()
    assert len(moved(before, saved)) == LAYERS * 2


def test_without_fine_tuning_the_method_changes_nothing(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)  # and its package is not needed
    work = job("finetune.method=lora", "finetune.epochs=0")
    run_job(work)
    assert isinstance(read_json(work.folder.encoder(0.0) / "reference.json"), dict)
    assert "trained_parameters" not in (read_json(work.folder.encoder(0.0) / "stamp.json") or {})
