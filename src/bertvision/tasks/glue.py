"""The nine GLUE tasks, read from their official TSV files. Each entry of `GLUE` names the columns of a task.

The files are not quoted: a line is a row, tabs separate cells, and quotation marks are ordinary characters.
"""

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bertvision.data.examples import Example
from bertvision.errors import NoDataError, UserError, list_names, shorten
from bertvision.kinds import LABEL, SCORE, Kind
from bertvision.tasks.base import Recipe, TaskInfo, check_unique_ids
from bertvision.tasks.data_file import DataFile
from bertvision.tasks.text_files import find_file, list_folder, read_lines, split_tabs

# Batch size and learning rate of the 2021 paper.
LARGE_SETS = Recipe(lr=1e-5, batch_rows=32)
SMALL_SETS = Recipe(batch_rows=16)


@dataclass(frozen=True, kw_only=True)
class GlueTask(TaskInfo):
    kind: Kind = LABEL
    folder: str
    """Name of the official folder, and of the submission file without its extension."""
    text: str
    text_pair: str | None = None
    label: str = "label"
    index: str = "index"
    """Column with the row number; rows of files without it are numbered from 0."""
    values: tuple[str, ...] = ("0", "1")
    """The labels as written in the files and expected by the GLUE server."""
    hub: str = "nyu-mll/glue"
    hub_columns: tuple[str, ...] = ("sentence1", "sentence2")
    headerless: tuple[str, ...] = ()
    """Columns of train and dev files that have no header line."""
    recipe: Recipe = Recipe(batch_rows=32)
    has_broken_rows: bool = False
    """The official file has a few malformed lines; they are skipped with a warning."""

    @property
    def takes_pairs(self) -> bool:
        return self.text_pair is not None


NLI = ("entailment", "not_entailment")
MNLI = ("entailment", "neutral", "contradiction")

GLUE = {
    row.name: row
    for row in (
        GlueTask(
            name="cola", folder="CoLA", what="is this sentence grammatical?", metrics=("matthews",),
            text="sentence", labels=("unacceptable", "acceptable"),
            headerless=("source", "label", "mark", "sentence"), hub_columns=("sentence",), recipe=SMALL_SETS,
        ),
        GlueTask(
            name="sst2", folder="SST-2", what="is this sentence from a film review positive?", metrics=("accuracy",),
            text="sentence", labels=("negative", "positive"), hub_columns=("sentence",),
        ),
        GlueTask(
            name="mrpc", folder="MRPC", what="do two news sentences mean the same thing?", metrics=("accuracy", "f1"),
            text="#1 String", text_pair="#2 String", label="Quality", labels=("not_equivalent", "equivalent"),
        ),
        GlueTask(
            name="stsb", folder="STS-B", what="how similar are two sentences, 0 to 5?", metrics=("pearson", "spearman"),
            kind=SCORE, text="sentence1", text_pair="sentence2", label="score", recipe=SMALL_SETS,
        ),
        GlueTask(
            name="qqp", folder="QQP", what="do two questions ask the same thing?", metrics=("accuracy", "f1"),
            text="question1", text_pair="question2", label="is_duplicate", index="id",
            labels=("not_duplicate", "duplicate"), hub_columns=("question1", "question2"), recipe=LARGE_SETS,
            has_broken_rows=True,
        ),
        GlueTask(
            name="mnli", folder="MNLI", what="does the premise entail the hypothesis? (two dev sets)",
            metrics=("accuracy",), text="sentence1", text_pair="sentence2", label="gold_label", labels=MNLI,
            values=MNLI, hub_columns=("premise", "hypothesis"), recipe=LARGE_SETS,
        ),
        GlueTask(
            name="qnli", folder="QNLI", what="does the sentence answer the question?", metrics=("accuracy",),
            text="question", text_pair="sentence", labels=NLI, values=NLI, hub_columns=("question", "sentence"),
            recipe=LARGE_SETS,
        ),
        GlueTask(
            name="rte", folder="RTE", what="does the text entail the hypothesis?", metrics=("accuracy",),
            text="sentence1", text_pair="sentence2", labels=NLI, values=NLI, max_length=250, recipe=SMALL_SETS,
        ),
        GlueTask(
            name="wnli", folder="WNLI", what="does the sentence follow once its pronoun is resolved?",
            metrics=("accuracy",), text="sentence1", text_pair="sentence2", labels=("not_entailment", "entailment"),
        ),
    )
}  # fmt: skip

SPLIT_FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
MNLI_SPLIT_FILES = {
    split: f"{split}.tsv" for split in ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched")
}
AX_FILES = ("diagnostic.tsv", "AX.tsv")
"""GLUE's diagnostic set, which has no labels and is predicted by MNLI models: split "ax" of mnli."""


def split_files(task: GlueTask) -> dict[str, str]:
    """The official file name of each split."""
    return MNLI_SPLIT_FILES if task.name == "mnli" else SPLIT_FILES


def find_glue_files(task: GlueTask, folder: Path) -> dict[str, Path]:
    """The file of each split in `folder`, which is the folder of the task or of all of GLUE."""
    own = glue_folder(task, folder)
    found = {split: find_file(own, name) for split, name in split_files(task).items()}
    if task.name == "mnli":
        inside = [own, own.parent / "diagnostic", own.parent / "AX"]
        found["ax"] = next((path for each in inside for name in AX_FILES if (path := find_file(each, name))), None)
    return {split: path for split, path in found.items() if path}


def glue_folder(task: GlueTask, folder: Path) -> Path:
    """`folder` itself if it has the task's files, else its subfolder with the official name, ignoring case."""
    names = split_files(task).values()
    inside = [path for path in list_folder(folder) if is_folder_of(task, path) and os.path.isdir(path)]
    for candidate in [folder, *inside]:
        if any(find_file(candidate, name) for name in names):
            return candidate
    raise NoDataError(
        f"no {task.folder} files in {folder}: looked for {', '.join(names)} (also .gz, .xz) there and in its "
        f"subfolder {task.folder}. Set task.data to the {task.folder} folder or its parent."
    )


def is_folder_of(task: GlueTask, folder: Path) -> bool:
    """Whether the folder has the task's official name, ignoring case and hyphens."""
    return folder.name.lower().replace("-", "").replace("_", "") == task.folder.lower().replace("-", "")


def split_of_file(task: GlueTask, path: DataFile, split: str) -> str:
    """The split of an explicit file: MNLI's two dev and test sets are recognised by their official names."""
    if task.name != "mnli" or split == "train":
        return split
    stem = path.name.split(".")[0]
    if split == "test" and stem in {name.split(".")[0] for name in AX_FILES}:
        return "ax"
    return stem if stem.startswith(f"{split}_") and stem in MNLI_SPLIT_FILES else split


def read_glue(task: GlueTask, path: DataFile, split: str) -> list[Example]:
    """Every row of an official file, in order. Test files have no labels, so their targets are None."""
    labelled = split == "train" or split.startswith("dev")
    examples: list[Example] = []
    for number, row in _read_rows(task, path, headerless=bool(task.headerless) and labelled, labelled=labelled):
        index = row.get(task.index, str(len(examples)))
        target = _target(task, row[task.label], f"{path}, line {number}") if task.label in row else None
        pair = row[task.text_pair] if task.text_pair else None
        examples.append(Example(f"{split}-{index}", row[task.text], pair, target))
    if not examples:
        raise UserError(f"{path} has a header but no rows.")
    check_unique_ids(lambda: (example.id for example in examples), str(path))
    return examples


def _read_rows(
    task: GlueTask, path: DataFile, headerless: bool, labelled: bool
) -> Iterator[tuple[int, dict[str, str]]]:
    """Each row as column → cell, with its line number."""
    lines = ((number, split_tabs(line)) for number, line in read_lines(path) if line)
    columns = list(task.headerless) if headerless else next(lines)[1]
    _check_columns(task, columns, path, labelled)
    broken, count = [], 0
    for number, cells in lines:
        count += 1
        if len(cells) == len(columns):
            yield number, dict(zip(columns, cells, strict=True))
        elif task.has_broken_rows:
            broken.append(number)
        else:
            raise UserError(_broken_row(path, number, len(columns), len(cells)))
    if broken:
        _report_broken(path, broken, count)


def _check_columns(task: GlueTask, columns: list[str], path: DataFile, labelled: bool) -> None:
    wanted = [task.text, task.text_pair, task.label if labelled else None]
    missing = [column for column in wanted if column and column not in columns]
    if missing:
        raise UserError(
            f"{path} is not an official {task.folder} file: its first line has no column {', '.join(missing)}; "
            f'it has {list_names(columns, 300)}. For your own files, set task.name = "files".'
        )


def _broken_row(path: DataFile, number: int, expected: int, found: int) -> str:
    return (
        f"{path}, line {number}: expected {expected} cells separated by tabs, found {found}. "
        "Fix the line, or download the file again."
    )


def _report_broken(path: DataFile, broken: list[int], count: int) -> None:
    """Warn about a few malformed lines, which the official file has; raise if there are more."""
    lines = ", ".join(map(str, broken[:5])) + (" …" if len(broken) > 5 else "")
    message = f"{path}: {len(broken)} of {count} lines are malformed, with the wrong number of columns (line {lines})"
    if len(broken) > max(3, count // 100):
        raise UserError(f"{message}; the official file has only a few. Download it again.")
    warnings.warn(f"{message}; they are skipped.", stacklevel=2)


def _target(task: GlueTask, cell: str, place: str) -> int | float:
    if task.labels:
        if cell not in task.values:
            raise UserError(
                f"{place}: unknown label {shorten(cell)} in column {task.label}, expected {', '.join(task.values)}."
            )
        return task.values.index(cell)
    try:
        score = float(cell)
    except ValueError:
        score = float("nan")
    if not 0 <= score <= 5:
        raise UserError(f"{place}: the score must be a number from 0 to 5, found {shorten(cell)}.")
    return score
