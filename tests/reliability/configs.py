"""Settings, overrides, config files and head tables that nobody should write: built and checked, never trained."""

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from bertvision.config import RunConfig, build_config, load_config
from bertvision.encoder.states import StateShape
from bertvision.heads import HEADS, Target, list_presets, outline_head, setting_types
from bertvision.pipeline.job import Job, find_mistakes
from bertvision.pipeline.members import MEMBER
from bertvision.search.space import build_space
from bertvision.search.space import find_mistakes as find_search_mistakes
from bertvision.settings import list_settings
from tests.reliability.judging import judge
from tests.reliability.nasty import mutate, nasty_text, nasty_value
from tests.reliability.trials import Outcome

NAME, TRIALS, SLICE = "configs", 6000, 250
ABOUT = "Every setting with odd values, damaged config files, and tables of heads, ensembles and search spaces."
CONFIGS = Path(__file__).parents[2] / "configs"
CASES = ("override", "Python value", "config file", "heads", "ensembles", "search space")


@dataclass
class Made:
    place: Path
    tables: dict[str, Any]
    keys: list[str]
    files: list[bytes]


def prepare(place: Path) -> Made:
    from tiny_encoders import say_how_to_read, tiny_model, tiny_tokenizer

    encoder, data = place / "encoder", place / "data.csv"
    tiny_model("bert", num_attention_heads=2).save_pretrained(encoder)
    tiny_tokenizer().save_pretrained(encoder)
    say_how_to_read(encoder, "cls")
    data.write_text("text,label\n" + "".join(f"text {number},{'ab'[number % 2]}\n" for number in range(20)))
    tables = {
        "task": {"name": "files", "train": str(data), "dev": str(data)},
        "encoder": {"name": str(encoder)},
        "run": str(place / "run"),
    }
    keys = [key for key, *_ in list_settings(RunConfig)]
    return Made(place, tables, keys, [path.read_bytes() for path in sorted(CONFIGS.glob("**/*.toml"))])


def attempt(made: Made, number: int, random: Random) -> Outcome:
    case = CASES[number % len(CASES)]
    tables, overrides = json.loads(json.dumps(made.tables)), []
    if case == "override":
        for _ in range(random.choice([1, 1, 1, 2, 5])):
            key = random.choice(made.keys)
            key = random.choice([key, key, key, key, key.partition(".")[0], f"{key}.x", key + "x", nasty_text(random)])
            overrides.append(f"{key}{random.choice(['=', '=', '=', '=', '', '=='])}{nasty_text(random)}")
    elif case == "Python value":
        section, _, key = random.choice(made.keys).rpartition(".")
        value = nasty_value(random)
        match random.randrange(4):
            case 0:
                tables[section or key] = value
            case 1:
                tables[value if isinstance(value, str | int) else "x"] = {}
            case _:
                tables.setdefault(section, {})[key] = value if section else {"x": value}
    elif case == "config file":
        return _config_file(made, random)
    elif case == "heads":
        tables["heads"] = [_head(random) for _ in range(random.choice([1, 1, 2, 5]))]
        if random.random() < 0.3:
            tables["train"] = {"seeds": random.choice([1, 2, 100, 5000, 10_000, 10**9])}
    elif case == "ensembles":
        tables["heads"] = ["adapter_64", {"head": "mlp", "seeds": 2}]
        tables["ensembles"] = [_ensemble(random) for _ in range(random.choice([1, 2]))]
    else:
        tables["search"] = {"space": _space(random)}
        return judge(case, f"{_safe(tables['search']):.300}", lambda: _search(tables))
    shown = f"{overrides!r:.300}" if overrides else f"{_safe(tables):.300}"
    return judge(case, shown, lambda: _build(tables, overrides))


def _build(tables: dict[str, Any], overrides: list[str]) -> None:
    """What every command does before any work."""
    config = build_config(tables, overrides, find_mistakes)
    json.dumps(config.with_absolute_paths().to_dict()).encode()
    _use(config)


def _use(config: RunConfig) -> None:
    job = Job(config)
    shape, target = StateShape(layers=4, hidden=32, pooled=True), Target(job.task.kind, len(job.task.labels))
    assert len(job.members) <= 10_200  # and controls
    for member in job.members[:20]:
        outline_head(member, shape, target)


def _search(tables: dict[str, Any]) -> None:
    build_space(build_config(tables, (), find_search_mistakes))


def _config_file(made: Made, random: Random) -> Outcome:
    path = made.place / random.choice(["config.toml", "config.json", "config.TOML", "config"])
    data = random.choice(made.files)
    if path.suffix == ".json":
        data = json.dumps(made.tables).encode()
    path.write_bytes(mutate(data, random))
    try:
        return judge("config file", f"{path.read_bytes()!r:.3000}", lambda: load_config(path, (), find_mistakes))
    finally:
        path.unlink()


def _head(random: Random) -> Any:
    name = random.choice([*HEADS, *list_presets()])
    if random.random() < 0.1:
        return random.choice([name, nasty_value(random)])
    head = name if name in HEADS else list_presets()[name][0]
    table: dict[str, Any] = {"head": name if random.random() < 0.9 else [name, random.choice([*HEADS])]}
    for _ in range(random.choice([1, 1, 2, 3])):
        key = random.choice([*setting_types(head), *MEMBER, "seeds", "name", nasty_text(random)])
        good = [1, 2, 8, 16, 0.1, 0.5, True, "mean", "towers", "none", 10**5, 99_999_999_999, 10**9, "a" * 190]
        values = [
            random.choice([random.choice(good), nasty_value(random)]) for _ in range(random.choice([1, 1, 3, 150]))
        ]
        table[key] = values[0] if len(values) == 1 else values
    return table


def _ensemble(random: Random) -> Any:
    names = ["adapter_64", "mlp", "encoder", "adapter_64@0", "runs/x:mlp", "x@1e9", "a" * 300, nasty_text(random)]
    members = random.choices(names, k=random.choice([0, 1, 2, 3, 500]))
    table = {"members": members, random.choice(["method", "name", "best", "x"]): nasty_value(random)}
    return random.choice([members, table, {"best": nasty_value(random)}, nasty_value(random)])


def _space(random: Random) -> Any:
    space: dict[str, Any] = {}
    for _ in range(random.choice([1, 2, 4])):
        key = random.choice(
            ["head", "lr", "size", "read", "decay", "epochs", "skip", "seed", "strength", nasty_text(random)]
        )
        ranges = [{"low": nasty_value(random), "high": nasty_value(random)}, {"low": 1, "high": 2, "log": True}]
        space[key] = random.choice([nasty_value(random), *ranges, [1, 2], ["adapter", "mlp"], list(range(900))])
    return space


def _safe(value: Any) -> str:
    try:
        return repr(value)
    except (RecursionError, ValueError):
        return "a value without end"
