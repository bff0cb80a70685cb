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
from typing import Any

import numpy as np

from bertvision.disk import lock_beside, read_json, write_sealed, write_text, writing_folder, writing_in
from bertvision.errors import UserError
from bertvision.models.fit import Fit
from bertvision.models.folder import FILE
from bertvision.models.model import Model
from bertvision.models.save import check_free, save_fit, task_name

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
    files = sorted(path for path in model.folder.rglob("*") if path.is_file())
    return {path.relative_to(model.folder).as_posix(): path.read_bytes() for path in files}


def unpack(files: dict[str, bytes]) -> Model:
    """Write packed files to a new temporary folder. Names that lead out of it are refused."""
    with _temporary_folder() as folder:
        for name, data in files.items():
            parts = PurePosixPath(name).parts
            if not parts or not all(_NAME.fullmatch(part) for part in parts):
                raise UserError(f"the pickled estimator has a file called {name!r:.80}, which no model has.")
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
        shutil.copytree(model.folder, fresh, dirs_exist_ok=True)
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
    old, name, task = read_json(folder / FILE)["model"], to.name, task_name(to.name)
    changes = {
        FILE: {"model": name, "task": task}, "scores.json": {"task": task}, "task.json": {"name": task},
        "config.json": {"run": str(to)},
    }  # fmt: skip
    for file, change in changes.items():
        write_sealed(folder / file, {**read_json(folder / file), **change})
    card = (folder / "README.md").read_text(encoding="utf-8")
    card = card.replace(f"# {old}\n", f"# {name}\n", 1).replace(f"models/{old}", f"models/{name}")
    write_text(folder / "README.md", card)


def read_estimator(folder: Path) -> tuple[dict[str, Any], np.ndarray | None]:
    """The parameters and classes in a saved folder; nothing if `bertvision fit` made it."""
    found = read_json(folder / ESTIMATOR)
    if found is None:
        return {}, None
    if found.get("format") != FORMAT:
        raise UserError(f"'{folder}' was saved by another version of BERTVision: update it, or fit the model again.")
    params = dict(found["params"])
    if isinstance(params.get("class_weight"), list):
        params["class_weight"] = dict(params["class_weight"])
    if "classes" not in found:
        return params, None
    dtype = np.dtype(str(found["classes"]["dtype"]))
    return params, np.array(found["classes"]["values"], dtype=dtype)  # (class)


def read_suspects(folder: Path) -> list[dict[str, str]]:
    """The rows of suspects.csv, which has no texts."""
    path = folder / "suspects.csv"
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
