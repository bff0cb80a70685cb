"""The rows of `gpu.py`: our code and the peers on one encoder shape and one machine."""

import argparse
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import gpu_peers
import torch
from gpu_peers import SHAPES, attended_length, draw_features, draw_lengths
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel

from bertvision.config import FinetuneConfig, TrainConfig
from bertvision.data.packing import plan_batches
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.output_layer import build_output_layer
from bertvision.encoder.states import HiddenStates, StateShape
from bertvision.errors import UserError
from bertvision.heads import CONTROL, HEADS, MemberConfig, Target, build_head, list_presets, outline_head
from bertvision.kinds import SPAN
from bertvision.machine import Machine
from bertvision.pipeline.members import build_members
from bertvision.progress import Reporter
from bertvision.sources import StreamedSource
from bertvision.training.finetune import Finetuning
from bertvision.training.stack import Member, build_units
from bertvision.training.train import build_buffers

TARGET = Target(SPAN)
MEAN, LONGEST = 171, 386  # tokens per window of SQuAD 2.0
OTHER_MEANS, BERT_LONGEST = (85, 340), 512
HEAD_STEPS = 20000  # maximum steps in a row of heads
RECORDED, RECORDED_ZOO, PADDED = 1.0, 8.0, 3.0  # seconds until step times are stable; padded: to the longest row
COUNTED_TOKENS = 16  # tokens on which a head's operations are counted


@dataclass
class Work:
    """The work of a row: `steps` takes one step at a time and yields the number of its real tokens."""

    steps: Iterator[int]
    flops: float
    """Operations per real token."""
    notes: list[str]
    settle: float = 0.0
    """Seconds of steps before timing starts. With changing batch shapes, memory is allocated and kernels are selected
    for a while; recorded steps must see each batch size twice."""


class Notes(Reporter):
    """Collects the messages that the library would print."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def say(self, text: str) -> None:
        self.notes.append(text)


class Bench:
    """One encoder shape on one machine, and the ways to run it."""

    def __init__(self, name: str, machine: Machine, options: argparse.Namespace) -> None:
        self.name, self.machine, self.options = name, machine, options
        self.shape = SHAPES[name]
        self.encoders: dict[str, tuple[Encoder, str]] = {}
        self.counted: dict[str, float] = {}  # operations of heads
        self.drawn: dict[int, Features] = {}

    def features(self, mean: int = MEAN) -> Features:
        """Windows for many steps of the largest batch; a tenth as long for the tiny shape."""
        if mean not in self.drawn:
            steps = 200 if self.machine.device.type == "cuda" else 8
            longest = LONGEST if mean <= MEAN else BERT_LONGEST
            shrink = 10 if self.name == "tiny" else 1
            windows = max(64, steps * self.options.tokens * shrink // mean)
            self.drawn[mean] = draw_features(draw_lengths(windows, mean / shrink, longest // shrink))
        return self.drawn[mean]

    @cached_property
    def peer_rows(self) -> list[gpu_peers.PeerRow]:
        return gpu_peers.build_rows(self.features())

    @property
    def limit(self) -> int:
        return LONGEST // 10 if self.name == "tiny" else LONGEST

    def forward_flops(self, mean: int = MEAN) -> float:
        return self.shape.linear_flops() + self.shape.attention_flops(attended_length(self.features(mean)))

    def encoder(self, kind: str) -> tuple[Encoder, list[str]]:
        """Return the "trained" encoder (float32 weights under autocast) or the "frozen" one, and how it runs."""
        if kind not in self.encoders:
            dtype = torch.float32 if kind == "trained" else self.machine.dtype
            with self.machine.device:
                model = AutoModel.from_config(self.shape.config(), attn_implementation="sdpa", dtype=dtype)
            encoder = Encoder(model.to(self.machine.device).eval(), name=self.name, attention="padded")
            encoder.requires_grad_(kind == "trained").take_route("auto", self.machine.dtype)
            compiled = self.options.compile and encoder.compile_layers()
            self.encoders[kind] = encoder, "compiled" if compiled else "eager"
        encoder, how = self.encoders[kind]
        return encoder, [str(encoder.route), how]

    def keep_only(self, kind: str | None) -> None:
        """Release encoders that the next row does not use, so that they do not count towards its memory."""
        if set(self.encoders) - {kind}:
            torch._dynamo.reset()  # the number of compiled versions of a function is limited
        self.encoders = {name: encoder for name, encoder in self.encoders.items() if name == kind}

    def finetune(self, tokens: int) -> Work:
        encoder, notes = self.encoder("trained")
        features = self.features()
        plan = plan_batches(features.lengths, 1, 0, tokens=tokens)
        output = build_output_layer(SPAN, encoder.shape, 2).to(self.machine.device)
        config = FinetuneConfig(lr=2e-5, batch_tokens=tokens, memory_tokens=tokens)
        work = Finetuning(encoder, output, features, plan, SPAN, config, 0, self.machine, Notes(notes))
        return Work(finetune_steps(work), 3 * self.forward_flops(), notes, self.settle(RECORDED))

    def frozen(self, tokens: int, mean: int = MEAN) -> Work:
        encoder, notes = self.encoder("frozen")
        features = self.features(mean)
        plan = plan_batches(features.lengths, 1, 0, tokens=tokens).epochs[0]
        source = StreamedSource(encoder, features, plan, ("tokens",), encode_tokens=1, recorded=True)
        steps = train_steps([], source, self.machine)
        return Work(steps, self.forward_flops(mean), notes, self.settle(RECORDED))

    def heads(self, choose: Callable[[StateShape], list[Any]], rows: int) -> Work:
        encoder, notes = self.encoder("frozen")
        features = self.features()
        plan = plan_batches(features.lengths, 1, 0, rows=rows).epochs[0]
        step_tokens = int(features.lengths[plan[0]].sum())
        # Encode as many steps at once as fit in the number of tokens that the other rows use.
        together = max(1, self.options.tokens - step_tokens)
        source = StreamedSource(encoder, features, plan, ("tokens",), encode_tokens=together, recorded=True)
        configs = build_heads(choose(encoder.shape))
        members = [self.member(config, encoder.shape) for config in configs]
        flops = sum(self.head_flops(config, encoder.shape) for config in configs)
        steps = train_steps(members, source, self.machine)
        seconds = RECORDED if len(members) <= 10 else RECORDED_ZOO
        return Work(steps, self.forward_flops() + flops, [*notes, f"{len(members)} heads"], self.settle(seconds))

    def head_flops(self, config: MemberConfig, shape: StateShape) -> float:
        key = repr((config.head, config.settings))
        if key not in self.counted:
            self.counted[key] = count_flops(config, shape)
        return self.counted[key]

    def member(self, config: MemberConfig, shape: StateShape) -> Member:
        with self.machine.device:  # large heads are initialised much faster there
            return Member(config, build_head(config, shape, TARGET), range(HEAD_STEPS))

    def peer_finetune(self, build: Callable[..., Any], rows: int, length: int | None) -> Work:
        device = self.machine.device
        model = build(self.shape.config(), device)
        steps = gpu_peers.finetune(model, self.peer_rows, rows, length, device, self.machine.autocast)
        linear, attention = self.shape.linear_flops(), self.shape.attention_flops(attended_length(self.features()))
        passes = 2 if build is gpu_peers.build_lora else 3
        return Work(steps, passes * linear + 3 * attention, [], self.settle(PADDED if length is None else 0.0))

    def peer_frozen(self, rows: int, length: int | None) -> Work:
        device = self.machine.device
        model = gpu_peers.build_frozen(self.shape.config(), device, self.machine.dtype)
        steps = gpu_peers.encode(model, self.peer_rows, rows, length, device)
        return Work(steps, self.forward_flops(), [], self.settle(PADDED if length is None else 0.0))

    def settle(self, seconds: float) -> float:
        return seconds if self.machine.device.type == "cuda" else 0.0


def finetune_steps(work: Finetuning) -> Iterator[int]:
    """Endless steps as in `Finetuning.run`."""
    try:
        while True:
            work.step = 0
            yield from (tokens for tokens, _ in work.take_steps(work.plan.steps))
    finally:
        if work.half is not None:
            work.half.end()  # the next row starts with float32 weights


def train_steps(members: list[Member], source: StreamedSource, machine: Machine) -> Iterator[int]:
    """Steps as in `train_heads`, over several epochs, until the members run out of steps."""
    tokens = [int(source.features.lengths[windows].sum()) for windows in source.plan]
    units, buffers = build_units(members, None, tokens[0]), build_buffers(machine)
    step = 0
    while step < HEAD_STEPS:
        for batch in source.batches():
            buffered = buffers.put(batch) if buffers is not None and units else None
            for unit in units:
                if unit.is_due(step):
                    unit.learn(batch, machine, buffered)
            del batch  # free its states before the next ones are computed
            yield tokens[step % len(tokens)]
            step += 1
            if step == HEAD_STEPS:
                break


def build_heads(entries: list[Any]) -> list[MemberConfig]:
    """Build the members of these entries, without the control that would be added."""
    members = build_members(entries, TrainConfig(epochs=1), 0, SPAN)
    return [member for member in members if member.name != CONTROL or CONTROL in entries]


def fitting_presets(shape: StateShape) -> list[str]:
    """The zoo: every preset for spans that does not need more layers than the encoder has."""
    found = []
    for name, (head, _) in list_presets().items():
        if HEADS[head].takes(SPAN):
            with contextlib.suppress(UserError):
                outline_head(build_heads([name])[0], shape, TARGET)
                found.append(name)
    return found


def count_flops(member: MemberConfig, shape: StateShape) -> float:
    """Operations per token, forward and backward, counted on a CPU with uninitialised weights."""
    head = outline_head(member, shape, TARGET).to_empty(device="cpu").eval()
    lengths = torch.tensor([COUNTED_TOKENS])
    states = torch.zeros(COUNTED_TOKENS, shape.layers, shape.hidden)  # (token, layer, hidden)
    with FlopCounterMode(display=False) as counter:
        head(HiddenStates(lengths, tokens=states)).sum().backward()
    return counter.get_total_flops() / COUNTED_TOKENS


# ---------------------------------------------------------------------- rows


@dataclass(frozen=True)
class Row:
    name: str
    build: Callable[[], Work]
    uses: str | None = None
    """The encoder it shares with neighbouring rows."""
    is_growth: bool = False


def list_rows(bench: Bench) -> list[Row]:
    """All rows of a shape, grouped by the encoder they share."""
    rows = [*list_finetune_rows(bench), *list_frozen_rows(bench), *list_head_rows(bench)]
    for windows in bench.options.peer_rows:
        for width, length in (("limit", bench.limit), ("longest", None)):
            work = partial(bench.peer_frozen, windows, length)
            rows.append(Row(f"{bench.name} frozen plain {width} {windows} rows", work))
    return [row for row in rows if bench.options.growth or not row.is_growth]


def list_finetune_rows(bench: Bench) -> list[Row]:
    rows, usual = [], bench.options.tokens
    for tokens in (usual, usual // 4, usual // 2, usual * 2):
        work = partial(bench.finetune, tokens)
        rows.append(Row(f"{bench.name} finetune ours {tokens} tokens", work, "trained", tokens != usual))
    plain, lora = gpu_peers.build_plain, gpu_peers.build_lora
    peers = [("plain limit", plain, bench.limit), ("plain longest", plain, None), ("lora longest", lora, None)]
    for windows in bench.options.peer_rows:
        for name, build, length in peers:
            work = partial(bench.peer_finetune, build, windows, length)
            rows.append(Row(f"{bench.name} finetune {name} {windows} rows", work))
    return rows


def list_frozen_rows(bench: Bench) -> list[Row]:
    rows, usual = [], bench.options.tokens
    for tokens in (usual, usual // 4, usual // 2, usual * 2):
        work = partial(bench.frozen, tokens)
        rows.append(Row(f"{bench.name} frozen ours {tokens} tokens", work, "frozen", tokens != usual))
    for mean in OTHER_MEANS:
        work = partial(bench.frozen, usual, mean)
        rows.append(Row(f"{bench.name} frozen ours {usual} tokens mean {mean}", work, "frozen", True))
    return rows


def list_head_rows(bench: Bench) -> list[Row]:
    rows = []
    for windows in bench.options.head_rows:
        for many in bench.options.heads:
            work = partial(bench.heads, partial(many_adapters, many), windows)
            rows.append(Row(f"{bench.name} heads {many} adapter_386 {windows} rows", work, "frozen"))
        zoo = partial(bench.heads, fitting_presets, windows)
        rows.append(Row(f"{bench.name} heads zoo {windows} rows", zoo, "frozen"))
    return rows


def many_adapters(many: int, _: StateShape) -> list[Any]:
    return [{"head": "adapter_386", "seed": seed, "name": f"member{seed}"} for seed in range(many)]
