"""The `task` section of a config: the list of tasks, checks before any data is read, and building the task."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache, partial
from pathlib import Path

from bertvision.data.examples import Example
from bertvision.data.splits import hold_out
from bertvision.data.spooled import collect_examples
from bertvision.errors import ConfigError, NoDataError, UserError, shorten, suggest
from bertvision.kinds import KINDS, LABEL, SPAN, Kind
from bertvision.network import find_address_mistake, is_address
from bertvision.settings import MOST_SEED, out_of_range, setting
from bertvision.tasks import files, glue, hub, squad
from bertvision.tasks.base import PAIR_HEADS, PASSAGES, SPAN_RECIPE, Recipe, Task, TaskInfo
from bertvision.tasks.data_file import DataFile, find_data_file
from bertvision.tasks.text_files import MOST_MEGABYTES, SPOOLED_ROW_BYTES, list_folder, plain_suffix, reading_up_to

SPLITS = ("train", "dev", "test")
FILES_ONLY = ("kind", "text", "text_pair", "label", "id", "dev_share", "labels")
COLUMN_KEYS = ("text", "text_pair", "label", "id")
MOST_QUESTIONS = 1_000_000
LOCATIONS = ("data", *SPLITS, "hub", "hub_config")


@dataclass(frozen=True)
class TaskConfig:
    name: str = setting(MISSING, "name of the task; `bertvision tasks` lists them")
    data: str | None = setting(None, "local folder with the official files; default: the hub", is_path=True)
    train: str | None = setting(
        None, "training file, or its address (s3://…), instead of the one in task.data", is_path=True
    )
    dev: str | None = setting(None, "dev file or address, instead of the one in task.data", is_path=True)
    test: str | None = setting(None, "test file or address, with or without labels", is_path=True)
    hub: str | None = setting(None, "hub dataset to use instead of the task's own", is_path=True)
    hub_config: str | None = setting(None, "configuration (subset) of the hub dataset")
    kind: str | None = setting(
        None, f"files: kind of target ({', '.join(KINDS)}); default: span for .json files, else label"
    )
    text: str | None = setting(None, "files: text column; default: text")
    text_pair: str | None = setting(None, "files: column with the second text of a pair")
    label: str | None = setting(None, "files: label or score column; default: label")
    id: str | None = setting(None, "files: column with unique ids; default: row numbers")
    dev_share: float | None = setting(
        None, "files: share of the training file to score as dev, instead of a dev file", above=0, below=1
    )
    labels: list[str] | None = setting(
        None, "files: all labels in order; default: those in the training file, sorted", most_items=100_000
    )
    most_megabytes: int = setting(
        MOST_MEGABYTES,
        "largest data file, decompressed and with what each row takes: 50 bytes in a table, 500 in official files",
        at_least=1,
        at_most=10**9,
    )
    seed: int = setting(0, "demo: seed of the corpus", at_least=0, at_most=MOST_SEED)
    train_questions: int = setting(3000, "demo: number of training questions", at_least=1, at_most=MOST_QUESTIONS)
    dev_questions: int = setting(600, "demo: number of dev questions", at_least=1, at_most=MOST_QUESTIONS)


TASKS: dict[str, TaskInfo] = {
    info.name: info
    for info in (
        TaskInfo(
            name="squad2", what="where in the passage is the answer, if anywhere?", kind=SPAN,
            metrics=squad.SPAN_METRICS, max_length=squad.MAX_LENGTH, windowed=True, hub=squad.HUB,
            recipe=SPAN_RECIPE,
        ),
        TaskInfo(
            name="squad2_answerable", what="does the passage contain the answer?", kind=LABEL,
            metrics=squad.ANSWERABLE_METRICS, labels=squad.ANSWERABLE_LABELS, max_length=squad.MAX_LENGTH,
            windowed=True, hub=squad.HUB, recipe=PASSAGES,
        ),
        *glue.GLUE.values(),
        TaskInfo(
            name="files", what="your own data: CSV, TSV or JSON lines with labels or scores, or SQuAD-format JSON",
            recipe=Recipe(batch_rows=32),  # users' own texts are mostly short
        ),
        TaskInfo(
            name="demo", what="synthetic reading comprehension, bundled with the package", kind=SPAN,
            metrics=squad.SPAN_METRICS, max_length=squad.MAX_LENGTH, windowed=True, recipe=SPAN_RECIPE,
        ),
    )
}  # fmt: skip


def recipe_of(config: TaskConfig) -> Recipe:
    """The task's defaults for settings that the config leaves out."""
    kind, row = target_kind(config), TASKS.get(config.name)
    if row is None:
        return Recipe()
    if config.name == "files" and kind is not None and kind.position == "token":
        return SPAN_RECIPE
    return replace(row.recipe, heads=PAIR_HEADS) if config.text_pair or row.takes_pairs else row.recipe


def target_kind(config: TaskConfig) -> Kind | None:
    """The kind of target; None if the section has mistakes."""
    if config.name == "files":
        return files_kind_or_none(config)
    return TASKS[config.name].kind if config.name in TASKS else None


def check_task_config(config: TaskConfig) -> list[str]:
    """Every mistake in the section, with settings named as users write them; empty if the task can be built."""
    if not config.name:
        return []  # reported as missing, or as no string
    if config.name not in TASKS:
        return [f"task.name: there is no task {shorten(config.name)}: {suggest(config.name, TASKS)}"]
    mistakes = [*_keys_that_do_not_apply(config), *_wrong_values(config), *_missing_paths(config)]
    if mistakes or config.name == "demo":
        return mistakes
    try:
        found = {} if config.hub else locate_files(config)
        if config.name == "files" and found:
            with reading_up_to(config.most_megabytes):
                mistakes += _wrong_files(config, found)
    except UserError as error:
        mistakes.append(f"task: {error}")
    return mistakes


def locate_files(config: TaskConfig) -> dict[str, DataFile]:
    """The file of each split: the one that the config names, otherwise the one in task.data."""
    given = {split: find_data_file(path) for split in SPLITS if (path := getattr(config, split))}
    if config.name in glue.GLUE:
        row = glue.GLUE[config.name]
        given = {glue.split_of_file(row, path, split): path for split, path in given.items()}
    if not config.data:
        return given
    folder = Path(os.path.expanduser(config.data))
    wanted = [split for split in SPLITS if not any(name.startswith(split) for name in given)]
    found: dict[str, DataFile] = {
        split: path for split, path in _find_in(folder, config, wanted).items() if _wanted(split, wanted)
    }
    if not found and not given:
        raise NoDataError(_nothing_found(folder, config))
    order = {**found, **given}
    return dict(sorted(order.items(), key=lambda item: _split_rank(item[0])))


def files_kind(config: TaskConfig) -> Kind:
    """The target kind of a user's own data: as configured, otherwise inferred from the file type."""
    if config.kind:
        return KINDS[config.kind]
    paths = [path for split in SPLITS if (path := getattr(config, split))]
    is_json = any(plain_suffix(Path(path)) == ".json" for path in paths)
    return SPAN if is_json else LABEL


def files_columns(config: TaskConfig) -> files.Columns:
    """The column names of a user's own data, with defaults filled in."""
    return files.Columns(config.text or "text", config.text_pair, config.label or "label", config.id)


def _find_in(folder: Path, config: TaskConfig, wanted: list[str]) -> dict[str, Path]:
    if config.name in glue.GLUE:
        return glue.find_glue_files(glue.GLUE[config.name], folder)
    if config.name == "files" and not files_kind(config).reads_answers:
        return files.find_files(folder, wanted)
    return squad.find_squad_files(folder, wanted)


def _wanted(split: str, wanted: list[str]) -> bool:
    return split == "ax" or any(split.startswith(name) for name in wanted)


def _split_rank(split: str) -> tuple[int, str]:
    rank = next((number for number, name in enumerate(SPLITS) if split.startswith(name)), len(SPLITS))
    return rank, split


def _nothing_found(folder: Path, config: TaskConfig) -> str:
    is_table = config.name == "files" and not files_kind(config).reads_answers
    tables = 'train.csv, train.tsv, train.jsonl (SQuAD-format JSON with task.kind = "span")'
    names = tables if is_table else "train-v2.0.json, dev-v2.0.json, train*.json, dev*.json"
    contents = ", ".join(path.name for path in list_folder(folder)[:10]) or "nothing"
    return f"no {config.name} data in {folder}: looked for {names}, also .gz and .xz; found {contents}."


def _wrong_files(config: TaskConfig, found: dict[str, DataFile]) -> Iterator[str]:
    kind = files_kind(config)
    if kind.reads_answers:
        return
    if kind.has_labels and not config.labels and "train" not in found:
        yield f"task.labels is missing, and {config.data} has no training file from which to read the labels."
    for split, path in found.items():
        yield from files.check_columns(path, files_columns(config), labelled=split != "test")


def _keys_that_do_not_apply(config: TaskConfig) -> Iterator[str]:
    defaults = {entry.name: entry.default for entry in fields(TaskConfig)}
    changed = [key for key, default in defaults.items() if key != "name" and getattr(config, key) != default]
    if config.name == "demo":
        wrong, why = [key for key in changed if key in LOCATIONS + FILES_ONLY], "the demo generates its own corpus"
    elif config.name != "files":
        wrong, why = [key for key in changed if key in FILES_ONLY], 'it is for task.name = "files"'
    elif (kind := files_kind_or_none(config)) is not None and kind.reads_answers:
        wrong, why = (
            [key for key in changed if key in COLUMN_KEYS + ("labels",)],
            "spans are read from SQuAD-format JSON",
        )
    else:
        wrong, why = [], ""
    yield from (f"task.{key} does not apply to {config.name}: {why}. Remove it." for key in wrong)
    if config.name != "demo":
        demo_keys = [key for key in changed if key in ("seed", "train_questions", "dev_questions")]
        yield from (f'task.{key} does not apply to {config.name}: it is for task.name = "demo".' for key in demo_keys)


def files_kind_or_none(config: TaskConfig) -> Kind | None:
    """Like `files_kind`, but None if task.kind is invalid."""
    return files_kind(config) if config.kind is None or config.kind in KINDS else None


def _wrong_values(config: TaskConfig) -> Iterator[str]:
    for item in fields(TaskConfig):
        yield from out_of_range(item, f"'task.{item.name}'", getattr(config, item.name))
    if config.kind is not None and files_kind_or_none(config) is None:
        yield f"task.kind: there is no kind {shorten(config.kind)}: {suggest(config.kind, KINDS)}"
    local = [f"task.{key}" for key in ("data", *SPLITS) if getattr(config, key)]
    if config.hub and local:
        yield f"task.hub and {', '.join(local)} can't be combined: use the hub or local files."
    if config.dev_share and (config.dev or not config.train):
        yield "task.dev_share divides task.train into train and dev: set task.train, and leave out task.dev."
    if config.hub_config and local:
        yield f"task.hub_config does not apply with {', '.join(local)}: it is for hub datasets."
    if config.name == "files" and not (config.train or config.data or config.hub):
        yield 'task.train is missing: task.name = "files" needs a training file (or task.data, a folder with one).'
    if config.labels is not None:
        if len(set(config.labels)) < max(2, len(config.labels)):
            yield f"task.labels must be at least two different names, found {shorten(config.labels)}."
        kind = files_kind_or_none(config)
        if kind is not None and not kind.has_labels and not kind.reads_answers:
            yield f"task.labels does not apply to {kind}s. Remove it."


def _missing_paths(config: TaskConfig) -> Iterator[str]:
    if config.data and not os.path.isdir(os.path.expanduser(config.data)):
        is_file = os.path.isfile(os.path.expanduser(config.data))
        hint = (
            "this is a file. Set task.train, task.dev or task.test instead."
            if is_file
            else "there is no such folder. Set task.data=FOLDER to the right one."
        )
        yield f"task.data = '{config.data}': {hint}"
    for split in SPLITS:
        path = getattr(config, split)
        if path and is_address(path):
            if mistake := find_address_mistake(path, f"task.{split}"):
                yield mistake
        elif path and not os.path.isfile(os.path.expanduser(path)):
            inside = Path(os.path.expanduser(config.data or "")) / path
            if os.path.isdir(os.path.expanduser(path)):
                hint = "this is a folder. Set task.data instead."
            elif config.data and os.path.isfile(inside):
                hint = f'there is no such file here. Did you mean task.{split}="{inside}"?'
            else:
                hint = f"there is no such file. Set task.{split}=FILE to the right one."
            yield f"task.{split} = '{path}': {hint}"


# ---------------------------------------------------------------------- building the task

Readers = dict[str, Callable[[], Sequence[Example]]]


def build_task(config: TaskConfig) -> Task:
    """Build the task of a config. Files are located now and read on demand, except to find a user's own labels."""
    mistakes = check_task_config(config)
    if mistakes:
        raise ConfigError(mistakes)
    with reading_up_to(config.most_megabytes):
        task = _build_task(config)
    readers = {split: partial(_read_up_to, config.most_megabytes, read) for split, read in task.readers.items()}
    return replace(task, readers=readers)


def _read_up_to(megabytes: float, read: Callable[[], Sequence[Example]]) -> Sequence[Example]:
    with reading_up_to(megabytes):
        return read()


def _build_task(config: TaskConfig) -> Task:
    if config.name == "demo":
        return _squad_task(config, _demo_readers(config), f"the demo corpus, synthetic, seed {config.seed}")
    paths = {} if config.hub else locate_files(config)
    if config.name == "files" and config.dev_share:
        return _with_dev_share(_files_task(config, paths), config.dev_share)
    if config.name == "files":
        return _files_task(config, paths) if paths else _hub_files_task(config)
    if config.name in glue.GLUE:
        return _glue_task(config, paths)
    readers: Readers = {split: partial(squad.read_squad, path) for split, path in paths.items()}
    if paths:
        return _squad_task(config, readers, _name_files(paths))
    name = config.hub or squad.HUB
    readers = {s: partial(hub.read_hub_squad, name, config.hub_config, hub.their_split(s)) for s in ("train", "dev")}
    return _squad_task(config, readers, hub.describe_hub(name, config.hub_config))


def _glue_task(config: TaskConfig, paths: dict[str, DataFile]) -> Task:
    row = glue.GLUE[config.name]
    readers: Readers = {split: partial(glue.read_glue, row, path, split) for split, path in paths.items()}
    source = _name_files(paths)
    if not paths:
        name = config.hub or row.hub
        subset = config.hub_config or (None if config.hub else row.name)
        source = hub.describe_hub(name, subset)
        for split in glue.split_files(row):
            readers[split] = partial(hub.read_hub_glue, row, name, subset, hub.their_split(split), split)
        if row.name == "mnli" and not config.hub:
            readers["ax"] = partial(hub.read_hub_glue, row, name, "ax", "test", "ax")
    pairs, length = row.text_pair is not None, row.max_length
    return Task(row.name, row.kind, row.metrics, readers, row.labels, False, length, source, pairs)


def _squad_task(config: TaskConfig, readers: Readers, source: str) -> Task:
    if config.name == "squad2_answerable":
        readers = {split: partial(_read_answerable, read) for split, read in readers.items()}
    info = TASKS[config.name]
    kind = info.kind or SPAN  # files with spans
    metrics = info.metrics or squad.SPAN_METRICS
    return Task(config.name, kind, metrics, readers, info.labels, True, squad.MAX_LENGTH, source, True)


def _read_answerable(read: Callable[[], Sequence[Example]]) -> list[Example]:
    return squad.to_answerable(read())


def _demo_readers(config: TaskConfig) -> Readers:
    counts = {"train": config.train_questions, "dev": config.dev_questions}
    return {split: partial(_read_demo, split, questions, config.seed) for split, questions in counts.items()}


def _read_demo(split: str, questions: int, seed: int) -> list[Example]:
    from bertvision.tasks.demo import build_corpus  # imported only here: it has long word lists

    return squad.parse_squad(build_corpus(split, questions, seed), f"the demo corpus ({split})")


def _files_task(config: TaskConfig, paths: dict[str, DataFile]) -> Task:
    kind, columns = files_kind(config), files_columns(config)
    if kind.reads_answers:
        return _squad_task(
            config, {s: partial(squad.read_squad, path) for s, path in paths.items()}, _name_files(paths)
        )
    labels = tuple(config.labels or ())
    if kind.has_labels and not labels:
        rows = files.read_rows(paths["train"], SPOOLED_ROW_BYTES)
        labels = files.discover_labels(rows, columns.label, str(paths["train"]))
    readers: Readers = {s: partial(files.read_file, path, columns, kind, labels, s) for s, path in paths.items()}
    source, pairs = _name_files(paths), columns.text_pair is not None
    return Task("files", kind, kind.default_metrics(labels), readers, labels, source=source, takes_pairs=pairs)


def _with_dev_share(task: Task, share: float) -> Task:
    """The same task with its training set divided into train and dev. The seed of a run does not change them. Rows
    with the same text, or the same two texts in either order, are a group: they stay together (`hold_out`), also when a
    part of train is held out."""

    @cache
    def read() -> Sequence[Example]:
        return collect_examples(replace(one, group=one.group or _text_group(one)) for one in task.readers["train"]())

    readers: Readers = {"train": lambda: hold_out(read(), share, 0)[0], "dev": lambda: hold_out(read(), share, 0)[1]}
    return replace(
        task,
        readers={**readers, **{k: v for k, v in task.readers.items() if k not in readers}},
        source=f"{task.source}, of which {share:.0%} are dev",
    )


def _text_group(example: Example) -> str:
    """The same for examples with the same text, or the same two texts in either order."""
    texts = "\n".join(sorted((example.text, example.text_pair or "")))
    return hashlib.blake2b(texts.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _hub_files_task(config: TaskConfig) -> Task:
    assert config.hub is not None
    kind, columns, source = files_kind(config), files_columns(config), hub.describe_hub(config.hub, config.hub_config)
    splits = hub.open_hub(config.hub, config.hub_config)
    if kind.reads_answers:
        spans: Readers = {s: partial(hub.read_squad_rows, data, f"{source}, {s}") for s, data in splits.items()}
        return _squad_task(config, spans, source)
    labels = tuple(config.labels or ())
    if kind.has_labels and not labels:
        train = splits.get("train") or next(iter(splits.values()))
        rows = hub.hub_rows(train, columns.label, source)
        labels = hub.hub_labels(train, columns.label) or files.discover_labels(rows, columns.label, source)
    readers: Readers = {
        split: partial(_read_hub_rows, data, columns, kind, labels, split, source) for split, data in splits.items()
    }
    pairs = columns.text_pair is not None
    return Task("files", kind, kind.default_metrics(labels), readers, labels, source=source, takes_pairs=pairs)


def _read_hub_rows(
    dataset: object, columns: files.Columns, kind: Kind, labels: tuple[str, ...], split: str, source: str
) -> Sequence[Example]:
    where = f"{source}, {split}"
    return files.to_examples(hub.hub_rows(dataset, columns.label, where), columns, kind, labels, split, where)


def _name_files(paths: dict[str, DataFile]) -> str:
    return ", ".join(f"{split}: {path}" for split, path in paths.items())
