"""Heads: the small models that train on hidden states. Each has its own file; this package imports all of them."""

import importlib
import pkgutil

from bertvision.heads.base import (
    CONTROL,
    CONTROLS,
    CONVEX_CONTROL,
    HEADS,
    Head,
    HeadConfig,
    HeadFile,
    MemberConfig,
    ReadConfig,
    Target,
    build_head,
    count_parameters,
    default_reads,
    find_preset,
    find_read,
    list_presets,
    load_head,
    outline_head,
    read_head_file,
    save_head,
    setting_types,
)

for _module in pkgutil.iter_modules(__path__):
    if _module.name.startswith("_"):
        continue  # needs an optional dependency; imported where it is used
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "CONTROL", "CONTROLS", "CONVEX_CONTROL", "HEADS", "Head", "HeadConfig", "HeadFile", "MemberConfig", "ReadConfig",
    "Target", "build_head", "count_parameters", "default_reads", "find_preset", "find_read", "list_presets",
    "load_head", "outline_head", "read_head_file", "save_head", "setting_types",
]  # fmt: skip
