"""The settings of a run as TOML that repeats it."""

import json
import re
from typing import Any

BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(config: dict[str, Any]) -> str:
    """Values first, then a section for each table; absent keys are left out, as TOML has no word for them."""
    plain = [
        f"{_key(key)} = {_value(value)}"
        for key, value in config.items()
        if not _is_section(value) and value is not None
    ]
    parts = ["\n".join(plain)] if plain else []
    for name, section in config.items():
        if _is_section(section):
            lines = [f"{_key(key)} = {_value(value)}" for key, value in section.items() if value is not None]
            if lines:
                parts.append("\n".join([f"[{_key(name)}]", *lines]))
    return "\n\n".join(parts) + "\n"


def _is_section(value: Any) -> bool:
    return isinstance(value, dict)


def _key(key: str) -> str:
    return key if BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value if item is not None) + "]"
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items() if item is not None)
        return "{ " + inner + " }" if inner else "{}"
    return repr(value)
