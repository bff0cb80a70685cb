"""Write an export: one graph for an encoder and all heads, and beside it all that predicting needs.

model.onnx      the graph
tokenizer.json
parity.json     how far its outputs and answers are from torch's
manifest.json   format, tasks with labels, thresholds and trust, and the checksum of every file; written last

`bertvision_runtime` reads the folder; so does `bv.load`, through it.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertvision import __version__
from bertvision.disk import (
    digest_of,
    lock_beside,
    read_json,
    sweep,
    write_bytes,
    write_sealed,
    write_text,
    writing_folder,
    writing_in,
)
from bertvision.disk.forms import Facts
from bertvision.errors import UserError, suggest
from bertvision.export.graph import build_graph
from bertvision.export.measure import Measured, measure
from bertvision.export.parts import Part, Source, open_source
from bertvision.export.session import Session
from bertvision.models.exported import MANIFEST
from bertvision.progress import Reporter

FORMAT = 1
GRAPH, TOKENIZER, PARITY = "model.onnx", "tokenizer.json", "parity.json"


def export_model(
    name: str,
    to: Path,
    *,
    int8: bool = False,
    head: str | None = None,
    tasks: list[str] | None = None,
    data: Mapping[str, str] | None = None,
    overwrite: bool = False,
    reporter: Reporter | None = None,
    wait: bool = False,
) -> dict[str, Any]:
    """Export a run, a fitted model or a kit to a folder, and return its manifest. `data` says where the data of tasks
    is; "" stands for a model's only task. `wait`: if another process is writing to the folder, wait until it ends."""
    reporter = reporter or Reporter()
    _check_packages()
    with writing_in(lock_beside(to), wait, reporter.say):
        sweep(to.resolve().parent)
        _check_free(to, overwrite)
        return _export(name, to, int8, head, tasks, data, reporter)


def _export(
    name: str,
    to: Path,
    int8: bool,
    head: str | None,
    tasks: list[str] | None,
    data: Mapping[str, str] | None,
    reporter: Reporter,
) -> dict[str, Any]:
    source = open_source(name, head, tasks, reporter)
    places = _check_data(source, dict(data or {}))
    outputs = _name_outputs(source)
    heads = {
        one: model
        for task, names in outputs.items()
        for one, model in zip(names, source.parts[task].models.values(), strict=True)
    }
    towers = frozenset(one for task, names in outputs.items() if source.parts[task].towers for one in names)
    reporter.say(f"tracing {source.name} ({'int8' if int8 else 'float32'}): this takes some seconds for each head.")
    graph = build_graph(source.encoder, heads, towers, int8)
    session = Session(graph, list(heads), source.encoder.pad_id)
    measured = {
        task: measure(part, source.encoder, session, outputs[task], places.get(task), reporter)
        for task, part in source.parts.items()
    }
    with writing_folder(to.resolve(), "--to") as fresh:
        write_bytes(fresh / GRAPH, graph, "--to")
        write_text(fresh / TOKENIZER, _tokenizer_of(source), "--to")
        write_sealed(fresh / PARITY, {task: one.parity for task, one in measured.items()}, "--to")
        manifest = _describe(source, int8, outputs, measured)
        manifest["files"] = {file: digest_of(fresh / file) for file in (GRAPH, TOKENIZER, PARITY)}
        write_sealed(fresh / MANIFEST, manifest, "--to")
    return manifest


def read_parity(folder: Path) -> dict[str, Any]:
    return read_json(folder / PARITY, Facts) or {}


def _check_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"exporting needs more packages ({error.name}): pip install 'bertvision[export]'.") from None


def _check_free(to: Path, overwrite: bool) -> None:
    if os.path.isfile(to):
        raise UserError(f"'{to}' is a file: choose a folder with --to.")
    if not to.is_dir() or not any(to.iterdir()):
        return
    if not (to / MANIFEST).is_file():
        raise UserError(f"'{to}' exists and is not an exported model: choose another folder with --to.")
    if not overwrite:
        raise UserError(f"'{to}' exists: choose another folder with --to, or replace the export with --overwrite.")


def _check_data(source: Source, data: dict[str, str]) -> dict[str, str]:
    only = next(iter(source.parts))
    if "" in data and len(source.parts) > 1:
        raise UserError("a kit has several tasks: name one for each place, --data TASK=FOLDER.")
    found = {task or only: place for task, place in data.items()}
    for task in found:
        if task not in source.parts:
            raise UserError(f"--data: {source.name} has no task '{task}': {suggest(task, source.parts)}")
    return found


def _name_outputs(source: Source) -> dict[str, list[str]]:
    """Task → the graph's outputs for its models."""
    found: dict[str, list[str]] = {}
    for task, part in source.parts.items():
        first = sum(map(len, found.values()))
        found[task] = [f"output_{first + number}" for number in range(len(part.models))]
    return found


def _tokenizer_of(source: Source) -> str:
    assert source.encoder.tokenizer is not None
    rules = json.loads(source.encoder.tokenizer.backend_tokenizer.to_str())
    return json.dumps(rules | {"truncation": None, "padding": None}, ensure_ascii=False)


def _describe(
    source: Source, int8: bool, outputs: dict[str, list[str]], measured: dict[str, Measured]
) -> dict[str, Any]:
    encoder = source.encoder
    assert encoder.tokenizer is not None
    return {
        "format": FORMAT,
        "bertvision": __version__,
        "name": source.name,
        "is_kit": source.is_kit,
        "precision": "int8" if int8 else "float32",
        "encoder": Path(source.encoder_name).name,
        "encoder_stamp": source.encoder_stamp,
        "has_types": encoder.has_types and "token_type_ids" in encoder.tokenizer.model_input_names,
        "pad_id": encoder.pad_id,
        "max_tokens": encoder.max_length,
        "tasks": {task: _describe_task(part, outputs[task], measured[task]) for task, part in source.parts.items()},
    }


def _describe_task(part: Part, outputs: list[str], measured: Measured) -> dict[str, Any]:
    task = part.task
    return {
        "kind": str(task.kind),
        "labels": list(task.labels),
        "pairs": task.takes_pairs,
        "windowed": task.windowed,
        "towers": part.towers,
        "max_length": part.max_length,
        "overlap": part.overlap,
        "n_best": part.how.n_best,
        "max_answer_tokens": part.how.longest,
        "threshold": measured.threshold,
        "trust": measured.trust,
        "measured_again": measured.why_not is None,
        "why_not": measured.why_not,
        "models": list(part.models),
        "outputs": outputs,
        "method": part.method,
        "weights": None if part.weights is None else list(part.weights),
    }
