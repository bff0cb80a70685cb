"""Token features as JSON lines, one window per line, with the names that Hugging Face models take as arguments.

example_id window input_ids token_type_ids     of every window
offset_mapping                                 windowed tasks: characters of the passage, null outside it
start_positions end_positions                  spans: first and last token of the answer, 0 and 0 if it is not inside
labels                                         other tasks: index of the label, or the score
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from bertvision.data.windows import Features
from bertvision.disk import clear_disk_errors, inside, lock_in, writing_file, writing_in
from bertvision.pipeline.job import Job

FOLDER = "features"


def write_token_features(job: Job, folder: Path | None = None) -> dict[Path, Features]:
    """Write the features of train, the held-out part and every dev split. Return what each file holds."""
    place = folder or job.folder.file(FOLDER)
    with writing_in(lock_in(place, setting="--to"), job.wait, job.reporter.say):
        return _write(job, place)


def _write(job: Job, place: Path) -> dict[Path, Features]:
    found = {}
    for split in dict.fromkeys(("train", *job.scored_splits)):
        path, features = inside(place, f"{split}.jsonl"), job.features(split)
        title = f"writing {path.name}"
        with (
            clear_disk_errors(path, "--to"),
            writing_file(path) as file,
            job.reporter.bar(title, len(features), "windows") as bar,
        ):
            for row in rows_of(job, split):
                file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY))
                bar.advance(1)
        found[path] = features
    return found


def rows_of(job: Job, split: str) -> Iterator[dict[str, Any]]:
    features, examples = job.features(split), job.examples(split)
    is_span, before, window = job.task.kind.position == "token", -1, 0
    for at in range(len(features)):
        tokens, number = features.tokens_of(at), int(features.example[at])
        window = window + 1 if number == before else 0
        before = number
        row = {
            "example_id": examples[number].id,
            "window": window,
            "input_ids": features.input_ids[tokens],
            "token_type_ids": features.type_ids[tokens],
        }
        if job.task.windowed:
            pairs = features.offsets[tokens].tolist()
            row["offset_mapping"] = [pair if pair[0] >= 0 else None for pair in pairs]
        if is_span:
            row |= {"start_positions": int(features.start[at]), "end_positions": int(features.end[at])}
        else:
            target = float(features.target[at])
            row["labels"] = None if math.isnan(target) else int(target) if job.task.kind.has_labels else target
        yield row
