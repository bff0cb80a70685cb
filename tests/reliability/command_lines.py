"""Random commands, options and values. Nothing heavy runs: no encoder, run or kit is there to be loaded."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import click
import typer
from typer.testing import CliRunner

from bertvision.cli import app
from bertvision.config import RunConfig
from bertvision.errors import UserError
from bertvision.settings import list_settings
from tests.reliability.judging import PYTHON, judge
from tests.reliability.nasty import nasty_text
from tests.reliability.trials import Outcome

NAME, TRIALS, SLICE = "command_lines", 1500, 60
ABOUT = "Commands with random options and values, run in this process."
FILES = {
    "data.csv": b"text,label\na,b\nc,d\n", "empty.csv": b"", "binary.bin": bytes(range(256)) * 9, "bad.toml": b"[[[",
    "config.toml": b'[task]\nname = "rte"\ndata = "nowhere"\n', "scores.json": b"{}", "list.json": b"[1]",
    "a.txt": b"a\nb\n", "squad.json": b'{"data": []}', "odd/config.json": b"{}", "odd/scores.json": b"{}",
    "odd/model.json": b"[]", "odd/kit.json": b"{}", "odd2/config.json": b'{"task": {"name": 5}}',
    "odd2/manifest.json": b"{}", "deep/train.csv": b"a",
}  # fmt: skip
HEAVY = ("default", "embedded")
"""Names of what ships with the package and would be loaded."""


@dataclass
class Made:
    place: Path
    commands: dict[str, Any]
    keys: list[str]


def prepare(place: Path) -> Made:
    import bertvision.api  # noqa: F401  the commands import it, which takes long the first time
    from bertvision.encoder import loading  # noqa: F401

    group: Any = typer.main.get_command(app)
    context = click.Context(group)
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    store = commands.pop("store")
    commands |= {f"store {name}": store.get_command(context, name) for name in store.list_commands(context)}
    return Made(place, commands, [key for key, *_ in list_settings(RunConfig)])


def attempt(made: Made, number: int, random: Random) -> Outcome:
    name = random.choice(sorted(made.commands))
    words = [*name.split(), *_words(made, made.commands[name], random)]
    if name == "demo":
        words.append("finetune.epochs=-1")  # it needs nothing else to begin
    folder = made.place / "work"
    shutil.rmtree(folder, ignore_errors=True)
    for file, data in FILES.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(data)
    before = Path.cwd()
    os.chdir(folder)
    try:
        return judge(name, f"{[word[:80] for word in words]!r:.600}", lambda: _run(words))
    finally:
        os.chdir(before)


def _run(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    found = PYTHON.search(done.output)
    if done.exit_code not in (0, 1, 2) or (done.exit_code and found):
        raise AssertionError(f"exit code {done.exit_code}: {done.output[:300]}")
    if done.exit_code == 1 and "error" not in done.output:
        raise UserError("")  # no word on what is wrong


def _words(made: Made, command: Any, random: Random) -> list[str]:
    words = []
    for param in command.params:
        if param.param_type_name == "argument":
            count = random.choice([0, 1, 1, 1, 3]) if param.nargs == -1 or not param.required else 1
            overrides = param.name == "overrides"
            words += [_override(made, random) if overrides else _value(random) for _ in range(count)]
        elif random.random() < 0.25:
            words.append(random.choice(param.opts))
            words += [] if param.is_flag else [_value(random)]
    if random.random() < 0.1:
        words.append(random.choice(["--", "--help", "--nothing", "-v", nasty_text(random)]))
    return words


def _value(random: Random) -> str:
    value = random.choice([random.choice([*FILES, "odd", "odd2", "deep", "new", "."]), nasty_text(random)])
    return "other" if value in HEAVY else value


def _override(made: Made, random: Random) -> str:
    return f"{random.choice(made.keys)}={_value(random)}"
