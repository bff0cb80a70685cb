"""The folder of an exported model: read, checked, and refused in one sentence.

manifest.json      format, tasks with thresholds and trust, and the checksum of every file; written last
model.onnx         the encoder and all heads
tokenizer.json
parity.json        how its answers differ from those of the model it was made from

Nothing that is read here is code, and no name in these files is a path.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST, GRAPH, TOKENIZER = "manifest.json", "model.onnx", "tokenizer.json"
FORMAT = 1
SEAL, DIGITS = "sha256", 16
MOST_JSON = 256 << 20
"""Bytes of a JSON file."""
MOST_TOKENS, MOST_CANDIDATES = 1_000_000, 10_000
KINDS, METHODS = ("label", "score", "span"), ("max", "mean", "sum", "fitted")


class ExportError(ValueError):
    """A folder or a text that can't be used. The message is written for users."""


@dataclass(frozen=True)
class Task:
    """A task in the manifest."""

    name: str
    kind: str
    labels: tuple[str, ...]
    pairs: bool
    windowed: bool
    towers: bool
    max_length: int
    overlap: int
    n_best: int
    max_answer_tokens: int
    threshold: float
    trust: dict[str, list[dict[str, float]]] | None
    outputs: tuple[str, ...]
    """Outputs of the graph: one, or those of an ensemble's members."""
    method: str | None
    weights: tuple[float, ...] | None


@dataclass(frozen=True)
class Manifest:
    name: str
    is_kit: bool
    precision: str
    has_types: bool
    has_towers: bool
    pad_id: int
    max_tokens: int | None
    """The longest sequence that the encoder takes."""
    tasks: dict[str, Task]
    facts: dict[str, Any]
    """The whole of manifest.json."""


def is_export(folder: Path | str) -> bool:
    return (Path(folder) / MANIFEST).is_file()


def read_export(folder: Path | str) -> tuple[Manifest, bytes, str]:
    """The manifest, the graph and the tokenizer of an export, after every check."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ExportError(f"there is no folder '{folder}': give the folder that `bertvision export` wrote.")
    if not is_export(folder):
        raise ExportError(
            f"'{folder}' is not an exported model, or its export was interrupted: it has no {MANIFEST}. "
            "`bertvision export` writes one."
        )
    facts = _read_manifest(folder / MANIFEST)
    try:
        manifest = _as_manifest(facts)
        files = {str(name): str(digest) for name, digest in facts["files"].items()}
        if missing := {GRAPH, TOKENIZER} - files.keys():
            raise ValueError(f"files: {missing.pop()} is missing")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(folder / MANIFEST, _why(error)) from None
    data = {name: read_checked(folder, name, digest) for name, digest in files.items()}
    check_graph(data[GRAPH], folder / GRAPH)
    return manifest, data[GRAPH], data[TOKENIZER].decode("utf-8", "replace")


def damaged(path: Path, why: str) -> ExportError:
    return ExportError(f"{path} is damaged ({why[:200]}): export the model again, or copy the folder again.")


def _why(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _read_manifest(path: Path) -> dict[str, Any]:
    data = _read(path, MOST_JSON)
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError):
        raise damaged(path, "it is not valid JSON") from None
    if not isinstance(facts, dict) or not isinstance(facts.get("format"), int):
        raise ExportError(f"{path} is not the manifest of an exported model: it states no format.")
    if facts["format"] != FORMAT:
        newer = facts["format"] > FORMAT
        advice = "update bertvision-runtime" if newer else "export the model again"
        raise ExportError(f"'{path.parent}' has format {facts['format']}, and this version reads {FORMAT}: {advice}.")
    content = {key: value for key, value in facts.items() if key != SEAL}
    if facts.get(SEAL) != digest_of(render(content)):
        raise damaged(path, "its checksum is wrong")
    return content


def render(value: Any) -> bytes:
    """JSON as `bertvision` writes it."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]


def read_checked(folder: Path, name: str, digest: str) -> bytes:
    """The bytes of a file of the folder, by its plain name."""
    if not name or name != name.strip() or name.startswith(".") or any(mark in '/\\:<>|"?*\0' for mark in name):
        raise damaged(folder / MANIFEST, f"{name!r} is not the name of a file in this folder")
    path = folder / name
    if path.is_symlink() and path.resolve().parent != folder.resolve():
        raise ExportError(f"'{path}' leads out of '{folder}' through a symbolic link: put the file into the folder.")
    if not path.is_file():
        raise ExportError(f"{path} is missing: export the model again, or copy the folder again.")
    data = _read(path, None)
    if digest_of(data) != digest:
        raise damaged(path, "its checksum is wrong")
    return data


def _read(path: Path, most: int | None) -> bytes:
    try:
        if most is not None and path.stat().st_size > most:
            raise damaged(path, "it is too large")
        return path.read_bytes()
    except OSError as error:
        raise ExportError(f"{path} can't be read ({error.strerror}): check the disk and the permissions.") from None


# ---------------------------------------------------------------------- the manifest


def _as_manifest(facts: dict[str, Any]) -> Manifest:
    tasks = {str(name): _as_task(str(name), one) for name, one in facts["tasks"].items()}
    if not tasks:
        raise ValueError("tasks: there are none")
    is_kit = facts["is_kit"] is True
    if not is_kit and len(tasks) != 1:
        raise ValueError("tasks: a model has one")
    longest = facts["max_tokens"]
    return Manifest(
        str(facts["name"]), is_kit, str(facts["precision"]), facts["has_types"] is True,
        any(task.towers for task in tasks.values()), _count(facts, "pad_id", 0, 10_000_000),
        None if longest is None else _count(facts, "max_tokens", 1), tasks, facts,
    )  # fmt: skip


def _as_task(name: str, facts: dict[str, Any]) -> Task:
    kind, method, trust = facts["kind"], facts["method"], facts["trust"]
    if kind not in KINDS or method not in (None, *METHODS):
        raise ValueError(f"tasks.{name[:60]}: unknown kind or method")
    labels, outputs = tuple(map(str, facts["labels"])), tuple(map(str, facts["outputs"]))
    weights = None if facts["weights"] is None else tuple(map(float, facts["weights"]))
    if not outputs or (method is None) != (len(outputs) == 1) or (kind == "label") != bool(labels):
        raise ValueError(f"tasks.{name[:60]}: outputs or labels don't fit")
    if (method == "fitted") != (weights is not None) or (weights is not None and len(weights) != len(outputs)):
        raise ValueError(f"tasks.{name[:60]}: weights don't fit")
    windowed, towers = facts["windowed"] is True, facts["towers"] is True
    max_length, overlap = _count(facts, "max_length", 1), _count(facts, "overlap", 0)
    threshold = float(facts["threshold"])
    if not abs(threshold) < 1e9 or (windowed and (overlap >= max_length or towers)):
        raise ValueError(f"tasks.{name[:60]}: threshold or lengths don't fit")
    if kind == "label" and windowed and len(labels) != 2:
        raise ValueError(f"tasks.{name[:60]}: answerability has two labels")
    return Task(
        name, kind, labels, facts["pairs"] is True, windowed, towers, max_length, overlap,
        _count(facts, "n_best", 1, MOST_CANDIDATES), _count(facts, "max_answer_tokens", 1), threshold,
        None if trust is None else _as_trust(trust), outputs, method, weights,
    )  # fmt: skip


def _as_trust(trust: dict[str, Any]) -> dict[str, list[dict[str, float]]]:
    found = {}
    for said, groups in trust.items():
        found[str(said)] = [{str(key): value for key, value in group.items()} for group in groups]
        for group in found[str(said)]:
            numbers = all(isinstance(value, int | float) for value in group.values())
            if not numbers or not (
                {"off_by", "examples"} <= group.keys() or {"from", "right", "examples"} <= group.keys()
            ):
                raise ValueError(f"the trust of {said[:60]!r} has another form")
        if not groups:
            raise ValueError(f"the trust of {said[:60]!r} is empty")
    return found


def _count(facts: dict[str, Any], key: str, least: int, most: int = MOST_TOKENS) -> int:
    value = facts[key]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{key} must be a whole number from {least} to {most:,}")
    return value


# ---------------------------------------------------------------------- the graph

GRAPH_FIELD, FUNCTIONS = 7, 25  # of ModelProto
INNER = {
    "model": {GRAPH_FIELD: "graph", FUNCTIONS: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
"""The fields of ONNX's messages that lead to tensors (onnx.proto)."""
EXTERNAL_DATA, DATA_LOCATION = 13, 14  # of TensorProto
MOST_DEPTH = 60


def check_graph(data: bytes, path: Path) -> None:
    """Refuse a graph whose weights are in other files: it could name any file of this machine."""
    try:
        _check_message(memoryview(data), "model", 0)
    except (IndexError, ValueError) as error:
        if "another file" in str(error):
            raise ExportError(
                f"{path} has weights in another file, which is never opened: export the model again."
            ) from None
        raise damaged(path, "it is not an ONNX graph") from None


def _check_message(data: memoryview, message: str, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise ValueError("nested too deeply")
    for field, value in _fields(data):
        if message == "tensor":
            if field == EXTERNAL_DATA or (field == DATA_LOCATION and value != 0):
                raise ValueError("another file")
        elif field in INNER[message] and isinstance(value, memoryview):
            _check_message(value, INNER[message][field], depth + 1)


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a message of Protocol Buffers: numbers, and the bytes of all else."""
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        field, form = key >> 3, key & 7
        if form == 0:
            value, at = _number(data, at)
            yield field, value
            continue
        size = {1: 8, 5: 4}.get(form)
        if form == 2:
            size, at = _number(data, at)
        if size is None or at + size > len(data):
            raise ValueError("no such field")
        yield field, data[at : at + size]
        at += size


def _number(data: memoryview, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = data[at]
        found |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return found, at
        if shift > 63:
            raise ValueError("a number is too long")
