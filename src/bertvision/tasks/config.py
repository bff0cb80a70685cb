"""The `task` section of a config, the list of all tasks, and the search for mistakes before anything is read."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

from bertvision.errors import UserError, suggest
from bertvision.kinds import KINDS, LABEL, SPAN, Kind
from bertvision.tasks import files, glue, squad
from bertvision.tasks.text_files import plain_suffix

SPLITS = ("train", "dev", "test")
FILES_ONLY = ("kind", "text", "text_pair", "label", "id", "labels")
COLUMN_KEYS = ("text", "text_pair", "label", "id")
PLACES = ("data", *SPLITS, "hub", "hub_config")


@dataclass(frozen=True)
class TaskConfig:
    name: str = field(metadata={"help": "the task, one that `bertvision tasks` lists"})
    data: str | None = field(default=None, metadata={"help": "local folder with the official files; absent: the hub"})
    train: str | None = field(default=None, metadata={"help": "training file, instead of the one in task.data"})
    dev: str | None = field(default=None, metadata={"help": "dev file, instead of the one in task.data"})
    test: str | None = field(default=None, metadata={"help": "test file, which may lack labels"})
    hub: str | None = field(default=None, metadata={"help": "hub dataset to read instead of the task's own"})
    hub_config: str | None = field(default=None, metadata={"help": "configuration (subset) of the hub dataset"})
    kind: str | None = field(
        default=None,
        metadata={"help": f"files: {', '.join(KINDS)}; absent: span for .json files, otherwise label"},
    )
    text: str | None = field(default=None, metadata={"help": "files: column of the text; absent: text"})
    text_pair: str | None = field(default=None, metadata={"help": "files: column of the second text of a pair"})
    label: str | None = field(default=None, metadata={"help": "files: column of the label or score; absent: label"})
    id: str | None = field(default=None, metadata={"help": "files: column of unique ids; absent: rows are numbered"})
    labels: list[str] | None = field(
        default=None, metadata={"help": "files: all labels in order; absent: those found in train, sorted"}
    )
    seed: int = field(default=0, metadata={"help": "demo: seed of the corpus"})
    train_questions: int = field(default=3000, metadata={"help": "demo: number of training questions"})
    dev_questions: int = field(default=600, metadata={"help": "demo: number of dev questions"})


@dataclass(frozen=True)
class TaskInfo:
    """What can be said of a task without its data."""

    name: str
    kind: Kind | None
    """None: the config decides."""
    metrics: tuple[str, ...]
    max_length: int
    what: str
    hub: str | None = None
    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    lr: float = 2e-5
    """Learning rate of fine-tuning unless the config gives one."""
    batch_rows: int = 16
    """Windows a step of fine-tuning unless the config gives a number."""


def _glue_info(row: glue.GlueTask) -> TaskInfo:
    columns = tuple(column for column in (row.text, row.text_pair, row.label) if column)
    facts = row.name, row.kind, row.metrics, row.max_length, row.what, glue.HUB, columns, row.labels
    return TaskInfo(*facts, row.lr, row.batch_rows)


SQUAD_COLUMNS = ("question", "context", "answers")
TASKS: dict[str, TaskInfo] = {
    info.name: info
    for info in (
        TaskInfo(
            "squad2", SPAN, squad.SPAN_METRICS, squad.MAX_LENGTH,
            "where in the passage is the answer, if it is there?", squad.HUB, SQUAD_COLUMNS,
        ),
        TaskInfo(
            "squad2_answerable", LABEL, squad.ANSWERABLE_METRICS, squad.MAX_LENGTH,
            "is the answer in the passage?", squad.HUB, SQUAD_COLUMNS, squad.ANSWERABLE_LABELS,
        ),
        *(_glue_info(row) for row in glue.GLUE.values()),
        TaskInfo(
            "files", None, (), 128,
            "your own: CSV, TSV or JSON lines with labels or scores, or SQuAD-format JSON",
        ),
        TaskInfo(
            "demo", SPAN, squad.SPAN_METRICS, squad.MAX_LENGTH,
            "synthetic reading comprehension that ships with the package", columns=SQUAD_COLUMNS,
        ),
    )
}  # fmt: skip


def check_task_config(config: TaskConfig) -> list[str]:
    """Every mistake in the section, in the user's words; empty if it can be built."""
    if config.name not in TASKS:
        return [f"task.name: there is no task '{config.name}': {suggest(config.name, TASKS)}"]
    mistakes = [*_keys_that_do_not_apply(config), *_wrong_values(config), *_missing_paths(config)]
    if mistakes or config.name == "demo":
        return mistakes
    try:
        found = {} if config.hub else locate_files(config)
        if config.name == "files" and found:
            mistakes += _wrong_files(config, found)
    except UserError as error:
        mistakes.append(f"task: {error}")
    return mistakes


def locate_files(config: TaskConfig) -> dict[str, Path]:
    """The local file of each split: those the config names, and for the others those in task.data."""
    given = {split: Path(path).expanduser() for split in SPLITS if (path := getattr(config, split))}
    if config.name in glue.GLUE:
        row = glue.GLUE[config.name]
        given = {glue.split_of_file(row, path, split): path for split, path in given.items()}
    if not config.data:
        return given
    folder = Path(config.data).expanduser()
    wanted = [split for split in SPLITS if not any(name.startswith(split) for name in given)]
    found = {split: path for split, path in _find_in(folder, config, wanted).items() if _wanted(split, wanted)}
    if not found and not given:
        raise UserError(_nothing_found(folder, config))
    order = {**found, **given}
    return dict(sorted(order.items(), key=lambda item: _split_rank(item[0])))


def files_kind(config: TaskConfig) -> Kind:
    """The target kind of a user's own data: as given, else told by the kind of file."""
    if config.kind:
        return KINDS[config.kind]
    paths = [path for split in SPLITS if (path := getattr(config, split))]
    is_json = any(plain_suffix(Path(path)) == ".json" for path in paths)
    return SPAN if is_json else LABEL


def files_columns(config: TaskConfig) -> files.Columns:
    """The column names of a user's own data, with the defaults filled in."""
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
    there = ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"
    return f"no files of {config.name} in {folder}: looked for {names}, also .gz and .xz; it has {there}."


def _wrong_files(config: TaskConfig, found: dict[str, Path]) -> Iterator[str]:
    kind = files_kind(config)
    if kind.reads_answers:
        return
    if kind.has_labels and not config.labels and "train" not in found:
        yield f"task.labels is missing: {config.data} has no training file to find the labels in."
    for split, path in found.items():
        yield from files.check_columns(path, files_columns(config), labelled=split != "test")


def _keys_that_do_not_apply(config: TaskConfig) -> Iterator[str]:
    defaults = {entry.name: entry.default for entry in fields(TaskConfig)}
    changed = [key for key, default in defaults.items() if key != "name" and getattr(config, key) != default]
    if config.name == "demo":
        wrong, why = [key for key in changed if key in PLACES + FILES_ONLY], "the demo makes its own corpus"
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
    """As `files_kind`, and None where task.kind is not a kind at all."""
    return files_kind(config) if config.kind is None or config.kind in KINDS else None


def _wrong_values(config: TaskConfig) -> Iterator[str]:
    if config.kind is not None and files_kind_or_none(config) is None:
        yield f"task.kind: there is no kind '{config.kind}': {suggest(config.kind, KINDS)}"
    local = [f"task.{key}" for key in ("data", *SPLITS) if getattr(config, key)]
    if config.hub and local:
        yield f"task.hub and {', '.join(local)} exclude each other: keep the hub or the local files."
    if config.hub_config and local:
        yield f"task.hub_config does not apply with {', '.join(local)}: it is for hub datasets."
    if config.name == "files" and not (config.train or config.data or config.hub):
        yield 'task.train is missing: task.name = "files" needs a training file (or task.data, a folder that has one).'
    if config.labels is not None:
        if len(set(config.labels)) < max(2, len(config.labels)):
            yield f"task.labels must be two or more different names, found {config.labels}."
        kind = files_kind_or_none(config)
        if kind is not None and not kind.has_labels and not kind.reads_answers:
            yield f"task.labels does not apply to {kind}s. Remove it."
    for key in ("train_questions", "dev_questions"):
        if getattr(config, key) < 1:
            yield f"task.{key} must be 1 or more, found {getattr(config, key)}."


def _missing_paths(config: TaskConfig) -> Iterator[str]:
    if config.data and not Path(config.data).expanduser().is_dir():
        is_file = Path(config.data).expanduser().is_file()
        hint = (
            "it is a file: give it as task.train, task.dev or task.test."
            if is_file
            else "there is no such folder. Give the one you have: task.data=FOLDER."
        )
        yield f"task.data = '{config.data}': {hint}"
    for split in SPLITS:
        path = getattr(config, split)
        if path and not Path(path).expanduser().is_file():
            is_folder = Path(path).expanduser().is_dir()
            hint = (
                "it is a folder: give it as task.data."
                if is_folder
                else f"there is no such file. Give the one you have: task.{split}=FILE."
            )
            yield f"task.{split} = '{path}': {hint}"
