"""A set of heads: each member is one head with its own settings, optimiser, schedule, seed and share of the data.

heads = [
    "learned_pooling",                                                          a head, with its defaults
    "adapter_386_skip",                                                         a preset: one of the papers' rows
    { head = "adapter", size = [16, 64], lr = [3e-4, 1e-3], seeds = 5 },        a grid: 2 × 2 × 5 members
    { head = "adapter_64", data_fraction = [0.1, 0.3, 1.0] },                   the less-data curve
    { head = "adapter_64", begin = "runs/mnli/snapshots/epoch_1/heads/adapter_64" },    weights to begin with
]
"""

import dataclasses
import itertools
import math
import re
import typing
from dataclasses import dataclass
from typing import Any

from bertvision.config import RunConfig, TrainConfig, target_kind
from bertvision.errors import ConfigError, UserError, suggest
from bertvision.heads.base import HEADS, HeadConfig
from bertvision.heads.begin import find_folder, read_begin, tell_apart
from bertvision.kinds import KINDS, LABEL, Kind
from bertvision.settings import convert, describe_type

CONTROL = "last_linear"
TRAINING: dict[str, Any] = {
    "lr": float, "epochs": int, "schedule": str, "warmup": float, "decay": float, "clip": float | None,
    "data_fraction": float, "seed": int,
}  # fmt: skip
# And what a search does not vary.
MEMBER: dict[str, Any] = {**TRAINING, "begin": str | None}
RESERVED = ("encoder", "baseline")
NAME = re.compile(r"[^\W\d_][\w.-]*")


@dataclass(frozen=True)
class MemberConfig:
    """One member of a set of heads, everything filled in."""

    name: str
    head: str
    settings: dict[str, Any]
    lr: float
    epochs: int
    schedule: str
    warmup: float
    decay: float
    clip: float | None
    seed: int
    data_fraction: float = 1.0
    group: str = ""
    """The name without the seed: members of one group differ in nothing else."""
    begin: str | None = None
    """The folder of a trained head whose weights it begins with. Its output layer is taken too where that head predicts
    the same: the same kind, as many outputs and, where the folder's run or kit tells it, the same task."""
    begin_stamp: str | None = None
    """What it begins with, wherever that lies."""

    def head_config(self) -> HeadConfig:
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in self.settings.items()}
        return HEADS[self.head].Config(**values)

    def to_dict(self) -> dict[str, Any]:
        """What its folder keeps: with which weights it began, not in which place of some machine they lay, and nothing
        of that where it began with random ones, as of members made before there was a choice."""
        unasked = ("begin",) if self.begin_stamp else ("begin", "begin_stamp")
        return {key: value for key, value in dataclasses.asdict(self).items() if key not in unasked}

    def identity(self) -> dict[str, Any]:
        """All that its weights hang on."""
        return {key: value for key, value in self.to_dict().items() if key not in ("name", "group")}


def list_presets() -> dict[str, tuple[str, dict[str, Any]]]:
    """Every named row: its head and the settings it stands for. A head without presets is a row of its own."""
    rows: dict[str, tuple[str, dict[str, Any]]] = {}
    for head in HEADS:
        for name, settings in (HEADS[head].presets or {head: {}}).items():
            assert name not in rows and (name == head or name not in HEADS), f"two rows are called '{name}'"
            rows[name] = head, settings
    return rows


def find_row(name: str) -> tuple[str, dict[str, Any]]:
    """The head that a name stands for, and the settings that come with it."""
    return (name, {}) if name in HEADS else list_presets()[name]


def build_members(entries: list[Any], train: TrainConfig, seed: int, kind: Kind) -> list[MemberConfig]:
    """The members a config asks for, with the last-layer control first; raises ConfigError with every mistake."""
    mistakes: list[str] = []
    tables = [{"head": entry} if isinstance(entry, str) else dict(entry) for entry in entries]
    members = _build_all(tables, train, seed, kind, mistakes)
    if not any(member.head == CONTROL and member.data_fraction == 1 and not member.begin for member in members):
        members = _build_all([{"head": CONTROL}], train, seed, kind, mistakes) + members
    names = [member.name for member in members]
    for name in sorted({name for name in names if names.count(name) > 1}):
        mistakes.append(f"two heads are called '{name}': a value is there twice, or one of them needs another `name`.")
    groups: dict[str, list[dict[str, Any]]] = {}
    for member in members:
        groups.setdefault(member.group, []).append({**member.identity(), "seed": None})
    for group in sorted(group for group, alike in groups.items() if any(one != alike[0] for one in alike)):
        mistakes.append(f"heads that differ in more than their seed are called '{group}': give one another `name`.")
    if mistakes:
        raise ConfigError(mistakes)
    return members


def _build_all(
    tables: list[dict[str, Any]], train: TrainConfig, seed: int, kind: Kind, mistakes: list[str]
) -> list[MemberConfig]:
    singles = [single for table in tables for single in _expand(table, train, seed, mistakes)]
    members = [_build_member(*single, train, seed, kind, mistakes) for single in singles]
    return [member for member in members if member is not None]


def find_mistakes(config: RunConfig) -> list[str]:
    """What is wrong with a config's heads, for `config.build_config`; entries that are no heads at all are its own."""
    entries = [e for e in config.heads if isinstance(e, str) or (isinstance(e, dict) and _is_head(e.get("head")))]
    try:
        # What is wrong in [train] itself is told once, not again by every head.
        build_members(entries, TrainConfig(), 0, target_kind(config) or LABEL)
    except ConfigError as error:
        return error.mistakes
    return []


def _is_head(value: Any) -> bool:
    return bool(value) and all(isinstance(name, str) for name in as_list(value))


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# ---------------------------------------------------------------------- grids


def _expand(
    table: dict[str, Any], train: TrainConfig, seed: int, mistakes: list[str]
) -> list[tuple[str, dict[str, Any], dict[str, list[Any]]]]:
    """The members of an entry: head or preset, its settings, and those that the grid varies with all their values."""
    found: list[tuple[str, dict[str, Any], dict[str, list[Any]]]] = []
    for name in as_list(table["head"]):
        given = {key: value for key, value in table.items() if key != "head"}
        if name not in list_presets() and name not in HEADS:
            mistakes.append(f"there is no head '{name}': {suggest(name, sorted({*HEADS, *list_presets()}))}")
            continue
        hints = setting_types(find_row(name)[0]) | MEMBER | {"name": list}
        seeds = _seeds(name, given, train, seed, mistakes)
        if seeds is not None:
            given["seed"] = seeds
        choices = {key: _choices(value, hints.get(key)) for key, value in given.items()}
        varied = {key: values for key, values in choices.items() if len(values) > 1}
        if isinstance(table["head"], list) and len(table["head"]) > 1:
            varied["head"] = table["head"]
        found += [
            (name, dict(zip(given, point, strict=True)), varied) for point in itertools.product(*choices.values())
        ]
    return found


def _seeds(
    name: str, given: dict[str, Any], train: TrainConfig, seed: int, mistakes: list[str]
) -> int | list[int] | None:
    """The seeds that `seeds = 5` of an entry, or of [train], stands for; None where the entry names its own."""
    own = given.pop("seeds", None)
    if own is None:
        return None if "seed" in given or train.seeds == 1 else list(range(seed, seed + train.seeds))
    if isinstance(own, bool) or not isinstance(own, int) or own < 1:
        mistakes.append(f"`seeds` of head '{name}' must be a whole number of at least 1, not {own!r}.")
        return None
    first = given.get("seed", seed)
    if not isinstance(first, int):
        mistakes.append(f"head '{name}': give `seed` as a list, or `seeds` as a number, not both.")
        return None
    return list(range(first, first + own)) if own > 1 else first


def _choices(value: Any, hint: Any) -> list[Any]:
    """The values of one setting: a list is a grid, unless the setting itself is a list."""
    if isinstance(value, list) and value and (hint is None or not convert(value, hint)[1]):
        return value
    return [value]


# ---------------------------------------------------------------------- one member


def setting_types(head: str) -> dict[str, Any]:
    """The settings a head takes, by name, and the type of each."""
    hints = typing.get_type_hints(HEADS[head].Config)
    return {item.name: hints[item.name] for item in dataclasses.fields(HEADS[head].Config)}


def _build_member(
    name: str,
    table: dict[str, Any],
    varied: dict[str, list[Any]],
    train: TrainConfig,
    seed: int,
    kind: Kind,
    mistakes: list[str],
) -> MemberConfig | None:
    own_name = table.pop("name", None)
    head, fixed = find_row(name)
    settings = _plain(fixed)
    hints, found = setting_types(head), len(mistakes)
    training: dict[str, Any] = {key: getattr(train, key, None) for key in TRAINING}
    training |= {"seed": seed, "data_fraction": 1.0}
    for key, value in table.items():
        wanted = MEMBER.get(key) or hints.get(key)
        if wanted is None:
            mistakes.append(f"head '{name}' has no setting '{key}': {suggest(key, [*hints, *MEMBER, 'seeds', 'name'])}")
            continue
        converted, fits = convert(value, wanted)
        if not fits:
            mistakes.append(f"`{key}` of head '{name}' must be {describe_type(wanted)}, not {value!r}.")
        else:
            (training if key in MEMBER else settings)[key] = table[key] = converted
    member = MemberConfig("", head, settings, **training)
    if len(mistakes) == found:
        mistakes += [f"head '{name}': {mistake}." for mistake in member.head_config().mistakes()]
        mistakes += [f"head '{name}': {mistake}." for mistake in _check_training(training)]
        member = _with_begin(member, name, mistakes)
    if not HEADS[head].takes(kind):
        able = ", ".join(other for other in KINDS if HEADS[head].takes(KINDS[other]))
        mistakes.append(f"head '{name}' does not predict a {kind}: it predicts {able}.")
    if own_name is not None and not _is_name(own_name):
        mistakes.append(
            f"`name` = {own_name!r} of head '{name}' can't be used: a letter, then letters, digits, '_', '-', '.'; "
            f"not {' or '.join(RESERVED)}."
        )
    if len(mistakes) > found:
        return None
    if own_name is None:
        start, told = name, table
    else:  # a grid's members still need names of their own
        start = f"{own_name}_{name}" if "head" in varied else own_name
        told = {key: value for key, value in table.items() if key in varied}
    told = {key: value for key, value in told.items() if key != "begin"}
    if "begin" in varied:
        told["begin"] = tell_apart(table["begin"], varied["begin"])
    whole = _name(start, head, told)
    group = _name(start, head, {key: value for key, value in told.items() if key != "seed"})
    return dataclasses.replace(member, name=whole, group=group)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """As JSON has them, so that a member read from a file equals the one that was written."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}


def _is_name(value: Any) -> bool:
    """Names become folders, so nothing that could lead out of one or be hidden."""
    return isinstance(value, str) and NAME.fullmatch(value) is not None and value not in RESERVED


def _check_training(training: dict[str, Any]) -> list[str]:
    mistakes = [
        f"`{key}` must be above 0, not {training[key]}"
        for key in ("lr", "epochs", "clip")
        if training[key] is not None and not training[key] > 0
    ]
    mistakes += [f"`{key}` must be finite" for key in ("lr", "decay") if math.isinf(training[key])]
    mistakes += [
        f"`{key}` must be at least 0, not {training[key]}" for key in ("decay", "seed") if not training[key] >= 0
    ]
    if not 0 <= training["warmup"] < 1:
        mistakes.append(f"`warmup` must be from 0 to less than 1, not {training['warmup']}")
    if not 0 < training["data_fraction"] <= 1:
        mistakes.append(f"`data_fraction` must be above 0 and at most 1, not {training['data_fraction']}")
    if training["schedule"] not in ("linear", "constant"):
        mistakes.append(f"`schedule` is '{training['schedule']}': it can be linear or constant")
    return mistakes


def _with_begin(member: MemberConfig, name: str, mistakes: list[str]) -> MemberConfig:
    """The member with the full path and the stamp of what it begins with."""
    if member.begin is None:
        return member
    folder = find_folder(member.begin)
    try:
        found = read_begin(folder)
    except UserError as error:
        mistakes.append(
            f"head '{name}': `begin` = '{member.begin}': {error} Give the folder of a trained head: "
            "RUN/snapshots/epoch_…/heads/NAME, KIT/TASK, or that of a kit that ships, such as default/squad2."
        )
        return member
    if found.head != member.head:
        mistakes.append(
            f"head '{name}': `begin` = '{member.begin}' holds the head '{found.head}': it must be '{member.head}' too."
        )
    return dataclasses.replace(member, begin=str(folder), begin_stamp=found.stamp)


# ---------------------------------------------------------------------- names


def _figure(value: float) -> str:
    """As short as it can be told apart, without signs that a folder's name should not have."""
    short = f"{value:g}"
    return (short if float(short) == value else repr(value)).replace("+", "")


def _name(start: str, head: str, given: dict[str, Any]) -> str:
    """adapter with size = 386, shared = false, skip = true → adapter_386_separate_skip."""
    fields = {item.name: item for item in dataclasses.fields(HEADS[head].Config)}
    words = [start]
    for key, value in given.items():
        if isinstance(value, bool):
            off = fields[key].metadata.get("off", f"no_{key}") if key in fields else f"no_{key}"
            words.append(key if value else off)
        elif isinstance(value, int | float):
            words.append(_figure(value) if key == "size" else f"{key}{_figure(value)}")
        elif isinstance(value, list | tuple):
            words.append(key + "-".join(str(part).replace("-", "m") for part in value))
        else:
            words.append(str(value) if value is not None else f"no_{key}")
    return "_".join(words)
