"""Heads: the small things that train. Each lives in its own file of this package, which imports them all itself."""

import importlib
import pkgutil

from bertvision.heads.base import HEADS, Head, HeadConfig, ReadConfig, Target, count_parameters
from bertvision.heads.members import CONTROL, MemberConfig, build_members, find_mistakes, list_presets
from bertvision.heads.saved import build_head, load_head, outline_head, save_head

for _module in pkgutil.iter_modules(__path__):
    if _module.name.startswith("_"):
        continue  # needs what is not everywhere; imported where it is used
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "CONTROL", "HEADS", "Head", "HeadConfig", "MemberConfig", "ReadConfig", "Target",
    "build_head", "build_members", "count_parameters", "find_mistakes", "list_presets", "load_head", "outline_head",
    "save_head",
]  # fmt: skip
