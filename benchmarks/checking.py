"""What it costs to check files when they are read: the same work with checking on and off, in one process.

    python benchmarks/checking.py [--megabytes 1000] [--repeats 5]

- bytes: SHA-256 of a file of a finished stage, and the reader of a store with and without the CRC-32 of its windows.
  The file and the store are in the page cache, so that the disk does not hide the cost.
- predict: load a fitted model on the embedded encoder, and predict one text.
- run: a tiny run from nothing, and the same run again, when everything is done.

"Off" replaces the functions that compare checksums by nothing. Seconds are CPU seconds of all threads, medians over the
repeats: other programs change them little.
"""

import argparse
import contextlib
import csv
import dataclasses
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console
from rich.table import Table

import bertvision as bv
from bertvision.config import build_config
from bertvision.data.windows import Features
from bertvision.disk import check_files, seals
from bertvision.encoder.shared import forget
from bertvision.encoder.states import StateShape
from bertvision.pipeline.job import Job
from bertvision.pipeline.run import run_job
from bertvision.sources.store import Contents, Manifest, Store, StoredSource, open_location
from bertvision.sources.store import format as store_format
from bertvision.sources.store.reader import StateReader

TESTS = Path(__file__).parents[1] / "tests"
HIDDEN, LAYERS, TOKENS = 384, 7, 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the file and of the store")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp())
    table = Table("what", "checked, CPU s", "not checked, CPU s", "difference", title="What checking costs")
    try:
        for name, work in works(place, options.megabytes):
            on, off = [], []
            for _ in range(options.repeats):  # in turn, so that a busy machine slows both
                on.append(seconds(work))
                with unchecked():
                    off.append(seconds(work))
            times = statistics.median(on), statistics.median(off)
            table.add_row(name, f"{times[0]:.3f}", f"{times[1]:.3f}", f"{times[0] - times[1]:.3f}")
    finally:
        shutil.rmtree(place)
    Console().print(table)


def seconds(work: Callable[[], Any]) -> float:
    seals._known.clear()  # as in a new process
    forget()
    started = time.process_time()
    work()
    return time.process_time() - started


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Without comparing any checksum."""

    def nothing(*_: Any) -> None: ...

    with contextlib.ExitStack() as patches:
        for module in [module for name, module in sys.modules.items() if name.startswith("bertvision")]:
            if getattr(module, "check_files", None) is check_files:
                patches.enter_context(mock.patch.object(module, "check_files", nothing))
        for module in ("bertvision.disk.stamps.digest_of", "bertvision.models.save.digest_of"):
            patches.enter_context(mock.patch(module, lambda path: "0" * 16))
        patches.enter_context(mock.patch("bertvision.disk.reading.unseal", without_seal))
        patches.enter_context(mock.patch.object(StateReader, "_check", nothing))
        yield


def without_seal(value: Any, data: bytes) -> Any:
    return {key: item for key, item in value.items() if key != seals.SEAL} if isinstance(value, dict) else value


def works(place: Path, megabytes: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    file = place / "file"
    file.write_bytes(np.random.default_rng(0).bytes(megabytes * 1_000_000))
    yield f"{megabytes:,} MB of a finished stage (SHA-256)", lambda: check_one(file)
    file.unlink()
    store, features = write_store(place / "store", megabytes)
    plan = np.array_split(np.random.default_rng(0).permutation(len(features)), max(1, len(features) // 16))
    for shown, order in (("in order", [np.sort(windows) for windows in plan]), ("shuffled", plan)):
        source = StoredSource(store, features, order, ("tokens",), memory=256 << 20)
        yield f"{megabytes:,} MB of a store, {shown} (CRC-32)", lambda source=source: read_all(source)
    shutil.rmtree(place / "store")
    model = fit_model(place)
    yield "predict: load a fitted model, one text", lambda: bv.load(model).predict(["What a film!"])
    config = build_config(tiny_run(place))
    yield "a tiny run", lambda: run_anew(config)
    run_anew(config)
    yield "the same run again, all done", lambda: run_job(Job(config))


def check_one(file: Path) -> None:
    """As `check_files` does with a file."""
    sys.modules["bertvision.disk.stamps"].digest_of(file)


def read_all(source: StoredSource) -> None:
    for _ in source.stored():
        pass


def write_store(folder: Path, megabytes: int) -> tuple[Store, Features]:
    """A store of random states, in the form that the writer gives it."""
    contents = Contents.of(StateShape(LAYERS, HIDDEN, False), range(LAYERS), ("tokens",), "float16")
    count = megabytes * 1_000_000 // (TOKENS * contents.record_bytes("tokens"))
    lengths, example = np.full(count, TOKENS, dtype=np.int32), np.arange(count, dtype=np.int32)
    zeros = np.zeros(count, dtype=np.int32)
    tokens = np.zeros(count * TOKENS, dtype=np.int32)
    starts = np.arange(count, dtype=np.int64) * TOKENS
    features = Features(
        tokens, tokens.astype(np.int8), lengths, starts, example, np.zeros((count * TOKENS, 2), dtype=np.int32), zeros,
        zeros, zeros.astype(np.float32),
    )  # fmt: skip
    shards, location, random = [], open_location(folder), np.random.default_rng(1)
    for first, stop in store_format.plan_shards(features, contents):
        shard, head = store_format.outline_shard(features, [str(one) for one in example], contents, "", first, stop)
        states = memoryview(random.bytes(shard.tokens * contents.record_bytes("tokens")))
        sizes = contents.window_bytes("tokens", lengths[first:stop].astype(np.int64)).tolist()
        pieces = [memoryview(store_format.add_checksums(head, [states], [sizes])), states]
        found = dataclasses.replace(shard, sha256=store_format.digest(pieces))
        location.write(found.file, pieces)
        shards.append(found)
    return Store(location, Manifest({}, contents, shards, {})), features


def fit_model(place: Path) -> Path:
    with (place / "rows.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        rows.writerows([f"{'good' if number % 2 else 'bad'} film {number}", number % 2] for number in range(60))
    bv.fit(place / "rows.csv", to=place / "model", kind="label", heads=["linear"])
    return place / "model"


def tiny_run(place: Path) -> dict[str, Any]:
    sys.path.insert(0, str(TESTS / "fixtures"))
    from tiny_encoders import tiny_model, tiny_tokenizer

    tiny_model("bert", num_attention_heads=2).save_pretrained(place / "encoder")
    tiny_tokenizer().save_pretrained(place / "encoder")
    return {
        "task": {"name": "rte", "data": str(TESTS / "fixtures" / "glue_tiny")},
        "encoder": {"name": str(place / "encoder"), "device": "cpu"},
        "data": {"max_length": 48, "hold_out": 0.25},
        "finetune": {"epochs": 1, "lr": 1e-3, "batch_rows": 2, "snapshots": [0.5]},
        "train": {"epochs": 2, "batch_rows": 4, "snapshots": [0.5, 1]},
        "heads": [{"head": "learned_pooling"}, {"head": "adapter", "size": 4}],
        "run": str(place / "run"),
    }


def run_anew(config: Any) -> None:
    shutil.rmtree(config.folder, ignore_errors=True)
    run_job(Job(config))


if __name__ == "__main__":
    main()
