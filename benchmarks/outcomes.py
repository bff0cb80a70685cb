"""Check whether a refactoring changed any result, by hashing the output of small CPU runs of every kind.

    BERTVISION_REAL_DATA=… python benchmarks/outcomes.py record before.json          with the old sources
    BERTVISION_REAL_DATA=… python benchmarks/outcomes.py record after.json           with the new ones
    python benchmarks/outcomes.py compare before.json after.json

The script only uses the command line, so that it can record any version; PYTHONPATH selects the sources. Weights and
outputs are hashed tensor by tensor, predictions by value, scores.json without time and memory, and reports by the
numbers in their tables, so that wording may change. Hashes differ between machines: compare only recordings from the
same one.
"""

import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MEASURED = ("seconds", "memory")
"""Measured values, which differ from run to run."""

BASE = """
seed = 1
[data]
hold_out = 0.25
limit_train = {train}
limit_dev = {dev}
[encoder]
name = "{encoder}"
device = "cpu"
[finetune]
lr = 1e-3
batch_rows = 8
"""
LABELS = """
heads = ["learned_pooling", "average_pooling", {{ head = "adapter", size = [4, 8], seeds = 2 }}, "flat_adapter_128",
    {{ head = "adapter_64", read = "mean", data_fraction = 0.5, name = "half" }}, "ladder_64", "xception_abbreviated"]
ensembles = [["encoder", "adapter_4"], {{ members = ["encoder", "learned_pooling"], method = "fitted" }}]
"""
SPANS = """
heads = ["learned_pooling", "adapter_64_skip", "pooled_adapter_cnn_nxn", "ladder_64",
    {{ head = "adapter", size = 4, epochs = 2 }}]
ensembles = [["encoder", "adapter_64_skip"], {{ members = ["encoder", "ladder_64"], method = "fitted" }},
    {{ members = ["encoder", "learned_pooling@0.5"], method = "mean", name = "two" }}]
"""
SNAPSHOTS = ["finetune.epochs=1", "finetune.snapshots=[0.5]", "train.snapshots=[0.5, 1]"]


def main() -> None:
    if sys.argv[1:2] == ["record"] and len(sys.argv) == 3:
        Path(sys.argv[2]).write_text(json.dumps(record(), indent=1) + "\n")
    elif sys.argv[1:2] == ["compare"] and len(sys.argv) == 4:
        sys.exit(compare(*(json.loads(Path(path).read_text()) for path in sys.argv[2:])))
    else:
        sys.exit(__doc__)


def compare(before: dict[str, str], after: dict[str, str]) -> int:
    lost, new = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    changed = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    for state, names in (("missing", lost), ("new", new), ("changed", changed)):
        for name in names:
            print(f"{state}: {name}   {before.get(name, '')} → {after.get(name, '')}")
    print(f"{len(before.keys() & after.keys()) - len(changed)} of {len(before)} outcomes are identical.")
    return int(bool(lost or changed))


# ---------------------------------------------------------------------- runs


def record() -> dict[str, str]:
    data = Path(os.environ["BERTVISION_REAL_DATA"])
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        encoder = _make_encoder(place / "encoder")
        return Recorder(place, data, encoder).record()


def _make_encoder(folder: Path) -> Path:
    """A random BERT with 3 layers of size 32 and a real vocabulary: every stage has work to do, and all are fast."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tiny_encoders import tiny_model\n"
        "from transformers import AutoTokenizer\n"
        "from bertvision.encoder.loading import resolve\n"
        "words = AutoTokenizer.from_pretrained(resolve('embedded'))\n"
        "tiny_model('bert', num_attention_heads=2, vocab_size=len(words), max_position_embeddings=512, "
        "initializer_range=0.05).save_pretrained(sys.argv[2])\n"
        "words.save_pretrained(sys.argv[2])\n"
    )
    subprocess.run([sys.executable, "-c", code, str(ROOT / "tests" / "fixtures"), str(folder)], check=True)
    return folder


class Recorder:
    def __init__(self, place: Path, data: Path, encoder: Path) -> None:
        self.place, self.data, self.encoder = place, data, encoder
        self.found: dict[str, str] = {}

    def record(self) -> dict[str, str]:
        glue, squad = self.data / "glue", self.data / "squad"
        pair = ("A man plays a guitar.", "Someone makes music.")
        asked = ("Who wrote the program?", "In 1843 Ada Lovelace wrote the first computer program in London.")
        spans = [f"task.train={squad / 'train-v2.0.third.json.gz'}", f"task.dev={squad / 'dev-v2.0.json.gz'}"]
        rows = self._csv(self.data / "user" / "trec")
        files = ["task.name=files", "task.text=text", "task.label=label", f"task.train={rows}", f"task.dev={rows}"]
        rte, stsb, cola = (
            [f"task.name={name}", f"task.data={glue / folder}"]
            for name, folder in (("rte", "RTE"), ("stsb", "STS-B"), ("cola", "CoLA"))
        )
        squad2, answerable = (["task.name=squad2", *spans], ["task.name=squad2_answerable", *spans])
        one, untouched = ["finetune.epochs=1"], ["finetune.epochs=0", "ensembles=[]"]
        stored = ["train.source=stored", "ensembles=[]"]
        small = ["encoder.name=embedded", "finetune.lr=5e-5", "data.limit_train=96", "data.limit_dev=64"]
        self.run("rte", LABELS, [*rte, *SNAPSHOTS], pair)
        self.run("stsb", LABELS, [*stsb, *one], pair)
        self.run("cola", LABELS, [*cola, *one], pair[:1])
        self.run("files", LABELS, [*files, *one], pair[:1])
        self.run("answerable", LABELS.replace(', "flat_adapter_128"', ""), [*answerable, *one], asked)
        self.run("spans", SPANS, [*squad2, *SNAPSHOTS], asked)
        self.run("nothing_held_out", LABELS, [*rte, *untouched, "data.hold_out=0"], pair)
        self.run("stored", SPANS, [*squad2, *stored, "finetune.epochs=0.5", "train.epochs=2"], asked)
        self.run("stored_cls", LABELS, [*rte, *stored, "finetune.epochs=0", "store.dtype=int8"], pair)
        self.run("kit_rte", LABELS, [*rte, *untouched], pair)
        self.run("kit_stsb", LABELS, [*stsb, *untouched], pair)
        self.run("kit_spans", SPANS, [*squad2, *untouched], asked)
        self.kit(["kit_rte", "kit_stsb", "kit_spans"], asked)
        self.search("search", [*rte, "finetune.epochs=0"])
        self.search("search_spans", [*squad2, "finetune.epochs=0"])
        for name in ("rte", "stsb", "files", "answerable", "spans", "nothing_held_out"):
            self.report(name)
        self.run("embedded", LABELS, [*rte, *one, *small], pair)
        return self.found

    def _csv(self, folder: Path) -> Path:
        """Write the first rows of a real dataset as a CSV file."""
        import csv

        source = next(path for path in sorted(folder.iterdir()) if path.name.startswith("train"))
        with source.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t" if source.suffix == ".tsv" else ","))[:400]
        path = self.place / "rows.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows([row["text"], row["label"]] for row in rows)
        return path

    def run(self, name: str, heads: str, words: list[str], texts: tuple[str, ...]) -> None:
        config = self.place / f"{name}.toml"
        config.write_text(heads.format() + BASE.format(train=240, dev=120, encoder=self.encoder))
        self._call("run", str(config), f"run={self.place / name}", *words)
        self._keep_folder(name)
        typed = [word for pair in zip(("--text", "--text-pair"), texts, strict=False) for word in pair]
        printed = self._call("predict", str(self.place / name), *typed, "--json")
        self.found[f"{name}: predict"] = _hash(printed.encode())
        self.found[f"{name}: chosen"] = self.messages.splitlines()[0] if self.messages else ""

    def search(self, name: str, words: list[str]) -> None:
        config = self.place / f"{name}.toml"
        config.write_text(BASE.format(train=160, dev=60, encoder=self.encoder))
        self._call(
            "search",
            str(config),
            f"run={self.place / name}",
            *words,
            "search.members=8",
            "search.population=4",
            "search.sampler=random",
        )
        self._keep_folder(name)

    def kit(self, runs: list[str], texts: tuple[str, str]) -> None:
        place = self.place / "kit"
        self._call("kit", *(str(self.place / run) for run in runs), "--to", str(place))
        for path in sorted(place.rglob("*.safetensors")):
            self.found[f"kit: {path.relative_to(place)}"] = hash_tensors(path)
        self.found["kit: kit.json"] = _hash(json.dumps(_plain(json.loads((place / "kit.json").read_text()))).encode())
        printed = self._call("predict", str(place), "--text", texts[0], "--text-pair", texts[1], "--json")
        self.found["kit: predict"] = _hash(printed.encode())

    def report(self, name: str) -> None:
        self._call("report", str(self.place / name))
        for path in sorted((self.place / name / "report").glob("*.json")):
            if path.stem.startswith("costs"):  # measured times
                continue
            numbers = list(_numbers(json.loads(path.read_text())))
            self.found[f"{name}: report, {path.stem}, {len(numbers)} numbers"] = _hash(repr(numbers).encode())

    def _keep_folder(self, name: str) -> None:
        folder = self.place / name
        for path in sorted(folder.rglob("*.safetensors")):
            self.found[f"{name}: {path.relative_to(folder)}"] = hash_tensors(path)
        for path in sorted(folder.rglob("predictions.jsonl")):
            rows = [json.loads(line) for line in path.read_bytes().splitlines()]
            self.found[f"{name}: {path.relative_to(folder)}"] = _hash(json.dumps(rows).encode())
        scores = _plain(json.loads((folder / "scores.json").read_text()))
        self.found[f"{name}: scores.json"] = _hash(json.dumps(scores, sort_keys=True).encode())

    def _call(self, *words: str) -> str:
        print("bertvision", " ".join(words)[:110], file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "bertvision", *words], capture_output=True, text=True, cwd=self.place
        )
        if done.returncode:
            raise SystemExit(f"bertvision {' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        self.messages = done.stderr
        return done.stdout


# ---------------------------------------------------------------------- hashes


def hash_tensors(path: Path) -> str:
    """Hash names, types and bytes of the tensors in a safetensors file, independent of their order and metadata."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = {key: entry for key, entry in json.loads(data[8 : 8 + size]).items() if key != "__metadata__"}
    digest = hashlib.sha256()
    for key in sorted(header):
        first, last = header[key]["data_offsets"]
        digest.update(repr((key, header[key]["dtype"], header[key]["shape"])).encode())
        digest.update(data[8 + size + first : 8 + size + last])
    return digest.hexdigest()[:16]


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """The value without measured times, stamps and paths."""
    if isinstance(value, dict):
        left_out = (*MEASURED, "stamp", "encoder_stamp", "encoder", "run")
        return {key: _plain(inner) for key, inner in value.items() if key not in left_out}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def _numbers(value: Any) -> Any:
    """Yield every number in a report's table except times and memory."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name != "seconds" and "memory" not in name:
                yield from _numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield round(float(value), 9)


if __name__ == "__main__":
    main()
