"""Reading files that may be damaged, hostile or someone else's: a value of the right form, or one sentence.

facts = read_json(folder / "kit.json", KitFile)     None if there is no such file
tensors = load_tensors(folder / "head.safetensors")
"""

import errno
import json
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any, TypeVar, overload

from bertvision.disk.seals import unseal
from bertvision.errors import UserError

Form = TypeVar("Form")
MOST_MEGABYTES = 1024
"""Size of a JSON or TOML file that is read whole."""
TOO_DEEP, TOO_MANY_DIGITS = "it is nested too deeply", "it has a number with too many digits"
MOST_LETTERS = 200
"""Of the reason why a file is damaged."""
MOST_DIGITS = 300
"""Of a whole number in JSON. Every such number fits into a float."""
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""The escape of half a surrogate pair, which is no character by itself. Our files have none."""
OWNERS = {
    "model.json": "fit the model again",
    "kit.json": "build the kit again (`bertvision kit`)",
    "task.json": "run `bertvision run {folder}` to write it again",
    "environment.json": "run `bertvision run {folder}` to write it again",
}
"""A file that shows what a folder is, and how to make the folder's files again."""


class DamagedError(UserError):
    """A file is not what was written."""

    why: object = "its content is not what was written"


def damaged(path: Path, why: object) -> DamagedError:
    text = str(why)
    shown = text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS] + "…"  # it may repeat what is in the file
    error = DamagedError(f"{path} is damaged ({shown}): {repair_of(path)}")
    error.why = why
    return error


def repair_of(path: Path) -> str:
    """What to do about a damaged or missing file, by what the folder around it is."""
    beside = path.absolute().parent
    if path.name == "config.json" and (beside / "task.json").is_file() and not (beside / "model.json").is_file():
        return "restore it, or run `bertvision run` with the config file that it was made from to write it again."
    if path.name == "ensembles.json":
        return "restore it, or remove it and add the ensembles again (`bertvision ensemble`)."
    if path.name.startswith("study."):
        return "restore it, or remove it: the search then starts over."
    if "bertvision/kits/shipped/" in path.as_posix():
        return "install bertvision again."
    for folder in list(path.absolute().parents)[:7]:
        for name, advice in OWNERS.items():
            if os.path.isfile(folder / name):
                return f"restore it, or {advice.format(folder=folder)}."
    return "restore it, or write it again with the command that made it."


def read_bytes(path: Path, most_megabytes: float = MOST_MEGABYTES) -> bytes | None:
    """The bytes of a file; None if there is none."""
    try:
        facts = os.stat(path)
        if not stat.S_ISREG(facts.st_mode):
            return None
        size = facts.st_size / 1e6
        if size <= most_megabytes:
            return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a null character
        return None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            return None
        raise UserError(unreadable(path, error)) from None
    raise UserError(f"{path} has {size:,.0f} MB, but at most {most_megabytes:,.0f} are read of such a file.")


def unreadable(path: Path, error: OSError) -> str:
    reason = error.strerror or str(error)
    advice = "change its permissions, or copy it." if isinstance(error, PermissionError) else "check the disk."
    return f"{path} can't be read ({reason}): {advice}"


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Every mistake is a ValueError: also depth, and numbers of hundreds of digits."""
    try:
        return json.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text, parse_int=_whole_number)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def _whole_number(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(TOO_MANY_DIGITS)
    return int(digits)


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text. Every mistake is a ValueError."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except tomllib.TOMLDecodeError:
        raise
    except (ValueError, OverflowError):  # a number or a date that Python can't hold
        raise ValueError(TOO_MANY_DIGITS) from None


@overload
def read_json(path: Path) -> Any: ...
@overload
def read_json(path: Path, form: type[Form]) -> Form | None: ...
def read_json(path: Path, form: Any = None) -> Any:
    """The value in a JSON file of ours; None if there is no such file. Its checksum, if it has one, and its form are
    checked."""
    data = read_bytes(path)
    if data is None:
        return None
    try:
        value = unseal(parse_json(data), data)
        if _HALF.search(data):
            json.dumps(value, ensure_ascii=False).encode()  # raises ValueError if one is not followed by the other half
        return value if form is None else as_form(value, form)
    except ValueError as error:
        raise damaged(path, error) from None


def as_form(value: Any, form: type[Form]) -> Form:
    """The value, if it has the form of an annotated type (TypedDict, dataclass, list …). Else raise ValueError, which
    names the place and what was expected there."""
    import msgspec

    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        raise ValueError(_plainly(str(error))) from None


def _plainly(text: str) -> str:
    """An error of msgspec as the rest of a sentence: `$.tasks[...].head` becomes tasks[...].head."""
    what, _, place = text.partition(" - at ")
    what = what[:1].lower() + what[1:]
    place = place.strip("`").removeprefix("$").removeprefix(".")
    return f"{place}: {what}" if place else what


def load_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes in a safetensors file, by name. Only its header is read."""
    from safetensors import safe_open

    def shapes(path: Path) -> dict[str, tuple[int, ...]]:
        with safe_open(path, framework="np") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118

    return _load(path, shapes)


def load_tensors(path: Path) -> dict[str, Any]:
    """The torch tensors of a safetensors file."""
    from safetensors.torch import load_file

    return _load(path, load_file)


def load_arrays(path: Path) -> dict[str, Any]:
    """The numpy arrays of a safetensors file."""
    from safetensors.numpy import load_file

    return _load(path, load_file)


def _load(path: Path, load: Any) -> dict[str, Any]:
    try:
        with path.open("rb"):
            pass  # safetensors reports every failure to open a file as "no such file"
        found: dict[str, Any] = load(path)
        return found
    except OSError as error:
        raise UserError(unreadable(path, error)) from None
    except Exception as error:  # SafetensorError, and what torch and numpy raise for sizes that don't fit
        raise damaged(path, error) from None
