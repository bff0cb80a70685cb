"""Answers for many files: each input file is a row of a Ray dataset, and becomes one Parquet file with all its rows.

    predict_files("default", "s3://in/*.parquet", "s3://out/", Cluster("local"))

A worker holds the model, reads a file in batches and writes the answers to the output itself, whole or not at all. A
finished output names the model and the input that it was made from: with the same ones it is skipped.
"""

import dataclasses
import glob
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertvision.cluster.answers import ERROR, Answers, answer_arrays, answer_fields, answer_rows, open_answers
from bertvision.cluster.engine import Cluster, Work, open_cluster
from bertvision.cluster.reading import Input, is_readable, read_batches
from bertvision.disk import fingerprint
from bertvision.errors import UserError, list_names
from bertvision.network import find_address_mistake, is_address
from bertvision.progress import Reporter
from bertvision.sources.store.location import Folder, Location, open_location
from bertvision.tables import counted

STAMP, FORMAT = b"bertvision", 1
"""Key in the metadata of an output, and the format of the outputs."""
MOST_BLOCKS = 2000
LOCALLY = Cluster()
MAGIC = "*?["
THREADS = 16


@dataclass(frozen=True)
class InputFile:
    """A file to predict on."""

    address: str
    output: str
    """Path of its output, relative to the folder of outputs."""
    stamp: str
    """Hash of its size and version."""


@dataclass
class Summary:
    """What `predict_files` did."""

    out: str
    files: int = 0
    """Predicted now."""
    skipped: int = 0
    rows: int = 0
    """In the files that were predicted now."""
    errors: int = 0
    """Rows with an error."""
    problems: dict[str, str] = field(default_factory=dict)
    """Input file → why it has no output."""

    @property
    def is_clean(self) -> bool:
        return not (self.errors or self.problems)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def predict_files(
    model: str,
    file: str,
    out: str,
    cluster: Cluster = LOCALLY,
    with_texts: bool = True,
    reporter: Reporter | None = None,
    **choice: Any,
) -> Summary:
    """Predict every row of some files: a path or an address, a pattern with * for several, or a folder. Write one
    Parquet file for each to the folder or address `out`. `choice` selects the model, as in `open_answers`."""
    reporter = reporter or Reporter()
    model = os.path.abspath(os.path.expanduser(model)) if os.path.isdir(os.path.expanduser(model)) else model
    place = open_location(out if is_address(out) else os.path.abspath(os.path.expanduser(out)))
    inputs = find_inputs(file, place)
    stamp = fingerprint(FORMAT, open_answers(model, **{**choice, "device": "cpu"}).stamp, with_texts)
    missing = _missing(inputs, place, stamp)
    summary = Summary(str(place), skipped=len(inputs) - len(missing))
    if summary.skipped:
        reporter.say(f"{counted(summary.skipped, 'file')} of {len(inputs):,} already predicted.")
    if not missing:
        return summary
    _abort_uploads(place, missing)
    settings = {
        "model": model, "choice": choice, "out": str(place), "stamp": stamp, "with_texts": with_texts,
    }  # fmt: skip
    with open_cluster(cluster, reporter) as engine:
        reporter.say(engine.describe())
        with reporter.bar("predicting", len(missing), "files") as bar:
            for found in engine.run(_to_blocks(missing), open_file_worker, settings):
                bar.advance(1)
                if "problem" in found:
                    summary.problems[found["file"]] = found["problem"]
                    continue
                summary.files += 1
                summary.rows += found["rows"]
                summary.errors += found["errors"]
        for folder in {os.path.dirname(one.output) for one in missing}:
            open_location(_join(place, folder)).sweep([os.path.basename(one.output) for one in missing], engine.hosts())
    return summary


def _to_blocks(files: Sequence[InputFile]) -> list[Any]:
    """A table for each file or, if there are very many, for some."""
    import pyarrow

    rows = [{"number": number, **dataclasses.asdict(one)} for number, one in enumerate(files)]
    size = -(-len(rows) // MOST_BLOCKS)
    return [pyarrow.Table.from_pylist(rows[first : first + size]) for first in range(0, len(rows), size)]


# ---------------------------------------------------------------------- inputs


def find_inputs(file: str, out: Location) -> list[InputFile]:
    """The files of a path, an address, a pattern or a folder, in order. UserError if there are none."""
    if mistake := find_address_mistake(file):
        raise UserError(mistake.replace("the address of a store", "the address of a file"))
    root, found = _list_remote(file) if is_address(file) else _list_local(file)
    if str(out) in (root.rstrip("/"), root):
        raise UserError(f"--out {out} is where the input files are: choose another folder.")
    files = {path: stamp for path, stamp in found.items() if is_readable(path)}
    if not files:
        raise UserError(
            f"no file to predict on at '{file}': expected CSV, TSV, JSON lines or Parquet files"
            + (f", found {list_names(sorted(os.path.basename(path) for path in found), 200)}." if found else ".")
        )
    return [InputFile(path, _name_output(path.removeprefix(root).lstrip("/")), files[path]) for path in sorted(files)]


def _name_output(name: str) -> str:
    return name if name.endswith(".parquet") else f"{name}.parquet"


def _list_local(file: str) -> tuple[str, dict[str, str]]:
    path = os.path.abspath(os.path.expanduser(file))
    if os.path.isdir(path):
        root, paths = path, [str(one) for one in Path(path).rglob("*")]
    elif os.path.isfile(path) or not _has_magic(path):
        root, paths = os.path.dirname(path), [path]
    else:
        root, paths = _fixed_part(path), glob.glob(path, recursive=True)
    try:
        stats = {one: os.stat(one) for one in paths if os.path.isfile(one)}
    except OSError as error:
        raise UserError(f"'{error.filename}' can't be read: {error.strerror}.") from None
    return root, {one: fingerprint(stat.st_size, stat.st_mtime_ns) for one, stat in stats.items()}


def _list_remote(file: str) -> tuple[str, dict[str, str]]:
    scheme = file.partition("://")[0]
    folder = _fixed_part(file) if _has_magic(file) else file.rpartition("/")[0]
    place: Any = open_location(folder)
    with place.clear_errors():
        place.files.invalidate_cache()
        pattern = place.files._strip_protocol(file)
        if _has_magic(file):
            found = place.files.glob(pattern, detail=True)
        else:
            folder = file.rstrip("/") if place.files.isdir(pattern) else folder
            found = place.files.find(pattern, detail=True)
    return folder, {
        f"{scheme}://{path.lstrip('/')}": fingerprint(
            info["size"], str(info.get("ETag") or info.get("LastModified") or info.get("mtime"))
        )
        for path, info in found.items()
        if info["type"] == "file"
    }


def _has_magic(path: str) -> bool:
    return any(mark in path for mark in MAGIC)


def _fixed_part(path: str) -> str:
    """The folder of a pattern before its first special character."""
    first = min(path.index(mark) for mark in MAGIC if mark in path)
    return path[:first].rpartition("/")[0]


# ---------------------------------------------------------------------- outputs


def _missing(inputs: Sequence[InputFile], out: Location, stamp: str) -> list[InputFile]:
    """The files without an output. UserError if there is an output of another model or of another input."""
    folders = {os.path.dirname(one.output) for one in inputs}
    there = {os.path.join(folder, name) for folder in folders for name in open_location(_join(out, folder)).sizes()}
    known = [one for one in inputs if one.output in there]
    with ThreadPoolExecutor(THREADS) as pool:
        finished = dict(zip(known, pool.map(lambda one: _is_finished(out, one, stamp), known), strict=True))
    return [one for one in inputs if not finished.get(one)]


def _is_finished(out: Location, one: InputFile, stamp: str) -> bool:
    """Whether the output of a file is there. UserError if it is of another model or input."""
    found = read_output_stamp(out, one.output)
    if found is None:
        raise UserError(
            f"'{_join(out, one.output)}' is not an output of `bertvision predict`: remove it, or choose another --out."
        )
    if found.get("model") != stamp:
        raise UserError(
            f"'{_join(out, one.output)}' was predicted by another model, or with other options: remove it, or choose "
            "another --out."
        )
    if found.get("input") != one.stamp:
        raise UserError(
            f"'{_join(out, one.output)}' was predicted from another version of '{one.address}': remove it to predict "
            "again, or choose another --out."
        )
    return True


def read_output_stamp(out: Location, name: str) -> dict[str, Any] | None:
    """What an output was made from; None if it is not one."""
    import pyarrow
    from pyarrow import parquet

    try:
        with out.files.open(f"{out.root}/{name}", "rb") as file:
            found = json.loads((parquet.read_schema(file).metadata or {}).get(STAMP, b"null"))
    except (OSError, ValueError, pyarrow.ArrowException):
        return None
    return found if isinstance(found, dict) else None


def _join(out: Location, name: str) -> str:
    return f"{str(out).rstrip('/')}/{name}" if name else str(out)


def _abort_uploads(out: Location, files: Sequence[InputFile]) -> None:
    """Remove the parts of large outputs that killed workers have uploaded. A bucket does not show them."""
    list_uploads = getattr(out.files, "list_multipart_uploads", None)
    if list_uploads is None:
        return
    bucket, _, before = out.root.partition("/")
    names = {f"{before}/{one.output}".lstrip("/") for one in files}
    try:
        for upload in list_uploads(bucket):
            if upload["Key"] in names:
                out.files.call_s3(
                    "abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                )
    except Exception:  # not every server and user may list them
        return


# ---------------------------------------------------------------------- on a worker


def open_file_worker(model: str, choice: dict[str, Any], out: str, stamp: str, with_texts: bool) -> Work:
    """Load the model; return what predicts the rows of a file."""
    answers = open_answers(model, **choice)
    if fingerprint(FORMAT, answers.stamp, with_texts) != stamp:
        raise UserError(
            f"'{model}' on the machine {os.uname().nodename} of the cluster is another model than here: copy the same "
            "version to all machines, or use a disk that they share."
        )
    place = open_location(out)
    for folder in (place.folder,) if isinstance(place, Folder) else ():
        folder.mkdir(parents=True, exist_ok=True)

    def work(row: dict[str, Any], beat: Callable[[float], None]) -> dict[str, Any]:
        one = InputFile(row["address"], row["output"], row["stamp"])
        try:
            rows, errors = _predict_file(answers, one, place, stamp, with_texts, beat)
        except UserError as error:
            return {"file": one.address, "problem": str(error)}
        return {"file": one.address, "rows": rows, "errors": errors, "amount": rows}

    return work


def _predict_file(
    answers: Answers, one: InputFile, out: Location, stamp: str, with_texts: bool, beat: Callable[[float], None]
) -> tuple[int, int]:
    """Write the output of a file. Return its number of rows and of errors."""
    import pyarrow
    from pyarrow import parquet

    batches = read_batches(one.address, answers.choices)
    names = [("id", pyarrow.string())]
    names += [("text", pyarrow.string()), ("text_pair", pyarrow.string())] if with_texts else []
    facts = {"model": stamp, "input": one.stamp, "file": one.address}
    schema = pyarrow.schema([*names, *answer_fields(answers.kinds)], metadata={STAMP: json.dumps(facts)})
    folder, _, name = one.output.rpartition("/")
    rows = errors = 0
    with open_location(_join(out, folder)).writing(name) as file, parquet.ParquetWriter(file, schema) as writer:
        for batch in batches:
            found = _answer(answers, batch)
            rows, errors = rows + len(found), errors + sum(ERROR in row for row in found)
            columns = [[_plain(item.example.id) for item in batch]]
            if with_texts:
                columns += [
                    [_plain(item.example.text) for item in batch],
                    [_plain(item.example.text_pair) for item in batch],
                ]
            arrays = [pyarrow.array(column, pyarrow.string()) for column in columns]
            writer.write_table(
                pyarrow.Table.from_arrays([*arrays, *answer_arrays(answers.kinds, found)], schema=schema)
            )
            beat(rows)
    return rows, errors


def _answer(answers: Answers, batch: list[Input]) -> list[dict[str, Any]]:
    good = iter(answer_rows(answers, [item.example for item in batch if item.problem is None]))
    return [next(good) if item.problem is None else {ERROR: item.problem} for item in batch]


def _plain(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()
