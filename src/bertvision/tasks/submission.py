"""Predictions in the formats of the official servers: id → text JSON for SQuAD, `index, prediction` TSVs for GLUE."""

import json
from collections.abc import Sequence
from pathlib import Path

from bertvision.disk import inside, write_text
from bertvision.errors import UserError
from bertvision.kinds import Kind
from bertvision.tasks.glue import GLUE, GlueTask

Output = int | float | str
"""One example's prediction: the label's index, the score, or the answer's text ("" = no answer)."""

MNLI_FILES = {"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv", "ax": "AX.tsv"}


def submission_name(task: str, split: str, kind: Kind) -> str | None:
    """The official file name; None if no server accepts this split of this task."""
    if kind.reads_answers:
        return f"{task}-{split}.json"
    if task == "mnli":
        return MNLI_FILES.get(split)
    return f"{GLUE[task].folder}.tsv" if task in GLUE and split == "test" else None


def write_submission(
    task: str, split: str, kind: Kind, ids: Sequence[str], outputs: Sequence[Output], folder: Path
) -> Path:
    """Write the predictions of one split, in the order of `ids`, and return the path."""
    assert len(ids) == len(outputs), f"{len(ids)} ids, {len(outputs)} outputs"
    name = submission_name(task, split, kind)
    if name is None:
        splits = ", ".join(MNLI_FILES) if task == "mnli" else "test"
        reason = f"the server accepts only {splits}" if task in GLUE else "the task has no official server"
        raise UserError(f"there is no submission file for {task}, split '{split}': {reason}.")
    if kind.reads_answers:
        text = json.dumps(dict(zip(ids, outputs, strict=True)), ensure_ascii=False, indent=1) + "\n"
    else:
        text = _glue_table(GLUE[task], split, ids, outputs)
    path = inside(folder, name)
    write_text(path, text, "--submission")
    return path


def _glue_table(task: GlueTask, split: str, ids: Sequence[str], outputs: Sequence[Output]) -> str:
    rows = [
        f"{identity.removeprefix(split + '-')}\t{_cell(task, output)}"
        for identity, output in zip(ids, outputs, strict=True)
    ]
    return "\n".join(["index\tprediction", *rows]) + "\n"


def _cell(task: GlueTask, output: Output) -> str:
    if not task.labels:
        return f"{min(max(float(output), 0.0), 5.0):.3f}"
    return task.values[int(output)]
