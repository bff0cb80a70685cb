"""Users' data files, damaged or odd, read by the readers of `run`, `fit`, `predict --file` and `tasks`."""

import csv
import gzip
import io
import json
import lzma
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from bertvision.config import build_config, load_config
from bertvision.tasks import TaskConfig, build_task
from bertvision.tasks.describe import describe_examples, describe_folder
from bertvision.tasks.glue import GLUE
from bertvision.tasks.new_text import read_any_text, read_new_text
from bertvision.tasks.own_questions import read_own_questions, refuse_question_table
from bertvision.tasks.own_table import read_own_table
from bertvision.tasks.text_files import reading_up_to
from tests.reliability.judging import judge
from tests.reliability.nasty import mutate, nasty_text
from tests.reliability.trials import Outcome

NAME, TRIALS, SLICE = "data_files", 4000, 120
ABOUT = "CSV, TSV, JSON lines, SQuAD JSON, GLUE and Parquet files, compressed or not, with mistakes of every kind."
FIXTURES = Path(__file__).parents[1] / "fixtures"
FORMATS = ("csv", "tsv", "jsonl", "squad", "glue", "parquet", "txt", "bomb")
MOST = 60
"""MB that the readers may take in these trials."""


@dataclass
class Made:
    place: Path
    squad: dict[str, Any]
    glue: list[Path]
    bombs: list[tuple[str, bytes]]


def prepare(place: Path) -> Made:
    squad = json.loads((FIXTURES / "squad_tiny" / "train-v2.0.json").read_text(encoding="utf-8"))
    return Made(place, squad, sorted((FIXTURES / "glue_tiny").glob("*/*.tsv")), _bombs())


def attempt(made: Made, number: int, random: Random) -> Outcome:
    form = FORMATS[number % len(FORMATS)]
    folder = made.place / "data"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path, kinds = _write(made, folder, form, random)
    reader, read = random.choice(_readers(path, folder, form, kinds))

    def act() -> None:
        with reading_up_to(MOST):
            read()

    return judge(f"{form} → {reader}", f"{path.name} {path.read_bytes()[:300]!r}", act)


# ---------------------------------------------------------------------- files


def _write(made: Made, folder: Path, form: str, random: Random) -> tuple[Path, str]:
    """A file with mistakes, and the GLUE task of a file of GLUE."""
    if form == "bomb":
        name, data = random.choice(made.bombs)
        (folder / name).write_bytes(data)
        return folder / name, ""
    if form == "glue":
        source = random.choice(made.glue)
        task = next((name for name, row in GLUE.items() if row.folder == source.parent.name), "mnli")
        data, name = source.read_bytes(), source.name
    elif form == "squad":
        task, name, data = "", "train-v2.0.json", _squad(made.squad, random)
    elif form == "parquet":
        task, name, data = "", "train.parquet", _parquet(random)
    else:
        task, name = "", f"train.{form}"
        rows = _rows(random)
        data = _lines(rows) if form == "jsonl" else _table(rows, "\t" if form == "tsv" else ",", random)
    data = mutate(data, random) if random.random() < 0.6 else data
    if form != "parquet" and random.random() < 0.3:
        pack, ending = random.choice([(gzip.compress, ".gz"), (lzma.compress, ".xz")])
        data, name = pack(data), name + ending
        data = mutate(data, random) if random.random() < 0.5 else data
    (folder / name).write_bytes(data)
    return folder / name, task


def _rows(random: Random) -> list[dict[Any, Any]]:
    kind = random.choice(["label", "score", "question", "wide"])
    rows: list[dict[Any, Any]] = []
    for number in range(random.choice([1, 2, 30, 30, 30])):
        row: dict[Any, Any] = {"text": f"this is text {number}", "label": random.choice("ab"), "id": number}
        row |= {"label": random.random()} if kind == "score" else {}
        row |= {"question": "who?", "passage": f"Ada {number} wrote", "answer": "Ada"} if kind == "question" else {}
        row |= (
            {f"column {at}": at for at in range(random.choice([3, 500, 3000]))} if kind == "wide" and number < 2 else {}
        )
        rows.append(row)
    for _ in range(random.choice([0, 1, 2, 5])):
        row = random.choice(rows)
        row[random.choice(["text", "label", "id", "text_pair", nasty_text(random)])] = _cell(random)
    if random.random() < 0.1:
        row.pop("label", None)
    return rows


def _cell(random: Random) -> Any:
    values: list[Any] = [
        None, "", " ", True, 0, -1, 1e308, 10**30, float("nan"), float("inf"), [], {}, ["a"], {"a": 1}, "\ud800",
        "a\0b", "x" * 140_000, "9" * 400, "NA", "1,5", "007", "2020-01-01", '"', "\n", "\r", "\t", "é" * 50,
    ]  # fmt: skip
    return random.choice([random.choice(values), nasty_text(random)])


def _lines(rows: list[dict[Any, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _table(rows: list[dict[Any, Any]], delimiter: str, random: Random) -> bytes:
    names = list(dict.fromkeys(name for row in rows for name in row))
    names += [names[0]] if random.random() < 0.05 else []
    names += [f"c{at}" for at in range(100_000)] if random.random() < 0.02 else []
    buffer = io.StringIO()
    quoting = random.choice([csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONE])
    writer = csv.writer(
        buffer, delimiter=random.choice([delimiter, delimiter, ";", "|"]), quoting=quoting, escapechar="\\"
    )
    writer.writerows([names, *([row.get(name, "") for name in names] for row in rows)])
    return buffer.getvalue().encode("utf-8", "surrogatepass")


def _squad(document: dict[str, Any], random: Random) -> bytes:
    """The document with some nodes replaced, and others removed."""
    document = json.loads(json.dumps(document))
    for _ in range(random.choice([0, 1, 1, 2, 4])):
        nodes: list[tuple[Any, Any]] = []
        waiting: list[Any] = [document]
        while waiting:
            node = waiting.pop()
            keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
            nodes += [(node, key) for key in keys]
            waiting += [node[key] for key in keys]
        node, key = random.choice(nodes)
        if random.random() < 0.2:
            del node[key]
        else:
            node[key] = _cell(random)
        if not document:
            break
    return json.dumps(document).encode()


def _parquet(random: Random) -> bytes:
    import pyarrow
    from pyarrow import parquet

    rows = random.choice([1, 30, 3000])
    columns: dict[str, Any] = {
        "text": [f"text {at}" for at in range(rows)],
        "label": random.choice([["a", "b"], [1, 2], [0.5, None], [True, False]]) * rows,
    }
    columns["label"] = columns["label"][:rows]
    extra: list[Any] = [
        pyarrow.array([2**62] * rows, pyarrow.timestamp("ns")), pyarrow.array([b"\xff"] * rows, pyarrow.binary()),
        pyarrow.array([[1]] * rows), pyarrow.array([{"a": 1}] * rows),
        pyarrow.array([2**62] * rows, pyarrow.time64("ns")),
        pyarrow.array([2**31 - 1] * rows, pyarrow.date32()), pyarrow.nulls(rows),
    ]  # fmt: skip
    if random.random() < 0.5:
        columns[random.choice(["text", "label", "id"])] = random.choice(extra)
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), buffer, compression=random.choice(["none", "snappy", "gzip"]))
    return buffer.getvalue()


def _bombs() -> list[tuple[str, bytes]]:
    """Small files that hold much."""
    line, rows = b"text,label\n" + b"a" * 100_000_000, b"text,label\n" + b"a,b\n" * 3_000_000
    cells, items = b"text,label\n" + b'"a\n' * 1_000_000, b'{"data":[' + b"[]," * 3_000_000
    quoted = b"text,label\n" + (b'"' + b"x\n" * 60_000 + b'",') * 300
    made = [("train.csv", line), ("train.csv", rows), ("train.csv", cells), ("train.csv", quoted)]
    made += [("train-v2.0.json", items), ("train.jsonl", b"[" * 1_000_000), ("train.csv", b"," * 15_000_000)]
    made += [("train.jsonl", b'{"text":[' + b"[]," * 4_000_000), ("train.tsv", b"\t" * 15_000_000)]
    made += [("train.txt", rows), ("train.jsonl", b'{"text": "a", "label": "b"}\n' * 1_000_000)]
    packed = [(name + ".gz", gzip.compress(data, 1)) for name, data in made]
    xz = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
    return [
        *packed,
        ("train.csv.xz", lzma.compress(rows, preset=0)),
        ("train.csv.xz", lzma.compress(b"a\n", filters=xz)),
    ]


# ---------------------------------------------------------------------- readers


def _readers(path: Path, folder: Path, form: str, task: str) -> list[tuple[str, Callable[[], Any]]]:
    if form == "glue":
        return [("run", lambda: _read_task(task, path)), ("tasks", lambda: describe_folder(folder))]
    found: list[tuple[str, Callable[[], Any]]] = [
        ("predict", lambda: list(read_any_text(path))),
        ("predict of a run", lambda: _new_text(path)),
        ("tasks", lambda: describe_folder(folder)),
        ("run on the file", lambda: load_config(path, [f"task.most_megabytes={MOST}"])),
        ("run", lambda: _read_task("squad2" if "json" in path.suffixes else "files", path)),
    ]
    if ".json" in path.suffixes:
        return [*found, ("fit", lambda: read_own_questions(path))]
    return [*found, ("fit", lambda: _fit(path))]


def _read_task(name: str, path: Path) -> None:
    tables = {"task": {"name": name, "train": str(path), "dev": str(path), "most_megabytes": MOST}}
    task = build_task(build_config(tables).task)
    for split in task.splits:
        describe_examples(task.read(split), task.labels)


def _new_text(path: Path) -> None:
    from bertvision.tasks.files import Columns

    task = build_task(TaskConfig("demo")) if ".json" in path.suffixes else _TEXTS
    list(read_new_text(task, path, Columns()))


def _fit(path: Path) -> None:
    refuse_question_table(path)
    read_own_table(path, skip_empty=True, most_rows=100)


def _texts_task() -> Any:
    from bertvision.kinds import LABEL
    from bertvision.tasks import Task

    return Task("files", LABEL, ("accuracy",), {}, ("a", "b"))


_TEXTS = _texts_task()
