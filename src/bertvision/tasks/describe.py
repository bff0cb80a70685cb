"""The data files in a folder, for `bertvision tasks --data DIR`: rows, label distribution and lengths of every task.

A file that can't be read is listed with its error.
"""

import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bertvision.data.examples import Example
from bertvision.disk import check_path
from bertvision.errors import UserError
from bertvision.kinds import LABEL, SCORE
from bertvision.tasks import files, glue, squad
from bertvision.tasks.text_files import find_file, list_folder, read_lines, split_tabs

DEPTH = 2
"""Levels of subfolders to search."""
PERCENTILES = (50, 90, 98, 100)
MANY_LABELS = 20


@dataclass(frozen=True)
class Found:
    """A file that looks like a split of a task."""

    task: str
    split: str
    path: Path
    read: Callable[[], Sequence[Example]]
    labels: Callable[[], Sequence[str]]


def describe_folder(path: str | Path) -> list[dict[str, Any]]:
    """One entry per split: task, split, file, and its rows, label distribution and lengths in words, or its error.

    {"task": "rte", "split": "dev", "file": "…/RTE/dev.tsv", "rows": 277,
     "labels": {"entailment": 0.53, "not_entailment": 0.47}, "words": {"50": 53, "90": 103, "98": 167, "100": 208}}
    Instead of "labels", questions have "answerable" (a fraction) and scores have "scores" (mean, min, max).
    """
    check_path(path, "the folder of data")
    folder = Path(os.path.expanduser(path))
    if not os.path.isdir(folder):
        raise UserError(f"there is no folder {folder}.")
    entries = [_describe(found) for inside in _folders(folder, DEPTH) for found in _find(inside)]
    if not entries:
        raise UserError(
            f"found no data in {folder}: looked for GLUE folders ({', '.join(r.folder for r in glue.GLUE.values())}), "
            "SQuAD files (train*.json, dev*.json) and train, dev or test as .csv, .tsv or .jsonl (also .gz, .xz)."
        )
    return entries


def describe_examples(examples: Sequence[Example], labels: Sequence[str]) -> dict[str, Any]:
    """Number of rows, distribution of targets, and percentiles of length in words (both texts together)."""
    entry: dict[str, Any] = {"rows": len(examples)}
    answers = [example.answers for example in examples if example.answers is not None]
    targets = [example.target for example in examples if example.target is not None]
    if answers:
        entry["answerable"] = sum(map(bool, answers)) / len(answers)
    elif targets and labels:
        counts = Counter(targets)
        entry["labels"] = {label: counts[index] / len(targets) for index, label in enumerate(labels)}
    elif targets:
        entry["scores"] = {"mean": math.fsum(targets) / len(targets), "min": min(targets), "max": max(targets)}
    lengths = sorted(len(example.text.split()) + len((example.text_pair or "").split()) for example in examples)
    # Nearest rank: the smallest length that at least this percentage of rows do not exceed.
    ranks = {percent: math.ceil(percent * len(lengths) / 100) - 1 for percent in PERCENTILES}
    entry["words"] = {str(percent): lengths[rank] for percent, rank in ranks.items()}
    return entry


def _describe(found: Found) -> dict[str, Any]:
    entry: dict[str, Any] = {"task": found.task, "split": found.split, "file": str(found.path)}
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            entry |= describe_examples(found.read(), found.labels())
    except UserError as error:
        return entry | {"error": str(error)}
    return entry | ({"warning": str(caught[0].message)} if caught else {})


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    yield folder
    if depth:
        for inside in list_folder(folder):
            if inside.name.startswith(".") or not _can_be_listed(inside):
                continue
            yield from _folders(inside, depth - 1)


def _can_be_listed(path: Path) -> bool:
    try:
        return os.path.isdir(path) and list_folder(path) is not None
    except UserError:
        return False


def _find(folder: Path) -> Iterator[Found]:
    """The splits whose files are directly in `folder`."""
    row = _glue_task_of(folder)
    if row is not None:
        for split, path in glue.find_glue_files(row, folder).items():
            yield Found(row.name, split, path, partial(glue.read_glue, row, path, split), partial(tuple, row.labels))
    else:
        yield from _find_diagnostic(folder)
        yield from _find_own(folder)
    for split in ("train", "dev", "test"):
        for path in squad.squad_files(folder, split):
            yield Found("squad2", split, path, partial(squad.read_squad, path), tuple)


def _find_diagnostic(folder: Path) -> Iterator[Found]:
    row = glue.GLUE["mnli"]
    for path in filter(None, (find_file(folder, name) for name in glue.AX_FILES)):
        yield Found("mnli", "ax", path, partial(glue.read_glue, row, path, "ax"), tuple)


def _find_own(folder: Path) -> Iterator[Found]:
    """A user's own files, read with the default columns: text and label."""
    paths = _own_files(folder)
    for split, path in paths.items():
        source = paths.get("train", None if split == "test" else path)
        labels = partial(_own_labels, source)
        yield Found("files", split, path, partial(_read_own, path, labels, split), labels)


def _own_files(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for split in files.STEMS:
        try:
            found |= files.find_files(folder, [split])
        except UserError:  # several files: list each under its own name
            stems = files.STEMS[split]
            paths = [path for path in list_folder(folder) if path.name.split(".")[0] in stems]
            found |= {path.name: path for path in paths if os.path.isfile(path)}
    return found


def _own_labels(path: Path | None) -> Sequence[str]:
    """The labels of a training file; none if they are many different numbers, that is, scores."""
    labels = files.discover_labels(files.read_rows(path), "label", str(path)) if path else ()
    return () if len(labels) > MANY_LABELS and all(map(_is_number, labels)) else labels


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _read_own(path: Path, labels: Callable[[], Sequence[str]], split: str) -> Sequence[Example]:
    mistakes = files.check_columns(path, files.Columns(), labelled=split != "test")
    if mistakes:
        raise UserError(" ".join(mistakes))
    known = labels()
    return files.read_file(path, files.Columns(), LABEL if known else SCORE, known, split)


def _glue_task_of(folder: Path) -> glue.GlueTask | None:
    """The task, recognised by the folder's name or by the first lines of its training or dev file."""
    rows = [row for row in glue.GLUE.values() if _has_files(row, folder)]
    named = next((row for row in rows if glue.is_folder_of(row, folder)), None)
    return named or next((row for row in rows if _first_row_fits(row, folder)), None)


def _has_files(row: glue.GlueTask, folder: Path) -> bool:
    try:
        return glue.glue_folder(row, folder) == folder
    except UserError:
        return False


def _first_row_fits(row: glue.GlueTask, folder: Path) -> bool:
    paths = glue.find_glue_files(row, folder)
    path = next((path for split, path in paths.items() if split.startswith(("train", "dev"))), None)
    try:
        lines = [split_tabs(line) for _, (_, line) in zip(range(2), read_lines(path), strict=False)] if path else []
    except UserError:
        return False
    columns = list(row.headerless) or (lines[0] if lines else [])
    cells = dict(zip(columns, lines[-1], strict=False)) if lines and len(lines[-1]) == len(columns) else {}
    has_texts = row.text in cells and (row.text_pair is None or row.text_pair in cells)
    return has_texts and (cells.get(row.label) in row.values if row.labels else row.label in cells)
