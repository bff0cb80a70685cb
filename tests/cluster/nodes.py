"""A Ray cluster of several nodes on this machine, and what the tests give it to do."""

import csv
import hashlib
import json
import os
import random
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bertvision.cluster import files, shards
from bertvision.cluster.engine import Cluster, import_ray
from bertvision.config import build_config
from bertvision.data.examples import Example
from bertvision.disk import TEMPORARY
from bertvision.pipeline.finetune import finetune
from bertvision.pipeline.job import Job
from bertvision.pipeline.predict import Predictor
from bertvision.pipeline.run import open_run, run_job
from bertvision.pipeline.states import encode

SRC = Path(__file__).parents[2] / "src"
FILES, ROWS, BAD = 6, 60, 7
"""Input files, rows of each, and the row of each without text."""


@dataclass
class Nodes:
    """A head without workers, and nodes with some CPUs each."""

    cluster: Any
    place: Path
    others: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, cpus: int = 2) -> None:
        set_signal = signal.signal
        if threading.current_thread() is not threading.main_thread():
            signal.signal = lambda *_: None  # type: ignore[assignment]  # Ray sets a handler for each node
        try:
            self.others.append(self.cluster.add_node(num_cpus=cpus, **_settings(self.place)))
        finally:
            signal.signal = set_signal  # type: ignore[assignment]

    def kill(self, node: Any) -> None:
        """End a node as if its machine had lost power: SIGKILL for everything on it."""
        before = psutil.Process().children(recursive=True)
        (raylet,) = [one.process.pid for one in node.all_processes["raylet"]]
        on_it = psutil.Process(raylet).children(recursive=True)
        for process in [psutil.Process(raylet), *on_it]:
            if process in before:
                process.kill()
        self.cluster.remove_node(node, allow_graceful=False)
        self.others.remove(node)


def workers_of() -> list[psutil.Process]:
    """The actors that are running on the nodes of this process, whoever drives them."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline() and process.cmdline()[0].startswith("ray::MapWorker"):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _settings(place: Path) -> dict[str, Any]:
    return {"node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20, "include_dashboard": False}


@contextmanager
def start_nodes(count: int = 2) -> Iterator[Nodes]:
    """Nodes as processes of this machine, with this process as a driver on the head."""
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SRC), str(SRC.parent / "tests" / "fixtures"), str(SRC.parent)])
    ray = import_ray(only_here=True)
    from ray._private import ray_constants
    from ray._private.authentication.authentication_token_setup import _enable_token_auth
    from ray.cluster_utils import Cluster as RayCluster

    ray_constants.ENABLE_RAY_CLUSTER = False  # another test may have imported Ray before
    _enable_token_auth()

    place = Path(tempfile.mkdtemp(prefix="bv-nodes-"))
    try:
        head = {"num_cpus": 1, "temp_dir": str(place), **_settings(place)}
        cluster = RayCluster(initialize_head=True, head_node_args=head)
        try:
            nodes = Nodes(cluster, place)
            for _ in range(count):
                nodes.add()
            ray.init(address=cluster.address, log_to_driver=False, logging_level="CRITICAL")
            yield nodes
        finally:
            ray.shutdown()
            try:
                cluster.shutdown()
            except ValueError:  # a thread that a test left over has connected again, which is ended by now
                cluster.shutdown()
    finally:
        shutil.rmtree(place, ignore_errors=True)


# ---------------------------------------------------------------------- work

SLOW = 0.4
"""Seconds that a shard or a file takes longer, so that a kill comes while others are not done."""


def slow_down() -> None:
    """Let the workers that this process drives take their time."""
    files.open_file_worker = partial(_open_slowly, files.open_file_worker)  # type: ignore[assignment]
    shards.open_shards = partial(_open_slowly, shards.open_shards)  # type: ignore[assignment]


def _open_slowly(open_worker: Any, **settings: Any) -> Any:
    work = open_worker(**settings)

    def slowly(row: dict[str, Any], beat: Any) -> Any:
        time.sleep(SLOW)
        return work(row, beat)

    return slowly


@dataclass(frozen=True)
class Made:
    """A tiny run with a store to be written, files to predict on, and what one process makes of them."""

    place: Path
    config: Path
    run: Path
    shards: dict[str, str]
    rows: dict[str, list[dict[str, Any]]]

    @property
    def states(self) -> Path:
        return self.run / "states"

    @property
    def out(self) -> Path:
        return self.place / "out"

    def job(self, **settings: str) -> Job:
        overrides = [f"{name}={value}" for name, value in settings.items()]
        return Job(build_config(_tables(self.place, self.run), overrides, lambda _: []))

    def wrong_store(self) -> str:
        """How the store differs from that of one process, and what was left behind; empty if all is well."""
        found = {path.name: path for path in self.states.rglob("*") if path.is_file()}
        left = [name for name in found if name.startswith(TEMPORARY)]
        own = {name: _hash(path) for name, path in found.items() if name.startswith("states-")}
        if left or own != self.shards or set(found) - set(own) != {"manifest.json"}:
            others = sorted(set(found) - set(own))
            return f"left {left}, {len(own)} shards of {len(self.shards)}, same: {own == self.shards}, {others}"
        return ""

    def wrong_outputs(self, out: Path | None = None) -> str:
        from pyarrow import parquet

        there = {
            str(path.relative_to(out or self.out)): path for path in (out or self.out).rglob("*") if path.is_file()
        }
        if there.keys() != {f"{name}.parquet" for name in self.rows}:
            return f"outputs are {sorted(there)}"
        for name, rows in self.rows.items():
            if (found := parquet.read_table(there[f"{name}.parquet"]).to_pylist(maps_as_pydicts="strict")) != rows:
                differ = [number for number, (one, other) in enumerate(zip(found, rows, strict=False)) if one != other]
                return f"{name}: {len(found)} rows of {len(rows)}, different: {differ[:5]}"
        return ""


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _tables(place: Path, run: Path) -> dict[str, Any]:
    data = str(place / "train.csv")
    return {
        "heads": ["last_linear"],
        "run": str(run),
        "task": {"name": "files", "train": data, "dev": data},
        "encoder": {"name": str(place / "encoder")},
        "data": {"max_length": 48},
        "finetune": {"epochs": 0},
        "train": {"epochs": 1, "source": "stored"},
        "store": {"keep": ["tokens"], "shard_mb": 1},
    }


def make_all(place: Path, examples: int = 2500, count: int = FILES) -> Made:
    """One process writes the store, trains a head and predicts the files."""
    from tiny_encoders import say_how_to_read, tiny_model, tiny_tokenizer

    tiny_model("bert", num_attention_heads=2).save_pretrained(place / "encoder")
    tiny_tokenizer().save_pretrained(place / "encoder")
    say_how_to_read(place / "encoder", "cls")
    draw = random.Random(3)
    words = [line for line in (SRC.parent / "tests/fixtures/vocab.txt").read_text().split() if line.isalpha()]

    def text() -> str:
        return " ".join(draw.choices(words, k=draw.randint(3, 30)))

    with (place / "train.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerows([["text", "label"], *([text(), "ab"[number % 2]] for number in range(examples))])
    (place / "in").mkdir()
    texts = {f"f{number}.csv": [text() if row != BAD else "" for row in range(ROWS)] for number in range(count)}
    for name, own in texts.items():
        with (place / "in" / name).open("w", newline="") as file:
            csv.writer(file).writerows([["id", "text"], *([f"{name}-{row}", one] for row, one in enumerate(own))])
    config = place / "run.toml"
    made = Made(place, config, place / "run", {}, {})
    _write_config(config, _tables(place, made.run))
    run_job(made.job())
    job = made.job()
    open_run(job)
    finetune(job)
    shutil.rmtree(made.states, ignore_errors=True)
    encode(job)
    made.shards.update({path.name: _hash(path) for path in made.states.rglob("states-*")})
    shutil.rmtree(made.states)
    made.rows.update({name: _rows_of(made.run, name, own) for name, own in texts.items()})
    return made


def _rows_of(run: Path, name: str, texts: list[str]) -> list[dict[str, Any]]:
    """The rows of an output, from the predictor of one process."""
    examples = [Example(f"{name}-{number}", text) for number, text in enumerate(texts)]
    return [
        {
            "id": one.id,
            "text": one.text,
            "text_pair": None,
            "prediction": None if isinstance(result, dict) else _to_columns(result),
            "error": result["error"] if isinstance(result, dict) else None,
        }
        for one, result in zip(examples, Predictor(run).predict_examples(examples), strict=True)
    ]


def _to_columns(result: Any) -> dict[str, Any]:
    found = result.to_dict()
    trust = found.pop("trust")
    del found["task"]
    return {**found, "trust": trust and {"right": trust.get("right"), "off_by": None, "examples": trust["examples"]}}


def _write_config(path: Path, tables: dict[str, Any]) -> None:
    path = path.with_suffix(".json")
    path.write_text(json.dumps(tables))


def cluster_of(workers: int) -> Cluster:
    """The nodes of this process, to which it is connected."""
    return Cluster("auto", workers, 1.0, 0.0, patience=300)
