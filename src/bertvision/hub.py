"""The Hugging Face hub: push a folder to a model repository, and pull one. Only names that the user gave are used.

What was pulled is put next to the hub's own cache as real files: there, files are links that lead out of their folder.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bertvision.disk import plain_name, writing_folder
from bertvision.errors import UserError

FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.md")
"""What is downloaded of a repository. Nothing in such files is run."""
SECONDS = 20.0
"""A hub that does not answer in this time counts as down."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*\w")


def is_hub_name(name: str | Path) -> bool:
    """Whether this can be USER/NAME on the hub. If USER is a folder here, it is a path."""
    text = str(name)
    return isinstance(name, str) and _NAME.fullmatch(text) is not None and not os.path.isdir(text.split("/")[0])


def push(
    folder: Path,
    name: str,
    private: bool = False,
    revision: str | None = None,
    token: str | None = None,
    message: str = "Upload with BERTVision",
) -> str:
    """Upload a folder to a model repository, which is created if need be. Return the address of the commit."""
    if not is_hub_name(name):
        raise UserError(f"'{name}' is not the name of a repository on the hub: give USER/NAME.")
    from huggingface_hub import HfApi

    with _clear_errors(name, "pushed"), _quiet():
        api = HfApi(token=token)
        api.create_repo(name, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        # What lies in folders is ours: heads that are gone are removed there too.
        done = api.upload_folder(
            repo_id=name, folder_path=folder, revision=revision, commit_message=message, delete_patterns="*/*"
        )
    return str(done.commit_url)


def pull(name: str | Path, marks: tuple[str, ...], revision: str | None = None, token: str | None = None) -> Path:
    """Download a model repository that has one of the files `marks`. Return its folder. Without the hub, what was
    downloaded before is used."""
    from huggingface_hub import constants, snapshot_download

    name = str(name)
    with _clear_errors(name, "loaded"), _quiet():
        there = _list_files(name, revision, token)
        if there is not None:
            _check(name, there, marks)  # before anything is downloaded
        snapshot = Path(
            snapshot_download(
                name, revision=revision, token=token, allow_patterns=list(FILES), local_files_only=there is None
            )
        )
    files = sorted(path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file())
    _check(name, files, marks)
    folder = Path(constants.HF_HOME) / "bertvision" / name.replace("/", "--") / snapshot.name
    if not folder.is_dir():
        with writing_folder(folder, "HF_HOME") as fresh:
            for file in files:
                to = fresh.joinpath(*file.split("/"))
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(snapshot / file, to)
    return folder


def _check(name: str, files: list[str], marks: tuple[str, ...]) -> None:
    """Refuse a repository that holds no model of ours, or files whose names could lead out of their folder."""
    if not set(marks) & set(files):
        raise UserError(
            f"'{name}' on the hub is not a BERTVision model: it has no {' and no '.join(marks)}. To use an encoder, "
            "give its name as `encoder.name` or with --encoder."
        )
    for file in files:
        for part in file.split("/"):
            if part not in (".gitattributes", ".gitignore"):
                plain_name(part, f"a file in '{name}' on the hub")


def _list_files(name: str, revision: str | None, token: str | None) -> list[str] | None:
    """The files of a repository; None if the hub does not answer: they may be in the cache."""
    from huggingface_hub import HfApi, constants, errors

    if constants.is_offline_mode():
        return None
    try:
        found = HfApi(token=token).model_info(name, revision=revision, timeout=SECONDS)
        return [one.rfilename for one in found.siblings or []]
    except errors.HfHubHTTPError as error:
        if getattr(error.response, "status_code", 500) < 500:
            raise
    except (OSError, _http_error()):
        pass
    return None


def _http_error() -> type[Exception]:
    """The base of all errors of the library that huggingface_hub makes its requests with."""
    from huggingface_hub.errors import HfHubHTTPError

    found: type[Exception] = HfHubHTTPError.__bases__[0]
    return found


@contextlib.contextmanager
def _clear_errors(name: str, done: str) -> Iterator[None]:
    """Turn what the hub answers into a UserError of one sentence."""
    from huggingface_hub import constants, errors

    try:
        yield
    except (errors.GatedRepoError, errors.RepositoryNotFoundError):
        raise UserError(
            f"'{name}' can't be {done}: there is no such repository on {constants.ENDPOINT}, or it is private. Check "
            "the name, and log in with `hf auth login` (or set HF_TOKEN)."
        ) from None
    except errors.RevisionNotFoundError:
        raise UserError(f"'{name}' on the hub has no such revision: give the name of a branch, or a commit.") from None
    except errors.LocalEntryNotFoundError:
        raise UserError(
            f"'{name}' can't be {done}: {constants.ENDPOINT} can't be reached, and it was not downloaded before. Check "
            "the network."
        ) from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in (401, 403):
            raise UserError(
                f"'{name}' can't be {done}: the hub refuses this token. Log in with `hf auth login` (or set HF_TOKEN) "
                "as somebody who may write there."
            ) from None
        raise UserError(f"'{name}' can't be {done}: {_first_line(error)}.") from None
    except UserError:
        raise
    except (errors.HFValidationError, OSError, ValueError, _http_error()) as error:
        raise UserError(
            f"'{name}' can't be {done}: {constants.ENDPOINT} did not answer as expected ({_first_line(error)}). Check "
            "the name and the network."
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's progress bars."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    before = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not before:
            enable_progress_bars()


class Pushable:
    """A model or kit that can be pushed."""

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool = False,
        revision: str | None = None,
        token: str | None = None,
        commit_message: str = "Upload with BERTVision",
        license: str | None = None,
        datasets: Sequence[str] = (),
    ) -> str:
        """Push to the Hugging Face hub, with a card; of a kit, the loaded tasks. Return the address of the commit."""
        settings = {"private": private, "revision": revision, "token": token, "message": commit_message}
        return self._push(repo_id, license, datasets, **settings)

    def _push(self, name: str, license: str | None, datasets: Sequence[str], **settings: Any) -> str:
        raise NotImplementedError
