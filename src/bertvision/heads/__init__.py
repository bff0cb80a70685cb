"""Heads: the small things that train. Each lives in its own file of this package, which imports them all itself."""

import importlib
import pkgutil

from bertvision.heads.base import HEADS, Head, HeadConfig, Target, count_parameters
from bertvision.heads.members import (
    CONTROL,
    MemberConfig,
    build_head,
    build_members,
    find_mistakes,
    load_head,
    save_head,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "CONTROL", "HEADS", "Head", "HeadConfig", "MemberConfig", "Target",
    "build_head", "build_members", "count_parameters", "find_mistakes", "load_head", "save_head",
]  # fmt: skip
