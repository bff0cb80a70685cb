"""What the attacks on processes share: every command that writes, on a tiny encoder and few rows, forked from a parent
that has imported everything; and the comparison with the files of an undisturbed command.

All trials work in one folder, which is made anew for each: paths in the files are the same.
"""

import builtins
import contextlib
import importlib
import json
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tiny_encoders import say_how_to_read, tiny_model, tiny_tokenizer

SRC = Path(__file__).parents[2] / "src"
CONFIG = """
heads = ["learned_pooling", {{ head = "adapter", size = 4 }}]
run = "run"
[task]
name = "rte"
data = "{place}"
[data]
max_length = 48
overlap = 16
hold_out = 0.25
[encoder]
name = "{place}/encoder"
device = "cpu"
[finetune]
epochs = 1
lr = 1e-3
batch_rows = 4
checkpoint_seconds = 0
[train]
epochs = 2
batch_rows = 4
checkpoint_seconds = 0
[store]
shard_mb = 1
[search]
members = 4
population = 2
[search.space]
head = ["learned_pooling", "adapter"]
size = [2, 4]
"""
FROZEN = ("finetune.epochs=0", "finetune.snapshots=[]", "train.snapshots=[0]")


@dataclass(frozen=True)
class Case:
    """A command that writes."""

    words: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    """Commands that prepare the folder."""
    is_exact: bool = True
    """Whether all its files are the same to the byte. Those of others hold measured seconds."""


FIT = ("fit", "train.csv", "--encoder", "encoder", "--heads", "last_lr,linear", "--to", "model")
RUN, FROZEN_RUN = ("run", "config.toml"), ("run", "config.toml", *FROZEN)
CASES = {
    "run": Case(RUN, is_exact=False),
    "finetune": Case(("finetune", "config.toml", "finetune.snapshots=[0.5, 1]"), is_exact=False),
    "encode": Case(("encode", "config.toml", *FROZEN, "store.keep=['tokens']"), is_exact=False),
    "train": Case(("train", "config.toml", *FROZEN), is_exact=False),
    "train on a store": Case(("train", "config.toml", *FROZEN, "train.source=stored"), is_exact=False),
    "search": Case(("search", "config.toml", *FROZEN, "heads=[]"), is_exact=False),
    "evaluate": Case(("evaluate", "run"), (("train", "config.toml", *FROZEN),)),
    "ensemble": Case(("ensemble", "run", "encoder", "adapter_4"), (RUN,)),
    "report": Case(("report", "run", "--no-encoder"), (RUN,)),
    "kit": Case(("kit", "run", "--to", "kit"), (FROZEN_RUN,)),
    "kit again": Case(
        ("kit", "run", "--to", "kit"),
        (FROZEN_RUN, ("kit", "run", "--to", "kit", "--head", "rte=learned_pooling")),
    ),
    "fit": Case(FIT, is_exact=False),
    "fit again": Case((*FIT, "--overwrite"), (FIT,), is_exact=False),
    "features": Case(("features", "config.toml", "--to", "features")),
    "predict": Case(("predict", "run", "--file", "train.csv", "--out", "out.jsonl"), (RUN,)),
}  # fmt: skip
LOGS = ("metrics.jsonl", "environment.json", "study.jsonl", "sources.json", "out", "err")
"""Not compared: lines and times of every attempt."""
MEASURED = ("seconds", "memory", "sha256", "written", "process")
INPUT = ("config.toml", "train.csv", "encoder", "train.tsv", "dev.tsv")


@dataclass
class Made:
    """What all trials share."""

    place: Path
    expected: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Case → its files after an undisturbed command."""
    operations: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    cold_seconds: float = 5.0

    @property
    def work(self) -> Path:
        return self.place / "work"

    def begin(self, name: str) -> None:
        """Make the folder of a trial."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.place / "begin" / name, self.work, symlinks=True)


_made: Made | None = None


def prepare(place: Path) -> Made:
    """Run every command once, undisturbed. Attacks in one process share what it made."""
    global _made
    if _made is None or not _made.place.is_dir():
        _made = _prepare(Made(place.resolve()))
    return _made


def _prepare(made: Made) -> Made:
    import_everything()
    data = made.place / "data"
    _write_input(data)
    for name in CASES:
        begin = made.place / "begin" / name
        shutil.copytree(data, made.work)
        for words in CASES[name].before:
            run = fork(made, words)
            assert run.wait() == 0, run.said()
        clean(made.work)
        (made.place / "begin").mkdir(exist_ok=True)
        shutil.copytree(made.work, begin, symlinks=True)
        started = time.monotonic()
        run = fork(made, CASES[name].words, Counting(made.place / "count"))
        assert run.wait() == 0, run.said()
        made.seconds[name] = time.monotonic() - started
        made.operations[name] = int((made.place / "count").read_text())
        made.expected[name] = read_files(made.work, CASES[name].is_exact)
        assert not find_junk(made.work), find_junk(made.work)
        shutil.rmtree(made.work)
    return made


def import_everything() -> None:
    """All modules of the package, and what they import late."""
    import bertvision

    for found in pkgutil.walk_packages(bertvision.__path__, "bertvision."):
        if not found.name.endswith(("__main__", "_kernels")):  # the latter needs a GPU
            importlib.import_module(found.name)
    for name in ("altair", "vl_convert", "optuna", "filelock", "transformers.models.bert.modeling_bert", "jinja2"):
        importlib.import_module(name)


def _write_input(folder: Path) -> None:
    folder.mkdir(parents=True)
    words = ["king", "river", "castle", "music", "war", "city", "church", "army"]
    for split, count in (("train", 24), ("dev", 8)):
        rows = [
            f"{n}\tthe {words[n % 8]} {n}\tit is {words[n % 5]}\t{'not_' * (n % 2)}entailment" for n in range(count)
        ]
        (folder / f"{split}.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + "\n".join(rows) + "\n")
    rows = [f"the {words[n % 8]} {n},it is {words[n % 5]},{'yes' if n % 2 else 'no'}" for n in range(24)]
    (folder / "train.csv").write_text("sentence1,sentence2,label\n" + "\n".join(rows) + "\n")
    tiny_model("bert", num_attention_heads=2).save_pretrained(folder / "encoder")
    tiny_tokenizer().save_pretrained(folder / "encoder")
    say_how_to_read(folder / "encoder", "cls")
    work = folder.parent / "work"
    (folder / "config.toml").write_text(CONFIG.format(place=work))


# ---------------------------------------------------------------------- processes


@dataclass
class Running:
    process: int
    err: Path

    def poll(self) -> int | None:
        process, status = os.waitpid(self.process, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if process else None

    def wait(self, seconds: float = 180.0) -> int | None:
        """The exit code; None after so many seconds, and the process is killed."""
        end = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                self.send(signal.SIGKILL)
                os.waitpid(self.process, 0)
                return None
            time.sleep(0.002)
        return code

    def send(self, number: int) -> None:
        os.kill(self.process, number)

    def said(self) -> str:
        return self.err.read_text(errors="replace")


class Cold(Running):
    """A process that has imported nothing yet."""

    def __init__(self, made: Made, words: tuple[str, ...]) -> None:
        self.err = made.work / "err"
        environment = {**os.environ, "PYTHONPATH": str(SRC), "TMPDIR": str(_temporary(made))}
        with self.err.open("w") as err:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "bertvision", *words],
                cwd=made.work, preexec_fn=_heed_signals, env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err,
            )  # fmt: skip
        self.process = self.popen.pid

    def poll(self) -> int | None:
        return self.popen.poll()


def fork(made: Made, words: tuple[str, ...], patch: "Counting | None" = None, name: str = "err") -> Running:
    """Begin a command in a fork of this process."""
    err, temporary = made.work / name, _temporary(made)
    process = os.fork()
    if process:
        return Running(process, err)
    code = 70
    try:
        _heed_signals()
        handle = os.open(err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        os.chdir(made.work)
        tempfile.tempdir = str(temporary)
        sys.argv = ["bertvision", *words]
        from bertvision.__main__ import main

        with patch or contextlib.nullcontext():
            try:
                main()
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _heed_signals() -> None:
    """Shells start commands in the background with signals that are ignored, and processes inherit that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _temporary(made: Made) -> Path:
    """The folder for temporary files of commands."""
    found = made.work / "tmp"
    found.mkdir(exist_ok=True)
    return found


class Counting:
    """Counts operations on files, and kills the process before or after one of them."""

    def __init__(self, report: Path | None = None, kill_at: int | None = None, after: bool = False, swaps: bool = True):
        self.report, self.kill_at, self.after, self.swaps = report, kill_at, after, swaps
        self.count = 0

    def __enter__(self) -> None:
        for name in ("replace", "rename", "fsync", "unlink", "mkdir", "rmdir"):
            setattr(os, name, self._counted(getattr(os, name)))
        opened = builtins.open
        counted = self._counted(opened)
        builtins.open = lambda file, mode="r", *given, **named: (  # type: ignore[assignment]
            counted if set(mode) & set("wax+") else opened
        )(file, mode, *given, **named)
        from bertvision.disk import writing

        writing._exchange = self._counted(writing._exchange) if self.swaps else lambda *_: False

    def __exit__(self, *_: object) -> None:
        if self.report is not None:
            self.report.write_text(str(self.count))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def do(*given: Any, **named: Any) -> Any:
            self.count += 1
            if self.count == self.kill_at and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            found = call(*given, **named)
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return do


# ---------------------------------------------------------------------- files


def clean(work: Path) -> None:
    for name in ("out", "err", "err1", "err2", "tmp"):
        path = work / name
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def find_junk(work: Path) -> list[str]:
    """Temporary files, locks, and folders of checkpoints that are left."""
    names = (str(path.relative_to(work)) for path in work.rglob("*"))
    return sorted(
        name for name in names
        if Path(name).name.startswith((".writing-", ".lock", "bertvision-")) and not name.endswith(str(os.getuid()))
        or name.endswith(".lock") or "checkpoints" in name
    )  # fmt: skip


def read_files(work: Path, is_exact: bool) -> dict[str, Any]:
    """Every file that matters; JSON without measured times, text and pictures only by name."""
    return dict(_read_files(work, is_exact))


def _read_files(work: Path, is_exact: bool) -> Iterator[tuple[str, Any]]:
    for path in sorted(work.rglob("*")):
        name = str(path.relative_to(work))
        if path.is_dir() or path.name in LOGS or name.split("/")[0] in ("tmp", "err1", "err2", *INPUT):
            continue
        if is_exact or path.suffix in (".safetensors", ".jsonl", ".txt"):
            yield name, path.read_bytes()
        elif path.suffix == ".json":
            yield name, _without_times(json.loads(path.read_text()))
        else:
            yield name, ""


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        # A file with measured times has another checksum each time.
        kept = {key: item for key, item in value.items() if key not in MEASURED}
        if isinstance(kept.get("files"), dict):
            kept["files"] = {
                name: digest for name, digest in kept["files"].items() if name.endswith((".safetensors", ".jsonl"))
            }
        return {key: _without_times(item) for key, item in kept.items()}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def compare(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """The differences in words; '' if there are none."""
    missing, more = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    other = sorted(name for name in expected.keys() & found.keys() if found[name] != expected[name])
    parts = (("missing", missing), ("more", more), ("different", other))
    return "; ".join(f"{what}: {', '.join(names[:5])}" for what, names in parts if names)


def finish(made: Made, name: str) -> str:
    """Run the command until it ends, and compare all files. Return what is wrong; '' if nothing is."""
    case, run = CASES[name], fork(made, CASES[name].words)
    code = run.wait()
    # A model that was saved just before the kill is not replaced without being asked.
    is_saved = name == "fit" and code == 2 and "exists: choose another folder" in run.said()
    if code != 0 and not is_saved:
        return f"the next command ended with {code}: {run.said()[-600:]}"
    if junk := [] if is_saved else find_junk(made.work):
        return f"left: {', '.join(junk)}"
    return compare(read_files(made.work, case.is_exact), made.expected[name])


SLOW = ("report", "search", "fit", "fit again", "train on a store")


def choose(random: Random) -> str:
    """The name of a command; of a slow one less often."""
    names = sorted(CASES)
    return random.choices(names, [1 if name in SLOW else 3 for name in names])[0]
