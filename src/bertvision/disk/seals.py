"""Checksums of files, and JSON that ends with its own."""

import hashlib
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

SEAL, LINE_SEAL = "sha256", "crc32"
DIGITS = 16
"""Hexadecimal digits of a SHA-256 that are kept."""
_known: dict[tuple[Any, ...], str] = {}


def render(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def seal(value: dict[str, Any], text_of: Callable[[Any], str] = render) -> str:
    """The value as JSON, with a checksum of that JSON as its last entry."""
    return text_of({**value, SEAL: digest(text_of(value).encode("utf-8", "backslashreplace"))})


def unseal(value: Any, data: bytes, text_of: Callable[[Any], str] = render) -> Any:
    """The value that was parsed from sealed JSON, without its checksum. Raise ValueError if any byte has changed.
    Values without a checksum are returned as they are."""
    if not isinstance(value, dict) or not _is_almost(next(reversed(value), ""), SEAL):
        return value
    content = {key: item for key, item in value.items() if key != SEAL}
    if seal(content, text_of).encode("utf-8", "backslashreplace") != data:
        raise ValueError("its checksum is wrong")
    return content


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]


def digest_of(path: Path) -> str:
    """The checksum of a file. It is kept in memory until the file changes."""
    facts = os.stat(path)
    key = str(path.absolute()), facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino
    if key not in _known:
        with path.open("rb") as file:
            _known[key] = hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]
    return _known[key]


def seal_line(line: str) -> str:
    """A JSON object in a line, with a checksum of it as its last entry."""
    return f'{line[:-1]}, "{LINE_SEAL}": "{zlib.crc32(line.encode("utf-8", "surrogatepass")):08x}"}}'


def unseal_line(line: bytes) -> dict[str, Any] | None:
    """The object in a line, without its checksum; None if the line is damaged or cut off. Lines without a checksum are
    of earlier versions."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    if not any(_is_almost(key, LINE_SEAL) for key in value):
        return value
    found = value.pop(LINE_SEAL, None)
    text = line[: line.rfind(b', "')] + b"}"
    return value if found == f"{zlib.crc32(text):08x}" else None


def _is_almost(key: str, name: str) -> bool:
    """Whether at most one letter differs: a damaged name of a checksum is not a missing one."""
    return len(key) == len(name) and sum(one != other for one, other in zip(key, name, strict=True)) <= 1
