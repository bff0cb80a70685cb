"""A stranger's runs, kits, fitted models, stores and reports: names that are paths, links that lead out of the folder,
and text that would be HTML.

Good: refused, or harmless. Bad: a file outside changes or appears, a file outside is copied into what is written, an
element of the page that the report did not make, or a traceback.
"""

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_reports import build_tiny_run
from tiny_stores import begin_tiny_store, tiny_encoder

import bertvision as bv
from bertvision.disk import write_sealed
from bertvision.encoder.shared import forget
from bertvision.errors import UserError
from bertvision.kits.kit import Kit
from bertvision.kits.make import make_kit
from bertvision.models.predict import FittedPredictor
from bertvision.pipeline.job import reopen
from bertvision.pipeline.predict import Predictor
from bertvision.pipeline.run import run_job
from bertvision.progress import Reporter
from bertvision.report.build import make_report
from bertvision.sources.store import Store
from bertvision.sources.store.format import seal, unseal
from bertvision.sources.store.reader import StateReader
from bertvision.sources.store.upkeep import list_stores, verify_store
from tests.reliability.made import Made, make_all
from tests.reliability.trials import Outcome

NAME, ABOUT = "hostile", "a stranger's runs, kits, models, stores and reports"
TRIALS, SLICE = 600, 40
PAIRS = [("a king", "a man, old")]
SECRET = b"the contents of a private file"
HTML = [
    "</script><script>window.bad=1</script>", '"><img src=x onerror=window.bad=1>', "<!--", "<b onclick=alert(1)>x</b>",
    "' onmouseover='window.bad=1", "<iframe src=//127.0.0.1></iframe>", "{{ 7*7 }}", "]]><svg onload=alert(1)>",
    "javascript:alert(1)", "\u202ehtml\u2028line", "</textarea><style>*{display:none}</style>", "a|b\n# heading",
]  # fmt: skip
NAMES = [
    "../outside", "../../outside", "../../../outside", "../../../../outside", "../../../../../outside", "..", ".", "",
    "a/b", "a\\b", "~", "~root", "C:\\outside", "nul\0byte", "line\nend", ".hidden", " space ", "x" * 300, "{outside}",
    "{outside}/README.md", "../../../../../outside/README.md", "\u202eback", "..\\..\\outside", "a:b", "é" * 120,
]  # fmt: skip
KINDS = ("name", "name", "name", "link", "link", "link", "store", "page")


# ---------------------------------------------------------------------- what a user does with it


def report(folder: Path, out: Path) -> None:
    make_report([folder], with_encoder=bool(len(folder.name) % 2))


def report_elsewhere(folder: Path, out: Path) -> None:
    make_report([folder], to=out / "report", with_encoder=False)


def predict(folder: Path, out: Path) -> None:
    Predictor(folder).predict_texts(PAIRS)


def kit_of(folder: Path, out: Path) -> None:
    make_kit([folder], out / "kit")


def ensemble(folder: Path, out: Path) -> None:
    bv.Run(folder).ensemble("encoder", "adapter_4", method="mean", name="two")


def run_again(folder: Path, out: Path) -> None:
    run_job(reopen(folder))


def predict_kit(folder: Path, out: Path) -> None:
    Kit(folder).predict(PAIRS)


def predict_model(folder: Path, out: Path) -> None:
    forget()
    FittedPredictor(folder).predict_texts(["a king"])


def copy_model(folder: Path, out: Path) -> None:
    bv.Classifier.load(folder).save(out / "copy")


def read_store(folder: Path, out: Path) -> None:
    store = Store.open(folder)
    StateReader(store, ("tokens",), store.facts()["lengths"]).fetch([np.arange(len(store))])


def verify(folder: Path, out: Path) -> None:
    verify_store(folder)
    list_stores(folder)


def encode(folder: Path, out: Path) -> None:
    tiny = begin_tiny_store(folder, "float16")
    tiny.writer.write()
    tiny.writer.finish()


ACTIONS: dict[str, tuple[Callable[[Path, Path], None], ...]] = {
    "run": (report, report_elsewhere, predict, ensemble, run_again),
    "frozen": (kit_of, report_elsewhere, predict),
    "kit": (predict_kit,),
    "model": (predict_model, copy_model, report_elsewhere, kit_of),
    "store_tokens": (read_store, verify, encode),
}


# ---------------------------------------------------------------------- trials


def prepare(place: Path) -> Made:
    torch.set_num_threads(1)
    tiny_encoder()
    made = make_all(place / "whole")
    shutil.copytree(place / "whole" / "encoder", place / "encoder")
    return made


def attempt(made: Made, number: int, random: random.Random) -> Outcome:
    place = made.place.parent / "trial"
    shutil.rmtree(place, ignore_errors=True)
    outside, out = place / "outside", place / "box" / "out"
    outside.mkdir(parents=True)
    out.mkdir(parents=True)
    for name in ("README.md", "secret", "head.safetensors", "config.json"):
        (outside / name).write_bytes(SECRET)
    try:
        kind = KINDS[number % len(KINDS)]
        if kind == "page":
            return _attempt_page(place, random)
        names = ["store_tokens"] if kind == "store" else [name for name in ACTIONS if name != "store_tokens"]
        name = random.choice(names)
        action = random.choice(ACTIONS[name])
        folder = place / "box" / name
        shutil.copytree(made.folder(name), folder, symlinks=True)
        spoil = random.choice((put_name, put_link)) if kind == "store" else put_name if kind == "name" else put_link
        what = spoil(folder, outside, random)
        return _judge(f"{spoil.__name__[4:]} in {name} → {action.__name__}", what, place, folder, out, action)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _judge(case: str, what: str, place: Path, folder: Path, out: Path, action: Callable[[Path, Path], None]) -> Outcome:
    before = _tree(place, folder, out)
    result, detail = "harmless", ""
    try:
        action(folder, out)
    except UserError:
        result = "refused"
    except Exception as error:
        result, detail = "traceback", f"{type(error).__name__}: {error}"
    after = _tree(place, folder, out)
    if changed := [name for name in before | after if before.get(name) != after.get(name)]:
        result, detail = "outside changed", ", ".join(sorted(changed)[:5])
    elif any(SECRET in path.read_bytes() for path in out.rglob("*") if path.is_file()):
        result, detail = "copied", "a private file is in what was written"
    return Outcome(case, result, result in ("harmless", "refused"), detail and f"{what}: {detail}")


def _tree(place: Path, *without: Path) -> dict[str, str]:
    """Path → content of everything outside of the folders, links as they are."""
    found = {}
    for folder, folders, files in os.walk(place):
        folders[:] = [name for name in folders if Path(folder, name) not in without]
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink():
                found[str(path)] = f"link to {os.readlink(path)}"
            else:
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    return found


# ---------------------------------------------------------------------- names


def put_name(folder: Path, outside: Path, random: random.Random) -> str:
    """Put a name that is a path into one of the folder's JSON files, with the checksum that belongs to it."""
    name = random.choice(NAMES).replace("{outside}", str(outside))
    path = random.choice(sorted(path for path in folder.rglob("*.json") if _places(_load(path))))
    value = _load(path)
    places = _places(value)
    holder, key, is_key = random.choice(places)
    if is_key:
        holder[name] = json.loads(json.dumps(holder[key]))
        if random.random() < 0.5 and len(holder) > 1:
            del holder[key]
    else:
        holder[key] = name
    if path.name == "manifest.json":
        path.write_bytes(seal(value))
    else:
        write_sealed(path, value) if isinstance(value, dict) else path.write_text(json.dumps(value))
    return f"{path.relative_to(folder)}: {'key' if is_key else ''} {key!r} → {name[:60]!r}"


def _load(path: Path) -> Any:
    if path.name == "manifest.json":
        return unseal(path.read_bytes(), path.name)
    value = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(value, dict):
        value.pop("sha256", None)
    return value


NAMED = {
    "name", "split", "group", "chosen", "task", "model", "head", "encoder", "run", "file", "source", "stem", "sha256",
    "data", "train", "dev", "path", "ensemble",
}  # fmt: skip
NAMING = {"snapshots", "scores", "tasks", "files", "beside"}


def _places(value: Any, above: str = "", depth: int = 0) -> list[tuple[Any, Any, bool]]:
    """Where a name stands: values of keys that hold names, and keys of objects that are indexed by names."""
    found: list[tuple[Any, Any, bool]] = []
    items: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, dict):
        items = iter(value.items())
    elif isinstance(value, list) and len(value) < 50:
        items = enumerate(value)
    for key, item in items:
        if isinstance(item, str) and (key in NAMED or above in ("labels", "metrics", "heads", "ensemble", "ensembles")):
            found.append((value, key, False))
        if isinstance(value, dict) and (above in NAMING or depth == 2 and "scores" in str(item)[:2000]):
            found.append((value, key, True))
        found += _places(item, key if isinstance(key, str) else above, depth + 1)
    return found


# ---------------------------------------------------------------------- links


def put_link(folder: Path, outside: Path, random: random.Random) -> str:
    """Replace a file or folder by a link to something outside: a copy of itself, a private file, or another folder."""
    new = [name for name in ("report", "analyses", "checkpoints", "search", "states", "features", "metrics.jsonl")]
    there = sorted(path for path in folder.rglob("*"))
    path = folder / random.choice(new) if random.random() < 0.3 else random.choice(there)
    target = outside / "target"
    if path.is_dir() and not path.is_symlink():
        shutil.copytree(path, target) if random.random() < 0.7 else target.mkdir()
        shutil.rmtree(path)
    elif path.is_file():
        shutil.copyfile(path, target)
        target = target if random.random() < 0.5 else outside / "secret"
        path.unlink()
    elif path.name == "metrics.jsonl":
        target.write_bytes(b"")
    else:
        target.mkdir()
        (target / "README.md").write_bytes(SECRET)
        (target / "layer_map_dev.json").write_bytes(SECRET)
    path.symlink_to(target)
    return f"{path.relative_to(folder)} → {target.name}"


# ---------------------------------------------------------------------- pages


class Elements(HTMLParser):
    """Tags and attributes of a page, and the text of scripts that are code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.code: list[str] = []
        self._in_code = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self._in_code = tag == "script" and dict(attrs).get("type") != "application/json"
        self.code += [""] if self._in_code else []

    def handle_endtag(self, tag: str) -> None:
        self._in_code = self._in_code and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._in_code:
            self.code[-1] += data


def _attempt_page(place: Path, random: random.Random) -> Outcome:
    """Hostile labels, texts, ids, columns and settings in the page of a report."""
    texts = random.sample(HTML, 4)
    folder = place / "box" / "pages"
    plain = _plain(place.parent)
    try:
        found = Elements(_page(folder, texts[:3], texts[3], random.choice(HTML)))
    except UserError:
        return Outcome("hostile text → report", "refused", True)
    except Exception as error:
        return Outcome("hostile text → report", "traceback", False, f"{texts}: {type(error).__name__}: {error}")
    new = (found.tags - plain.tags) | {name for name in found.attributes - plain.attributes}
    is_same = not new and [len(one) for one in found.code] == [len(one) for one in plain.code]
    detail = "" if is_same else f"{texts}: {sorted(new)}"
    return Outcome("hostile text → report", "harmless" if is_same else "injected", is_same, detail)


@cache
def _plain(place: Path) -> Elements:
    return Elements(_page(place / "plain", ["no", "maybe", "yes"], "a text", "a setting"))


def _page(folder: Path, labels: list[str], text: str, setting: str) -> str:
    return write_page(folder, labels, text, setting).read_text(encoding="utf-8")


def write_page(folder: Path, labels: list[str], text: str, setting: str) -> Path:
    build_tiny_run(folder, labels=labels, examples=12, heads=("learned_pooling",))
    for split in ("train", "dev"):
        path = folder / "data" / f"{split}.csv"
        path.write_text(path.read_text(encoding="utf-8").replace("sentence 1 ", f"sentence 1 {_cell(text)} "), "utf-8")
    for name in ("lengths.json",):  # the data may differ from what was scored: a stranger removes its stamp
        value = _load(folder / name)
        for split in value.values():
            split.pop("stamp", None)
        write_sealed(folder / name, value)
    config = _load(folder / "config.json")
    config["encoder"]["name"] = setting
    write_sealed(folder / "config.json", config)
    task = _load(folder / "task.json")
    task["source"] = text
    write_sealed(folder / "task.json", task)
    return make_report([folder], reporter=Reporter(), with_encoder=False)


def _cell(text: str) -> str:
    return text.replace('"', '""').replace("\n", " ").replace("\u2028", " ").replace(",", " ")
