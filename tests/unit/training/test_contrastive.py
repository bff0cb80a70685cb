"""Contrastive fine-tuning: its loss, its batches, and which weights it moves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_training import checkpoints_in, log_nothing, tiny_finetuning
from torch import Tensor
from torch.nn import functional

from bertvision.config import build_config
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.output_layer import build_output_layer
from bertvision.encoder.states import pack_tokens
from bertvision.errors import UserError
from bertvision.kinds import LABEL, SCORE
from bertvision.training.contrastive import check_labels, contrastive_loss, plan_pairs
from bertvision.training.finetune import Finetuning

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def rte(tiny_features: Callable[[str], Any]) -> Features:
    features: Features = tiny_features("rte")
    return features


def random_batch(rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (rows,), generator=draws).float()
    return torch.randn(rows, 8, generator=draws), labels, torch.rand(rows, generator=draws) + 0.1


def build(features: Features, **changes: Any) -> Finetuning:
    return tiny_finetuning(features, LABEL, **{"method": "contrastive", "lr": 1e-2, **changes})


def test_the_loss_is_that_of_its_formula() -> None:
    """Written out pair by pair."""
    means, labels, weights = random_batch(7)
    vectors = (means / means.norm(dim=1, keepdim=True)).double().numpy()  # (row, hidden)
    errors: dict[bool, list[float]] = {True: [], False: []}
    for row in range(7):
        for other in range(row):
            same = bool(labels[row] == labels[other])
            errors[same].append((vectors[row] @ vectors[other] - same) ** 2)
    expected = float(weights.sum()) * (np.mean(errors[True]) + np.mean(errors[False])) / 2
    assert float(contrastive_loss(means, labels, weights)) == pytest.approx(expected, rel=1e-5)


def test_padding_changes_neither_loss_nor_gradient() -> None:
    means, labels, weights = random_batch(6)
    found = []
    for padding in (0, 3):
        given = functional.pad(means, (0, 0, 0, padding)).requires_grad_()
        loss = contrastive_loss(given, functional.pad(labels, (0, padding)), functional.pad(weights, (0, padding)))
        loss.backward()
        assert given.grad is not None
        found.append((loss.detach(), given.grad[:6]))
    torch.testing.assert_close(found[0], found[1])


def test_a_batch_of_one_label_or_of_single_rows_has_a_finite_loss() -> None:
    means, _, weights = random_batch(4)
    for labels in (torch.zeros(4), torch.arange(4.0)):
        given = means.clone().requires_grad_()
        loss = contrastive_loss(given, labels, weights)
        loss.backward()
        assert loss.isfinite() and given.grad is not None and bool(given.grad.isfinite().all())


@pytest.mark.parametrize(("labels", "each"), [(2, 9), (6, 30), (77, 8)])
def test_every_epoch_has_every_row_once_and_pairs_in_every_batch(labels: int, each: int) -> None:
    targets = np.random.default_rng(0).permutation(np.repeat(np.arange(labels), each))
    plan = plan_pairs(targets, 2, 64, seed=1)
    for batches in plan.epochs:
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(targets)))
        assert max(map(len, batches)) <= 64
        # A group may be cut by the end of a batch, so that a label is there once: at most one at each end.
        single = [int((np.bincount(targets[batch]) == 1).sum()) for batch in batches]
        assert max(single) <= 2
    assert any(not np.array_equal(one, other) for one, other in zip(*plan.epochs, strict=True))


def test_texts_with_the_same_label_move_together(rte: Features) -> None:
    def compute(work: Finetuning) -> float:
        work.model.eval()
        with torch.no_grad():
            states = work.encoder(pack_tokens(rte, np.arange(len(rte))), keep=("mean",))
        vectors = functional.normalize(states.read("mean")[:, -1], dim=1)  # (row, hidden)
        alike = torch.from_numpy(rte.target[:, None] == rte.target[None])  # (row, row)
        similar = vectors @ vectors.T  # (row, row)
        return float(similar[alike].mean() - similar[~alike].mean())

    work = build(rte, epochs=40.0, batch_rows=len(rte), dropout=0.0)
    before = compute(work)
    work.run_through(lambda _: None)
    assert compute(work) > before + 0.02


@pytest.mark.parametrize("read", ["cls", "pooled", "mean", "max"])
def test_texts_are_compared_by_what_the_output_layer_reads(read: str, rte: Features) -> None:
    """The gradient of the encoder is that of the loss on [CLS] states where the output layer reads these, or means."""

    def output(encoder: Encoder) -> Any:
        return build_output_layer(LABEL, encoder.shape, 2, read)  # type: ignore[arg-type]

    work = build(rte, dropout=0.0, clip=None, output=output)
    work._accumulate(work._prepare(0))
    found = gradients(work)
    work.model.zero_grad()
    rows = work.plan.epochs[0][0]
    part: Any = "cls" if read in ("cls", "pooled") else "mean"
    states = work.encoder(pack_tokens(rte, rows), keep=(part,))
    vectors = states.last_cls if part == "cls" else states.read("mean")[:, -1]  # (row, hidden)
    weights = torch.full((len(rows),), 1 / len(rows))
    contrastive_loss(vectors, torch.from_numpy(rte.target[rows]), weights).backward()
    torch.testing.assert_close(found, gradients(work), atol=1e-6, rtol=1e-3)
    assert float(found.abs().max()) > 1e-4


def gradients(work: Finetuning) -> Tensor:
    """Those of all weights of the encoder; 0 where a weight has none."""
    found = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in work.encoder.parameters()]
    return torch.cat([gradient.flatten().clone() for gradient in found])


def test_the_encoder_learns_nothing_from_the_output_layer(rte: Features) -> None:
    """The output layer reads states through which no gradient flows."""
    found = []
    for scale in (1.0, 5.0):
        work = build(rte, dropout=0.0, clip=None)
        with torch.no_grad():
            work.output.linear.weight.mul_(scale)
        work._accumulate(work._prepare(0))
        found.append([weight.grad.clone() for weight in work.encoder.parameters() if weight.grad is not None])
    assert found[0] and all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_killed_run_resumes_to_the_same_weights(rte: Features, tmp_path: Path) -> None:
    whole, killed, again = build(rte), build(rte), build(rte)
    whole.run([2.0], lambda *_: None, checkpoints_in(tmp_path / "whole"), log_nothing)
    backward = killed._backward

    def dying(*given: Any) -> Tensor:
        if killed.step == 2:
            raise KeyboardInterrupt
        return backward(*given)

    killed.__dict__["_backward"] = dying
    with pytest.raises(KeyboardInterrupt):
        killed.run([2.0], lambda *_: None, checkpoints_in(tmp_path / "killed", 0), log_nothing)
    again.run([2.0], lambda *_: None, checkpoints_in(tmp_path / "killed", 0), log_nothing)
    expected = whole.model.state_dict()
    assert all(torch.equal(expected[name], weight) for name, weight in again.model.state_dict().items())


def test_scores_are_refused_and_defaults_are_its_own(glue_folder: Path) -> None:
    with pytest.raises(UserError, match="labels"):
        check_labels(SCORE)
    check_labels(LABEL)
    config = build_config({"task": {"name": "rte", "data": str(glue_folder)}, "finetune": {"method": "contrastive"}})
    assert (config.finetune.lr, config.finetune.batch_rows) == (1e-4, 64)
