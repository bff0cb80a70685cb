"""Write the settings of a run as TOML from which the run can be repeated."""

import json
import re
from typing import Any

BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(config: dict[str, Any]) -> str:
    """Plain values first, then a section for each table. Keys set to None are left out, because TOML has no null."""
    sections = {name: value for name, value in config.items() if isinstance(value, dict)}
    parts = ["\n".join(_lines({key: value for key, value in config.items() if key not in sections}))]
    for name, section in sections.items():
        if lines := _lines(section):
            parts.append("\n".join([f"[{_key(name)}]", *lines]))
    return "\n\n".join(filter(None, parts)) + "\n"


def _lines(values: dict[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(value)}" for key, value in values.items() if value is not None]


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
        inner = ", ".join(_lines(value))
        return "{ " + inner + " }" if inner else "{}"
    return repr(value)
