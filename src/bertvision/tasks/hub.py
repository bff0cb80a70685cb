"""The same tasks from the Hugging Face Hub, through `datasets`, which is imported only when a split is read."""

from collections.abc import Iterator
from typing import Any

from bertvision.data.examples import Answer, Example
from bertvision.errors import UserError
from bertvision.network import may_download, not_downloaded
from bertvision.tasks.base import check_unique_ids
from bertvision.tasks.files import Row
from bertvision.tasks.glue import GlueTask
from bertvision.tasks.squad import make_question


def read_hub_glue(task: GlueTask, name: str, config: str | None, hub_split: str, split: str) -> list[Example]:
    """Read a split of a hub dataset with the columns of nyu-mll/glue; a label of -1 means "unknown"."""
    dataset = load_hub(name, config, hub_split)
    where = describe_hub(name, config, hub_split)
    _check_columns(dataset, [*task.hub_columns, "label"], where)
    examples = []
    for number, row in enumerate(dataset):
        text, *pair = (row[column] for column in task.hub_columns)
        target = _glue_target(task, row["label"], f"{where}, row {number}")
        examples.append(Example(f"{split}-{row.get('idx', number)}", text, pair[0] if pair else None, target))
    check_unique_ids(lambda: (example.id for example in examples), where)
    return examples


def read_hub_squad(name: str, config: str | None, hub_split: str) -> list[Example]:
    """Read a split of a hub dataset with the columns of rajpurkar/squad_v2."""
    return read_squad_rows(load_hub(name, config, hub_split), describe_hub(name, config, hub_split))


def read_squad_rows(dataset: Any, where: str) -> list[Example]:
    """Read questions from a `datasets.Dataset` with SQuAD's columns; `answers` may be missing (unknown)."""
    _check_columns(dataset, ["id", "question", "context"], where)
    examples = []
    for row in dataset:
        answers = None
        if row.get("answers") is not None:
            texts, starts = row["answers"]["text"], row["answers"]["answer_start"]
            answers = tuple(Answer(text, start) for text, start in zip(texts, starts, strict=True))
        examples.append(
            make_question(str(row["id"]), row["question"], row["context"], row.get("title"), answers, where)
        )
    check_unique_ids(lambda: (example.id for example in examples), where)
    return examples


def open_hub(name: str, config: str | None) -> dict[str, Any]:
    """All splits of a hub dataset, under our names: validation → dev."""
    dataset = load_hub(name, config, None)
    return {our_split(split): dataset[split] for split in dataset}


def hub_rows(dataset: Any, label: str, where: str) -> Iterator[Row]:
    """Rows in the form of `files.Row`: a ClassLabel becomes its name, -1 becomes None."""
    names = hub_labels(dataset, label)
    for number, row in enumerate(dataset):
        if names is not None:
            index = row[label]
            row = {**row, label: names[index] if index is not None and index >= 0 else None}
        yield f"{where}, row {number}", row


def hub_labels(dataset: Any, label: str) -> tuple[str, ...] | None:
    """The label names that the dataset declares (a ClassLabel column), if any."""
    names = getattr(dataset.features.get(label), "names", None)
    return tuple(names) if names else None


def our_split(hub_split: str) -> str:
    """validation_matched → dev_matched"""
    return "dev" + hub_split.removeprefix("validation") if hub_split.startswith("validation") else hub_split


def their_split(split: str) -> str:
    """dev_matched → validation_matched"""
    return "validation" + split.removeprefix("dev") if split.startswith("dev") else split


def describe_hub(name: str, config: str | None, hub_split: str | None = None) -> str:
    """Description of the dataset, for messages and the run folder."""
    parts = [
        f"hub dataset '{name}'",
        f"config '{config}'" if config else "",
        f"split '{hub_split}'" if hub_split else "",
    ]
    return ", ".join(part for part in parts if part)


def load_hub(name: str, config: str | None, hub_split: str | None) -> Any:
    """Call `datasets.load_dataset`; its many kinds of errors become one UserError that says what to do."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            "hub datasets need the package 'datasets': pip install 'bertvision[hub]', "
            "or use local files with task.data=FOLDER."
        ) from error
    before = datasets.config.HF_HUB_OFFLINE
    try:
        datasets.config.HF_HUB_OFFLINE = before or not may_download()
        return datasets.load_dataset(name, config, split=hub_split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        if not may_download():
            where = describe_hub(name, config, hub_split)
            raise UserError(not_downloaded(f"the {where}", f"hf download --repo-type dataset {name}")) from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"could not load the {describe_hub(name, config, hub_split)}: {reason.rstrip('.')}. "
            "Check the network and the name, or use local files with task.data=FOLDER."
        ) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _check_columns(dataset: Any, wanted: list[str], where: str) -> None:
    missing = [column for column in wanted if column not in dataset.column_names]
    if missing:
        raise UserError(f"{where} has no column {', '.join(missing)}; it has {', '.join(dataset.column_names)}.")


def _glue_target(task: GlueTask, label: Any, place: str) -> int | float | None:
    if label is None or label == -1:
        return None
    if not task.labels:
        return float(label)
    if label not in range(len(task.labels)):
        raise UserError(f"{place}: label {label!r} is not in 0 … {len(task.labels) - 1}.")
    return int(label)
