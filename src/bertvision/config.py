"""Every setting of a run on one page, and how a TOML file and `section.key=value` words become them.

Defaults < file < overrides; all mistakes are collected and shown at once. Nothing here imports torch; what only the
heads know is checked through `find_more`.
"""

import copy
import dataclasses
import json
import math
import os
import tomllib
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertvision.errors import ConfigError, UserError, suggest
from bertvision.kinds import Kind
from bertvision.tasks.config import TASKS, TaskConfig, check_task_config, files_kind_or_none


def setting(default: Any, help: str) -> Any:
    """A field with the sentence that documents it."""
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class DataConfig:
    max_length: int | None = setting(
        None, "tokens a window holds; absent: the task's own (GLUE 128, RTE 250, SQuAD 384)"
    )
    overlap: int = setting(128, "tokens that neighbouring windows of a long passage share")
    hold_out: float = setting(0.05, "share of train kept away from all training, for thresholds and other choices")
    limit_train: int | None = setting(None, "use only this many training examples (drawn with `seed`)")
    limit_dev: int | None = setting(None, "score only this many dev examples (drawn with `seed`)")


@dataclass(frozen=True)
class EncoderConfig:
    name: str = setting("embedded", "hub name, local folder, or 'embedded' (all-MiniLM-L6-v2 from the demo extra)")
    device: str = setting("auto", "'auto', 'cpu', 'cuda', 'mps'")
    dtype: str = setting("auto", "'auto' (bfloat16 on CUDA from capability 8.0, else float32), 'float32', 'bfloat16'")
    attention: str = setting("auto", "'auto' (unpadded where the device and model allow it), 'padded'")
    record: bool = setting(True, "small steps are recorded as CUDA graphs and played again; false: started one by one")
    compile: str = setting(
        "auto", "'on', 'off', 'auto': layers are compiled where an unpadded encoder has minutes of work before it"
    )
    layers: list[int] | None = setting(
        None, "layers whose states the heads read, 0 = embeddings, -1 = the last; absent: all"
    )


@dataclass(frozen=True)
class FinetuneConfig:
    epochs: float = setting(1.0, "passes over the training windows; 0 leaves the encoder as it is")
    method: str = setting(
        "full", "what learns, with the output layer: 'full' (all), 'bitfit' (biases), 'lora' (low-rank updates; peft)"
    )
    lora_rank: int = setting(8, "rank of each update of queries and values, for 'lora'")
    lora_alpha: float = setting(16.0, "updates count lora_alpha / lora_rank times, for 'lora'")
    snapshots: list[float] = setting([], "epochs after which the encoder is kept and scored; the last is always kept")
    lr: float | None = setting(None, "learning rate; absent: 1e-5 for MNLI, QNLI, QQP, else 2e-5")
    schedule: str = setting("linear", "'linear' (warm-up, then down to 0) or 'constant' (after the warm-up)")
    warmup: float = setting(0.1, "share of the steps in which the learning rate rises")
    decay: float = setting(0.01, "weight decay (not of biases and LayerNorm)")
    clip: float | None = setting(1.0, "largest norm of the gradient; 'none': no clipping")
    batch_rows: int | None = setting(
        None, "windows a step; absent: 32, or 16 for RTE, CoLA, STS-B, SQuAD (the papers: 8 for SQuAD with BERT-large)"
    )
    batch_tokens: int | None = setting(None, "tokens a step instead of windows")
    memory_tokens: int = setting(32768, "most tokens that go through the encoder at once; halved when memory runs out")
    checkpoint_seconds: float = setting(120.0, "how often the state is kept, so that a killed run can go on")
    track: str | None = setting(None, "also log to 'tensorboard' or 'wandb'")


@dataclass(frozen=True)
class TrainConfig:
    snapshots: list[float] | None = setting(None, "snapshots whose states the heads are trained on; absent: the last")
    lr: float = setting(1e-3, "learning rate of a head that gives none of its own")
    epochs: int | None = setting(None, "passes over the states; absent: 1 for spans, 10 for labels and scores")
    seeds: int = setting(1, "how many times each head is trained, with seeds from `seed` on; tables show the spread")
    schedule: str = setting("linear", "'linear' or 'constant'")
    warmup: float = setting(0.0, "share of the steps in which the learning rate rises")
    decay: float = setting(0.0, "weight decay")
    clip: float | None = setting(1.0, "largest norm of a head's gradient; 'none': no clipping")
    batch_rows: int | None = setting(None, "windows a step; absent: 16 for spans, 64 for labels and scores")
    batch_tokens: int | None = setting(None, "tokens a step instead of windows")
    stack: int | None = setting(
        None, "heads of equal shapes that run as one, at most; 1: one after the other; absent: what is fast here"
    )
    source: str = setting(
        "auto", "where states come from: 'streamed' (the encoder), 'stored' (a disk), 'auto' (what is cheaper here)"
    )
    shuffle: str = setting(
        "windows", "'windows' (any order), or 'blocks' (runs of neighbours, well mixed): for a store on a slow disk"
    )
    encode_tokens: int | None = setting(
        None, "tokens that go through the frozen encoder at once; absent: 8,192, on a GPU up to 32,768 as memory allows"
    )
    checkpoint_seconds: float = setting(120.0, "how often the heads' state is kept, so that a killed run can go on")


@dataclass(frozen=True)
class StoreConfig:
    path: str | None = setting(
        None, "folder or fsspec address (s3://…) that the stores go to; absent: 'states' in the run folder"
    )
    dtype: str = setting(
        "auto",
        "'auto' (bfloat16 where the encoder computes in it, else float16), 'float32', 'bfloat16', 'float16', 'int8'",
    )
    keep: list[str] | None = setting(
        None, "what `encode` keeps: 'tokens', 'cls' (with the pooled output), 'mean'; absent: what the heads read"
    )
    shard_mb: int = setting(256, "MB of a shard at most: what a kill while writing can cost")
    memory_mb: int = setting(1024, "about how many MB of states are read ahead and in use")


@dataclass(frozen=True)
class EvaluateConfig:
    n_best: int = setting(20, "answers kept for each question, with probabilities")
    max_answer_tokens: int = setting(30, "longest answer in tokens")


@dataclass(frozen=True)
class SearchConfig:
    sampler: str = setting("tpe", "what proposes members: 'tpe' (learns from those before) or 'random'")
    members: int | None = setting(50, "how many members are tried; 'none': as many as `seconds` allow")
    seconds: float | None = setting(None, "no population is begun after so many seconds of search")
    population: int = setting(25, "members that train together, in one pass of the encoder")
    prune: bool = setting(True, "drop the worse half of the members at each rung of the pass")
    rungs: list[float] = setting([0.25, 0.5], "shares of a member's steps after which it is judged")
    metric: str | None = setting(None, "held-out score to choose by; absent: the task's first (spans: F1)")
    snapshot: float | None = setting(None, "snapshot whose states are searched on; absent: the last")
    space: dict | None = field(
        default=None,
        metadata={
            "help": "settings to try: a list = choices, {low=, high=, log=} = a range; absent: one for the task",
            "type": "a table or absent",
        },
    )


@dataclass(frozen=True)
class RunConfig:
    task: TaskConfig
    data: DataConfig = field(default_factory=DataConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    heads: list[Any] = field(
        default_factory=lambda: ["learned_pooling", "adapter"],
        metadata={
            "help": "heads to train: names, or tables with `head` and its settings",
            "type": "a list of head names or tables",
        },
    )
    ensembles: list[Any] = field(
        default_factory=list,
        metadata={
            "help": "models that answer together: lists of names, or tables with `members`, `method`, `name`",
            "type": "a list of lists or tables",
        },
    )
    train: TrainConfig = field(default_factory=TrainConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    seed: int = setting(0, "seed of every draw; each head may have its own")
    run: str | None = setting(None, "the run folder; absent: runs/<task>_<encoder>")

    @property
    def folder(self) -> Path:
        encoder = Path(self.encoder.name).name or "encoder"
        return Path(self.run) if self.run else Path("runs") / f"{self.task.name}_{encoder}"

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def with_absolute_paths(self) -> "RunConfig":
        """The same config, right from any working directory: what the run folder keeps."""
        places = {key: _absolute(getattr(self.task, key)) for key in ("data", "train", "dev", "test")}
        encoder = dataclasses.replace(self.encoder, name=_absolute(self.encoder.name))
        store = dataclasses.replace(self.store, path=_absolute_place(self.store.path))
        task, heads = dataclasses.replace(self.task, **places), [_with_absolute_begin(entry) for entry in self.heads]
        return dataclasses.replace(self, task=task, encoder=encoder, store=store, heads=heads)


def _absolute_place(place: str | None) -> str | None:
    """The full path of a folder, there or to be made; addresses (s3://…) stay as they are."""
    return place if place is None or "://" in place else str(Path(place).expanduser().absolute())


def _absolute(place: str | None) -> Any:
    """The full path of what exists here; hub names and absent keys stay as they are."""
    whole = Path(os.path.expanduser(place)).absolute() if place else None  # which leaves ~nobody as it is
    return str(whole) if whole is not None and whole.exists() else place


def _has_config(place: Any) -> bool:
    return isinstance(place, str) and Path(os.path.expanduser(place), "config.json").is_file()


def _with_absolute_begin(entry: Any) -> Any:
    """An entry of `heads` with the full paths of the heads that it, or each point of its grid, begins with."""
    if not isinstance(entry, dict) or "begin" not in entry:
        return entry
    begin = entry["begin"]
    places = begin if isinstance(begin, list) else [begin]
    # A folder without a head in it leaves its name to the kits that ship.
    whole = [_absolute(place) if _has_config(place) else place for place in places]
    return {**entry, "begin": whole if isinstance(begin, list) else whole[0]}


FindMore = Callable[[RunConfig], list[str]]
CHOICES = {
    "finetune.method": ("full", "bitfit", "lora"),
    "finetune.schedule": ("linear", "constant"),
    "train.schedule": ("linear", "constant"),
    "encoder.dtype": ("auto", "float32", "bfloat16"),
    "encoder.attention": ("auto", "padded"),
    "encoder.compile": ("auto", "on", "off"),
    "finetune.track": ("tensorboard", "wandb"),
    "search.sampler": ("tpe", "random"),
    "train.source": ("auto", "streamed", "stored"),
    "train.shuffle": ("windows", "blocks"),
    "store.dtype": ("auto", "float32", "bfloat16", "float16", "int8"),
}
STORE_PARTS = ("tokens", "cls", "mean")
AT_LEAST_ONE = (
    "data.limit_train", "data.limit_dev", "finetune.batch_rows", "finetune.batch_tokens", "finetune.memory_tokens",
    "finetune.lora_rank",
    "train.epochs", "train.seeds", "train.stack", "train.batch_rows", "train.batch_tokens", "train.encode_tokens",
    "evaluate.n_best", "evaluate.max_answer_tokens", "search.members", "search.population",
    "store.shard_mb", "store.memory_mb",
)  # fmt: skip
POSITIVE = ("finetune.lr", "train.lr", "finetune.clip", "train.clip", "search.seconds", "finetune.lora_alpha")
NOT_NEGATIVE = (
    "finetune.epochs", "finetune.decay", "train.decay", "data.overlap",
    "finetune.checkpoint_seconds", "train.checkpoint_seconds", "seed",
)  # fmt: skip
FINITE = ("finetune.epochs", "finetune.lr", "train.lr", "finetune.decay", "train.decay", "finetune.lora_alpha")
BELOW_ONE = ("finetune.warmup", "train.warmup", "data.hold_out")


def load_config(
    path: str | Path, overrides: list[str] | tuple[str, ...] = (), find_more: FindMore | None = None
) -> RunConfig:
    """The config of a TOML file, of a run folder, or of its config.json, with `section.key=value` words over it.

    `find_more` finds mistakes that only a later part of the program knows of, to be shown with the others.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise UserError(
            f"no config at '{path}': give a TOML file (see configs/), or a run folder that has a config.json."
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
        tables = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not readable as {path.suffix.lstrip('.').upper() or 'TOML'}: {error}.") from None
    if not isinstance(tables, dict):
        raise UserError(f'{path} holds no settings: expected sections like "task", not {str(tables)[:40]}.')
    return build_config(tables, overrides, find_more)


def build_config(
    tables: dict[str, Any], overrides: list[str] | tuple[str, ...] = (), find_more: FindMore | None = None
) -> RunConfig:
    """A config from nested tables; raises ConfigError with every mistake found."""
    mistakes: list[str] = []
    tables = _with_overrides(tables, overrides, mistakes)
    config = _build(RunConfig, tables, "", mistakes)
    mistakes += _check_values(config) + _check_sense(config)
    if isinstance(config.task, TaskConfig):
        mistakes += check_task_config(config.task)
    if find_more is not None:
        mistakes += find_more(config)
    if mistakes:
        raise ConfigError(mistakes)
    return resolve(config)


def resolve(config: RunConfig) -> RunConfig:
    """The config with every 'absent: …' of the recipes filled in (SPEC: batch and learning rate of the 2021 paper)."""
    row, kind, finetune, train = TASKS[config.task.name], target_kind(config), config.finetune, config.train
    on_tokens = kind is not None and kind.position == "token"
    if finetune.lr is None:
        finetune = dataclasses.replace(finetune, lr=row.lr)
    if finetune.batch_rows is None and finetune.batch_tokens is None:
        rows = 32 if row.kind is None and not on_tokens else row.batch_rows  # a user's own texts are mostly short
        finetune = dataclasses.replace(finetune, batch_rows=rows)
    if train.epochs is None:
        train = dataclasses.replace(train, epochs=1 if on_tokens else 10)
    if train.batch_rows is None and train.batch_tokens is None:
        train = dataclasses.replace(train, batch_rows=16 if on_tokens else 64)
    return dataclasses.replace(config, finetune=finetune, train=train)


def target_kind(config: RunConfig) -> Kind | None:
    """What the config's task predicts; None where the section has mistakes."""
    if config.task.name == "files":
        return files_kind_or_none(config.task)
    return TASKS[config.task.name].kind if config.task.name in TASKS else None


def _is_windowed(config: RunConfig) -> bool:
    kind = target_kind(config)
    return config.task.name == "squad2_answerable" or (kind is not None and kind.reads_answers)


def list_settings() -> list[tuple[str, str, Any, str]]:
    """(key, type, default, help) of every setting, for the command line and the docs."""
    rows = []
    for section in dataclasses.fields(RunConfig):
        hint = typing.get_type_hints(RunConfig)[section.name]
        inner = dataclasses.fields(hint) if dataclasses.is_dataclass(hint) else [section]
        hints = typing.get_type_hints(hint) if dataclasses.is_dataclass(hint) else {section.name: hint}
        for item in inner:
            key = f"{section.name}.{item.name}" if dataclasses.is_dataclass(hint) else item.name
            default = item.default_factory() if callable(item.default_factory) else item.default
            default = "required" if default is dataclasses.MISSING else default
            kind = item.metadata.get("type") or describe_type(hints[item.name])
            rows.append((key, kind, default, item.metadata.get("help", "")))
    return rows


def _with_overrides(tables: dict[str, Any], overrides: Any, mistakes: list[str]) -> dict[str, Any]:
    tables = copy.deepcopy(tables)
    for word in overrides:
        key, equals, text = word.partition("=")
        if not equals or not key:
            mistakes.append(f"'{word}' is not an override: write section.key=value, for instance finetune.epochs=0.5.")
            continue
        *sections, name = key.strip().split(".")
        place: Any = tables
        for section in sections:
            if isinstance(place, dict):
                if place.get(section) is None:
                    place[section] = {}
                place = place[section]
        if isinstance(place, dict):
            place[name] = _parse_value(text.strip())
        else:
            mistakes.append(f"'{'.'.join(sections)}' in '{word}' is not a section.")
    return tables


def _parse_value(text: str) -> Any:
    """A TOML value; words without quotes are taken as text, and `none` as absent."""
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _build(cls: Any, table: Any, prefix: str, mistakes: list[str]) -> Any:
    """A dataclass from a table; wrong keys and types go to `mistakes` and the default stands in."""
    if not isinstance(table, dict):
        mistakes.append(f"[{prefix.rstrip('.')}] must be a section with keys, not {table!r}.")
        table = {}
    hints, values = typing.get_type_hints(cls), {}
    for key in table:
        if key not in hints:
            mistakes.append(f"there is no setting '{prefix}{key}': {suggest(key, hints, prefix)}")
    for item in dataclasses.fields(cls):
        hint, key = hints[item.name], prefix + item.name
        if dataclasses.is_dataclass(hint) and (item.name in table or item.default_factory is dataclasses.MISSING):
            values[item.name] = _build(hint, table.get(item.name, {}), key + ".", mistakes)
        elif item.name in table:
            value, ok = convert(table[item.name], hint)
            if ok:
                values[item.name] = value
            else:
                wanted = item.metadata.get("type") or describe_type(hint)
                mistakes.append(f"'{key}' must be {wanted}, not {table[item.name]!r}.")
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            mistakes.append(f"'{key}' is missing: {item.metadata.get('help', 'it must be given')}.")
            values[item.name] = ""
    return cls(**values)


def convert(value: Any, hint: Any) -> tuple[Any, bool]:
    """The value as the annotated type, and whether it is one (a whole number is taken for a float)."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value, True
    if origin in (types.UnionType, typing.Union):
        if type(None) in arguments and value == "none":  # TOML has no word for it
            return None, True
        for choice in arguments:
            converted, ok = convert(value, choice)
            if ok:
                return converted, True
        return value, False
    if origin in (list, tuple):
        if not isinstance(value, list | tuple):
            return value, False
        items = [convert(item, arguments[0]) for item in value]
        return [item for item, _ in items], all(ok for _, ok in items)
    if hint is type(None):
        return None, value is None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value), True
    return value, isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool)


def describe_type(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "absent"}
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(describe_type(choice) for choice in typing.get_args(hint))
    if typing.get_origin(hint) in (list, tuple):
        return f"a list of {describe_type(typing.get_args(hint)[0])}"
    return words.get(hint, "any value")


def _get(config: RunConfig, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _check_values(config: RunConfig) -> list[str]:
    mistakes = []
    for key, choices in CHOICES.items():
        value = _get(config, key)
        if value is not None and value not in choices:
            mistakes.append(f"'{key}' is '{value}': {suggest(str(value), choices)}")
    rules = [
        (AT_LEAST_ONE, lambda value: value >= 1, "at least 1"),
        (POSITIVE, lambda value: value > 0, "above 0"),
        (NOT_NEGATIVE, lambda value: value >= 0, "at least 0"),
        (BELOW_ONE, lambda value: 0 <= value < 1, "from 0 to less than 1"),
        (FINITE, lambda value: not math.isinf(value), "finite"),
    ]
    for keys, holds, words in rules:
        for key in keys:
            value = _get(config, key)
            if value is not None and not holds(value):
                mistakes.append(f"'{key}' must be {words}, not {value}.")
    return mistakes


def _check_sense(config: RunConfig) -> list[str]:
    """Settings that are right one by one and wrong together."""
    mistakes, epochs = [], config.finetune.epochs
    for snapshot in config.finetune.snapshots:
        if not 0 <= snapshot <= epochs:
            mistakes.append(f"'finetune.snapshots' has {snapshot:g}, outside 0 to finetune.epochs = {epochs:g}.")
    kept = {*config.finetune.snapshots, epochs}
    for snapshot in config.train.snapshots or []:
        if snapshot not in kept:
            known = ", ".join(f"{value:g}" for value in sorted(kept))
            mistakes.append(f"'train.snapshots' has {snapshot:g}, which fine-tuning does not keep: it keeps {known}.")
    if config.search.snapshot is not None and config.search.snapshot not in kept:
        known = ", ".join(f"{value:g}" for value in sorted(kept))
        mistakes.append(
            f"'search.snapshot' is {config.search.snapshot:g}, which fine-tuning does not keep: it keeps {known}."
        )
    for rung in config.search.rungs:
        if not 0 < rung < 1:
            mistakes.append(f"'search.rungs' has {rung:g}: each must be above 0 and less than 1.")
    if config.search.members is None and config.search.seconds is None:
        mistakes.append("'search.members' and 'search.seconds' are both absent: a search needs one of them to end.")
    for section in ("finetune", "train"):
        if _get(config, f"{section}.batch_rows") and _get(config, f"{section}.batch_tokens"):
            mistakes.append(f"give '{section}.batch_rows' or '{section}.batch_tokens', not both.")
    if config.data.max_length is not None and config.data.max_length < 8:
        mistakes.append(f"'data.max_length' must be at least 8, not {config.data.max_length}.")
    if _is_windowed(config) and config.data.max_length is not None and config.data.overlap >= config.data.max_length:
        mistakes.append(
            f"'data.overlap' ({config.data.overlap}) must be less than 'data.max_length' ({config.data.max_length})."
        )
    for part in config.store.keep or []:
        if part not in STORE_PARTS:
            mistakes.append(f"'store.keep' has '{part}': {suggest(part, STORE_PARTS)}")
    if config.store.keep is not None and not config.store.keep:
        mistakes.append("'store.keep' is empty: name what to keep, or leave it out to keep what the heads read.")
    layers = config.encoder.layers
    if layers is not None and not layers:
        mistakes.append("'encoder.layers' is empty: name the last layer, -1, at least, or leave it out to read all.")
    if layers is not None and len(set(layers)) < len(layers):
        mistakes.append(f"'encoder.layers' is {layers}: name each layer once.")
    for entry in config.heads:
        head = entry.get("head") if isinstance(entry, dict) else entry
        names = head if isinstance(entry, dict) and isinstance(head, list) else [head]
        if not names or not all(isinstance(name, str) for name in names):
            mistakes.append(f"'heads' has {entry!r}: each must be a name, or a table with `head = \"name\"` in it.")
    return mistakes
