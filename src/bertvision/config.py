"""All settings of a run, and how they are read from a TOML file and `section.key=value` overrides.

Precedence: defaults < file < overrides. All mistakes are collected and reported at once. Nothing here imports torch;
checks that need the heads come in through `find_more`.
"""

import copy
import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertvision.disk import check_path, damaged, parse_json, parse_toml, read_bytes, unseal
from bertvision.errors import ConfigError, UserError, shorten
from bertvision.network import find_address_mistake, is_address
from bertvision.settings import (
    MOST_EPOCHS,
    MOST_LAYERS,
    MOST_RATE,
    MOST_SECONDS,
    MOST_SEED,
    MOST_WIDTH,
    build_section,
    find_unfit,
    setting,
)
from bertvision.tasks.config import TASKS, TaskConfig, check_task_config, recipe_of, target_kind
from bertvision.tasks.one_file import is_data_file, task_of_file
from bertvision.tasks.text_files import plain_stem, reading_up_to

SCHEDULES = ("linear", "constant")
MOST_LENGTH, MOST_BATCH, MOST_TOKENS = 1_000_000, 1_000_000, 100_000_000
MOST_ROWS, MOST_MB = 10**9, 10**7
MOST_SEEDS = 10_000
"""Also of the members of a run: `pipeline.members.MOST_MEMBERS`."""
MOST_TRIED = 100_000


@dataclass(frozen=True)
class DataConfig:
    max_length: int | None = setting(
        None,
        "maximum tokens per window; default: depends on the task (GLUE 128, RTE 250, SQuAD 384)",
        at_least=8,
        at_most=MOST_LENGTH,
    )
    overlap: int = setting(
        128, "tokens shared by neighbouring windows of a long passage", at_least=0, at_most=MOST_LENGTH
    )
    hold_out: float | None = setting(
        None,
        "fraction of the training set held out of all training; thresholds and the best model are chosen on it; "
        "default: 0.05, of a small set more: 500 examples, but at most a fifth",
        at_least=0,
        below=1,
    )
    limit_train: int | None = setting(
        None, "use only this many training examples, drawn with `seed`", at_least=1, at_most=MOST_ROWS
    )
    limit_dev: int | None = setting(
        None, "score only this many dev examples, drawn with `seed`", at_least=1, at_most=MOST_ROWS
    )


@dataclass(frozen=True)
class EncoderConfig:
    name: str = setting(
        "embedded", "hub name, local folder, or 'embedded' (all-MiniLM-L6-v2, from the demo extra)", is_path=True
    )
    device: str = setting("auto", "device to run on: 'auto', 'cpu', 'cuda' or 'mps'")
    dtype: str = setting(
        "auto",
        "'auto' (bfloat16 on CUDA with compute capability 8.0 or higher, else float32), 'float32' or 'bfloat16'",
        choices=("auto", "float32", "bfloat16"),
    )
    attention: str = setting(
        "auto", "'auto' (no padding where the device and the model allow it) or 'padded'", choices=("auto", "padded")
    )
    record: bool = setting(True, "record small steps as CUDA graphs and replay them; false: launch kernels one by one")
    compile: str = setting(
        "auto",
        "compile the layers: 'on', 'off' or 'auto' (if an unpadded encoder has minutes of work ahead)",
        choices=("auto", "on", "off"),
    )
    layers: list[int] | None = setting(
        None,
        "layers whose hidden states the heads read: 0 = embeddings, -1 = last; default: all",
        at_least=-MOST_LAYERS, at_most=MOST_LAYERS,
    )  # fmt: skip


CONTRASTIVE_LR, CONTRASTIVE_ROWS = 1e-4, 64
"""Defaults of `finetune.method = "contrastive"`. Every two rows of a batch are compared, so batches are larger."""


@dataclass(frozen=True)
class FinetuneConfig:
    epochs: float = setting(
        1.0,
        "epochs of fine-tuning, whole or fractional; 0 leaves the encoder untouched; default: 1 for questions on "
        "passages and where another setting of [finetune] is given, else 0",
        at_least=0,
        at_most=MOST_EPOCHS,
        by_task=True,
    )
    method: str = setting(
        "full",
        "what to train besides the output layer: 'full' (all weights), 'bitfit' (biases), 'lora' (needs peft), "
        "'contrastive' (all weights, by comparing texts by their labels)",
        choices=("full", "bitfit", "lora", "contrastive"),
    )
    lora_rank: int = setting(8, "lora: rank of the updates to queries and values", at_least=1, at_most=MOST_WIDTH)
    lora_alpha: float = setting(16.0, "lora: updates are scaled by lora_alpha / lora_rank", above=0, below=1e6)
    snapshots: list[float] = setting(
        [],
        "epochs after which to save and score the encoder; the final encoder is always saved",
        at_least=0, at_most=MOST_EPOCHS,
    )  # fmt: skip
    lr: float | None = setting(
        None,
        "learning rate; default: 1e-5 for MNLI, QNLI and QQP, else 2e-5; contrastive: 1e-4",
        above=0,
        below=MOST_RATE,
    )
    output_lr: float | None = setting(
        None,
        "learning rate of a new output layer; default: 10 times `finetune.lr` for labels and scores with 'full', "
        "else equal to it",
        above=0,
        below=MOST_RATE,
    )
    read: str | None = setting(
        None,
        "labels and scores: what the output layer reads: [CLS] ('cls', through the pooler if there is one), or the "
        "mean or maximum over tokens; default: as the encoder was made, or both 'cls' and 'mean' if it does not say",
        choices=("cls", "mean", "max"),
    )
    schedule: str = setting(
        "linear", "learning rate after the warm-up: 'linear' (down to 0) or 'constant'", choices=SCHEDULES
    )
    warmup: float = setting(0.1, "fraction of the steps during which the learning rate rises", at_least=0, below=1)
    decay: float = setting(0.01, "weight decay (not applied to biases and LayerNorm)", at_least=0, below=MOST_RATE)
    clip: float | None = setting(1.0, "maximum gradient norm; 'none': no clipping", above=0)
    batch_rows: int | None = setting(
        None,
        "windows per step; default: 32, or 16 for RTE, CoLA, STS-B and SQuAD (the papers: 8 for SQuAD with BERT-large)",
        at_least=1,
        at_most=MOST_BATCH,
    )
    batch_tokens: int | None = setting(None, "tokens per step, instead of batch_rows", at_least=1, at_most=MOST_TOKENS)
    memory_tokens: int = setting(
        32768, "maximum tokens per forward pass; halved when memory runs out", at_least=1, at_most=MOST_TOKENS
    )
    checkpoint_seconds: float = setting(
        120.0, "seconds between checkpoints, from which an interrupted run resumes", at_least=0, at_most=MOST_SECONDS
    )
    track: str | None = setting(None, "also log to 'tensorboard' or 'wandb'", choices=("tensorboard", "wandb"))


@dataclass(frozen=True)
class TrainConfig:
    snapshots: list[float] | None = setting(None, "snapshots on which to train the heads; default: the last")
    lr: float = setting(1e-3, "learning rate of heads that do not set their own", above=0, below=MOST_RATE)
    epochs: int | None = setting(
        None,
        "epochs of head training; default: 1 for spans, 10 for labels and scores",
        at_least=1,
        at_most=MOST_EPOCHS,
    )
    seeds: int = setting(
        1,
        "seeds per head, counting up from `seed`; tables show mean and standard deviation",
        at_least=1,
        at_most=MOST_SEEDS,
    )
    schedule: str = setting(
        "linear", "learning rate after the warm-up: 'linear' (down to 0) or 'constant'", choices=SCHEDULES
    )
    warmup: float = setting(0.0, "fraction of the steps during which the learning rate rises", at_least=0, below=1)
    decay: float = setting(0.0, "weight decay", at_least=0, below=MOST_RATE)
    clip: float | None = setting(1.0, "maximum gradient norm per head; 'none': no clipping", above=0)
    batch_rows: int | None = setting(
        None,
        "windows per step; default: 16 for spans, 64 for labels and scores",
        at_least=1,
        at_most=MOST_BATCH,
    )
    batch_tokens: int | None = setting(None, "tokens per step, instead of batch_rows", at_least=1, at_most=MOST_TOKENS)
    stack: int | None = setting(
        None,
        "maximum number of heads of equal shape to run as one; 1: one after the other; default: chosen for speed",
        at_least=1,
        at_most=MOST_BATCH,
    )
    source: str = setting(
        "auto",
        "where hidden states come from: 'streamed' (the encoder), 'stored' (disk) or 'auto' (the cheaper one)",
        choices=("auto", "streamed", "stored"),
    )
    shuffle: str = setting(
        "windows",
        "'windows' (full shuffle) or 'blocks' (shuffles blocks of neighbouring windows, for a slow disk)",
        choices=("windows", "blocks"),
    )
    encode_tokens: int | None = setting(
        None,
        "tokens per forward pass of the frozen encoder; default: 8,192, on a GPU up to 32,768 as memory allows",
        at_least=1,
        at_most=MOST_TOKENS,
    )
    dev_each_epoch: bool = setting(
        False, "also score dev after each epoch of the heads: for a report, never for a choice"
    )
    checkpoint_seconds: float = setting(
        120.0, "seconds between checkpoints, from which an interrupted run resumes", at_least=0, at_most=MOST_SECONDS
    )


@dataclass(frozen=True)
class StoreConfig:
    path: str | None = setting(
        None,
        "folder or address (s3://…, gs://…, az://…, hf://…) for stores; default: 'states' in the run folder",
        is_path=True,
    )
    dtype: str = setting(
        "auto",
        "'auto' (bfloat16 if the encoder computes in it, else float16), 'float32', 'bfloat16', 'float16' or 'int8'",
        choices=("auto", "float32", "bfloat16", "float16", "int8"),
    )
    keep: list[str] | None = setting(
        None,
        "states that `encode` writes: 'tokens', 'cls' (with the pooled output), 'mean', 'max', 'deviation'; default: "
        "those the heads read",
        choices=("tokens", "cls", "mean", "max", "deviation"),
    )
    shard_mb: int = setting(
        256, "maximum MB per shard; an interrupted write loses one shard at most", at_least=1, at_most=MOST_MB
    )
    memory_mb: int = setting(
        1024, "approximate MB of states to hold in memory while reading", at_least=1, at_most=MOST_MB
    )


@dataclass(frozen=True)
class EvaluateConfig:
    n_best: int = setting(20, "answers saved per question, with probabilities", at_least=1, at_most=10_000)
    max_answer_tokens: int = setting(30, "maximum tokens per answer", at_least=1, at_most=MOST_LENGTH)
    unanswerable: float | None = setting(
        None, "expected share of unanswerable questions, for the no-answer threshold; default: as in training",
        above=0, below=1,
    )  # fmt: skip

    def given(self) -> dict[str, Any]:
        """The settings, without those that are not set: runs from before there were such stay finished."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}


@dataclass(frozen=True)
class SearchConfig:
    sampler: str = setting(
        "tpe", "how to propose members: 'tpe' (learns from earlier ones) or 'random'", choices=("tpe", "random")
    )
    members: int | None = setting(
        50, "number of members to try; 'none': as many as `seconds` allows", at_least=1, at_most=MOST_TRIED
    )
    seconds: float | None = setting(
        None, "start no new population after this many seconds", above=0, at_most=MOST_SECONDS
    )
    population: int = setting(25, "members trained together in one pass of the encoder", at_least=1, at_most=MOST_SEEDS)
    prune: bool = setting(True, "drop the worse half of the members at each rung")
    rungs: list[float] = setting(
        [0.25, 0.5], "fractions of a member's steps after which it is judged", above=0, below=1, most_items=100
    )
    metric: str | None = setting(None, "held-out metric to choose by; default: the first of the task (spans: F1)")
    snapshot: float | None = setting(None, "snapshot on which to search; default: the last")
    space: dict | None = setting(
        None,
        "settings to vary: a list is a choice, {low=, high=, log=} a range; default: a space for the task",
        type_words="a table or none",
    )


@dataclass(frozen=True)
class RunConfig:
    task: TaskConfig
    data: DataConfig = field(default_factory=DataConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    heads: list[Any] = setting(
        [],
        "heads to train: names, or tables with `head` and its settings; default: see docs/heads.md",
        type_words="a list of head names or tables",
        most_items=MOST_SEEDS,
        by_task=True,
    )
    ensembles: list[Any] = setting(
        [],
        "ensembles of models: lists of names, or tables with `members` or `best`, `method` and `name`; default: the "
        "average of the best three heads for labels and scores if `heads` is not given, else none",
        type_words="a list of lists or tables",
        by_task=True,
    )
    train: TrainConfig = field(default_factory=TrainConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    seed: int = setting(0, "random seed; each head may have its own", at_least=0, at_most=MOST_SEED)
    run: str | None = setting(None, "run folder; default: runs/<task>_<encoder>", is_path=True)

    @property
    def folder(self) -> Path:
        encoder = Path(self.encoder.name).name or "encoder"
        return Path(self.run) if self.run else Path("runs") / f"{self.task.name}_{encoder}"

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def with_absolute_paths(self) -> "RunConfig":
        """The same config with paths that are valid in any working directory, as saved in the run folder."""
        paths = {key: _absolute(getattr(self.task, key)) for key in ("data", "train", "dev", "test")}
        encoder = dataclasses.replace(self.encoder, name=_absolute(self.encoder.name))
        store = dataclasses.replace(self.store, path=_absolute_address(self.store.path))
        task, heads = dataclasses.replace(self.task, **paths), [_with_absolute_begin(entry) for entry in self.heads]
        return dataclasses.replace(self, task=task, encoder=encoder, store=store, heads=heads)


def _absolute_address(address: str | None) -> str | None:
    """The absolute path of a folder, whether or not it exists; addresses (s3://…) are unchanged."""
    return address if address is None or is_address(address) else str(Path(os.path.expanduser(address)).absolute())


def _absolute(path: str | None) -> Any:
    """The absolute path of an existing file or folder; hub names and None are unchanged."""
    whole = Path(os.path.expanduser(path)).absolute() if path else None  # unlike Path.expanduser, accepts ~nobody
    return str(whole) if whole is not None and os.path.exists(whole) else path


def _has_config(path: Any) -> bool:
    return isinstance(path, str) and os.path.isfile(Path(os.path.expanduser(path), "config.json"))


def _with_absolute_begin(entry: Any) -> Any:
    """An entry of `heads` with absolute paths in `begin`, which may be a list (a grid)."""
    if not isinstance(entry, dict) or "begin" not in entry:
        return entry
    begin = entry["begin"]
    paths = begin if isinstance(begin, list) else [begin]
    # A name that is not a folder with a head may be in a shipped kit.
    whole = [_absolute(path) if _has_config(path) else path for path in paths]
    return {**entry, "begin": whole if isinstance(begin, list) else whole[0]}


FindMore = Callable[[RunConfig], list[str]]


def load_config(
    path: str | Path,
    overrides: list[str] | tuple[str, ...] = (),
    find_more: FindMore | None = None,
    on_note: Callable[[str], None] | None = None,
) -> RunConfig:
    """Load a config from a TOML file, a run folder or its config.json, and apply `section.key=value` overrides.

    A table or a file in SQuAD format makes a config by itself; `on_note` is called with notes on what was guessed.
    `find_more` finds mistakes that this module can't detect, in heads for example. They are reported with the others.
    """
    check_path(path, "the config")
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    if is_data_file(path):
        return _config_of_file(path, overrides, find_more, on_note)
    if not path.is_file():
        raise UserError(f"no config at '{path}': give a TOML file (see configs/) or a run folder with a config.json.")
    data = read_bytes(path) or b""
    try:
        text = data.decode("utf-8-sig")
        tables = parse_json(text) if path.suffix == ".json" else parse_toml(text)
    except ValueError as error:
        raise UserError(f"{path} is not valid {path.suffix.lstrip('.').upper() or 'TOML'}: {error}.") from None
    try:
        tables = unseal(tables, data)
    except ValueError as error:
        raise damaged(path, f"{error}; to change a setting, write section.key=value after the command") from None
    if not isinstance(tables, dict):
        raise UserError(f'{path} has no settings: expected sections such as "task", found {shorten(tables, 40)}.')
    return build_config(tables, overrides, find_more)


def _config_of_file(
    path: Path, overrides: Any, find_more: FindMore | None, on_note: Callable[[str], None] | None
) -> RunConfig:
    """The config of a run on a data file. Its folder is named after the file, so that files do not share one."""
    mistakes: list[str] = []
    tables = _with_overrides({"task": {}}, overrides, mistakes)
    if mistakes:
        raise ConfigError(mistakes)
    _refuse_unfit(tables)
    given = tables["task"]
    if not isinstance(given, dict):
        raise ConfigError([f"[task] must be a section with keys, not {shorten(given)}."])
    if given.get("name", "files") != "files":
        name = shorten(given["name"])
        raise UserError(f"{path} makes a run of the task 'files', but task.name is {name}: leave it out.")
    task_mistakes: list[str] = []
    build_section(TaskConfig, {"name": "files", **given}, "task.", task_mistakes)
    if task_mistakes:
        raise ConfigError(task_mistakes)
    with reading_up_to(given.get("most_megabytes", TaskConfig.most_megabytes)):
        tables["task"], notes = task_of_file(path, given)
    config = build_config(tables, (), find_more)
    if on_note is not None:
        for note in notes:
            on_note(note)
    if config.run is not None:
        return config
    encoder = Path(config.encoder.name).name or "encoder"
    return dataclasses.replace(config, run=str(Path("runs") / f"{plain_stem(path)}_{encoder}"))


def build_config(
    tables: dict[str, Any], overrides: list[str] | tuple[str, ...] = (), find_more: FindMore | None = None
) -> RunConfig:
    """Build a config from nested tables. Raise a ConfigError that lists every mistake."""
    mistakes: list[str] = []
    tables = _with_overrides(tables, overrides, mistakes)
    _refuse_unfit(tables)
    config = resolve(build_section(RunConfig, _with_recipe(tables), "", mistakes))
    mistakes += [*_check_sense(config), *check_task_config(config.task)]
    if find_more is not None:
        mistakes += find_more(config)
    if mistakes:
        raise ConfigError(mistakes)
    return config


def _refuse_unfit(tables: Any) -> None:
    """Refuse values that no setting can have, before they are copied, counted or shown."""
    if not isinstance(tables, dict):
        raise UserError(f"settings must be a dict of sections, not {shorten(tables)}.")
    if unfit := list(find_unfit(tables)):
        raise ConfigError(unfit)


def _with_recipe(tables: dict[str, Any]) -> dict[str, Any]:
    """The tables with the heads, ensembles and epochs of the task's recipe where they set none."""
    recipe = recipe_of(build_section(TaskConfig, tables.get("task", {}), "task.", []))
    data, finetune = tables.get("data"), tables.get("finetune", {})
    # Without held-out data, nothing says which heads are the best.
    can_choose = "heads" not in tables and not (isinstance(data, dict) and data.get("hold_out") == 0)
    train = tables.get("train")
    given = {*train} if isinstance(train, dict) else set()
    # What [train] sets holds for all heads.
    heads = [
        {key: value for key, value in head.items() if key not in given} if isinstance(head, dict) else head
        for head in recipe.heads
    ]
    found = {"ensembles": list(recipe.ensembles) if can_choose else [], "heads": heads, **tables}
    if isinstance(finetune, dict):
        # Whoever sets how to fine-tune wants it.
        found["finetune"] = {"epochs": FinetuneConfig.epochs if finetune else recipe.epochs, **finetune}
    return copy.deepcopy(found)


def resolve(config: RunConfig) -> RunConfig:
    """The config with unset values filled in from the task's recipe."""
    recipe, finetune, train = recipe_of(config.task), config.finetune, config.train
    contrastive = finetune.method == "contrastive"
    if finetune.lr is None:
        finetune = dataclasses.replace(finetune, lr=CONTRASTIVE_LR if contrastive else recipe.lr)
    if finetune.batch_rows is None and finetune.batch_tokens is None:
        rows = CONTRASTIVE_ROWS if contrastive else recipe.batch_rows
        finetune = dataclasses.replace(finetune, batch_rows=rows)
    if train.epochs is None:
        train = dataclasses.replace(train, epochs=recipe.head_epochs)
    if train.batch_rows is None and train.batch_tokens is None:
        train = dataclasses.replace(train, batch_rows=recipe.head_batch_rows)
    return dataclasses.replace(config, finetune=finetune, train=train)


def _with_overrides(tables: dict[str, Any], overrides: Any, mistakes: list[str]) -> dict[str, Any]:
    _refuse_unfit(tables)
    tables = copy.deepcopy(tables)
    for override in overrides:
        key, equals, text = override.partition("=") if isinstance(override, str) else ("", "", "")
        if not equals or not key:
            mistakes.append(
                f"{shorten(override)} is not an override: write section.key=value, such as finetune.epochs=0.5."
            )
            continue
        *sections, name = key.strip().split(".")
        table: Any = tables
        for section in sections:
            if isinstance(table, dict):
                if table.get(section) is None:
                    table[section] = {}
                table = table[section]
        if isinstance(table, dict):
            table[name] = _parse_value(text.strip())
        else:
            mistakes.append(f"{shorten('.'.join(sections))} in {shorten(override)} is not a section.")
    return tables


def _parse_value(text: str) -> Any:
    """Parse a TOML value. Text needs no quotes, and `none` means None."""
    if text.lower() == "none":
        return None
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text


def _check_sense(config: RunConfig) -> Iterator[str]:
    """Settings that are valid on their own but not in combination."""
    yield from _check_snapshots(config)
    if config.search.members is None and config.search.seconds is None:
        yield "'search.members' and 'search.seconds' are both none: set at least one, so that the search ends."
    for name, section in (("finetune", config.finetune), ("train", config.train)):
        if section.batch_rows and section.batch_tokens:
            yield f"set '{name}.batch_rows' or '{name}.batch_tokens', not both."
    length, overlap = config.data.max_length, config.data.overlap
    if _is_windowed(config) and length is not None and length <= overlap:
        yield f"'data.overlap' ({overlap}) must be less than 'data.max_length' ({length})."
    if config.store.path is not None and (mistake := find_address_mistake(config.store.path)):
        yield f"'store.path': {mistake}"
    if config.store.keep is not None and not config.store.keep:
        yield "'store.keep' is empty: name the states to write, or leave it out to write those the heads read."
    kind = target_kind(config.task)
    if config.evaluate.unanswerable is not None and kind is not None and not kind.has_threshold:
        yield f"'evaluate.unanswerable' is for questions that may have no answer, but the task predicts a {kind}."
    layers = config.encoder.layers
    if layers is not None and not layers:
        yield "'encoder.layers' is empty: name at least the last layer, -1, or leave it out to read all."
    if layers is not None and len(set(layers)) < len(layers):
        yield f"'encoder.layers' is {layers}: name each layer once."
    for entry in config.heads:
        head = entry.get("head") if isinstance(entry, dict) else entry
        names = head if isinstance(entry, dict) and isinstance(head, list) else [head]
        if not names or not all(isinstance(name, str) for name in names):
            yield f"'heads' has {shorten(entry)}: each must be a name, or a table with `head = \"name\"`."


def _check_snapshots(config: RunConfig) -> Iterator[str]:
    epochs = config.finetune.epochs
    names = Counter(f"{snapshot:g}" for snapshot in {*config.finetune.snapshots, epochs})
    for name in (name for name, count in names.items() if count > 1):
        yield f"'finetune.snapshots' has several values that are saved as epoch_{name}: give them 6 digits at most."
    for snapshot in config.finetune.snapshots:
        if not 0 <= snapshot <= epochs:
            yield f"'finetune.snapshots' has {snapshot:g}, outside 0 to finetune.epochs = {epochs:g}."
    saved = {*config.finetune.snapshots, epochs}
    known = ", ".join(f"{value:g}" for value in sorted(saved))
    remedy = "" if epochs else " To fine-tune, set finetune.epochs."
    for snapshot in config.train.snapshots or []:
        if snapshot not in saved:
            yield f"'train.snapshots' has {snapshot:g}, which fine-tuning does not save: it saves {known}.{remedy}"
    if config.search.snapshot is not None and config.search.snapshot not in saved:
        yield (
            f"'search.snapshot' is {config.search.snapshot:g}, which fine-tuning does not save: it saves {known}."
            f"{remedy}"
        )


def _is_windowed(config: RunConfig) -> bool:
    kind, row = target_kind(config.task), TASKS.get(config.task.name)
    return (row is not None and row.windowed) or (kind is not None and kind.reads_answers)
