"""The files of an estimator: a temporary folder while it is in memory, bytes in a pickle, a model folder when saved.

estimator.json        in a saved folder: the parameters, and the labels in their own type
"""

import contextlib
import csv
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np
from msgspec import Meta

from bertvision.disk import (
    damaged,
    digest_of,
    inside,
    lock_beside,
    read_json,
    write_sealed,
    write_text,
    writing_folder,
    writing_in,
)
from bertvision.disk.forms import Facts
from bertvision.errors import UserError, shorten
from bertvision.models.fit import Fit
from bertvision.models.folder import FILE
from bertvision.models.model import Model
from bertvision.models.predict import read_facts
from bertvision.models.save import SUSPECTS, check_free, save_fit, task_name
from bertvision.pipeline.folder import check_format

ESTIMATOR, FORMAT = "estimator.json", 1
_NAME = re.compile(r"\w[\w.-]*", re.ASCII)


# ---------------------------------------------------------------------- in memory


def keep_fit(fit: Fit) -> Model:
    """The model of a fit, in a temporary folder that is removed with it."""
    with _temporary_folder() as folder:
        save_fit(fit, folder / "model")
        return _own(folder)


def pack(model: Model) -> dict[str, bytes]:
    """Every file of a model's folder."""
    return {path.relative_to(model.folder).as_posix(): path.read_bytes() for path in _files_of(model)}


def _files_of(model: Model) -> list[Path]:
    """Every file of a model's folder. Raise UserError if one of them is a link that leads out of it."""
    files = sorted(path for path in model.folder.rglob("*") if path.is_file())
    return [inside(model.folder, *path.relative_to(model.folder).parts) for path in files]


def unpack(files: dict[str, bytes]) -> Model:
    """Write packed files to a new temporary folder. Names that lead out of it are refused."""
    with _temporary_folder() as folder:
        for name, data in files.items():
            parts = PurePosixPath(name).parts
            if not parts or not all(_NAME.fullmatch(part) for part in parts):
                raise UserError(f"the pickled estimator has a file called {shorten(name)}, which no model has.")
            path = folder.joinpath("model", *parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return _own(folder)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder that stays only if nothing goes wrong."""
    folder = Path(tempfile.mkdtemp(prefix="bertvision-"))
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _own(folder: Path) -> Model:
    model = Model(folder / "model")
    weakref.finalize(model, _remove, folder, os.getpid())
    return model


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # not in a fork
        shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------------- on disk


def save_model(model: Model, to: Path, params: dict[str, Any], classes: np.ndarray | None, overwrite: bool) -> None:
    """Copy a model to its final folder, with what the estimator needs on top."""
    with writing_in(lock_beside(to, "path")):
        _save(model, to, params, classes, overwrite)


def _save(model: Model, to: Path, params: dict[str, Any], classes: np.ndarray | None, overwrite: bool) -> None:
    check_free(to, overwrite, "", "overwrite=True")
    with writing_folder(to.resolve(), "path") as fresh:
        for path in _files_of(model):
            copy = fresh / path.relative_to(model.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        _rename(fresh, to.resolve())
        weights = params.get("class_weight")
        if isinstance(weights, dict):  # JSON has no other keys than text
            params = {**params, "class_weight": list(map(list, weights.items()))}
        found: dict[str, Any] = {"format": FORMAT, "params": params}
        if classes is not None:
            found["classes"] = {"dtype": classes.dtype.str, "values": classes.tolist()}
        write_sealed(fresh / ESTIMATOR, found)


def _rename(folder: Path, to: Path) -> None:
    """Put the final name of a model folder into its files."""
    old, name, task = read_facts(folder)["model"], to.name, task_name(to.name)
    changes = {
        FILE: {"model": name, "task": task}, "scores.json": {"task": task}, "task.json": {"name": task},
        "config.json": {"run": str(to)},
    }  # fmt: skip
    for file, change in changes.items():
        write_sealed(folder / file, {**(read_json(folder / file, Facts) or {}), **change})
    card = (folder / "README.md").read_text(encoding="utf-8")
    card = card.replace(f"# {old}\n", f"# {name}\n", 1).replace(f"models/{old}", f"models/{name}")
    write_text(folder / "README.md", card)


class SavedClasses(TypedDict):
    dtype: Annotated[str, Meta(pattern=r"^([<>|=][biufUS]\d{0,4}|\|O)$")]
    values: list[bool | int | float | str]


class EstimatorFile(TypedDict):
    """estimator.json."""

    format: int
    params: Facts
    classes: NotRequired[SavedClasses]
    """The labels, for classifiers."""


def read_estimator(folder: Path) -> tuple[dict[str, Any], np.ndarray | None]:
    """The parameters and classes in a saved folder; nothing if `bertvision fit` made it."""
    path = inside(folder, ESTIMATOR)
    found = read_json(path, EstimatorFile)
    if found is None:
        return {}, None
    check_format(folder, found["format"], FORMAT, "fit the model again")
    params = dict(found["params"])
    try:
        if isinstance(params.get("class_weight"), list):
            params["class_weight"] = dict(params["class_weight"])
        if "classes" not in found:
            return params, None
        return params, np.array(found["classes"]["values"], dtype=found["classes"]["dtype"])  # (class)
    except (TypeError, ValueError, OverflowError) as error:
        raise damaged(path, error) from None


def read_suspects(folder: Path) -> list[dict[str, str]]:
    """The rows of suspects.csv, which has no texts."""
    path = inside(folder, SUSPECTS)
    if not path.is_file():
        return []
    known = (read_json(inside(folder, FILE)) or {}).get("files", {})
    if known.get(SUSPECTS, digest_of(path)) != digest_of(path):
        raise damaged(path, "its checksum is wrong")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
