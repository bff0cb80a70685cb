"""Peak memory of commands on a short and on a long table: it must not grow with the rows.

    python benchmarks/bounded_memory.py [--rows 100000 2000000] [--work read tokenize encode predict] [--format csv]

Texts are short and the encoder is a tiny random BERT, so that everything but the rows is small: with a real encoder,
what grows with the rows is a smaller share. Every command is a process of its own. Its peak is `ru_maxrss`, what Linux
counts as resident: memory-mapped pages too, the page cache not. Seconds are CPU seconds of all its threads.

- read: the training split of a table, checked and hashed
- tokenize: the same, and the features of the split, hashed
- encode: `bertvision encode`: held-out split, features, encoder and a store of [CLS] states
- train: one epoch of a linear head from that store (not by default)
- predict: `bertvision predict --file` with the head of a small run, into JSON lines
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
WORDS = TESTS / "fixtures" / "vocab.txt"
WORK = ("read", "tokenize", "encode", "train", "predict")
SMALL = 2000
"""Rows of the table behind the model that predicts."""
ENCODER = """
import sys
sys.path.insert(0, sys.argv[2])
from tiny_encoders import say_how_to_read, tiny_model, tiny_tokenizer
from pathlib import Path
tiny_model("bert").save_pretrained(sys.argv[1])
tiny_tokenizer().save_pretrained(sys.argv[1])
say_how_to_read(Path(sys.argv[1]), "cls")
"""
LOAD = """
import sys
from bertvision.config import load_config
from bertvision.pipeline.job import Job
job = Job(load_config(sys.argv[1]))
print(len(job.examples("train")), job.stamps.examples("train"))
"""
TOKENIZE = LOAD + 'print(job.features("train").lengths.sum(), job.stamps.tokens("train"))'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 2_000_000])
    parser.add_argument("--work", nargs="+", choices=WORK, default=["read", "tokenize", "encode", "predict"])
    parser.add_argument("--format", choices=("csv", "jsonl", "parquet"), default="csv")
    parser.add_argument("--words", type=int, nargs=2, default=[4, 14], metavar=("LEAST", "MOST"), help="of a text")
    parser.add_argument("--folder", help="for the tables, stores and temporary files; needs 4 GB for 2 million rows")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        measure(place, options)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def measure(place: Path, options: argparse.Namespace) -> None:
    sizes, wanted, form = options.rows, options.work, options.format
    words = tuple(options.words)
    run_child([sys.executable, "-c", ENCODER, place / "encoder", TESTS / "fixtures"])
    write_table(place / "small.csv", SMALL, words)
    if "predict" in wanted:
        run_child(bertvision("run", config(place, place / "small.csv", place / "model")))
    peaks: dict[str, list[float]] = {name: [] for name in wanted}
    for rows in sizes:
        table = place / f"rows_{rows}.{form}"
        write_table(table, rows, words)
        stored = place / f"run_{rows}"
        settings = config(place, table, stored)
        out = place / "predictions.jsonl"
        commands = {
            "read": [sys.executable, "-c", LOAD, settings],
            "tokenize": [sys.executable, "-c", TOKENIZE, settings],
            "encode": bertvision("encode", settings),
            "train": bertvision("train", settings),
            "predict": bertvision("predict", place / "model", "--file", table, "--out", out),
        }
        for name in wanted:
            peak, seconds = run_child(commands[name])
            peaks[name].append(peak)
            print(f"{name:10} {rows:>10,} rows {peak:8.1f} MB {seconds:8.1f} CPU s", flush=True)
        if "predict" in wanted:
            with open(out, "rb") as lines:
                assert sum(1 for _ in lines) == rows, "one line a row"
        for path in (table, out):
            path.unlink(missing_ok=True)
        shutil.rmtree(stored, ignore_errors=True)
    print(f"\npeak memory, {sizes[-1]:,} against {sizes[0]:,} rows of {form}")
    for name, found in peaks.items():
        print(f"{name:10} {found[0]:8.1f} MB {found[-1]:8.1f} MB {100 * (found[-1] / found[0] - 1):+6.1f} %")


def bertvision(*words: object) -> list[object]:
    return [sys.executable, "-m", "bertvision", *words]


def run_child(words: list[object]) -> tuple[float, float]:
    """The peak memory in MB and the CPU seconds of a process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(list(map(str, words)), stdout=said, stderr=subprocess.STDOUT, env=environment)
        _, status, used = os.wait4(process.pid, 0)  # this process is small: `ru_maxrss` starts with that of the parent
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            sys.exit(said.read().decode())
    return used.ru_maxrss / 1024, used.ru_utime + used.ru_stime


def config(place: Path, table: Path, folder: Path) -> Path:
    path = place / f"{folder.name}.toml"
    path.write_text(
        f"""run = "{folder}"
heads = [{{ head = "linear", read = "cls", epochs = 1 }}]
[task]
name = "files"
train = "{table}"
dev = "{place / "small.csv"}"
[encoder]
name = "{place / "encoder"}"
[finetune]
epochs = 0
[train]
source = "stored"
[data]
max_length = 48
"""
    )
    return path


def rows_of(count: int, length: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    draws = random.Random(0)
    words = [word for word in WORDS.read_text(encoding="utf-8").split() if word.isalpha()]
    for number in range(count):
        text = " ".join(draws.choices(words, k=draws.randint(*length)))
        yield f"{text} {number}", draws.choice(["good", "bad"])


def write_table(path: Path, count: int, length: tuple[int, ...]) -> None:
    rows = rows_of(count, length)
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        schema = pyarrow.schema([("text", pyarrow.string()), ("label", pyarrow.string())])
        with parquet.ParquetWriter(path, schema) as file:
            while some := list(islice(rows, 100_000)):
                texts, labels = zip(*some, strict=True)
                file.write_table(pyarrow.table([texts, labels], schema=schema))
        return
    with path.open("w", encoding="utf-8") as file:
        if path.suffix == ".csv":
            file.write("text,label\n")
            file.writelines(f"{text},{label}\n" for text, label in rows)
        else:
            file.writelines(f'{{"text": "{text}", "label": "{label}"}}\n' for text, label in rows)


if __name__ == "__main__":
    main()
