"""How an encoder was made to be read: sentence encoders come with a file that says how their tokens are pooled.

    read_as_made("embedded") → "mean"        "cls" and "max" are possible too; None: it does not say

The file is 1_Pooling/config.json beside the weights; modules.json may name another folder. Older versions of
sentence-transformers write one switch for each pooling, newer ones a single `pooling_mode`.
"""

from functools import cache
from pathlib import Path
from typing import Any, Literal, TypedDict

from transformers.utils.hub import cached_file

from bertvision.disk import as_form, parse_json, read_bytes, why_not_plain
from bertvision.disk.forms import Facts
from bertvision.encoder.loading import KNOWN_CONFIGS, describe_encoder, find_folder, only_here
from bertvision.errors import UserError

MODULES, POOLING = "modules.json", "1_Pooling"
Reading = Literal["mean", "cls", "max"]
MODES: dict[str, Reading] = {"mean": "mean", "cls": "cls", "max": "max"}
SWITCHES: dict[str, Reading] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
SWITCH, MODE = "pooling_mode_", "pooling_mode"
UNKNOWN: tuple[Reading, ...] = ("cls", "mean")
"""Ways that are both tried for an encoder that does not say how it was made to be read."""


class Module(TypedDict, total=False):
    """An entry of modules.json."""

    type: str
    path: str


def ways_to_read(name: str) -> tuple[Reading, ...]:
    """The ways to read an encoder where the user sets none: the way it was made for, or both common ones."""
    made = read_as_made(name)
    return UNKNOWN if made is None else (made,)


def read_as_made(name: str) -> Reading | None:
    """The pooling that an encoder was made for: "mean", "cls" or "max". None if it does not say, or if it was made for
    something else, such as a weighted mean or several poolings side by side."""
    pooling = _read(name, f"{_pooling_folder(name)}/config.json", Facts)
    if pooling is None:
        return None
    if MODE in pooling:
        return MODES.get(str(pooling[MODE]))
    on = [key for key, value in pooling.items() if key.startswith(SWITCH) and value is True]
    return SWITCHES.get(on[0]) if len(on) == 1 else None


def _pooling_folder(name: str) -> str:
    """The folder that modules.json names for the pooling, inside the encoder's own."""
    for module in _read(name, MODULES, list[Module]) or []:
        if module.get("type", "").endswith(".Pooling"):
            folder = module.get("path") or POOLING
            return POOLING if any(map(why_not_plain, folder.split("/"))) else folder
    return POOLING


def _read(name: str, file: str, form: Any) -> Any:
    """The contents of one of the encoder's JSON files; None if there is no such file, or no way to look for it."""
    path = _find(name, file)
    if path is None:
        return None
    try:
        return as_form(parse_json(read_bytes(path) or b""), form)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(_damaged(name, file, str(error))) from None


def _damaged(name: str, file: str, why: str) -> str:
    return (
        f"{describe_encoder(name)}: {file}, which says how the encoder is read, is damaged ({why}): copy or download "
        "it again."
    )


def _find(name: str, file: str) -> Path | None:
    """The file in the encoder's folder or, for a hub name, in the cache or on the hub."""
    folder = find_folder(name)
    if folder is not None:
        return folder / file if (folder / file).is_file() else None
    is_googles = name.removeprefix("google-bert/") in KNOWN_CONFIGS  # they do not say
    return None if is_googles else _find_on_hub(name, file)


@cache
def _find_on_hub(name: str, file: str) -> Path | None:
    """Look once per process: each look asks the hub."""
    try:
        found = cached_file(
            name,
            file,
            local_files_only=only_here(name),
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    except OSError:  # no such encoder, which loading it reports
        return None
    return Path(found) if found is not None else None
