"""Timing for `gpu.py`: time a row, measure each head alone, and profile a row."""

import gc
import math
import statistics
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from gpu_rows import HEAD_STEPS, Bench, Row, Work, build_heads, fitting_presets

from bertvision.data.packing import plan_batches
from bertvision.encoder.states import HiddenStates, Packing, StateShape
from bertvision.heads import MemberConfig
from bertvision.machine import Machine
from bertvision.sources import StateBatch, pack_targets
from bertvision.training.stack import build_units
from bertvision.training.train import build_buffers

EACH_TOKENS = 8192  # tokens in the batch on which each head is timed alone
PROFILED_STEPS = 3


@dataclass
class Result:
    """One row of the table; values are None if the row failed."""

    name: str
    note: str = ""
    tokens_per_second: float | None = None
    step_ms: float | None = None
    step_tokens: float | None = None
    steps: int = 0
    flops_per_token: float | None = None
    tflops: float | None = None
    share_measured: float | None = None
    """Fraction of the rate that the matrix product reached at the start of the run."""
    share_documented: float | None = None
    peak_gb: float | None = None
    compile_seconds: float | None = None
    row_seconds: float | None = None


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def take(steps: Iterator[int], wanted: int, device: torch.device) -> tuple[int, int, float]:
    """Take up to `wanted` steps. Return their number, their tokens, and the seconds until the device is done."""
    finish(device)
    started, taken, tokens = time.perf_counter(), 0, 0
    for step in islice(steps, wanted):
        taken, tokens = taken + 1, tokens + step
    finish(device)
    return taken, tokens, time.perf_counter() - started


def time_steps(steps: Iterator[int], device: torch.device, least: int, seconds: float) -> tuple[int, int, float]:
    """Return the result of `take` for as many steps as fill the given seconds.

    The host may run far ahead of the device, so the time can't be checked between steps. The number of steps is
    therefore estimated from a shorter series. While steps are still getting faster (new batch sizes are recorded or
    compiled), the series is repeated.
    """
    found, whole = take(steps, least, device), 0
    while seconds and found[0]:
        taken, _, spent = found
        wanted = max(least, min(8 * taken, math.ceil(1.1 * seconds * taken / spent)))
        more = take(steps, wanted, device)
        if more[0] < wanted:  # no steps are left
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
    """Return the row's results, or a note about what went wrong."""
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
        notes = [*notes, summarise(error)]
    result.peak_gb = bench.machine.peak_memory() / 1e9
    result.note, result.row_seconds = ", ".join(notes), time.perf_counter() - started
    return result


def summarise(error: Exception) -> str:
    """Return the last line of an error, and print the traceback to stderr."""
    traceback.print_exception(error)
    return f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[-1]}"


def collect(machine: Machine) -> None:
    gc.collect()
    if machine.device.type == "cuda":
        torch.cuda.empty_cache()


def measure_peak(machine: Machine, seconds: float) -> float:
    """TFLOP/s of a large matrix product."""
    on_gpu = machine.device.type == "cuda"
    size = 8192 if on_gpu else 512
    # Random values: with zeros, the chip would draw less power and run faster than with any real model.
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
    """Measure every span head alone on one batch of states: time per token, and host time per step."""
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
        except Exception as error:  # one failing head must not lose the others' results
            facts["note"] = summarise(error)
        yield facts | {"peak_gb": machine.peak_memory() / 1e9}


def measure_head(bench: Bench, config: MemberConfig, batch: StateBatch) -> dict[str, Any]:
    machine, device = bench.machine, bench.machine.device
    shape = StateShape(bench.shape.layers + 1, bench.shape.hidden, True)
    tokens = int(batch.states.lengths.sum())
    (unit,) = build_units([bench.member(config, shape)], None, tokens)
    buffers = build_buffers(machine)
    buffered = buffers.put(batch) if buffers is not None else None

    def learn() -> Iterator[int]:
        for _ in range(HEAD_STEPS):
            unit.learn(batch, machine, buffered)
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
    """Return the number of kernels per step and their device time in microseconds; None on a CPU."""
    if device.type != "cuda":
        return None, None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        take(steps, PROFILED_STEPS, device)
    events = [
        event
        for event in profiler.key_averages()
        # Named ranges enclose kernels and would count them twice.
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    ]
    kernels, busy = sum(event.count for event in events), sum(event.self_device_time_total for event in events)
    return kernels / PROFILED_STEPS, busy / PROFILED_STEPS


def profile_row(row: Row, bench: Bench) -> None:
    """Print the kernels and operators that take the most time in three steps."""
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
        print(f"sorted by {order}")
        print(averages.table(sort_by=order, row_limit=15, max_name_column_width=70), flush=True)
