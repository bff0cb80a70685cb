"""Recorded steps (CUDA graphs) on a GPU produce the same weights as ordinary steps, up to rounding."""

import numpy as np
import pytest
import torch
from tiny_encoders import tiny_model
from tiny_training import build_tiny_features, member_of

from bertvision.config import FinetuneConfig
from bertvision.data.packing import plan_batches
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.output_layer import build_output_layer
from bertvision.heads import Target, build_head
from bertvision.kinds import SPAN
from bertvision.machine import Machine
from bertvision.progress import Reporter
from bertvision.sources import StreamedSource
from bertvision.training.buffers import BatchBuffers
from bertvision.training.finetune import Finetuning
from bertvision.training.stack import Member, Stack, build_units

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SMALL = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 4, "intermediate_size": 128}
ROWS = (
    "learned_pooling",
    "adapter_386_skip",
    "adapter_64_separate",
    "two_adapters_386",
    "pooled_adapter_386",
    "ladder_64",
    "cnn_1xn_no_dropout",
    "pooled_adapter_inception",
    "pooled_adapter_xception",
)


@pytest.fixture(scope="module")
def features() -> Features:
    return build_tiny_features("squad2")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(tiny_model("bert", **SMALL).to("cuda", torch.bfloat16)).eval().requires_grad_(False)


@pytest.mark.parametrize("keep", [("tokens",), ("cls",)])
def test_states_are_the_same_recorded_or_not(keep: tuple[str, ...], encoder: Encoder, features: Features) -> None:
    order = np.random.default_rng(0).permutation(len(features))
    plan = [order[first : first + 6] for first in range(0, len(features), 6)] * 3
    plain = [batch.states.read(keep[0]).clone() for batch in StreamedSource(encoder, features, plan, keep, 1).batches()]
    source = StreamedSource(encoder, features, plan, keep, 1, recorded=True)
    found = [batch.states.read(keep[0]).clone() for batch in source.batches()]
    assert source.graphs.recorded
    for one, other in zip(found, plain, strict=True):
        assert one.shape == other.shape
        assert ((one - other).float().norm(dim=-1) / other.float().norm(dim=-1)).max() < 0.02


def train(
    encoder: Encoder, features: Features, rows: tuple[str, ...], recorded: bool, exact: bool = False
) -> list[Member]:
    """Train members for four epochs of three steps of similar size. `exact` trains in float64 and on the same states,
    because recorded states round differently."""
    machine = Machine("cuda", "float32" if exact else "bfloat16")
    order = np.random.default_rng(0).permutation(len(features))
    plan = [order[first : first + 6] for first in range(0, len(features), 6)] * 4
    members = []
    for row in rows:
        torch.manual_seed(1)
        config = member_of(row, SPAN, clip=0.5)
        head = build_head(config, encoder.shape, Target(SPAN)).cuda()
        head = head.double() if exact else head
        members.append(Member(config, head, range(len(plan))))
    units, buffers = build_units(members, None, 200), BatchBuffers(torch.device("cuda")) if recorded else None
    # All steps of an epoch go through the encoder together, so heads must not modify the states of later steps.
    for batch in StreamedSource(encoder, features, plan, ("tokens",), 400, recorded=recorded and not exact).batches():
        buffered = buffers.put(batch) if buffers is not None else None
        for unit in units:
            unit.learn(batch, machine, buffered)
    for unit in units:
        assert bool(unit.graphs.recorded) == recorded
        unit.write_back()
    return members


@pytest.mark.parametrize("row", ROWS)
def test_a_head_ends_in_the_same_weights_recorded_or_not(row: str, encoder: Encoder, features: Features) -> None:
    # A dozen batch norms and Adam amplify rounding errors: in float32, merely reordering the windows changes the
    # weights by more than this test allows.
    exact = row.endswith("ception")
    ((one,), (other,)) = (train(encoder, features, (row,), recorded, exact) for recorded in (True, False))
    apart = []
    for name, weight in one.head.state_dict().items():
        expected = other.head.state_dict()[name]
        assert weight.isfinite().all()
        assert weight.dtype.is_floating_point or torch.equal(weight, expected)  # batch counters of norms
        apart.append((weight - expected).float().abs().flatten())
    # Averaged over all weights: Adam takes steps as large as the learning rate even where a gradient is only rounding
    # error, such as that of a scale before a batch norm.
    assert torch.cat(apart).mean() < (1e-6 if exact else 1e-3 * len(one.steps) / 10)


def test_a_stack_ends_in_the_same_weights_recorded_or_not(encoder: Encoder, features: Features) -> None:
    rows = ("adapter_64",) * 3
    one, other = (train(encoder, features, rows, recorded) for recorded in (True, False))
    (unit,) = build_units(one, None, 200)
    assert isinstance(unit, Stack)
    for member, expected in zip(one, other, strict=True):
        for name, weight in member.head.state_dict().items():
            assert (weight - expected.head.state_dict()[name]).abs().mean() < 1e-3 * len(member.steps) / 10, name


def test_recorded_steps_are_deterministic(encoder: Encoder, features: Features) -> None:
    one, other = (train(encoder, features, ("adapter_64",), True)[0].head.state_dict() for _ in range(2))
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())


def finetuned(features: Features, dropout: float, seed: int = 0, record: bool = True, steps: int = 12) -> Finetuning:
    torch.manual_seed(0)
    dropouts = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    encoder = Encoder(tiny_model("bert", **SMALL, **dropouts).cuda(), attention="padded")
    encoder.take_route("auto", torch.bfloat16)
    output = build_output_layer(SPAN, encoder.shape, 2, generator=torch.Generator().manual_seed(3)).cuda()
    plan = plan_batches(features.lengths, 4, 0, rows=6)
    config = FinetuneConfig(lr=1e-3, batch_rows=6)
    work = Finetuning(encoder, output, features, plan, SPAN, config, seed, Machine("cuda", record=record), Reporter())
    for step in range(steps):
        work.measure_step(step)
    torch.cuda.synchronize()
    assert all(weight.dtype == torch.bfloat16 for weight in work.encoder.parameters())
    work.half.end()
    return work


def test_fine_tuning_ends_in_the_same_weights_recorded_or_not(features: Features) -> None:
    before, recorded, plain = (
        finetuned(features, 0.0, record=record, steps=steps) for record, steps in ((False, 0), (True, 12), (False, 12))
    )
    assert len(recorded.graphs.recorded) >= 2 and not plain.graphs.seen  # batches, and the optimiser's step
    expected, start = plain.model.state_dict(), before.model.state_dict()
    for name, weight in recorded.model.state_dict().items():
        # The gradients of the excluded weights are only rounding errors, which Adam turns into full steps.
        if weight.is_floating_point() and not name.endswith(("key.bias", "linear.bias", "3.output.LayerNorm.bias")):
            moved = (expected[name] - start[name]).norm()
            assert (weight - expected[name]).norm() <= 0.3 * moved, name


def test_dropout_of_recorded_steps_depends_only_on_seed_and_step(features: Features) -> None:
    one, same, other = (finetuned(features, 0.1, seed).model.state_dict() for seed in (0, 0, 1))
    weights = [name for name in one if name.endswith("query.weight")]
    # Gradients of embeddings are summed in arbitrary order, so the last digits differ.
    assert all(torch.allclose(one[name], same[name], atol=2e-3) for name in weights)
    assert all((one[name] - other[name]).abs().mean() > 3 * (one[name] - same[name]).abs().mean() for name in weights)


def test_compiled_layers_compute_the_same_states_and_are_compiled_once_for_all_lengths(features: Features) -> None:
    import torch._dynamo.utils as utils

    from bertvision.encoder.states import pack_tokens

    encoder = Encoder(tiny_model("bert", **SMALL).to("cuda", torch.bfloat16)).eval().requires_grad_(False)
    batches = [pack_tokens(features, np.arange(first, first + 3 + first)) for first in range(5)]
    with torch.no_grad():
        expected = [encoder(batch).read("tokens") for batch in batches]
        assert encoder.compile_layers() and encoder.compiled
        utils.counters.clear()
        found = [encoder(batches[0]).read("tokens")]
        before = utils.counters["stats"]["unique_graphs"]
        found += [encoder(batch).read("tokens") for batch in batches[1:]]
    assert before == utils.counters["stats"]["unique_graphs"] == 1
    for one, other in zip(found, expected, strict=True):
        assert ((one - other).float().norm(dim=-1) / other.float().norm(dim=-1)).mean() < 0.03


def test_a_recorded_step_is_launched_as_one_graph(encoder: Encoder, features: Features) -> None:
    config = member_of("ladder_64", SPAN)
    member = Member(config, build_head(config, encoder.shape, Target(SPAN)).cuda(), range(10))
    (unit,) = build_units([member], None, 200)
    (batch,) = StreamedSource(encoder, features, [np.arange(6)], ("tokens",)).batches()
    buffered, machine = BatchBuffers(torch.device("cuda")).put(batch), Machine("cuda")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(5):
            unit.learn(batch, machine, buffered)
    calls = {event.key: event.count for event in profiler.key_averages()}
    assert calls["cudaGraphLaunch"] == 4  # the first step is not recorded
