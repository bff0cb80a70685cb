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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertvision.errors import ConfigError, UserError
from bertvision.settings import build_section, setting
from bertvision.tasks.config import TASKS, TaskConfig, check_task_config, recipe_of, target_kind

SCHEDULES = ("linear", "constant")


@dataclass(frozen=True)
class DataConfig:
    max_length: int | None = setting(
        None, "tokens a window holds; absent: the task's own (GLUE 128, RTE 250, SQuAD 384)", at_least=8
    )
    overlap: int = setting(128, "tokens that neighbouring windows of a long passage share", at_least=0)
    hold_out: float = setting(
        0.05, "share of train kept away from all training, for thresholds and other choices", at_least=0, below=1
    )
    limit_train: int | None = setting(None, "use only this many training examples (drawn with `seed`)", at_least=1)
    limit_dev: int | None = setting(None, "score only this many dev examples (drawn with `seed`)", at_least=1)


@dataclass(frozen=True)
class EncoderConfig:
    name: str = setting("embedded", "hub name, local folder, or 'embedded' (all-MiniLM-L6-v2 from the demo extra)")
    device: str = setting("auto", "'auto', 'cpu', 'cuda', 'mps'")
    dtype: str = setting(
        "auto",
        "'auto' (bfloat16 on CUDA from capability 8.0, else float32), 'float32', 'bfloat16'",
        choices=("auto", "float32", "bfloat16"),
    )
    attention: str = setting(
        "auto", "'auto' (unpadded where the device and model allow it), 'padded'", choices=("auto", "padded")
    )
    record: bool = setting(True, "small steps are recorded as CUDA graphs and played again; false: started one by one")
    compile: str = setting(
        "auto",
        "'on', 'off', 'auto': layers are compiled where an unpadded encoder has minutes of work before it",
        choices=("auto", "on", "off"),
    )
    layers: list[int] | None = setting(
        None, "layers whose states the heads read, 0 = embeddings, -1 = the last; absent: all"
    )


@dataclass(frozen=True)
class FinetuneConfig:
    epochs: float = setting(
        1.0, "passes over the training windows; 0 leaves the encoder as it is", at_least=0, below=math.inf
    )
    method: str = setting(
        "full",
        "what learns, with the output layer: 'full' (all), 'bitfit' (biases), 'lora' (low-rank updates; peft)",
        choices=("full", "bitfit", "lora"),
    )
    lora_rank: int = setting(8, "rank of each update of queries and values, for 'lora'", at_least=1)
    lora_alpha: float = setting(16.0, "updates count lora_alpha / lora_rank times, for 'lora'", above=0, below=math.inf)
    snapshots: list[float] = setting([], "epochs after which the encoder is kept and scored; the last is always kept")
    lr: float | None = setting(
        None, "learning rate; absent: 1e-5 for MNLI, QNLI, QQP, else 2e-5", above=0, below=math.inf
    )
    schedule: str = setting(
        "linear", "'linear' (warm-up, then down to 0) or 'constant' (after the warm-up)", choices=SCHEDULES
    )
    warmup: float = setting(0.1, "share of the steps in which the learning rate rises", at_least=0, below=1)
    decay: float = setting(0.01, "weight decay (not of biases and LayerNorm)", at_least=0, below=math.inf)
    clip: float | None = setting(1.0, "largest norm of the gradient; 'none': no clipping", above=0)
    batch_rows: int | None = setting(
        None,
        "windows a step; absent: 32, or 16 for RTE, CoLA, STS-B, SQuAD (the papers: 8 for SQuAD with BERT-large)",
        at_least=1,
    )
    batch_tokens: int | None = setting(None, "tokens a step instead of windows", at_least=1)
    memory_tokens: int = setting(
        32768, "most tokens that go through the encoder at once; halved when memory runs out", at_least=1
    )
    checkpoint_seconds: float = setting(
        120.0, "how often the state is kept, so that a killed run can go on", at_least=0
    )
    track: str | None = setting(None, "also log to 'tensorboard' or 'wandb'", choices=("tensorboard", "wandb"))


@dataclass(frozen=True)
class TrainConfig:
    snapshots: list[float] | None = setting(None, "snapshots whose states the heads are trained on; absent: the last")
    lr: float = setting(1e-3, "learning rate of a head that gives none of its own", above=0, below=math.inf)
    epochs: int | None = setting(
        None, "passes over the states; absent: 1 for spans, 10 for labels and scores", at_least=1
    )
    seeds: int = setting(
        1, "how many times each head is trained, with seeds from `seed` on; tables show the spread", at_least=1
    )
    schedule: str = setting("linear", "'linear' or 'constant'", choices=SCHEDULES)
    warmup: float = setting(0.0, "share of the steps in which the learning rate rises", at_least=0, below=1)
    decay: float = setting(0.0, "weight decay", at_least=0, below=math.inf)
    clip: float | None = setting(1.0, "largest norm of a head's gradient; 'none': no clipping", above=0)
    batch_rows: int | None = setting(None, "windows a step; absent: 16 for spans, 64 for labels and scores", at_least=1)
    batch_tokens: int | None = setting(None, "tokens a step instead of windows", at_least=1)
    stack: int | None = setting(
        None,
        "heads of equal shapes that run as one, at most; 1: one after the other; absent: what is fast here",
        at_least=1,
    )
    source: str = setting(
        "auto",
        "where states come from: 'streamed' (the encoder), 'stored' (a disk), 'auto' (what is cheaper here)",
        choices=("auto", "streamed", "stored"),
    )
    shuffle: str = setting(
        "windows",
        "'windows' (any order), or 'blocks' (runs of neighbours, well mixed): for a store on a slow disk",
        choices=("windows", "blocks"),
    )
    encode_tokens: int | None = setting(
        None,
        "tokens that go through the frozen encoder at once; absent: 8,192, on a GPU up to 32,768 as memory allows",
        at_least=1,
    )
    checkpoint_seconds: float = setting(
        120.0, "how often the heads' state is kept, so that a killed run can go on", at_least=0
    )


@dataclass(frozen=True)
class StoreConfig:
    path: str | None = setting(
        None, "folder or fsspec address (s3://…) that the stores go to; absent: 'states' in the run folder"
    )
    dtype: str = setting(
        "auto",
        "'auto' (bfloat16 where the encoder computes in it, else float16), 'float32', 'bfloat16', 'float16', 'int8'",
        choices=("auto", "float32", "bfloat16", "float16", "int8"),
    )
    keep: list[str] | None = setting(
        None,
        "what `encode` keeps: 'tokens', 'cls' (with the pooled output), 'mean'; absent: what the heads read",
        choices=("tokens", "cls", "mean"),
    )
    shard_mb: int = setting(256, "MB of a shard at most: what a kill while writing can cost", at_least=1)
    memory_mb: int = setting(1024, "about how many MB of states are read ahead and in use", at_least=1)


@dataclass(frozen=True)
class EvaluateConfig:
    n_best: int = setting(20, "answers kept for each question, with probabilities", at_least=1)
    max_answer_tokens: int = setting(30, "longest answer in tokens", at_least=1)


@dataclass(frozen=True)
class SearchConfig:
    sampler: str = setting(
        "tpe", "what proposes members: 'tpe' (learns from those before) or 'random'", choices=("tpe", "random")
    )
    members: int | None = setting(50, "how many members are tried; 'none': as many as `seconds` allow", at_least=1)
    seconds: float | None = setting(None, "no population is begun after so many seconds of search", above=0)
    population: int = setting(25, "members that train together, in one pass of the encoder", at_least=1)
    prune: bool = setting(True, "drop the worse half of the members at each rung of the pass")
    rungs: list[float] = setting([0.25, 0.5], "shares of a member's steps after which it is judged", above=0, below=1)
    metric: str | None = setting(None, "held-out score to choose by; absent: the task's first (spans: F1)")
    snapshot: float | None = setting(None, "snapshot whose states are searched on; absent: the last")
    space: dict | None = setting(
        None,
        "settings to try: a list = choices, {low=, high=, log=} = a range; absent: one for the task",
        type_words="a table or absent",
    )


@dataclass(frozen=True)
class RunConfig:
    task: TaskConfig
    data: DataConfig = field(default_factory=DataConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    heads: list[Any] = setting(
        ["learned_pooling", "adapter"],
        "heads to train: names, or tables with `head` and its settings",
        type_words="a list of head names or tables",
    )
    ensembles: list[Any] = setting(
        [],
        "models that answer together: lists of names, or tables with `members`, `method`, `name`",
        type_words="a list of lists or tables",
    )
    train: TrainConfig = field(default_factory=TrainConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    seed: int = setting(0, "seed of every draw; each head may have its own", at_least=0)
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
    config = build_section(RunConfig, tables, "", mistakes)
    mistakes += [*_check_sense(config), *check_task_config(config.task)]
    if find_more is not None:
        mistakes += find_more(config)
    if mistakes:
        raise ConfigError(mistakes)
    return resolve(config)


def resolve(config: RunConfig) -> RunConfig:
    """The config with what it leaves to the task's recipe filled in."""
    recipe, finetune, train = recipe_of(config.task), config.finetune, config.train
    if finetune.lr is None:
        finetune = dataclasses.replace(finetune, lr=recipe.lr)
    if finetune.batch_rows is None and finetune.batch_tokens is None:
        finetune = dataclasses.replace(finetune, batch_rows=recipe.batch_rows)
    if train.epochs is None:
        train = dataclasses.replace(train, epochs=recipe.head_epochs)
    if train.batch_rows is None and train.batch_tokens is None:
        train = dataclasses.replace(train, batch_rows=recipe.head_batch_rows)
    return dataclasses.replace(config, finetune=finetune, train=train)


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


def _check_sense(config: RunConfig) -> Iterator[str]:
    """Settings that are right one by one and wrong together."""
    yield from _check_snapshots(config)
    if config.search.members is None and config.search.seconds is None:
        yield "'search.members' and 'search.seconds' are both absent: a search needs one of them to end."
    for name, section in (("finetune", config.finetune), ("train", config.train)):
        if section.batch_rows and section.batch_tokens:
            yield f"give '{name}.batch_rows' or '{name}.batch_tokens', not both."
    length, overlap = config.data.max_length, config.data.overlap
    if _is_windowed(config) and length is not None and length <= overlap:
        yield f"'data.overlap' ({overlap}) must be less than 'data.max_length' ({length})."
    if config.store.keep is not None and not config.store.keep:
        yield "'store.keep' is empty: name what to keep, or leave it out to keep what the heads read."
    layers = config.encoder.layers
    if layers is not None and not layers:
        yield "'encoder.layers' is empty: name the last layer, -1, at least, or leave it out to read all."
    if layers is not None and len(set(layers)) < len(layers):
        yield f"'encoder.layers' is {layers}: name each layer once."
    for entry in config.heads:
        head = entry.get("head") if isinstance(entry, dict) else entry
        names = head if isinstance(entry, dict) and isinstance(head, list) else [head]
        if not names or not all(isinstance(name, str) for name in names):
            yield f"'heads' has {entry!r}: each must be a name, or a table with `head = \"name\"` in it."


def _check_snapshots(config: RunConfig) -> Iterator[str]:
    epochs = config.finetune.epochs
    for snapshot in config.finetune.snapshots:
        if not 0 <= snapshot <= epochs:
            yield f"'finetune.snapshots' has {snapshot:g}, outside 0 to finetune.epochs = {epochs:g}."
    kept = {*config.finetune.snapshots, epochs}
    known = ", ".join(f"{value:g}" for value in sorted(kept))
    for snapshot in config.train.snapshots or []:
        if snapshot not in kept:
            yield f"'train.snapshots' has {snapshot:g}, which fine-tuning does not keep: it keeps {known}."
    if config.search.snapshot is not None and config.search.snapshot not in kept:
        yield f"'search.snapshot' is {config.search.snapshot:g}, which fine-tuning does not keep: it keeps {known}."


def _is_windowed(config: RunConfig) -> bool:
    kind, row = target_kind(config.task), TASKS.get(config.task.name)
    return (row is not None and row.windowed) or (kind is not None and kind.reads_answers)
