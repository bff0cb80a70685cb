"""Turn a config's `heads` into members: heads with their own settings, schedule, seed and fraction of the data.

heads = [
    "learned_pooling",                                                          a head with its defaults
    "adapter_386_skip",                                                         a preset: a row of one of the papers
    { head = "adapter", size = [16, 64], lr = [3e-4, 1e-3], seeds = 5 },        a grid: 2 × 2 × 5 members
    { head = "adapter_64", data_fraction = [0.1, 0.3, 1.0] },                   a learning curve over the data size
    { head = "adapter_64", begin = "runs/mnli/snapshots/epoch_1/heads/adapter_64" },    initial weights
]
"""

import dataclasses
import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from bertvision.config import RunConfig, TrainConfig
from bertvision.disk import why_no_path, why_not_plain
from bertvision.disk.names import MOST_BYTES
from bertvision.encoder.reading import ways_to_read
from bertvision.errors import ConfigError, UserError, shorten, suggest
from bertvision.heads import (
    CONTROL,
    CONVEX_CONTROL,
    HEADS,
    MemberConfig,
    default_reads,
    find_preset,
    list_presets,
    setting_types,
)
from bertvision.kinds import KINDS, LABEL, Kind
from bertvision.pipeline.begin import Begin, find_begun_read, find_folder, name_begin, read_begin
from bertvision.settings import convert, describe_type, out_of_range
from bertvision.tasks.config import target_kind

TRAINING: dict[str, Any] = {
    "lr": float, "epochs": int, "schedule": str, "warmup": float, "decay": float, "clip": float | None,
    "data_fraction": float, "seed": int,
}  # fmt: skip
# A search can vary everything in TRAINING, but not `begin`.
MEMBER: dict[str, Any] = {**TRAINING, "begin": str | None}
RESERVED = ("encoder", "baseline")
MOST_MEMBERS = 10_000
"""Of a run. Settings that multiply (lists, seeds) are counted before members are built."""
MOST_MISTAKES = 100
"""Nobody reads more at once."""
NAME = re.compile(r"[^\W\d_][\w.-]*")


def build_members(
    entries: list[Any], train: TrainConfig, seed: int, kind: Kind, encoder: str | None = None
) -> list[MemberConfig]:
    """Build the members of a config. The control is added in front if it is missing, and its convex twin if there is a
    convex head that reads pairs in the same way. Raise ConfigError with every mistake.

    A head without `read` reads sequences as the encoder was made, or in both common ways (two members) if the encoder
    does not say. Without an encoder, such a head has its class's default."""
    builder = _Builder(train, seed, kind, encoder)
    members = builder.build([{"head": entry} if isinstance(entry, str) else dict(entry) for entry in entries])
    if not any(member.head == CONTROL and member.data_fraction == 1 and not member.begin for member in members):
        members = builder.build([{"head": CONTROL}]) + members
    first = next((at for at, one in enumerate(members) if one.head != CONTROL), len(members))
    for pairs in {_pairs_of(member): None for member in members if HEADS[member.head].convex}:
        if not any(one.head == CONVEX_CONTROL and _pairs_of(one) == pairs for one in members):
            name = CONVEX_CONTROL if pairs == "joined" else f"{CONVEX_CONTROL}_{pairs}"
            members[first:first] = builder.build([{"head": name}])
    mistakes = builder.mistakes
    members = _without_tried_twice(members, builder.tried)
    names = Counter(member.name for member in members)
    mistakes += [
        f"the name of head {shorten(name)} can't be the name of a folder: {why}. Give it a `name`."
        for name in names
        if (why := why_not_plain(name))
    ]
    for name in sorted(name for name, count in names.items() if count > 1):
        mistakes.append(f"two heads are named '{name}': remove the duplicate, or give one of them another `name`.")
    groups: dict[str, list[dict[str, Any]]] = {}
    for member in members:
        groups.setdefault(member.group, []).append({**member.identity(), "seed": None})
    for group in sorted(group for group, alike in groups.items() if any(one != alike[0] for one in alike)):
        mistakes.append(
            f"several heads named '{group}' differ in more than their seed: give one of them another `name`."
        )
    if mistakes:
        raise ConfigError(mistakes)
    return members


def _without_tried_twice(members: list[MemberConfig], tried: set[str]) -> list[MemberConfig]:
    """Leave out members that only try a way of reading which another entry names: linear, if it is tried as linear_mean
    too, beside linear_mean."""
    kept: list[MemberConfig] = []
    for member in members:
        if member.name not in tried or member not in kept:
            kept.append(member)
    return kept


def _pairs_of(member: MemberConfig) -> str:
    return str(member.settings.get("pairs", "joined"))


def find_head_mistakes(config: RunConfig) -> list[str]:
    """List the mistakes in a config's heads, for `config.build_config`, which reports malformed entries itself."""
    entries = [e for e in config.heads if isinstance(e, str) or (isinstance(e, dict) and _is_head(e.get("head")))]
    try:
        # Default [train] settings: a mistake there is reported once, not once per head.
        train = TrainConfig(seeds=config.train.seeds)
        count = len(build_members(entries, train, config.seed, target_kind(config.task) or LABEL))
    except ConfigError as error:
        return error.mistakes
    passes = len(set(config.train.snapshots or [0.0]))
    if count * passes > MOST_MEMBERS:
        return [
            f"{count:,} heads on {passes:,} snapshots ('train.snapshots') are more than {MOST_MEMBERS:,} to train: try "
            "fewer at a time."
        ]
    return []


def _is_head(value: Any) -> bool:
    return bool(value) and all(isinstance(name, str) for name in as_list(value))


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class _Builder:
    """Turns entries into members and collects their mistakes."""

    def __init__(self, train: TrainConfig, seed: int, kind: Kind, encoder: str | None) -> None:
        self.train, self.seed, self.kind, self.encoder = train, seed, kind, encoder
        self.mistakes: list[str] = []
        self.count = 0
        self.begins: dict[str, Begin] = {}
        self.tried: set[str] = set()
        """Names of members that try one of several ways of reading."""

    def build(self, tables: list[dict[str, Any]]) -> list[MemberConfig]:
        members: list[MemberConfig] = []
        for table in tables:
            for name in as_list(table["head"]):
                points, varied = self._expand(name, table)
                found: list[MemberConfig | None] = []
                for point in points:
                    if len(self.mistakes) >= MOST_MISTAKES:
                        return members
                    found.append(self._build_member(name, point, varied))
                members += [member for member in found if member is not None]
                if "read" in varied and "read" not in table:
                    self.tried |= {member.name for member in found if member is not None}
        return members

    # ------------------------------------------------------------------ what heads read

    @cached_property
    def _ways(self) -> tuple[str, ...]:
        assert self.encoder is not None, "without an encoder, the classes' defaults hold"
        return ways_to_read(self.encoder)

    def _default_reads(self, name: str, given: dict[str, Any]) -> list[str]:
        """What a head reads if its entry does not say: one or two values of `read`, or none if the class's default
        holds. A head that starts from the weights of another one reads what that one read."""
        if self.encoder is None or self.kind.position == "token" or "read" in given:
            return []
        found = default_reads(name, self._ways)
        begin = given.get("begin")
        is_path = isinstance(begin, str) and not why_no_path(begin)
        begun = find_begun_read(str(begin)) if found and is_path else None
        return [begun] if begun else found

    # ------------------------------------------------------------------ grids

    def _expand(self, name: str, table: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Sequence[Any]]]:
        """Return the points of an entry's grid for one of its heads or presets, and the settings that vary."""
        if name not in list_presets() and name not in HEADS:
            self.mistakes.append(f"unknown head {shorten(name)}: {suggest(name, sorted({*HEADS, *list_presets()}))}")
            return [], {}
        given = {key: value for key, value in table.items() if key != "head"}
        hints = setting_types(find_preset(name)[0]) | MEMBER | {"name": list}
        reads = self._default_reads(name, given)
        if len(reads) > 1:
            given["read"] = reads
        seeds = self._find_seeds(name, given)
        if seeds is not None:
            given["seed"] = seeds
        choices = {key: _choices(value, hints.get(key)) for key, value in given.items()}
        self.count += math.prod(map(len, choices.values()))
        if self.count > MOST_MEMBERS:
            self.mistakes.append(
                f"`heads` has more than {MOST_MEMBERS:,} members, as lists and seeds multiply: try fewer values or "
                "seeds at a time."
            )
            return [], {}
        varied = {key: values for key, values in choices.items() if len(values) > 1}
        if len(as_list(table["head"])) > 1:
            varied["head"] = table["head"]
        return [dict(zip(given, point, strict=True)) for point in itertools.product(*choices.values())], varied

    def _find_seeds(self, name: str, given: dict[str, Any]) -> int | range | None:
        """Expand `seeds = 5` of an entry or of [train] into seeds; None if the entry lists its own."""
        own = given.pop("seeds", None)
        if own is None:
            # The solution of a convex head does not depend on a seed.
            if "seed" in given or self.train.seeds == 1 or HEADS[find_preset(name)[0]].convex:
                return None
            return range(self.seed, self.seed + self.train.seeds)
        if isinstance(own, bool) or not isinstance(own, int) or own < 1:
            self.mistakes.append(f"`seeds` of head '{name}' must be a whole number of at least 1, not {shorten(own)}.")
            return None
        first = given.get("seed", self.seed)
        if not isinstance(first, int) or isinstance(first, bool):
            self.mistakes.append(f"head '{name}': set either `seed` to a list or `seeds` to a number, not both.")
            return None
        return range(first, first + own) if own > 1 else first

    # ------------------------------------------------------------------ one member

    def _build_member(self, name: str, given: dict[str, Any], varied: dict[str, Sequence[Any]]) -> MemberConfig | None:
        own_name, found = given.pop("name", None), len(self.mistakes)
        member = self._convert(name, given)
        if len(self.mistakes) == found:
            mistakes = [*member.head_config().mistakes(), *_check_training(member)]
            self.mistakes += [f"head '{name}': {mistake}." for mistake in mistakes]
            member = self._with_begin(member, name)
        head = HEADS[member.head]
        if not head.takes(self.kind):
            able = " or ".join(f"a {other}" for other in KINDS if head.takes(KINDS[other]))
            self.mistakes.append(f"head '{name}' can't predict a {self.kind}, only {able}.")
        if self.kind.position == "token" and member.settings.get("pairs") == "towers":
            self.mistakes.append(
                f"head '{name}' can't have `pairs` = 'towers' for a {self.kind}: the answer is in a sequence of both "
                "texts. Leave it out."
            )
        if own_name is not None and not _is_name(own_name):
            self.mistakes.append(
                f"the `name` of head '{name}' can't be {shorten(own_name)}: use a letter, then at most "
                f"{MOST_BYTES - 1} letters, digits, '_', '-' or '.' ({' and '.join(map(repr, RESERVED))} are reserved)."
            )
        if len(self.mistakes) > found:
            return None
        shown = {key: value for key, value in given.items() if key != "begin"}
        if "begin" in varied:
            shown["begin"] = name_begin(given["begin"], varied["begin"])
        if own_name is not None:  # the members of a grid still need different names
            name = f"{own_name}_{name}" if "head" in varied else own_name
            shown = {key: value for key, value in shown.items() if key in varied}
        group = _name(name, member.head, {key: value for key, value in shown.items() if key != "seed"})
        return dataclasses.replace(member, name=_name(name, member.head, shown), group=group)

    def _convert(self, name: str, given: dict[str, Any]) -> MemberConfig:
        """Build the member without its name. Converted values are written back to `given`, from which the name is
        built."""
        head, preset = find_preset(name)
        # Lists, as in JSON, so that a member read from a file equals the one that was written.
        settings = {key: list(value) if isinstance(value, tuple) else value for key, value in preset.items()}
        if reads := self._default_reads(name, given):
            settings["read"] = reads[0]
        training: dict[str, Any] = {key: getattr(self.train, key, None) for key in TRAINING}
        training |= {"seed": self.seed, "data_fraction": 1.0}
        hints = setting_types(head)
        for key, value in given.items():
            wanted = MEMBER.get(key) or hints.get(key)
            if wanted is None:
                known = suggest(key, [*hints, *MEMBER, "seeds", "name"])
                self.mistakes.append(f"head '{name}' has no setting {shorten(key)}: {known}")
                continue
            converted, fits = convert(value, wanted)
            if not fits:
                wrong = f"must be {describe_type(wanted)}, not {shorten(value)}"
                self.mistakes.append(f"`{key}` of head '{name}' {wrong}.")
            else:
                (training if key in MEMBER else settings)[key] = given[key] = converted
        return MemberConfig("", head, settings, **training)

    def _with_begin(self, member: MemberConfig, name: str) -> MemberConfig:
        """Return the member with the full path and the fingerprint of its initial weights."""
        if member.begin is None:
            return member
        if why := why_no_path(member.begin):
            self.mistakes.append(f"head '{name}': `begin` can't be {shorten(member.begin)}: {why}.")
            return member
        folder = find_folder(member.begin)
        try:
            if member.begin not in self.begins:  # a grid begins with the same weights many times
                self.begins[member.begin] = read_begin(folder)
            found = self.begins[member.begin]
        except UserError as error:
            self.mistakes.append(
                f"head '{name}': `begin` = '{member.begin}': {error} Give the folder of a trained head: "
                "RUN/snapshots/epoch_…/heads/NAME, KIT/TASK, or a head of a shipped kit such as default/squad2."
            )
            return member
        if found.head != member.head:
            self.mistakes.append(
                f"head '{name}': `begin` = '{member.begin}' holds a head of type '{found.head}', but must hold one of "
                f"type '{member.head}'."
            )
        return dataclasses.replace(member, begin=str(folder), begin_stamp=found.stamp)


def _choices(value: Any, hint: Any) -> Sequence[Any]:
    """Return the values of one setting. A list is a grid, unless the setting itself takes a list."""
    if isinstance(value, range):
        return value
    if isinstance(value, list) and value and (hint is None or not convert(value, hint)[1]):
        return value
    return [value]


def _check_training(member: MemberConfig) -> list[str]:
    """Check a head's own lr, epochs … by the same rules as those in [train]."""
    rules = {item.name: item for section in (RunConfig, TrainConfig) for item in dataclasses.fields(section)}
    found = [
        line.removesuffix(".")
        for key in TRAINING if key in rules
        for line in out_of_range(rules[key], f"`{key}`", getattr(member, key))
    ]  # fmt: skip
    if not 0 < member.data_fraction <= 1:
        found.append(f"`data_fraction` must be above 0 and at most 1, not {member.data_fraction}")
    return found


# ---------------------------------------------------------------------- names


def _is_name(value: Any) -> bool:
    """Names become folder names, so they must not be hidden or contain path separators."""
    if not isinstance(value, str) or value in RESERVED or why_not_plain(value):
        return False
    return NAME.fullmatch(value) is not None


def _number(value: float) -> str:
    """Format a number as briefly as possible without loss, and without characters unsuited to folder names."""
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
            words.append(_number(value) if key == "size" else f"{key}{_number(value)}")
        elif isinstance(value, list | tuple):
            words.append(key + "-".join(str(part).replace("-", "m") for part in value))
        else:
            words.append(str(value) if value is not None else f"no_{key}")
    return "_".join(words)
