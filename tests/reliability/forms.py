"""JSON and TOML files of ours that were changed by hand: every reader answers or says one sentence.

A trial takes one file of a run, fitted model, kit, store or encoder, changes a value in it, gives it the checksum of
what it now holds, and calls a reader. So it is the form check that is tested, not the checksums (flips.py tests those).
"""

import contextlib
import copy
import io
import json
import os
import re
import resource
import shutil
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

from tests.reliability.trials import Outcome

NAME, TRIALS, SLICE = "forms", 4000, 120
ABOUT = "A value in a JSON or TOML file is changed by hand, and a command reads it."

FIXTURES = Path(__file__).parents[1] / "fixtures"
MOST_SECONDS, MOST_MEGABYTES, MOST_LETTERS = 60, 500, 600
RAW = "@@raw@@"
TEXT = ["--text", "a king", "--text-pair", "a man"]
Call = Callable[[Path], object]


class Reader(NamedTuple):
    name: str
    folder: str
    """What it reads, in the folder that `prepare` makes."""
    files: str
    """The files that are changed, as a regular expression."""
    call: Call
    weight: int = 10


class Made(NamedTuple):
    folder: Path
    readers: list[Reader]


# ---------------------------------------------------------------------- what is read


def prepare(place: Path) -> Made:
    """A run with a report, a kit, fitted models, a store, a checkpoint and an encoder."""
    import bertvision as bv
    from tests.reliability.made import make_all

    root = place / "made"
    make_all(root)
    bv.Run(root / "run").report()
    _say("encode", root / "frozen", f"store.path={root / 'store'}")
    texts = [f"the {'cat and dog' if row % 2 else 'river and london'}, number {row}" for row in range(40)]
    labels = ["animals" if row % 2 else "places" for row in range(40)]
    bv.Classifier(encoder=str(root / "encoder"), heads=["linear"]).fit(texts, labels).save(root / "estimator")
    (root / "about").mkdir()
    (root / "about" / "about.toml").write_text('rte = "Sentences."\n')
    return Made(root, readers())


def readers() -> list[Reader]:
    import bertvision as bv
    from bertvision.encoder.loading import load_encoder, shape_of
    from bertvision.encoder.reading import ways_to_read
    from bertvision.sources.store import Store
    from bertvision.training.checkpoint import Checkpoints

    small = ("heads=['learned_pooling']", "finetune.epochs=0", "run=unused", "encoder.device=cpu")
    data = ("task.name=rte", f"task.data={FIXTURES / 'glue_tiny'}", "data.max_length=48")

    def begin(head: Path, encoder: Path) -> object:
        config = encoder.parent / "config.toml"
        config.write_text('[task]\nname = "rte"\n')
        heads = f"heads=[{{head='adapter', size=4, begin={json.dumps(str(head))}}}]"
        return _say("check", config, *data, f"encoder.name={encoder}", heads, *small[1:])

    def own(folder: Path) -> object:
        return bv.load(folder).predict(["a cat", "the river"])

    def open_encoder(folder: Path) -> object:
        name = str(folder)
        return shape_of(name), ways_to_read(name), load_encoder(name)

    def check(folder: Path) -> object:
        config = folder.parent / "config.toml"
        config.write_text('[task]\nname = "rte"\n')
        return _say("check", config, *data, f"encoder.name={folder}", *small)

    def open_store(folder: Path) -> object:
        store = Store.open(folder)
        return store.facts(), store.ids(), store.read(store.contents.parts[0], range(2)), repr(store)

    both = "mean_learned_pooling_adapter_4"
    drawn_files = r"(layer.*|stamp|lengths|metrics|predictions)\.jsonl?"
    run_files = r"(task|config|scores|environment|reference|output_layer|stamp)\.json"
    return [
        Reader("predict", "run", run_files, lambda f: _say("predict", f, *TEXT), 20),
        Reader("predict --head", "run", run_files, lambda f: _say("predict", f, *TEXT, "--head", both)),
        Reader("predict frozen", "frozen", run_files, lambda f: _say("predict", f, *TEXT)),
        Reader("report", "run", r".*\.jsonl?", lambda f: _say("report", f, "--no-encoder"), 3),
        Reader("report, encoder", "run", drawn_files, lambda f: _say("report", f), 1),
        Reader("kit", "frozen", run_files, lambda f: _say("kit", f, "--to", f.parent / "new_kit")),
        Reader("evaluate", "run", r".*\.json", lambda f: _say("evaluate", f)),
        Reader("check", "run", r".*\.json", lambda f: _say("check", f), 5),
        Reader("ensemble", "run", r".*\.json", lambda f: _say("ensemble", f, "encoder", "learned_pooling")),
        Reader("Run", "run", r".*\.jsonl?", lambda f: (bv.Run(f).scores, bv.Run(f).summary())),
        Reader("kit predict", "kit", r".*\.json", lambda f: _say("predict", f, *TEXT), 20),
        Reader("kit load", "kit", r".*\.json", lambda f: bv.load(f).predict([("a king", "a man")])),
        Reader("kit begin", "kit", r".*\.json", lambda f: begin(f / "rte", f.parent / "encoder")),
        Reader("begin", "frozen", r"(task|config|stamp)\.json", lambda f: begin(
            f / "snapshots" / "epoch_0" / "heads" / "adapter_4", f.parent / "encoder")),
        Reader("kit evaluate", "kit", r".*\.json", lambda f: _say("evaluate", f.parent / "frozen", "--kit", f)),
        Reader("kit --about", "about", r".*", lambda f: _say(
            "kit", f.parent / "frozen", "--to", f.parent / "new", "--about", f / "about.toml"), 3),
        Reader("fitted predict", "model", r".*\.json", lambda f: _say("predict", f, "--text", "a cat")),
        Reader("fitted load", "model", r".*\.json", own),
        Reader("fitted report", "model", r".*\.json", lambda f: _say("report", f, "--no-encoder"), 1),
        Reader("fitted kit", "model", r".*\.json", lambda f: _say("kit", f, "--to", f.parent / "new_kit")),
        Reader("words load", "words", r".*\.json", own),
        Reader("estimator", "estimator", r"(estimator|model|scores)\.json",
               lambda f: (one := bv.Classifier.load(f), one.predict(["a cat"]), repr(one.leaderboard_), one.notes_)),
        Reader("store verify", "store", r".*\.json", lambda f: _say("store", "verify", next(f.iterdir(), f))),
        Reader("store open", "store", r".*\.json", lambda f: open_store(next(f.iterdir(), f))),
        Reader("store ls", "store", r".*\.json", lambda f: _say("store", "ls", f)),
        Reader("encode", "store", r".*\.json", lambda f: _say("encode", f.parent / "frozen", f"store.path={f}"), 5),
        Reader("checkpoint", "checkpoints", r".*\.json", lambda f: Checkpoints(f, "stamp", 0.0).load()),
        Reader("heads", "encoder", r"(config|modules)\.json", lambda f: _say("heads", "--encoder", f)),
        Reader("load_encoder", "encoder", r".*\.json", open_encoder),
        Reader("encoder check", "encoder", r".*\.json", check),
    ]  # fmt: skip


class CommandError(Exception):
    """A command said no. The message is what it printed."""


def _say(*words: object) -> str:
    """What a command prints. Raise CommandError with its errors if it fails."""
    from bertvision.__main__ import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["bertvision", *map(str, words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    if code:
        raise CommandError((err.getvalue() or out.getvalue()).strip())
    return out.getvalue()


# ---------------------------------------------------------------------- changes


ODD_VALUES: list[Any] = [
    None, "", "text", 0, 1, -1, 2.5, True, False, [], {}, [1], ["a"], {"a": 1}, [[]], 10**9, -(10**9), 10**12, 10**20,
    -(10**20), 1e308, -1e308, 1e-300, float("nan"), float("inf"), float("-inf"), "x" * 300, "x" * 1_000_000,
    "../../outside", "/etc/passwd", "a/b", "..", "a\x00b", "a\nb", "\ud800", "[bold]x[/bold]", "\u202eabc", 999999,
    0.5, 3, "0", "1e999", "nan", "encoder", "baseline", "span", "score", "label", list(range(2000)),
]  # fmt: skip
DEEP = "[" * 100_000 + "]" * 100_000
ODD_TEXTS = ["9" * 400, "-" + "9" * 400, "9" * 5000, DEEP, '{"a":' * 50_000 + "1" + "}" * 50_000]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value[:20]):
            yield from places(item, (*path, number))


def change(value: Any, random: Random) -> tuple[Any, str, str]:
    """The value with one change, the text that replaces RAW in it, and what was done."""
    value = copy.deepcopy(value)
    every = list(places(value))
    depth = random.choice(sorted({len(path) for path in every}))
    path = random.choice([path for path in every if len(path) == depth])
    what, raw = random.choice(["replace"] * 6 + ["raw", "drop", "drop", "rename", "repeat"]), "null"
    new: Any = random.choice(ODD_VALUES)
    if what == "raw":
        raw, new = random.choice(ODD_TEXTS), RAW
    if not path:
        return new, raw, f"{what} everything by {new!r:.40}"
    inside: Any = value
    for key in path[:-1]:
        inside = inside[key]
    last = path[-1]
    if what == "drop":
        del inside[last]
    elif what == "rename" and isinstance(inside, dict):
        inside[random.choice(["other", "../../x", "", "x" * 5000, "1e9", "a\x00"])] = inside.pop(last)
    elif what == "repeat" and isinstance(inside, list):
        inside.extend(inside[:1] * 1000)
    else:
        inside[last] = new
    return value, raw, f"{what} {'.'.join(map(str, path))[-60:]}: {new!r:.40}, {raw[:20]}"


def damage(path: Path, random: Random) -> str:
    """Change a file. Checksums are those of what it holds then. Return what was done."""
    data = path.read_bytes()
    way = random.random()
    if path.suffix == ".toml" or way < 0.06:
        cut = random.randrange(len(data))
        ways = [data[:cut], data[:cut] + b"\xff\xfe" + data[cut:], b"", b"\x00" * 50, DEEP.encode()]
        ways += [b"a = " + b"9" * 5000, b"a = " + b"[" * 100_000, b"rte = 3", b"rte = " + b"9" * 400]
        number = random.randrange(len(ways))
        path.write_bytes(ways[number])
        done = f"bytes, way {number} at {cut}"
    elif path.suffix == ".jsonl":
        lines = data.decode().splitlines()
        at = random.randrange(len(lines))
        content = re.sub(r', "crc32": "[0-9a-f]{8}"\}$', "}", lines[at])
        value, raw, done = change(json.loads(content), random)
        text = _dump(value, None).replace(f'"{RAW}"', raw)
        if content != lines[at] and text.endswith("}"):
            text = text[:-1] + f', "crc32": "{zlib.crc32(text.encode()):08x}"}}'
        path.write_text("\n".join([*lines[:at], text, *lines[at + 1 :]]) + "\n")
        done = f"line {at}: {done}"
    else:
        done = _change_json(path, data, random)
    _stamp(path)
    return done


def _change_json(path: Path, data: bytes, random: Random) -> str:
    from bertvision.disk import SEAL, seal

    value = json.loads(data)
    sealed = isinstance(value, dict) and value.pop(SEAL, None) is not None
    value, raw, done = change(value, random)
    indent = 1 if b'\n "' in data else 2

    def text_of(one: Any) -> str:
        return _dump(one, indent) + "\n"

    text = seal(value, text_of) if sealed and isinstance(value, dict) else text_of(value)
    path.write_bytes(text.replace(f'"{RAW}"', raw).encode("utf-8", "surrogatepass"))
    return done


def _dump(value: Any, indent: int | None) -> str:
    """As the file was written: a store's files have escapes, others do not. Half characters are escaped in all."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return json.dumps(value, indent=indent) if "\ud800" in text or indent == 1 else text


def _stamp(path: Path) -> None:
    """Put the checksum of a changed file into the stamp of its folder."""
    from bertvision.disk import digest_of, write_sealed

    for folder in list(path.parents)[:2]:
        stamp = folder / "stamp.json"
        name = path.relative_to(folder).as_posix()
        if stamp.is_file() and stamp != path:
            found = json.loads(stamp.read_bytes())
            if name in found.get("files", {}):
                found.pop("sha256", None)
                found["files"][name] = digest_of(path)
                write_sealed(stamp, found)


# ---------------------------------------------------------------------- a trial


def attempt(made: Made, number: int, random: Random) -> Outcome:
    from bertvision.errors import UserError

    reader = random.choices(made.readers, [one.weight for one in made.readers])[0]
    copied = made.folder.parent / "copy"
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(made.folder, copied, copy_function=_copy)
    folder = copied / reader.folder
    files = sorted(path for path in folder.rglob("*") if path.is_file() and re.fullmatch(reader.files, path.name))
    files = [path for path in files if path.suffix in (".json", ".jsonl", ".toml") and "tokenizer" not in path.name]
    # As many trials for each name of a file, not for each file.
    names = sorted({path.name for path in files})
    name = random.choice(names)
    path = random.choice([path for path in files if path.name == name])
    if reader.folder in ("run", "frozen") and path.name == "report.json" and reader.name != "report":
        path = folder / "scores.json"
    done = damage(path, random)
    where = f"{path.relative_to(copied)}: {done}"
    before = _peak()
    try:
        with _limits("report" in reader.name):
            reader.call(folder)
        result, detail = "answered", ""
    except (UserError, CommandError) as error:
        result, detail = "refused", _why_bad(str(error))
    except TimeoutError:
        result, detail = "hung", f"more than {MOST_SECONDS} s"
    except BaseException as error:
        result, detail = "traceback", f"{type(error).__name__}: {str(error)[:200]}"
    grown = _peak() - before
    if grown > MOST_MEGABYTES and not detail:
        result, detail = "memory", f"{grown:.0f} MB more"
    return Outcome(reader.name, result, not detail, f"{where}: {detail}" if detail else "")


def _copy(source: str, to: str) -> None:
    """Weights are not changed, so they need no copy."""
    (os.link if source.endswith(".safetensors") else shutil.copyfile)(source, to)


def _why_bad(said: str) -> str:
    """Why what was said is not a sentence for people; '' if it is."""
    is_config = "in the config" in said
    if len(said) > MOST_LETTERS * (4 if is_config else 1):
        return f"{len(said):,} letters: {said[:200]}"
    if "Traceback" in said or re.search(r"\b[A-Z]\w*(Error|Exception)\b", said):
        return f"not for people: {said[:300]}"
    return "" if said else "nothing was said"


@contextlib.contextmanager
def _limits(draws: bool) -> Iterator[None]:
    """Time and memory: a request for much more fails at once. What draws pictures reserves terabytes."""

    def late(number: int, frame: Any) -> None:
        raise TimeoutError

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if not draws:
        resource.setrlimit(resource.RLIMIT_AS, (size + (2 << 30), hard))
    handler = signal.signal(signal.SIGALRM, late)
    signal.alarm(MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _peak() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
