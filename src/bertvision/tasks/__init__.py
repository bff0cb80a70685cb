"""Tasks: where examples come from.

task = build_task(TaskConfig(name="rte", data="glue/RTE"))      task.read("train") → [Example, …]
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from bertvision.data.examples import Answer, Example
from bertvision.errors import ConfigError
from bertvision.kinds import SPAN, Kind
from bertvision.tasks import files, glue, hub, squad
from bertvision.tasks.base import Task
from bertvision.tasks.config import (
    TASKS,
    TaskConfig,
    TaskInfo,
    check_task_config,
    files_columns,
    files_kind,
    locate_files,
)

__all__ = [
    "TASKS",
    "Answer",
    "Example",
    "Task",
    "TaskConfig",
    "TaskInfo",
    "build_task",
    "check_task_config",
]

Readers = dict[str, Callable[[], list[Example]]]


def build_task(config: TaskConfig) -> Task:
    """The task a config describes; files are found now and read when a split is (a user's own labels: now)."""
    mistakes = check_task_config(config)
    if mistakes:
        raise ConfigError(mistakes)
    if config.name == "demo":
        return _squad_task(config, _demo_readers(config), f"the demo corpus, synthetic, seed {config.seed}")
    paths = {} if config.hub else locate_files(config)
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


def _glue_task(config: TaskConfig, paths: dict[str, Path]) -> Task:
    row = glue.GLUE[config.name]
    readers: Readers = {split: partial(glue.read_glue, row, path, split) for split, path in paths.items()}
    source = _name_files(paths)
    if not paths:
        name = config.hub or glue.HUB
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


def _read_answerable(read: Callable[[], list[Example]]) -> list[Example]:
    return squad.to_answerable(read())


def _demo_readers(config: TaskConfig) -> Readers:
    counts = {"train": config.train_questions, "dev": config.dev_questions}
    return {split: partial(_read_demo, split, questions, config.seed) for split, questions in counts.items()}


def _read_demo(split: str, questions: int, seed: int) -> list[Example]:
    from bertvision.tasks.demo import build_corpus  # its word lists are needed by nobody else

    return squad.parse_squad(build_corpus(split, questions, seed), f"the demo corpus ({split})")


def _files_task(config: TaskConfig, paths: dict[str, Path]) -> Task:
    kind, columns = files_kind(config), files_columns(config)
    if kind.reads_answers:
        return _squad_task(
            config, {s: partial(squad.read_squad, path) for s, path in paths.items()}, _name_files(paths)
        )
    labels = tuple(config.labels or ())
    if kind.has_labels and not labels:
        labels = files.discover_labels(files.read_rows(paths["train"]), columns.label, str(paths["train"]))
    readers: Readers = {s: partial(files.read_file, path, columns, kind, labels, s) for s, path in paths.items()}
    source, pairs = _name_files(paths), columns.text_pair is not None
    return Task("files", kind, kind.default_metrics(labels), readers, labels, source=source, takes_pairs=pairs)


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
) -> list[Example]:
    where = f"{source}, {split}"
    return files.to_examples(hub.hub_rows(dataset, columns.label, where), columns, kind, labels, split, where)


def _name_files(paths: dict[str, Path]) -> str:
    return ", ".join(f"{split}: {path}" for split, path in paths.items())
