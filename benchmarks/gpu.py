"""BERTVision compared with plain transformers and LoRA on one GPU: fine-tuning, the frozen pass, and k heads in the
pass.

    python benchmarks/gpu.py [--shape large] [--growth] [--only WORD …] [--out FILE]     one table
    python benchmarks/gpu.py --heads-each                        the cost of each head alone
    python benchmarks/gpu.py --profile "large frozen ours"       profile one row
    python benchmarks/gpu.py --shape tiny --device cpu           check in seconds that all rows run

Encoders are BERTs with random weights. Windows have the lengths of SQuAD 2.0: 171 tokens on average, 386 at most.
"ours" uses the library's own classes, without padding. "plain" is a loop like the example scripts of transformers
(bfloat16 autocast, SDPA, fused AdamW), with batches padded to the limit or to their longest row.

Tokens per second exclude padding. Utilisation is tokens per second times the floating-point operations per token,
divided by the rate that a product of two 8192 × 8192 matrices reached at the start of the run, and by --peak.
Operations (a multiply-add is two) are counted from shapes. A forward token takes
layers × (8 hidden² + 4 hidden · inner + 4 hidden · attended), where attended = Σ length² / Σ length. Fine-tuning takes
three times that. LoRA needs no weight gradients, so twice; attention still three times. The heads' operations, forward
and backward, are counted by `torch.utils.flop_counter`, which leaves out attention inside a head. "compile s" is the
time of the warm-up minus that of as many later steps; rows of ours that share an encoder compile it once. Peak memory
includes the weights.
"""

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from gpu_peers import SHAPES
from gpu_rows import Bench, Row, list_rows
from gpu_timing import Result, measure_heads, measure_peak, profile_row, run_row
from rich.console import Console
from rich.table import Table

from bertvision.disk import write_json
from bertvision.machine import Machine


def show(value: float | None, form: str = ",.0f") -> str:
    return "" if value is None else format(value, form)


def draw_table(results: list[Result], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("row")
    columns = ["real tokens/s", "tokens/step", "ms/step", "TFLOP/s", "% of measured", "% of documented", "peak GB"]
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
    for column in ["µs/token", "device µs/token", "ms/step", "host ms/step", "kernels", "TFLOP/s", "peak GB"]:
        table.add_column(column, justify="right")
    table.add_column("compile s", justify="right")
    table.add_column("note", overflow="fold")
    for facts in sorted(found, key=lambda facts: -facts.get("us_per_token", 0.0)):
        table.add_row(facts["head"], *(show(facts.get(key), form) for key, form in forms.items()), facts.get("note"))
    return table


class Record:
    """The results so far, in a file that is always complete."""

    def __init__(self, machine: Machine, options: argparse.Namespace) -> None:
        self.path: Path | None = options.out
        self.peak, self.documented = measure_peak(machine, options.seconds_per_row / 2), float(options.peak)
        self.facts: dict[str, Any] = {
            "machine": machine.describe(), "torch": torch.__version__, "transformers": transformers.__version__,
            "options": {key: str(value) if key == "out" else value for key, value in vars(options).items()},
            "peak_tflops_measured": self.peak, "peak_tflops_documented": self.documented, "rows": [], "heads_each": {},
        }  # fmt: skip
        peaks = f"peak {self.peak:.1f} TFLOP/s measured, {self.documented:.0f} documented"
        self.title = f"{machine.describe()}; {peaks}"
        self.results: list[Result] = []
        self.add(Result("product of two large matrices", tflops=self.peak))

    def add(self, result: Result) -> None:
        if result.tflops is not None:
            result.share_measured = result.tflops / self.peak
            result.share_documented = result.tflops / self.documented
        self.results.append(result)
        self.facts["rows"].append(dataclasses.asdict(result))
        self.write()
        rate, spent = show(result.tokens_per_second) or "-", show(result.row_seconds, ".1f") or "-"
        share = show(result.share_measured, ".1%") or "-"
        print(f"{result.name}: {rate} tokens/s, {share} of the peak, took {spent} s, {result.note or '-'}", flush=True)

    def write(self) -> None:
        if self.path is not None:
            write_json(self.path, self.facts)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", default=["large"], choices=SHAPES)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, help="tokens per batch of ours (default: 32,768; tiny shape: 512)")
    parser.add_argument("--peer-rows", type=int, nargs="+", help="rows per batch of the peers (default: 32 190)")
    parser.add_argument("--head-rows", type=int, nargs="+", help="windows per step of the heads (default: 16 190)")
    parser.add_argument("--heads", type=int, nargs="+", default=[1, 4, 10], help="number of adapters in the pass")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="compile our layers (default: on GPU)")
    parser.add_argument("--growth", action="store_true", help="add other batch sizes and lengths")
    parser.add_argument("--heads-each", action="store_true", help="measure each head alone instead of the table")
    parser.add_argument("--profile", metavar="ROW", help="profile the first row whose name contains ROW instead")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="only rows or heads whose name contains a WORD")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    parser.add_argument("--warmup", type=int, help="steps before timing starts (default: 3; CPU: 1)")
    parser.add_argument("--steps", type=int, help="minimum number of timed steps (default: 5; CPU: 1)")
    parser.add_argument("--seconds-per-row", type=float, help="minimum time per row (default: 1.5; CPU: 0)")
    parser.add_argument("--limit", type=float, default=200, help="seconds after which no new row is started")
    parser.add_argument("--peak", type=float, default=790, help="documented TFLOP/s of the GPU")
    parser.add_argument("--out", type=Path, help="JSON file for all results, updated after every row")
    return parser.parse_args()


def fill_options(options: argparse.Namespace, device: torch.device) -> None:
    """Set the defaults that depend on shape and device."""
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
            raise SystemExit(f"no row name contains '{options.profile}': --list prints all names.")
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
        record.add(run_row(row, bench) if in_time else Result(row.name, "skipped: out of time (--limit)"))


def run_heads(benches: list[Bench], record: Record, console: Console) -> None:
    for bench in benches:
        found: list[dict[str, Any]] = []
        record.facts["heads_each"][bench.name] = found
        for facts in measure_heads(bench):
            found.append(facts)
            record.write()
            print(f"{facts['head']}: {show(facts.get('us_per_token'), '.3f')} µs/token", flush=True)
        console.print(draw_heads_table(found, f"{bench.name}, each head alone; {record.title}"))


if __name__ == "__main__":
    main()
