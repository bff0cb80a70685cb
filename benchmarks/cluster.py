"""What `--cluster local` costs: CPU seconds of all processes, against the plain command on the same texts.

    python benchmarks/cluster.py [--texts 1000 5000] [--model default --tasks sst2] [--files 10] [--workers 2]

Starting Ray and loading the model in each worker costs the same for any number of texts; what each further text costs
is shown apart. Times on the clock depend on who else uses the machine, and are not shown.
"""

import argparse
import contextlib
import csv
import ctypes
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: processes whose parents ended become ours, and their CPU time is counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--model", default="default")
    parser.add_argument("--tasks", default="sst2")
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    rows = []
    for count in arguments.texts:
        with tempfile.TemporaryDirectory() as place:
            rows.append((count, *_measure(Path(place), count, arguments)))
            print(f"{count:>9,} texts: plain {rows[-1][1]:7.1f}, cluster {rows[-1][2]:7.1f} CPU seconds", flush=True)
    print("\n| texts | plain, CPU s | --cluster local, CPU s | overhead |\n|---:|---:|---:|---:|")
    for count, plain, cluster in rows:
        more = f"{cluster - plain:+.1f} s, {100 * (cluster / plain - 1):+.0f} %"
        print(f"| {count:,} | {plain:.1f} | {cluster:.1f} | {more} |")
    if len(rows) > 1:
        (few, *low), (many, *high) = rows[0], rows[-1]
        plain, cluster = (1000 * (b - a) / (many - few) for a, b in zip(low, high, strict=True))
        more = f"plain {plain:.2f}, cluster {cluster:.2f} ({100 * (cluster / plain - 1):+.0f} %)"
        print(f"\nms of CPU for each further text: {more}")


def _measure(place: Path, count: int, arguments: argparse.Namespace) -> tuple[float, float]:
    _write_texts(place, count, arguments.files)
    choice = ["--tasks", arguments.tasks] if arguments.tasks else []
    words = ["predict", arguments.model, *choice, "--file"]
    plain = _run([*words, str(place / "all.csv"), "--out", str(place / "all.jsonl")])
    options = ["--cluster", "local", "--workers", str(arguments.workers)]
    cluster = _run([*words, str(place / "in"), "--out", str(place / "out"), *options])
    from pyarrow import parquet

    found = sum(parquet.read_metadata(path).num_rows for path in (place / "out").iterdir())
    expected = sum(1 for _ in (place / "all.jsonl").open())
    assert found == expected == count, (found, expected)
    shutil.rmtree(place / "out")
    return plain, cluster


def _write_texts(place: Path, count: int, files: int) -> None:
    """The same texts in one file and in several, of 5 to 40 words."""
    draw = random.Random(5)
    words = ("slow", "never", "dull", "story", "of", "old", "friends", "who", "meet", "again", "by", "the", "sea")
    texts = [" ".join(draw.choices(words, k=draw.randint(5, 40))) for _ in range(count)]
    (place / "in").mkdir()
    parts = {"all.csv": texts, **{f"in/part-{number:03}.csv": texts[number::files] for number in range(files)}}
    for name, own in parts.items():
        with (place / name).open("w", newline="") as file:
            csv.writer(file).writerows([["text"], *([text] for text in own)])


def _run(words: list[str]) -> float:
    """CPU seconds of a command and of everything that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "bertvision", *words], check=True, stderr=subprocess.DEVNULL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
