"""Ours against plain transformers and LoRA on one GPU: fine-tuning, the frozen pass, and k heads in the pass.

    python benchmarks/gpu.py [--shape large] [--growth] [--only WORD …] [--out FILE]     one table
    python benchmarks/gpu.py --heads-each                        what each head costs alone
    python benchmarks/gpu.py --profile "large frozen ours"       where the time of a row goes
    python benchmarks/gpu.py --shape tiny --device cpu           whether all rows run, in seconds

Encoders have random weights of BERT's form; windows are as long as those of SQuAD 2.0: 171 tokens in the mean, 386 at
most. Ours runs through the library's own classes, without padding. Plain transformers is a loop like its example
scripts (bfloat16 autocast, SDPA, fused AdamW), batches padded to the limit or to their longest row.

Tokens a second are real ones: padding does not count. The share of the chip is real tokens a second times the floating
point operations that the model needs for a token, over what a product of two 8192 × 8192 matrices reached at the start
of the run, and over --peak. Operations, two a multiplication with addition, are counted from shapes: a forward token is
layers × (8 hidden² + 4 hidden · inner + 4 hidden · attended), attended = Σ length² / Σ length; fine-tuning is three
times that; LoRA lacks the weights' gradients, so twice, attention three times. Heads' operations, forward and backward,
are counted by `torch.utils.flop_counter`, attention inside a head left out. "compile s" is what the warm-up took
beyond as many later steps; rows of ours that share an encoder compile it once. Peak memory includes the weights.
"""

import argparse
import contextlib
import dataclasses
import gc
import math
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import gpu_peers
import numpy as np
import torch
import transformers
from gpu_peers import SHAPES, attended_length, draw_features, draw_lengths
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel

from bertvision.config import FinetuneConfig, TrainConfig
from bertvision.data.packing import plan_batches
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.output_layer import build_output_layer
from bertvision.encoder.states import HiddenStates, Packing, StateShape
from bertvision.errors import UserError
from bertvision.heads import CONTROL, HEADS, MemberConfig, Target, build_head, build_members, list_presets, outline_head
from bertvision.machine import Machine
from bertvision.progress import Reporter
from bertvision.rundir import write_json
from bertvision.sources import StateBatch, StreamedSource, pack_targets
from bertvision.sources.ahead import make_ahead
from bertvision.tasks import TargetKind
from bertvision.training.finetune import Finetuning
from bertvision.training.heads import build_places
from bertvision.training.stack import Member, build_units

SPAN = Target(TargetKind.SPAN)
MEAN, LONGEST = 171, 386  # tokens of SQuAD 2.0's windows
OTHER_MEANS, BERT_LONGEST = (85, 340), 512
HEAD_STEPS = 20000  # a row of heads ends after so many
EACH_TOKENS = 8192  # of the batch on which each head is timed alone
COUNTED_TOKENS = 16  # on which a head's operations are counted
PROFILED_STEPS = 3


# ---------------------------------------------------------------------- ours


@dataclass
class Work:
    """What a row does: `steps` takes one step whenever it is asked, and gives that step's real tokens."""

    steps: Iterator[int]
    flops: float
    """Of a real token."""
    notes: list[str]
    settle: float = 0.0
    """Seconds of steps before the clock starts: where each batch has another shape, memory is asked for and kernels are
    chosen anew for a while."""


class Notes(Reporter):
    """Keeps what the library would have told the user."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def say(self, text: str) -> None:
        self.notes.append(text)


class Bench:
    """One shape of encoder on one machine, and the ways to run it."""

    def __init__(self, name: str, machine: Machine, options: argparse.Namespace) -> None:
        self.name, self.machine, self.options = name, machine, options
        self.shape = SHAPES[name]
        self.encoders: dict[str, tuple[Encoder, str]] = {}
        self.counted: dict[str, float] = {}  # operations of heads
        self.drawn: dict[int, Features] = {}

    def features(self, mean: int = MEAN) -> Features:
        """Windows for many steps of the largest batch; those of the tiny shape are a tenth as long."""
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
        """The "trained" encoder (float32 weights under autocast) or the "frozen" one, and how it runs."""
        if kind not in self.encoders:
            dtype = torch.float32 if kind == "trained" else self.machine.dtype
            with self.machine.device:
                model = AutoModel.from_config(self.shape.config(), attn_implementation="sdpa", dtype=dtype)
            encoder = Encoder(model.to(self.machine.device).eval(), name=self.name, attention="padded")
            encoder.requires_grad_(kind == "trained").take_route("auto", self.machine.dtype)
            compiled = self.options.compile and compile_encoder(encoder)
            self.encoders[kind] = encoder, "compiled" if compiled else "eager"
        encoder, how = self.encoders[kind]
        return encoder, [str(encoder.route), how]

    def keep_only(self, kind: str | None) -> None:
        """Lets go of encoders that the next row does not use, so that they don't count as its memory."""
        if set(self.encoders) - {kind}:
            torch._dynamo.reset()  # it compiles only so many forms of a function, and those are not needed again
        self.encoders = {name: encoder for name, encoder in self.encoders.items() if name == kind}

    def finetune(self, tokens: int) -> Work:
        encoder, notes = self.encoder("trained")
        features = self.features()
        plan = plan_batches(features.lengths, 1, 0, tokens=tokens)
        output = build_output_layer(TargetKind.SPAN, encoder.shape, 2).to(self.machine.device)
        config = FinetuneConfig(lr=2e-5, batch_tokens=tokens, memory_tokens=tokens)
        work = Finetuning(encoder, output, features, plan, TargetKind.SPAN, config, 0, self.machine, Notes(notes))
        return Work(finetune_steps(work), 3 * self.forward_flops(), notes)

    def frozen(self, tokens: int, mean: int = MEAN) -> Work:
        encoder, notes = self.encoder("frozen")
        features = self.features(mean)
        plan = plan_batches(features.lengths, 1, 0, tokens=tokens).epochs[0]
        source = StreamedSource(encoder, features, plan, ("tokens",), encode_tokens=1, recorded=True)
        steps = train_steps([], source, self.machine)
        return Work(steps, self.forward_flops(mean), notes)

    def heads(self, choose: Callable[[StateShape], list[Any]], rows: int) -> Work:
        encoder, notes = self.encoder("frozen")
        features = self.features()
        plan = plan_batches(features.lengths, 1, 0, rows=rows).epochs[0]
        step_tokens = int(features.lengths[plan[0]].sum())
        # As many steps at once as stay within the tokens that the other rows take.
        together = max(1, self.options.tokens - step_tokens)
        source = StreamedSource(encoder, features, plan, ("tokens",), encode_tokens=together, recorded=True)
        configs = build_heads(choose(encoder.shape))
        members = [self.member(config, encoder.shape) for config in configs]
        flops = sum(self.head_flops(config, encoder.shape) for config in configs)
        steps = train_steps(members, source, self.machine)
        return Work(steps, self.forward_flops() + flops, [*notes, f"{len(members)} heads"])

    def head_flops(self, config: MemberConfig, shape: StateShape) -> float:
        key = repr((config.head, config.settings))
        if key not in self.counted:
            self.counted[key] = count_flops(config, shape)
        return self.counted[key]

    def member(self, config: MemberConfig, shape: StateShape) -> Member:
        with self.machine.device:  # large heads are drawn much faster there
            return Member(config, build_head(config, shape, SPAN), range(HEAD_STEPS))

    def peer_finetune(self, build: Callable[..., Any], rows: int, length: int | None) -> Work:
        device = self.machine.device
        model = build(self.shape.config(), device)
        steps = gpu_peers.finetune(model, self.peer_rows, rows, length, device, self.machine.autocast)
        linear, attention = self.shape.linear_flops(), self.shape.attention_flops(attended_length(self.features()))
        passes = 2 if build is gpu_peers.build_lora else 3
        return Work(steps, passes * linear + 3 * attention, [], self.settle(length))

    def peer_frozen(self, rows: int, length: int | None) -> Work:
        device = self.machine.device
        model = gpu_peers.build_frozen(self.shape.config(), device, self.machine.dtype)
        steps = gpu_peers.encode(model, self.peer_rows, rows, length, device)
        return Work(steps, self.forward_flops(), [], self.settle(length))

    def settle(self, length: int | None) -> float:
        return 4.0 if length is None and self.machine.device.type == "cuda" else 0.0


def compile_encoder(encoder: Encoder) -> bool:
    """Compiles the layers; False where this version of the library, or this encoder's route, has no such thing."""
    return hasattr(encoder, "compile_layers") and encoder.compile_layers() is not False


def finetune_steps(work: Finetuning) -> Iterator[int]:
    """Steps as `Finetuning.run` takes them, the next ones prepared meanwhile, epoch after epoch."""
    steps = work.plan.steps
    ahead = 3 if work.machine.device.type == "cuda" else 0
    try:
        for step, ready in enumerate(make_ahead(work._prepare, (step % steps for step in count()), ahead)):
            work.step = step % steps
            yield work._take_step(steps, ready)[0]
    finally:
        if work.half is not None:
            work.half.end()  # the next row begins with float32 weights


def train_steps(members: list[Member], source: StreamedSource, machine: Machine) -> Iterator[int]:
    """Batches as `train_heads` learns from them, epoch after epoch, until the members' steps are over."""
    tokens = [int(source.features.lengths[windows].sum()) for windows in source.plan]
    units, places = build_units(members, None, tokens[0]), build_places(machine)
    step = 0
    while step < HEAD_STEPS:
        for batch in source.batches():
            placed = places.put(batch) if places is not None and units else None
            for unit in units:
                if unit.is_due(step):
                    unit.learn(batch, machine, placed)
            del batch  # its states may go before the next ones come
            yield tokens[step % len(tokens)]
            step += 1
            if step == HEAD_STEPS:
                break


def build_heads(entries: list[Any]) -> list[MemberConfig]:
    """Members of these entries, without the control that would join them."""
    members = build_members(entries, TrainConfig(epochs=1), 0, TargetKind.SPAN)
    return [member for member in members if member.name != CONTROL or CONTROL in entries]


def fitting_presets(shape: StateShape) -> list[str]:
    """The zoo: every named head for spans, but those that ask for more layers than there are."""
    found = []
    for name, (head, _) in list_presets().items():
        if TargetKind.SPAN in HEADS[head].kinds:
            with contextlib.suppress(UserError):
                outline_head(build_heads([name])[0], shape, SPAN)
                found.append(name)
    return found


def count_flops(member: MemberConfig, shape: StateShape) -> float:
    """Of one token forward and backward, counted on a CPU with weights that mean nothing."""
    head = outline_head(member, shape, SPAN).to_empty(device="cpu").eval()
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
    """The encoder that it shares with its neighbours."""
    is_growth: bool = False


def list_rows(bench: Bench) -> list[Row]:
    """All rows of a shape; those that share an encoder come together."""
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


# ---------------------------------------------------------------------- timing


@dataclass
class Result:
    """One row of the table; figures are absent where it failed."""

    name: str
    note: str = ""
    tokens_per_second: float | None = None
    step_ms: float | None = None
    step_tokens: float | None = None
    steps: int = 0
    flops_per_token: float | None = None
    tflops: float | None = None
    share_measured: float | None = None
    """Of what the product at the start of the run reached."""
    share_documented: float | None = None
    peak_gb: float | None = None
    compile_seconds: float | None = None
    row_seconds: float | None = None


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def take(steps: Iterator[int], wanted: int, device: torch.device) -> tuple[int, int, float]:
    """So many steps, fewer where they end: how many, their tokens, and the seconds until the device is done."""
    finish(device)
    started, taken, tokens = time.perf_counter(), 0, 0
    for step in islice(steps, wanted):
        taken, tokens = taken + 1, tokens + step
    finish(device)
    return taken, tokens, time.perf_counter() - started


def time_steps(steps: Iterator[int], device: torch.device, least: int, seconds: float) -> tuple[int, int, float]:
    """What `take` gives for so many steps as fill the seconds.

    The host may run far ahead of the device, so its clock can't tell on the way: fewer steps before tell how many are
    needed. Steps that are still getting faster (sizes of batches seen for the first time are recorded or compiled) are
    taken again.
    """
    found, whole = take(steps, least, device), 0
    while seconds and found[0]:
        taken, _, spent = found
        wanted = max(least, min(8 * taken, math.ceil(1.1 * seconds * taken / spent)))
        more = take(steps, wanted, device)
        if more[0] < wanted:  # they are over
            return max(found, more)
        found, whole = more, whole + (more[2] >= 0.8 * seconds)
        if whole == 3 or (whole and more[2] / wanted > 0.95 * spent / taken):
            break
    return found


def measure(result: Result, work: Work, bench: Bench, seconds: float) -> None:
    device, options = bench.machine.device, bench.options
    *_, warm = take(work.steps, options.warmup, device)
    settled = time.perf_counter()
    while time.perf_counter() - settled < work.settle:
        take(work.steps, options.warmup, device)
    taken, tokens, spent = time_steps(work.steps, device, options.steps, seconds)
    assert taken, "the steps ended in the warm-up"
    result.steps, result.tokens_per_second, result.step_tokens = taken, tokens / spent, tokens / taken
    result.step_ms = 1000 * spent / taken
    result.compile_seconds = max(0.0, warm - options.warmup * spent / taken)
    result.flops_per_token, result.tflops = work.flops, tokens / spent * work.flops / 1e12


def run_row(row: Row, bench: Bench) -> Result:
    """The row's figures, or what went wrong in it."""
    result, started = Result(row.name), time.perf_counter()
    collect(bench.machine)
    bench.machine.watch_memory()
    notes: list[str] = []
    try:
        work = row.build()
        notes = work.notes
        measure(result, work, bench, bench.options.seconds_per_row / (3 if row.is_growth else 1))
    except torch.cuda.OutOfMemoryError:
        notes = [*notes, "out of memory"]
    except Exception as error:
        notes = [*notes, tell(error)]
    result.peak_gb = bench.machine.peak_memory() / 1e9
    result.note, result.row_seconds = ", ".join(notes), time.perf_counter() - started
    return result


def tell(error: Exception) -> str:
    """The error's last line; all of it goes to stderr."""
    traceback.print_exception(error)
    return f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[-1]}"


def collect(machine: Machine) -> None:
    gc.collect()
    if machine.device.type == "cuda":
        torch.cuda.empty_cache()


def measure_peak(machine: Machine, seconds: float) -> float:
    """TFLOP/s of one large product."""
    on_gpu = machine.device.type == "cuda"
    size = 8192 if on_gpu else 512
    # Random values: zeros would let the chip draw less power and run faster than any model can.
    left, right = (torch.randn(size, size, device=machine.device, dtype=machine.dtype) for _ in range(2))

    def multiply() -> Iterator[int]:
        while True:
            torch.mm(left, right)
            yield 1

    steps = multiply()
    take(steps, 5, machine.device)
    taken, _, spent = time_steps(steps, machine.device, 5, seconds)
    return 2 * size**3 * taken / spent / 1e12


# ---------------------------------------------------------------------- each head alone


def measure_heads(bench: Bench) -> Iterator[dict[str, Any]]:
    """Every head for spans alone on one batch of states: time a token and to issue a step."""
    features, machine = bench.features(), bench.machine
    tokens = min(EACH_TOKENS, bench.options.tokens)
    windows = plan_batches(features.lengths, 1, 0, tokens=tokens).epochs[0][0]
    lengths = torch.from_numpy(features.lengths[windows].astype(np.int64))
    shape = StateShape(bench.shape.layers + 1, bench.shape.hidden, True)
    values = torch.randn(int(lengths.sum()), shape.layers, shape.hidden, device=machine.device, dtype=machine.dtype)
    states = HiddenStates(lengths, tokens=values, packing=Packing.of(lengths, machine.device))
    batch = StateBatch(windows, states, pack_targets(features, windows).to(machine.device), len(windows))
    words = bench.options.only or [""]
    for name in (name for name in fitting_presets(shape) if any(word in name for word in words)):
        collect(machine)
        machine.watch_memory()
        facts: dict[str, Any] = {"head": name}
        try:
            facts |= measure_head(bench, build_heads([name])[0], batch)
        except Exception as error:  # one head must not cost the others' figures
            facts["note"] = tell(error)
        yield facts | {"peak_gb": machine.peak_memory() / 1e9}


def measure_head(bench: Bench, config: MemberConfig, batch: StateBatch) -> dict[str, Any]:
    machine, device = bench.machine, bench.machine.device
    shape = StateShape(bench.shape.layers + 1, bench.shape.hidden, True)
    tokens = int(batch.states.lengths.sum())
    (unit,) = build_units([bench.member(config, shape)], None, tokens)
    places = build_places(machine)
    placed = places.put(batch) if places is not None else None

    def learn() -> Iterator[int]:
        for _ in range(HEAD_STEPS):
            unit.learn(batch, machine, placed)
            yield tokens

    steps = learn()
    *_, warm = take(steps, bench.options.warmup, device)
    issued = []
    for _ in range(5 if device.type == "cuda" else 1):
        finish(device)
        started = time.perf_counter()
        next(steps)
        issued.append(time.perf_counter() - started)
    taken, _, spent = time_steps(steps, device, 2, bench.options.seconds_per_row / 5)
    kernels, busy = count_kernels(steps, device)
    flops = bench.head_flops(config, shape) * tokens * taken / spent
    return {
        "us_per_token": 1e6 * spent / taken / tokens,
        "device_us_per_token": None if busy is None else busy / tokens,
        "host_ms": 1000 * statistics.median(issued),
        "step_ms": 1000 * spent / taken,
        "kernels": kernels,
        "tflops": flops / 1e12,
        "compile_seconds": max(0.0, warm - bench.options.warmup * spent / taken),
    }


def count_kernels(steps: Iterator[int], device: torch.device) -> tuple[float | None, float | None]:
    """Kernels of a step, and the microseconds in which the device ran them; nothing on a CPU."""
    if device.type != "cuda":
        return None, None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        take(steps, PROFILED_STEPS, device)
    events = [
        event
        for event in profiler.key_averages()
        # Named ranges lie around the kernels and would count them twice.
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    ]
    kernels, busy = sum(event.count for event in events), sum(event.self_device_time_total for event in events)
    return kernels / PROFILED_STEPS, busy / PROFILED_STEPS


def profile_row(row: Row, bench: Bench) -> None:
    """Prints the kernels and operators that take most of three steps."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    orders = ["self_cpu_time_total"]
    if bench.machine.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        orders.insert(0, "self_device_time_total")
    steps = row.build().steps
    take(steps, bench.options.warmup, bench.machine.device)
    with torch.profiler.profile(activities=activities) as profiler:
        taken, tokens, spent = take(steps, PROFILED_STEPS, bench.machine.device)
    print(f"{row.name}: {taken} steps, {tokens:,} tokens, {1000 * spent:.1f} ms under the profiler")
    averages = profiler.key_averages()
    for order in orders:
        print(f"most {order}")
        print(averages.table(sort_by=order, row_limit=15, max_name_column_width=70), flush=True)


# ---------------------------------------------------------------------- the table


def show(value: float | None, form: str = ",.0f") -> str:
    return "" if value is None else format(value, form)


def draw_table(results: list[Result], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("row")
    columns = ["real tokens/s", "tokens a step", "ms a step", "TFLOP/s", "of measured", "of documented", "peak GB"]
    for column in [*columns, "compile s"]:
        table.add_column(column, justify="right")
    table.add_column("note", overflow="fold")
    for one in results:
        table.add_row(
            one.name, show(one.tokens_per_second), show(one.step_tokens), show(one.step_ms, ".2f"),
            show(one.tflops, ".1f"), show(one.share_measured, ".1%"), show(one.share_documented, ".1%"),
            show(one.peak_gb, ".2f"), show(one.compile_seconds, ".1f"), one.note,
        )  # fmt: skip
    return table


def draw_heads_table(found: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("head")
    forms = {
        "us_per_token": ".3f", "device_us_per_token": ".3f", "step_ms": ".2f", "host_ms": ".2f", "kernels": ".0f",
        "tflops": ".1f", "peak_gb": ".2f", "compile_seconds": ".1f",
    }  # fmt: skip
    for column in ["µs a token", "device µs a token", "ms a step", "host ms a step", "kernels", "TFLOP/s", "peak GB"]:
        table.add_column(column, justify="right")
    table.add_column("compile s", justify="right")
    table.add_column("note", overflow="fold")
    for facts in sorted(found, key=lambda facts: -facts.get("us_per_token", 0.0)):
        table.add_row(facts["head"], *(show(facts.get(key), form) for key, form in forms.items()), facts.get("note"))
    return table


class Record:
    """What was found so far, in a file that is whole at every moment."""

    def __init__(self, machine: Machine, options: argparse.Namespace) -> None:
        self.path: Path | None = options.out
        self.peak, self.documented = measure_peak(machine, options.seconds_per_row / 2), float(options.peak)
        self.facts: dict[str, Any] = {
            "machine": machine.describe(), "torch": torch.__version__, "transformers": transformers.__version__,
            "options": {key: str(value) if key == "out" else value for key, value in vars(options).items()},
            "peak_tflops_measured": self.peak, "peak_tflops_documented": self.documented, "rows": [], "heads_each": {},
        }  # fmt: skip
        peaks = f"a product reaches {self.peak:.1f} TFLOP/s, documented {self.documented:.0f}"
        self.title = f"{machine.describe()}; {peaks}"
        self.results: list[Result] = []
        self.add(Result("a product of two large matrices", tflops=self.peak))

    def add(self, result: Result) -> None:
        if result.tflops is not None:
            result.share_measured = result.tflops / self.peak
            result.share_documented = result.tflops / self.documented
        self.results.append(result)
        self.facts["rows"].append(dataclasses.asdict(result))
        self.write()
        rate, spent = show(result.tokens_per_second) or "-", show(result.row_seconds, ".1f") or "-"
        share = show(result.share_measured, ".1%") or "-"
        print(f"{result.name}: {rate} tokens/s, {share} of the chip, took {spent} s, {result.note or '-'}", flush=True)

    def write(self) -> None:
        if self.path is not None:
            write_json(self.path, self.facts)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", default=["large"], choices=SHAPES)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, help="of a batch of ours; 32,768, or 512 for the tiny shape")
    parser.add_argument("--peer-rows", type=int, nargs="+", help="of a batch of the peers; 32 190")
    parser.add_argument("--head-rows", type=int, nargs="+", help="windows a step of the heads; 16 190")
    parser.add_argument("--heads", type=int, nargs="+", default=[1, 4, 10], help="how many adapters in the pass")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="layers of ours; on a GPU, yes")
    parser.add_argument("--growth", action="store_true", help="other batches and lengths too")
    parser.add_argument("--heads-each", action="store_true", help="each head alone, instead of the table")
    parser.add_argument("--profile", metavar="ROW", help="the first row whose name has this in it, instead")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="rows, or heads, with one of these in their name")
    parser.add_argument("--list", action="store_true", help="print the rows' names")
    parser.add_argument("--warmup", type=int, help="steps before the clock starts; 3, on a CPU 1")
    parser.add_argument("--steps", type=int, help="least that are timed; 5, on a CPU 1")
    parser.add_argument("--seconds-per-row", type=float, help="timed at least; 1.5, on a CPU 0")
    parser.add_argument("--limit", type=float, default=200, help="no row is begun after so many seconds")
    parser.add_argument("--peak", type=float, default=790, help="documented TFLOP/s of the chip")
    parser.add_argument("--out", type=Path, help="JSON with all figures, whole after every row")
    return parser.parse_args()


def fill_options(options: argparse.Namespace, device: torch.device) -> None:
    """What was not given, by shape and device."""
    on_gpu, tiny = device.type == "cuda", options.shape == ["tiny"]
    defaults = {
        "tokens": 512 if tiny else 32768,
        "peer_rows": [2, 4] if tiny else [32, 190],
        "head_rows": [2, 4] if tiny else [16, 190],
        "compile": on_gpu,
        "warmup": 3 if on_gpu else 1,
        "steps": 5 if on_gpu else 1,
        "seconds_per_row": 1.5 if on_gpu else 0.0,
    }
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def main() -> None:
    began = time.perf_counter()
    options = read_options()
    machine = Machine(options.device)
    fill_options(options, machine.device)
    benches = [Bench(name, machine, options) for name in options.shape]
    rows = [(row, bench) for bench in benches for row in list_rows(bench)]
    words = [options.profile] if options.profile else options.only or [""]
    rows = [(row, bench) for row, bench in rows if any(word in row.name for word in words)]
    if options.list:
        print("\n".join(row.name for row, _ in rows))
        return
    console = Console(width=190)
    if options.profile:
        if not rows:
            raise SystemExit(f"no row has '{options.profile}' in its name: --list prints them.")
        profile_row(*rows[0])
        return
    record = Record(machine, options)
    if options.heads_each:
        run_heads(benches, record, console)
    else:
        run_rows(rows, benches, record)
        console.print(draw_table(record.results, f"{record.title}; {time.perf_counter() - began:.0f} s"))


def run_rows(rows: list[tuple[Row, Bench]], benches: list[Bench], record: Record) -> None:
    began = time.perf_counter()
    for row, bench in rows:
        for other in benches:
            other.keep_only(row.uses if other is bench else None)
        in_time = time.perf_counter() - began < bench.options.limit
        record.add(run_row(row, bench) if in_time else Result(row.name, "not begun: the time is over (--limit)"))


def run_heads(benches: list[Bench], record: Record, console: Console) -> None:
    for bench in benches:
        found: list[dict[str, Any]] = []
        record.facts["heads_each"][bench.name] = found
        for facts in measure_heads(bench):
            found.append(facts)
            record.write()
            print(f"{facts['head']}: {show(facts.get('us_per_token'), '.3f')} µs a token", flush=True)
        console.print(draw_heads_table(found, f"{bench.name}, each head alone; {record.title}"))


if __name__ == "__main__":
    main()
