"""Share a model: a folder with everything that predicts and nothing else, to be pushed to the hub.

The folder is that of a run with one model. An untouched encoder from the hub is named by its revision; a tuned one, and
one from a local folder, travels along. What belongs to whoever made it stays: data, their paths, other models.
"""

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import Any

from bertvision.disk import (
    check_files,
    inside,
    mark_done,
    plain_name,
    read_stamp,
    write_sealed,
    write_text,
    writing_folder,
)
from bertvision.encoder.loading import EMBEDDED
from bertvision.encoder.output_layer import CONFIG as OUTPUT_LAYER
from bertvision.encoder.output_layer import WEIGHTS as OUTPUT_WEIGHTS
from bertvision.hub import push
from bertvision.kinds.base import results_file
from bertvision.kits.card import encoder_title
from bertvision.kits.share import copy_encoder, portable_name, refuse_taken
from bertvision.models.folder import FILE, TFIDF_FOLDER
from bertvision.models.model import Model
from bertvision.pipeline.finished import Model as SavedModel
from bertvision.pipeline.folder import BASELINE, ENCODER, HELD_OUT, RunFolder, write_task_file
from bertvision.pipeline.job import REFERENCE, read_reference
from bertvision.pipeline.predict import members_of
from bertvision.report.hub_card import SharedHead, Sharing, build_hub_card

TASK_SETTINGS = ("name", "kind", "text", "text_pair", "label", "id", "labels")
"""Of the config: the names of columns, not where the data are."""
SETTINGS = ("data", "evaluate", "finetune", "seed")
FACTS = (
    "format", "bertvision", "model", "task", "kind", "labels", "pairs", "max_length", "encoder_stamp", "metric", "rows",
    "choice", "leaderboard", "tuned", "trust", "seed",
)  # fmt: skip
"""Of model.json."""


def save_model(model: Model, to: Path, name: str | None = None, sharing: Sharing | None = None) -> Path:
    """Write the model to a new or empty folder."""
    refuse_taken(to)
    with writing_folder(to.resolve(), "the folder") as fresh:
        run, found = model.run, model.saved
        is_read = found.role != "peer"
        encoder = _save_encoder(run.folder, RunFolder(fresh), found.epochs) if is_read else ""
        saved = members_of(found)
        for one in saved if is_read else ():
            if one != ENCODER:
                _copy_folder(run.folder.head(found.epochs, one), RunFolder(fresh).head(found.epochs, one))
        if not is_read:
            words = inside(run.folder.snapshot(found.epochs), TFIDF_FOLDER)
            _copy_folder(words, RunFolder(fresh).snapshot(found.epochs) / TFIDF_FOLDER)
        _save_results(found, RunFolder(fresh).predictions(found.epochs, HELD_OUT, found.name))
        _save_scores(model, fresh, {found.name, *saved})
        _save_config(model, fresh, encoder)
        write_task_file(fresh, dataclasses.replace(run.task, source=""))
        if model.facts:
            facts = {key: model.facts[key] for key in FACTS if key in model.facts}
            write_sealed(fresh / FILE, {**facts, "encoder": encoder or _title(model), "chosen": model.chosen})
        write_text(fresh / "README.md", _card(model, name or model.task, encoder, sharing or Sharing()))
    return to


def push_model(model: Model, name: str, sharing: Sharing | None = None, **settings: Any) -> str:
    """Push the model to the hub. Return the address of the commit. `settings` are those of `hub.push`."""
    with tempfile.TemporaryDirectory() as place:
        return push(save_model(model, Path(place) / "model", name, sharing), name, **settings)


def _save_encoder(run: RunFolder, to: RunFolder, epochs: float) -> str:
    """Save the encoder, or a reference to it. Return its name, or "" if it travels along."""
    source, folder = run.encoder(epochs), to.encoder(epochs)
    check_files(source)
    reference = read_reference(source)
    if reference is None:
        _copy_folder(source, folder)
        return ""
    folder.mkdir(parents=True)
    for file in (OUTPUT_LAYER, OUTPUT_WEIGHTS):
        shutil.copyfile(inside(source, file), folder / file)
    name = portable_name(reference["name"])
    if name is None:
        copy_encoder(reference["name"], folder)
    else:
        write_sealed(folder / REFERENCE, {"name": name, "stamp": reference["stamp"]})
    _mark_again(source, folder)
    return name or ""


def _copy_folder(source: Path, to: Path) -> None:
    """Copy a finished folder without a card, byte by byte."""
    check_files(source)
    to.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name != "README.md":
            shutil.copyfile(inside(source, path.name), to / path.name)


def _mark_again(source: Path, to: Path) -> None:
    """Write the stamp of a folder again that has other files now."""
    facts = read_stamp(source) or {}
    mark_done(to, **{key: value for key, value in facts.items() if key != "files"})


def _save_results(found: SavedModel, to: Path) -> None:
    """The per-example results on held-out data, which trust is measured on: numbers, no texts."""
    path = results_file(found.predictions(HELD_OUT))
    if HELD_OUT in found.figures and path.is_file():
        check_files(path.parent, path.name)
        to.mkdir(parents=True)
        shutil.copyfile(inside(path.parent, path.name), to / path.name)
        _mark_again(path.parent, to)


def _save_scores(model: Model, fresh: Path, names: set[str]) -> None:
    scores, found = model.run.scores, model.saved
    (at,) = (key for key in scores["snapshots"] if float(key) == found.epochs)
    entries = scores["snapshots"][at]
    baseline = next(entries[BASELINE] for entries in scores["snapshots"].values() if BASELINE in entries)
    kept = {BASELINE: baseline, **{one: entries[one] for one in entries if one in names}}
    why = scores.get("chosen_by") or ("its score on held-out training data" if model.run.has_held_out else "its score")
    facts = {key: scores[key] for key in ("task", "kind", "metrics")}
    write_sealed(fresh / "scores.json", {**facts, "snapshots": {at: kept}, "chosen": found.name, "chosen_by": why})


def _save_config(model: Model, fresh: Path, encoder: str) -> None:
    config = model.run.config
    task = {key: config["task"][key] for key in TASK_SETTINGS if config["task"].get(key) is not None}
    own = {**config["encoder"], "name": encoder or _title(model), "device": "auto"}
    kept = {key: config[key] for key in SETTINGS if key in config}
    write_sealed(fresh / "config.json", {"task": task, **kept, "encoder": own, "heads": [], "run": "model"})


def _title(model: Model) -> str:
    """The name of an encoder that travels along: of a folder, only its last part."""
    name = model.encoder
    return name if name == EMBEDDED else encoder_title(name)


def _card(model: Model, name: str, encoder: str, sharing: Sharing) -> str:
    found, task = model.saved, model.run.task
    head = SharedHead(
        plain_name(task.name, "the task"), task.kind, task.metrics, task.takes_pairs, found.name, found.parameters,
        {**found.figures},
    )  # fmt: skip
    base = encoder or (model.encoder if _title(model) == model.encoder else "")
    return build_hub_card(name, [head], base if found.epochs or encoder else "", found.epochs > 0, sharing)
