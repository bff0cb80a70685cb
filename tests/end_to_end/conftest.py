"""The real command line in this process, and configs of runs that take less than a second."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

# A tiny encoder, few steps: every stage does something and none takes long.
SMALL = """
heads = ["learned_pooling", {{ head = "adapter", size = 4 }}]
run = "{run}"
[task]
{task}
[data]
max_length = {max_length}
overlap = 16
hold_out = 0.25
[encoder]
name = "{encoder}"
device = "cpu"
[finetune]
epochs = 1
lr = 1e-3
batch_rows = 2
[train]
epochs = 2
batch_rows = 4
"""


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output parsed as strict JSON: no other text, no NaN."""
        return json.loads(self.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


Command = Callable[..., Said]


@pytest.fixture(scope="session")
def command() -> Command:
    """command("run", "config.toml") does what the shell would. Returns exit code, output and errors."""
    from bertvision.__main__ import main
    from bertvision.interrupts import SIGNALS

    def call(*words: object) -> Said:
        out, err, code = io.StringIO(), io.StringIO(), 0
        with (
            mock.patch.object(sys, "argv", ["bertvision", *map(str, words)]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            handlers = {number: signal.getsignal(number) for number in SIGNALS}
            try:
                main()
            except SystemExit as end:
                code = int(end.code or 0)
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        return Said(code, out.getvalue(), err.getvalue())

    return call


@pytest.fixture(scope="session")
def write_config(tiny_encoder_folder: Path) -> Callable[..., Path]:
    """write_config(folder, name="rte", data=…) → the path of a config whose run folder is folder/run."""

    def write(folder: Path, encoder: Path = tiny_encoder_folder, max_length: int = 48, **task: object) -> Path:
        lines = "\n".join(
            f"{key} = {json.dumps(value if isinstance(value, list) else str(value))}" for key, value in task.items()
        )
        path = folder / "config.toml"
        text = SMALL.format(run=folder / "run", task=lines, encoder=encoder, max_length=max_length)
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def finished(
    tmp_path_factory: pytest.TempPathFactory, command: Command, write_config: Callable[..., Path]
) -> Callable[..., Path]:
    """finished(name="rte", data=…) → the folder of a finished run, made once."""
    made: dict[str, Path] = {}

    def run(*overrides: str, **task: object) -> Path:
        key = repr((overrides, sorted(task.items(), key=str)))
        if key not in made:
            folder = tmp_path_factory.mktemp("finished")
            said = command("run", write_config(folder, **task), *overrides)
            assert said.code == 0, said.err
            made[key] = folder / "run"
        return made[key]

    return run


@pytest.fixture(scope="session")
def squad_json() -> Callable[..., dict[str, Any]]:
    """squad_json((question, passage, answer or None), …) → a document in SQuAD format; ids are q0, q1 …"""

    def build(*questions: tuple[str, str, str | None]) -> dict[str, Any]:
        articles = []
        for number, (question, passage, answer) in enumerate(questions):
            answers = [] if answer is None else [{"text": answer, "answer_start": passage.index(answer)}]
            qas = [{"id": f"q{number}", "question": question, "answers": answers, "is_impossible": not answers}]
            articles.append({"title": f"T{number}", "paragraphs": [{"context": passage, "qas": qas}]})
        return {"version": "v2.0", "data": articles}

    return build


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 kB: room for a tiny encoder or a tiny store, but not for more."""
    place = tmp_path / "disk"
    place.mkdir()
    if shutil.which("mount") is None or os.name != "posix":
        pytest.skip("no mount command to make a small disk with")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True)
    if done.returncode:
        pytest.skip("a small disk can't be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)
